"""Writing segments: order of the files, where one ends and the next begins, and what a second run does."""

from itertools import pairwise

import pytest
from xxhash import xxh3_128

from tests.storage.segments.segment_bench import DIRECTORY, NOW_MS, body, live_seqs, stem, write
from topics.formats import segment, segment_index
from topics.formats.snapshot import SegmentState
from topics.storage.segments.cache import load_tags
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import FLUSH_BYTES, SegmentAppender, SegmentLimits, flag_deleted
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def read_back(disk: FakeDisk, state: SegmentState) -> list[int]:
    reader = SegmentReader(FileSource(disk, stem(state.first_seq)), state)
    segment_index.check(
        disk.read(f"{stem(state.first_seq)}.idx"), entry_count=state.entry_count, data_bytes=state.data_bytes
    )
    return live_seqs(reader)


def test_a_segment_starts_at_its_first_record_and_knows_its_numbers(disk: FakeDisk) -> None:
    (state,) = write(disk, [5, 6, 7], tags={6: "red"})
    assert (state.first_seq, state.last_seq, state.entry_count) == (5, 7, 3)
    assert (state.live_count, state.live_bytes, state.tagged_count) == (3, 60, 1)
    assert (state.first_ts, state.last_ts, state.created_ts) == (1005, 1007, NOW_MS)
    assert state.data_bytes == disk.size(f"{stem(5)}.data")
    assert not state.sealed
    assert read_back(disk, state) == [5, 6, 7]


def test_the_next_run_appends_to_the_active_segment(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 2])
    (again,) = write(disk, [3, 4], active=state)
    assert again.first_seq == 1
    assert read_back(disk, again) == [1, 2, 3, 4]


def test_seqs_without_a_record_are_holes_inside_a_segment(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 4, 9])
    assert (state.entry_count, state.live_count) == (9, 3)
    assert read_back(disk, state) == [1, 4, 9]


def test_a_segment_rolls_by_count_holes_included(disk: FakeDisk) -> None:
    states = write(disk, [1, 2, 3, 7, 8], limits=SegmentLimits(4, 1 << 20, 0))
    assert [(state.first_seq, state.last_seq, state.sealed) for state in states] == [(1, 3, True), (7, 8, False)]
    assert [read_back(disk, state) for state in states] == [[1, 2, 3], [7, 8]]


def test_a_segment_rolls_by_bytes_and_a_record_over_the_limit_gets_one_of_its_own(disk: FakeDisk) -> None:
    appender = SegmentAppender(disk, DIRECTORY, None, SegmentLimits(1000, 280, 0), NOW_MS)
    for seq, size in enumerate((50, 50, 50, 900, 50), 1):
        appender.add_bodies([body(seq, size=size)])
    appender.finish()
    spans = [(state.first_seq, state.last_seq, state.sealed) for state in appender.touched]
    assert spans == [(1, 2, True), (3, 3, True), (4, 4, True), (5, 5, False)]
    assert [read_back(disk, state) for state in appender.touched] == [[1, 2], [3], [4], [5]]


def test_a_segment_is_sealed_by_age_at_the_end_of_a_run(disk: FakeDisk) -> None:
    (state,) = write(disk, [1])
    appender = SegmentAppender(disk, DIRECTORY, state, SegmentLimits(1000, 1 << 20, 500), NOW_MS + 499)
    appender.add_bodies([body(2)])
    appender.finish()
    assert not state.sealed
    appender = SegmentAppender(disk, DIRECTORY, state, SegmentLimits(1000, 1 << 20, 500), NOW_MS + 500)
    appender.finish()
    assert state.sealed
    assert appender.touched == [state]


def test_a_segment_that_is_full_at_the_end_of_a_run_is_sealed_at_once(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 2, 3], limits=SegmentLimits(3, 1 << 20, 0))
    assert state.sealed


def test_nothing_written_touches_nothing(disk: FakeDisk) -> None:
    assert write(disk, []) == []
    assert disk.files() == {}


def test_a_seal_notes_the_digest_and_writes_the_tags(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 2, 3], limits=SegmentLimits(3, 1 << 20, 0), tags={1: "b", 3: "a"})
    digest = xxh3_128()
    data = disk.read(f"{stem(1)}.data")
    for found in segment.walk(data, 0, len(data)):
        digest.update(segment.frame_checksum(data[found.offset : found.end]))
    assert state.digest == digest.digest()
    assert state.tagged_count == 2
    sidecar = load_tags(disk, stem(1))
    assert sidecar is not None
    assert dict(sidecar) == {b"a": [3], b"b": [1]}


def test_without_tags_there_is_no_sidecar(disk: FakeDisk) -> None:
    write(disk, [1, 2, 3], limits=SegmentLimits(3, 1 << 20, 0))
    assert not disk.exists(f"{stem(1)}.tags")


def test_a_large_run_is_flushed_in_pieces(disk: FakeDisk) -> None:
    written: list[str] = []
    disk.on_operation = lambda operation, path: written.append(path) if operation == "pwrite" else None
    appender = SegmentAppender(disk, DIRECTORY, None, SegmentLimits(1000, 5 * FLUSH_BYTES, 0), NOW_MS)
    for seq in range(1, 21):
        appender.add_bodies([body(seq, size=FLUSH_BYTES // 8)])
    appender.finish()
    (state,) = appender.touched
    assert written.count(f"{stem(1)}.data") == 3
    assert read_back(disk, state) == list(range(1, 21))


def test_data_is_durable_before_the_index_is_touched(disk: FakeDisk) -> None:
    seen: list[tuple[str, str]] = []
    disk.makedirs(DIRECTORY)
    disk.on_operation = lambda operation, path: seen.append((operation, path.rpartition(".")[2]))
    write(disk, [1, 2])
    assert [(operation, name[-4:]) for operation, name in seen] == [
        ("create", "data"),
        ("pwrite", "data"),
        ("fsync", "data"),
        ("create", "idx"),
        ("pwrite", "idx"),
        ("fsync", "idx"),
        ("sync_dir", "pics"),
        ("sync_dir", "0001"),
    ]


def test_a_segment_and_its_name_are_durable_before_the_next_one_gets_a_file(disk: FakeDisk) -> None:
    """So a crash tears the last file of a topic only."""
    seen: list[tuple[str, str]] = []
    disk.makedirs(DIRECTORY)
    disk.on_operation = lambda operation, path: seen.append((operation, path))
    write(disk, list(range(1, 10)), limits=SegmentLimits(3, 1 << 20, 0))
    data = [stem(first_seq) + ".data" for first_seq in (1, 4, 7)]
    for path, following in pairwise(data):
        synced = seen.index(("fsync", path))
        named = seen.index(("sync_dir", DIRECTORY), synced)
        assert named < seen.index(("create", following))


def test_no_order_of_calls_breaks_the_rules_of_the_file_system(disk: FakeDisk) -> None:
    monitor = MonitorFs(disk)
    appender = SegmentAppender(monitor, DIRECTORY, None, SegmentLimits(3, 1 << 20, 0), NOW_MS)
    for seq in range(1, 12):
        appender.add_bodies([body(seq, tag="red" if seq % 2 else None)])
    appender.finish()
    monitor.require_synced(DIRECTORY)
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_a_run_that_was_cut_short_anywhere_is_simply_run_again(disk: FakeDisk) -> None:
    """From the same state, with the same result, byte by byte."""
    limits = SegmentLimits(4, 1 << 20, 0)
    (before,) = write(disk, [1, 2])
    noted = (before.entry_count, before.data_bytes)
    whole = disk.clone()
    seqs = list(range(3, 14))
    wanted = write(whole, seqs, active=copy(before), limits=limits, tags={4: "red"})
    for damage in (Damage.DROP, Damage.KEEP, Damage.TORN):
        point = 0
        while True:
            machine = disk.clone()
            machine.on_operation = hook = CrashAt(point)
            try:
                write(machine, seqs, active=copy(before), limits=limits, tags={4: "red"})
            except CrashNow:
                pass
            machine.on_operation = None
            machine.crash(damage, point)
            states = write(machine, seqs, active=copy(before), limits=limits, tags={4: "red"})
            assert states == wanted
            assert {path: data for path, data in machine.files().items() if not path.endswith(".tmp")} == whole.files()
            if hook.count <= point:
                break
            point += 1
        assert point > 20
    assert (before.entry_count, before.data_bytes) == noted


def copy(state: SegmentState) -> SegmentState:
    return SegmentState(**{name: getattr(state, name) for name in SegmentState.__struct_fields__})


def test_setting_delete_bytes_twice_is_as_good_as_once(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 2, 3])
    reader = SegmentReader(FileSource(disk, stem(1)), state)
    for _ in range(2):
        flag_deleted(disk, stem(1), reader.positions([2]))
        assert live_seqs(reader) == [1, 3]
    disk.crash(Damage.DROP)
    assert read_back(disk, state) == [1, 3]
