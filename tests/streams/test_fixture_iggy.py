"""A data directory that an Apache Iggy 0.8.0 server wrote: read to the byte, written to, and read again."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from xxhash import xxh3_64_intdigest

from tests.streams.system_world import batch
from topics.formats.message import read_headers, starts_of
from topics.formats.message_index import decode_entries, make_entries
from topics.formats.state_entry import encode_iggy_entry, scan_iggy
from topics.formats.stream_layout import BodyOrder, Flavour
from topics.storage.fs import RealFs
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.batch import NewMessage, encode_send, prepare
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.running.consuming import StoredOffset
from topics.streams.system import Sent, System
from topics.testing.clock import ManualClock

FIRST: Final = PollingStrategy.first()
EVENTS: Final = ("orders", "events")
SEGMENTS: Final = ("0/topics/0/partitions/0", "0/topics/0/partitions/1", "0/topics/1/partitions/0")


@pytest.fixture
def directory(shared_fixtures: Path, tmp_path: Path) -> Path:
    source = shared_fixtures / "iggy-0.8.0"
    if not source.is_dir():
        pytest.skip("the directory of another server is missing: no folder iggy-0.8.0 in ../shared/fixtures")
    target = tmp_path / "data"
    shutil.copytree(source, target)
    # The files of the fixture are read-only; the copy must be writable.
    for path in [target, *target.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target


@pytest.fixture
def system(directory: Path) -> Iterator[System]:
    # Later than all times that the server wrote.
    opened = open_at(directory)
    yield opened
    opened.close()


def open_at(directory: Path) -> System:
    return System.open(RealFs(), str(directory), clock=ManualClock(now_ms=4_000_000_000_000))


def files_of(directory: Path) -> dict[str, bytes]:
    """The files that an Apache Iggy server knows."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] in ("state", "streams")
    }


def segment(directory: Path, key: str) -> tuple[bytes, bytes]:
    stem = directory / "streams" / key / f"{0:020d}"
    return stem.with_suffix(".log").read_bytes(), stem.with_suffix(".index").read_bytes()


def test_it_is_opened_for_what_it_is(system: System) -> None:
    assert system.flavour is Flavour.IGGY
    (stream,) = system.metadata.streams.ascending()
    assert (stream.id, stream.name) == (0, "orders")
    assert [(topic.id, topic.name, len(topic.partitions)) for topic in stream.topics.ascending()] == [
        (0, "events", 2),
        (1, "audit", 1),
    ]
    assert system.accounts.login("iggy", "iggy").id == 0


def test_every_message_is_read_with_its_offset(system: System) -> None:
    for partition_id in range(2):
        polled = system.poll(*EVENTS, Consumer(1), FIRST, 1000, partition_id=partition_id)
        assert [message.offset for message in polled] == list(range(40))
        assert polled.current_offset == 39
    (audit,) = system.poll("orders", "audit", Consumer(1), FIRST, 1000)
    assert audit.offset == 0
    states = [system.topic_state("orders", topic) for topic in ("events", "audit")]
    assert [state.messages_count for state in states] == [80, 1]


def test_a_stored_offset_is_found_and_gone_on_from(system: System) -> None:
    assert system.get_offset(*EVENTS, Consumer(0), partition_id=1) == StoredOffset(1, 39, 6)
    assert system.get_offset(*EVENTS, Consumer(0), partition_id=0) is None
    polled = system.poll(*EVENTS, Consumer(0), PollingStrategy.next(), 2, partition_id=1)
    assert [message.offset for message in polled] == [7, 8]


def test_polled_bytes_are_the_stored_bytes(directory: Path, system: System) -> None:
    """The flavour stores messages in wire form, so a poll changes no byte."""
    log, _ = segment(directory, SEGMENTS[0])
    polled = system.poll(*EVENTS, Consumer(1), FIRST, 1000, partition_id=0)
    assert b"".join(message.to_bytes() for message in polled) == log
    for message in polled:
        assert xxh3_64_intdigest(message.to_bytes()[8:]) == message.checksum


def test_opening_and_closing_changes_no_byte(directory: Path) -> None:
    before = files_of(directory)
    for _ in range(2):
        open_at(directory).close()
    assert files_of(directory) == before


def test_the_state_log_is_encoded_again_byte_for_byte(directory: Path) -> None:
    data = (directory / "state" / "log").read_bytes()
    entries = [scanned.entry for scanned in scan_iggy(data, None)]
    assert len(entries) >= 4, "a user, a stream, and two topics"
    assert b"".join(encode_iggy_entry(entry, None) for entry in entries) == data


@pytest.mark.parametrize("key", SEGMENTS)
def test_segments_are_encoded_again_byte_for_byte(directory: Path, key: str) -> None:
    """Each message goes through the path of a send, with the same offsets and times."""
    log, index = segment(directory, key)
    entries = decode_entries(index)
    ends = entries["position"].astype("int64")
    headers = read_headers(log, starts_of(ends))
    assert make_entries(0, ends, headers["timestamp"]).tobytes() == index
    encoded = b""
    for start, end, header in zip(starts_of(ends).tolist(), ends.tolist(), headers, strict=True):
        body = start + 64
        payload_end = body + int(header["payload_length"])
        incoming = encode_send(
            [
                NewMessage(
                    log[body:payload_end],
                    int.from_bytes(log[start + 8 : start + 24], "little"),
                    log[payload_end:end] or None,
                    int(header["origin_timestamp"]),
                )
            ]
        )
        stored = prepare(incoming, order=BodyOrder.PAYLOAD_FIRST).stamp(int(header["offset"]), int(header["timestamp"]))
        encoded += bytes(stored.buffer)
    assert encoded == log


def test_it_is_written_to_and_read_again(directory: Path) -> None:
    before = {key: segment(directory, key) for key in SEGMENTS}
    system = open_at(directory)
    sent = system.send(*EVENTS, batch(b"ours", b"too"), PartitionId(1))
    assert sent == Sent(1, 40, 2)
    system.store_offset(*EVENTS, Consumer(0), 41, partition_id=1)
    system.create_topic("orders", "more", partitions_count=1)
    system.send("orders", "more", batch(b"new"))
    system.create_group(*EVENTS, "group")
    system.close()
    log, index = segment(directory, SEGMENTS[1])
    assert log.startswith(before[SEGMENTS[1]][0])
    assert index.startswith(before[SEGMENTS[1]][1])
    assert len(index) == 42 * 16
    assert segment(directory, SEGMENTS[0]) == before[SEGMENTS[0]]
    offset = directory / "streams" / SEGMENTS[1] / "offsets" / "consumers" / "0"
    assert offset.read_bytes() == (41).to_bytes(8, "little")
    system = open_at(directory)
    polled = system.poll(*EVENTS, Consumer(1), PollingStrategy.last(), 3, partition_id=1)
    assert [(message.offset, bytes(message.payload)) for message in polled][1:] == [(40, b"ours"), (41, b"too")]
    assert len(system.poll(*EVENTS, Consumer(1), FIRST, 1000, partition_id=1)) == 42
    assert system.topic_state("orders", "more").messages_count == 1
    assert system.metadata.resolve_group(*EVENTS, "group").id == 0
    assert system.get_offset(*EVENTS, Consumer(0), partition_id=1) == StoredOffset(1, 41, 41)
    system.close()


def test_an_index_of_it_that_is_lost_is_made_again_byte_for_byte(directory: Path) -> None:
    before = files_of(directory)
    for path in directory.rglob("*.index"):
        path.unlink()
    open_at(directory).close()
    assert files_of(directory) == before
