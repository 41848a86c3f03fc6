"""Manifests and frames: a reader of the named files gets exactly the records that a reader of the log gets."""

from itertools import pairwise

import pytest

from tests.engine.small_log import SEGMENT_EVENTS, SmallLog, segment_names
from topics.engine.manifest import FRAMES_BYTES_MAX, encode_frames, frames_bounds, take_manifest
from topics.engine.pins import PIN_MS_MAX
from topics.errors import TopicNotFound
from topics.formats import segment as codec
from topics.storage.fs import read_file
from topics.testing.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def log(disk: FakeDisk) -> SmallLog:
    return SmallLog(disk)


def checkpoint(log: SmallLog) -> None:
    errors: list[Exception | None] = []
    log.checkpointer.start(errors.append)
    assert errors == [None]


def seqs_of(data: bytes) -> list[int]:
    return [frame.seq for frame in codec.walk(data, 0, len(data)) if not frame.deleted]


def frames(log: SmallLog, from_seq: int = 0, to_seq: int | None = None, max_bytes: int = 0) -> tuple[list[int], int]:
    page = log.topic().read(from_seq, *frames_bounds(max_bytes), None)
    data, next_seq = encode_frames(page, to_seq)
    return seqs_of(data), next_seq


def read_by_manifest(log: SmallLog) -> list[int]:
    """Reads the files in the way of a program that has only the manifest."""
    manifest = take_manifest(log.engine, "a")
    hidden = {seq for first, last in manifest["pending_deletes"] for seq in range(first, last + 1)}
    floor = max(manifest["evict_floor"], manifest["delete_below"])
    found: list[int] = []
    for segment in manifest["segments"]:
        data = read_file(log.fs, segment["uri"].removeprefix("file://"))[: segment["data_len"]]
        found += [seq for seq in seqs_of(data) if seq >= floor and seq not in hidden]
    tail, _ = frames(log, manifest["checkpointed_seq"])
    return found + tail


def test_segments_lie_side_by_side_and_end_at_the_checkpoint(log: SmallLog) -> None:
    log.append(count=2 * SEGMENT_EVENTS + 1)
    checkpoint(log)
    log.append(count=3)
    manifest = take_manifest(log.engine, "a")
    places = [(segment["first_seq"], segment["last_seq"]) for segment in manifest["segments"]]
    assert places[0][0] == 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(places))
    assert places[-1][1] == manifest["checkpointed_seq"] == 2 * SEGMENT_EVENTS + 1
    assert manifest["head_seq"] == manifest["checkpointed_seq"] + 3
    sealed = [segment for segment in manifest["segments"] if segment["sealed"]]
    assert sealed
    assert all(len(segment["digest"]) == 32 for segment in sealed)
    assert read_by_manifest(log) == log.seqs()


def test_what_is_hidden_is_named(log: SmallLog) -> None:
    log.create("a", cap_records=3 * SEGMENT_EVENTS)
    log.append(count=2 * SEGMENT_EVENTS, tag="x")
    log.append(count=SEGMENT_EVENTS, tag="y")
    checkpoint(log)
    log.delete(before_seq=3)
    log.delete(tag="y")
    log.append(count=SEGMENT_EVENTS)
    manifest = take_manifest(log.engine, "a")
    assert manifest["pending_deletes"]
    assert manifest["evict_floor"] > 1
    assert read_by_manifest(log) == log.seqs()
    checkpoint(log)
    assert read_by_manifest(log) == log.seqs()


def test_only_segments_that_can_hold_what_is_asked_for_are_listed(log: SmallLog) -> None:
    for _ in range(4):
        log.append(count=SEGMENT_EVENTS)
        checkpoint(log)
        log.clock.advance(1000)
    every = take_manifest(log.engine, "a")["segments"]
    assert len(every) >= 3
    second = every[1]
    by_seq = take_manifest(log.engine, "a", from_seq=second["first_seq"], to_seq=second["last_seq"])["segments"]
    assert by_seq == [second]
    by_time = take_manifest(log.engine, "a", from_ts=second["min_ts"], to_ts=second["max_ts"] + 1)["segments"]
    assert by_time == [second]


def test_a_pinned_segment_stays_though_its_records_are_gone(disk: FakeDisk, log: SmallLog) -> None:
    log.append(count=SEGMENT_EVENTS)
    checkpoint(log)
    pin = take_manifest(log.engine, "a", pin_ms=10 * PIN_MS_MAX)["pin"]
    assert pin is not None
    log.delete(before_seq=SEGMENT_EVENTS + 1)
    for _ in range(4):
        log.append()
        checkpoint(log)
    assert 1 in segment_names(disk)
    assert take_manifest(log.engine, "a")["segments"][0]["first_seq"] > 1
    log.clock.advance(PIN_MS_MAX)
    for _ in range(3):
        log.append()
        checkpoint(log)
    assert 1 not in segment_names(disk)


def test_what_a_sync_has_not_reached_is_not_durable(log: SmallLog) -> None:
    log.create("a", durability="disk")
    log.append(count=2)
    shard = log.topic().shard
    assert take_manifest(log.engine, "a")["durable_seq"] == (2 if shard.is_synced else 0)
    shard.sync()
    assert take_manifest(log.engine, "a")["durable_seq"] == 2
    log.create("b", durability="fsync")
    log.append("b")
    assert take_manifest(log.engine, "b")["durable_seq"] == 1


def test_frames_are_those_of_segments_from_memory_and_from_files(disk: FakeDisk) -> None:
    log = SmallLog(disk, tail_cache_bytes=0)
    log.append(count=SEGMENT_EVENTS, tag="t", node="n", meta={"m": 1})
    page = log.topic().read(0, *frames_bounds(0), None)
    from_memory, _ = encode_frames(page)
    checkpoint(log)
    log.close()
    again = SmallLog(disk, tail_cache_bytes=0)
    page = again.topic().read(0, *frames_bounds(0), None)
    from_files, next_seq = encode_frames(page)
    assert from_files == from_memory == read_file(disk, "/data/topics/00000001/seg-0000000000000001.data")
    assert next_seq == SEGMENT_EVENTS


def test_frames_end_where_they_are_told_to(log: SmallLog) -> None:
    log.append(count=10)
    assert frames(log, 2, 5) == ([3, 4, 5], 5)
    assert frames(log, 5, 5) == ([], 5)
    found, next_seq = frames(log, 0, None, max_bytes=1)
    assert found == [1]
    assert next_seq == 1
    assert frames_bounds(1 << 40)[1] == FRAMES_BYTES_MAX


def test_a_topic_that_is_not_there_has_no_manifest(log: SmallLog) -> None:
    with pytest.raises(TopicNotFound):
        take_manifest(log.engine, "nowhere")
