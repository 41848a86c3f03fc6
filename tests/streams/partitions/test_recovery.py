"""The recovery of a partition: each rule of `recovery.py`, then sweeps over crashes and failing calls."""

import errno
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from tests.conftest import FULL, SEED, sampled_range
from tests.streams.partitions.partition_world import (
    DURABLE,
    EAGER,
    FIRST_INDEX,
    FIRST_LOG,
    ROOT,
    World,
    new_pool,
    offsets,
    payloads,
    poll_one,
)
from topics.formats.message import ID_AT, RESERVED_AT, encode_message
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, decode_entries
from topics.formats.stream_layout import BodyOrder
from topics.storage.fs import RealFs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.partition import Partition, PartitionOptions
from topics.streams.partitions.recovery import WRONG_ENTRIES_MAX, recover
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk

UNREADABLE = (
    StreamStatus.INVALID_MESSAGE_CHECKSUM,
    StreamStatus.INVALID_OFFSET,
    StreamStatus.CANNOT_READ_INDEX_POSITION,
)


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sweeps recover thousands of times; the warnings of each start would hide the failure."""
    if "caplog" not in request.fixturenames:
        logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def text(number: int) -> bytes:
    return b"message %02d" % number


def filled(count: int = 6, **changes: Any) -> World:
    """A partition that was closed cleanly, with one message per batch."""
    world = World(EAGER)
    world.open(**changes)
    for number in range(count):
        world.send(text(number))
        world.clock.advance(1)
    world.partition.close()
    return world


SIZE = 64 + len(text(0))


def expect_whole(world: World, count: int) -> None:
    """Polls all messages in each way, and appends the next one."""
    expected = [(number, text(number)) for number in range(count)]
    assert world.all() == expected
    partition = world.partition
    for number in range(count):
        assert payloads(partition.reader.poll_offset(number, 1)) == [text(number)]
        start_us = ManualClock().now_ms() * 1000 + number * 1000
        assert offsets(partition.reader.poll_timestamp(start_us, 1)) == [number]
    assert world.send(b"next").first_offset == count
    world.restart()
    assert world.all() == [*expected, (count, b"next")]


def rewrite_index(world: World, change: Callable[[bytes], bytes]) -> None:
    world.disk.replace(FIRST_INDEX, change(world.disk.read(FIRST_INDEX)))


# The rules.


@pytest.mark.parametrize("mode", ["all", "open_segment", "none"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:-5], id="ends inside an entry"),
        pytest.param(lambda data: data + b"\1\2\3", id="a rest behind the last entry"),
        pytest.param(lambda data: data[:32], id="shorter than the log"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data + data, id="doubled"),
        pytest.param(lambda data: data[:48] + data[16:], id="entries twice in the middle"),
        pytest.param(lambda data: data + bytes(160), id="zeros at the end"),
        pytest.param(lambda data: bytes(len(data)), id="nothing but zeros"),
        pytest.param(
            lambda data: data + b"\6\0\0\0" + (7 * SIZE).to_bytes(4, "little") + data[-8:], id="ahead of the log"
        ),
        pytest.param(lambda data: data[16:32] + data[:16] + data[32:], id="out of order"),
        pytest.param(lambda data: bytes(range(96)), id="garbage"),
    ],
)
def test_an_index_is_brought_to_what_the_log_says(change: Callable[[bytes], bytes], mode: str) -> None:
    """Whatever happened to the index, no message of a healthy log is refused or lost."""
    world = filled(cache_indexes=mode)
    whole = world.disk.read(FIRST_INDEX)
    rewrite_index(world, change)
    world.open()
    assert world.disk.read(FIRST_INDEX) == whole
    expect_whole(world, 6)


def test_a_missing_index_is_made_again_exactly() -> None:
    """An entry has 16 bytes with the end of its message; offsets rise."""
    world = filled()
    whole = world.disk.read(FIRST_INDEX)
    world.disk.unlink(FIRST_INDEX)
    world.open()
    assert world.disk.read(FIRST_INDEX) == whole
    entries = decode_entries(whole)
    assert entries["offset"].tolist() == list(range(6))
    assert entries["position"].tolist() == [SIZE * (number + 1) for number in range(6)]
    expect_whole(world, 6)


def test_an_index_written_by_the_rebuild_of_0_8_0_is_made_again() -> None:
    """An Apache Iggy 0.8.0 server rebuilds entries of 24 bytes with the start of each message."""
    world = filled()
    whole = world.disk.read(FIRST_INDEX)
    wrong = b"".join(
        (number).to_bytes(8, "little") + (number * SIZE).to_bytes(8, "little") + (1).to_bytes(8, "little")
        for number in range(6)
    )
    rewrite_index(world, lambda data: wrong)
    world.open()
    assert world.disk.read(FIRST_INDEX) == whole
    expect_whole(world, 6)


def test_an_index_in_order_that_is_not_of_this_log_is_made_again() -> None:
    """Its positions rise and are within the log, and no message begins at any of them."""
    count = WRONG_ENTRIES_MAX + 100
    world = World(EAGER)
    world.open()
    world.send(*[b"%06d" % number for number in range(count)])
    world.partition.close()
    whole = world.disk.read(FIRST_INDEX)
    entries = decode_entries(bytearray(whole))
    entries["position"] -= 3
    rewrite_index(world, lambda data: entries.tobytes())
    world.open()
    assert world.disk.read(FIRST_INDEX) == whole
    assert world.partition.messages_count == count


@pytest.mark.parametrize("rest", [b"\0", b"x" * 63, bytes(64), bytes(1000), b"\xff" * 1000, b"message" * 100])
def test_what_is_behind_the_last_message_is_cut_off_the_last_segment(rest: bytes) -> None:
    """No bytes are left before the next message."""
    world = filled()
    log = world.disk.read(FIRST_LOG)
    world.disk.replace(FIRST_LOG, log + rest)
    world.open()
    assert world.disk.read(FIRST_LOG) == log
    assert world.disk.durable_files()[FIRST_LOG] == log
    expect_whole(world, 6)


def test_messages_without_an_entry_are_taken_in_if_they_are_the_next() -> None:
    world = filled()
    log = world.disk.read(FIRST_LOG)
    time = ManualClock().now_ms() * 1000 + 6000
    good = encode_message(text(6), offset=6, timestamp=time)
    skipping = encode_message(text(9), offset=9, timestamp=time)
    world.disk.replace(FIRST_LOG, log + good + skipping[:-1])
    world.open()
    assert world.disk.read(FIRST_LOG) == log + good
    expect_whole(world, 7)


def test_a_message_with_a_reserved_field_that_is_not_0_is_no_message() -> None:
    world = filled()
    message = bytearray(encode_message(text(6), offset=6, timestamp=1))
    message[RESERVED_AT] = 1
    message[:ID_AT] = xxh3_64_intdigest(message[ID_AT:]).to_bytes(8, "little")
    world.disk.replace(FIRST_LOG, world.disk.read(FIRST_LOG) + message)
    world.open()
    expect_whole(world, 6)


def test_an_index_that_outlived_its_messages_is_no_evidence_for_them() -> None:
    """A power loss may keep the size of the log and its index, and leave zeros for the last messages."""
    world = filled()
    log = world.disk.read(FIRST_LOG)
    world.disk.replace(FIRST_LOG, log[: 4 * SIZE + 10] + bytes(2 * SIZE - 10))
    world.open()
    assert world.disk.read(FIRST_LOG) == log[: 4 * SIZE]
    expect_whole(world, 4)


def test_an_earlier_segment_keeps_its_bytes_and_polls_jump_over_the_gap(caplog: pytest.LogCaptureFixture) -> None:
    world = filled(segment_size=3 * SIZE)
    log = world.disk.read(FIRST_LOG)
    world.disk.poke(FIRST_LOG, 2 * SIZE + 70, b"?")
    with caplog.at_level(logging.WARNING):
        world.open()
    assert len(world.disk.read(FIRST_LOG)) == len(log)
    assert world.all() == [(number, text(number)) for number in (0, 1, 3, 4, 5)]
    assert offsets(world.partition.reader.poll_offset(2, 1)) == [3]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"{FIRST_INDEX}: the messages of the last 1 entries are missing or damaged",
        f"{FIRST_LOG}: {SIZE} bytes after the last good message; left alone",
        f"{ROOT}: segment 3 begins where offset 2 is expected; polls continue after the gap",
    ]


def test_a_missing_segment_is_reported_and_polls_jump_over_it(caplog: pytest.LogCaptureFixture) -> None:
    world = filled(9, segment_size=3 * SIZE)
    world.disk.unlink(f"{ROOT}/{3:020d}.log")
    with caplog.at_level(logging.WARNING):
        world.open()
    assert f"{ROOT}: segment 6 begins where offset 3 is expected; polls continue after the gap" in caplog.messages
    assert offsets(world.partition.reader.poll_first(100)) == [0, 1, 2, 6, 7, 8]
    assert not world.disk.exists(f"{ROOT}/{3:020d}.index")
    assert world.send(b"next").first_offset == 9


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("at", [0, 8, 24, 48, 52, 56, 64, SIZE - 1])
def test_damage_in_the_middle_is_not_a_torn_tail(at: int, is_indexed: bool) -> None:
    """Messages after a bad one stay, with an index or without. Only the bad one cannot be read."""
    world = filled()
    world.disk.poke(FIRST_LOG, 2 * SIZE + at, bytes([world.disk.read(FIRST_LOG)[2 * SIZE + at] ^ 0x41]))
    if not is_indexed:
        world.disk.unlink(FIRST_INDEX)
    log = world.disk.read(FIRST_LOG)
    for _ in range(2):
        world.open()
        assert world.disk.read(FIRST_LOG) == log
        assert offsets(world.partition.reader.poll_offset(0, 2)) == [0, 1]
        with pytest.raises(StreamsError) as refused:
            world.partition.reader.poll_offset(2, 1)
        assert refused.value.number is StreamStatus.INVALID_MESSAGE_CHECKSUM
        assert payloads(world.partition.reader.poll_offset(3, 9)) == [text(3), text(4), text(5)]
        world.partition.close()


def test_several_messages_lost_in_a_row_keep_their_offsets_when_the_index_is_lost_too() -> None:
    world = filled(20)
    world.disk.poke(FIRST_LOG, 3 * SIZE + 5, bytes(10 * SIZE))
    world.disk.unlink(FIRST_INDEX)
    world.open()
    assert offsets(world.partition.reader.poll_first(3)) == [0, 1, 2]
    for offset in range(3, 14):
        with pytest.raises(StreamsError):
            world.partition.reader.poll_offset(offset, 1)
    assert payloads(world.partition.reader.poll_offset(14, 100)) == [text(number) for number in range(14, 20)]
    assert world.send(b"next").first_offset == 20


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_message_inside_a_payload_is_not_taken_for_one_that_follows(is_indexed: bool) -> None:
    """The payload of the torn message contains messages, and none of them is served."""
    inner = encode_message(b"inner", offset=7, timestamp=5)
    outer = encode_message(inner + b"more", offset=6, timestamp=5)
    world = filled()
    log = world.disk.read(FIRST_LOG)
    world.disk.replace(FIRST_LOG, log + outer[:-2])
    if not is_indexed:
        world.disk.unlink(FIRST_INDEX)
    world.open()
    expect_whole(world, 6)


def test_with_validation_a_bad_message_refuses_the_start_and_names_it() -> None:
    world = filled(segment_size=3 * SIZE)
    world.open(validate_checksum=True).close()
    world.disk.poke(FIRST_LOG, SIZE + 70, b"?")
    with pytest.raises(StreamsError) as refused:
        world.open(validate_checksum=True)
    assert refused.value.number is StreamStatus.CANNOT_READ_PARTITIONS
    assert refused.value.message == (
        f"{FIRST_LOG}: the message with offset 1 at {SIZE} is damaged; "
        "start without system.partition.validate_checksum to serve the other messages"
    )
    world.open(validate_checksum=False)
    assert offsets(world.partition.reader.poll_offset(2, 100)) == [2, 3, 4, 5]


def test_files_found_are_synced_once() -> None:
    """Messages in the page cache of a killed process are made durable before they are served."""
    world = World(EAGER)
    world.open(segment_size=3 * SIZE)
    for number in range(5):
        world.send(text(number))
    world.restart()
    assert world.disk.durable_files() == world.disk.files()
    world.disk.crash(Damage.DROP)
    world.forget_monitor()
    world.open()
    assert world.all() == [(number, text(number)) for number in range(5)]


@pytest.mark.parametrize("operation_index", range(5))
def test_what_a_killed_process_made_and_did_not_sync_is_synced_before_it_is_relied_on(operation_index: int) -> None:
    """The directory, its name, and the first pair of files."""
    world = World(EAGER)
    hook = CrashAt(operation_index)
    world.disk.on_operation = hook
    with pytest.raises(CrashNow):
        world.open()
    world.disk.on_operation = None
    world.restart()
    world.send(b"1")
    world.partition.flush(fsync=True)
    world.disk.crash(Damage.DROP)
    world.forget_monitor()
    world.open()
    assert world.all() == [(0, b"1")]


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one() -> None:
    world = filled()
    world.faults.fail("listdir", error=errno.EACCES)
    with pytest.raises(PermissionError):
        world.open()


def test_recovery_changes_nothing_the_second_time() -> None:
    world = filled(8, segment_size=3 * SIZE)
    rewrite_index(world, lambda data: data[:-4])
    last = f"{ROOT}/{6:020d}.log"
    world.disk.replace(last, world.disk.read(last) + b"garbage")
    first = recover(world.disk, ROOT, validate_checksum=False)
    files = world.disk.files()
    operations: list[str] = []
    world.disk.on_operation = lambda operation, path: operations.append(operation)
    assert recover(world.disk, ROOT, validate_checksum=False) == first
    assert set(operations) == {"fsync", "sync_dir"}
    assert world.disk.files() == files


# Every byte.


def test_a_log_cut_at_any_byte_keeps_the_messages_that_are_whole() -> None:
    world = filled(3)
    log = world.disk.read(FIRST_LOG)
    for size in sampled_range(len(log), 5):
        for keeps_index in (True, False):
            disk = world.disk.clone()
            disk.replace(FIRST_LOG, log[:size])
            if not keeps_index:
                disk.unlink(FIRST_INDEX)
            other = World(EAGER, disk)
            other.open()
            assert other.all() == [(number, text(number)) for number in range(size // SIZE)]
            assert other.send(b"next").first_offset == size // SIZE
            other.restart()
            assert other.all()[-1] == (size // SIZE, b"next")


def test_an_index_cut_at_any_byte_loses_nothing() -> None:
    world = filled(4)
    for size in range(4 * ENTRY_BYTES):
        other = World(EAGER, world.disk.clone())
        rewrite_index(other, lambda data, size=size: data[:size])  # type: ignore[misc]
        other.open()
        assert other.all() == [(number, text(number)) for number in range(4)]


def test_a_flipped_bit_anywhere_in_an_index_changes_nothing_or_is_an_error() -> None:
    """The index is rebuilt, or a poll fails. It never returns wrong data."""
    world = filled(4)
    for bit in sampled_range(4 * ENTRY_BYTES * 8, 3):
        other = World(EAGER, world.disk.clone())
        byte = other.disk.read(FIRST_INDEX)[bit // 8]
        other.disk.poke(FIRST_INDEX, bit // 8, bytes([byte ^ 1 << bit % 8]))
        other.open()
        expect_no_wrong_data(other, 4, may_be_bad=4)
        assert other.send(b"next").first_offset == 4


def test_a_flipped_bit_anywhere_in_a_log_spoils_one_message_at_most() -> None:
    world = filled(4)
    for bit in sampled_range(4 * SIZE * 8, 13):
        for keeps_index in (True, False):
            other = World(EAGER, world.disk.clone())
            byte = other.disk.read(FIRST_LOG)[bit // 8]
            other.disk.poke(FIRST_LOG, bit // 8, bytes([byte ^ 1 << bit % 8]))
            if not keeps_index:
                other.disk.unlink(FIRST_INDEX)
            other.open()
            bad = expect_no_wrong_data(other, 4, may_be_bad=1)
            assert bad == {bit // 8 // SIZE}


def expect_no_wrong_data(world: World, count: int, *, may_be_bad: int) -> set[int]:
    """Each message is as it was written, or an error, or lost from the end. Returns the unreadable ones."""
    bad = set()
    for offset in range(count):
        found = poll_one(world.partition, offset)
        if found is None:
            assert offset > world.partition.current_offset
            bad.add(offset)
        elif isinstance(found, StreamStatus):
            assert found in UNREADABLE
            bad.add(offset)
        else:
            assert found[:2] == (offset, text(offset))
    assert len(bad) <= may_be_bad
    return bad


# An earlier segment, after what its index covers.


# Two segments of six messages, and the last one with one message.
EARLIER = 6
COUNT = 13


def with_short_index(entries_kept: int, rest: bytes = b"") -> World:
    """The index of the first segment has lost its end, as by a power loss."""
    world = filled(COUNT, segment_size=EARLIER * SIZE)
    rewrite_index(world, lambda data: data[: entries_kept * ENTRY_BYTES] + rest)
    return world


INDEXES = pytest.mark.parametrize(
    ("entries_kept", "rest"), [(0, b""), (1, b""), (3, b""), (3, b"half an"), (1, bytes(16))]
)


def expect_after_damage(world: World, unreadable: set[int], lost: set[int]) -> None:
    """Starts twice. Unreadable messages keep their offsets; lost ones are a gap that polls jump over."""
    log = world.disk.read(FIRST_LOG)
    others = {path: content for path, content in world.disk.files().items() if "/00000000000000000000." not in path}
    entries = b""
    for _ in range(2):
        world.open()
        assert world.disk.read(FIRST_LOG) == log, "an earlier segment keeps its bytes"
        assert others.items() <= world.disk.files().items()
        assert world.disk.read(FIRST_INDEX) == (entries or world.disk.read(FIRST_INDEX)), "the second start is idle"
        entries = world.disk.read(FIRST_INDEX)
        assert len(entries) == (EARLIER - len(lost)) * ENTRY_BYTES
        good = [number for number in range(COUNT) if number not in unreadable | lost]
        for number in range(COUNT):
            following = next(each for each in (*good, COUNT) if each >= number)
            found = poll_one(world.partition, number)
            if number in unreadable:
                assert found in UNREADABLE
            else:
                assert isinstance(found, tuple)
                assert found[:2] == (following, text(following))
            time_us = ManualClock().now_ms() * 1000 + number * 1000
            assert offsets(world.partition.reader.poll_timestamp(time_us, 1)) == [following]
        after_bad = max(unreadable, default=-1) + 1
        polled = world.partition.reader.poll_offset(after_bad, 100)
        expected = [number for number in good if number >= after_bad]
        assert list(zip(offsets(polled), payloads(polled), strict=True)) == [(n, text(n)) for n in expected]
        world.partition.close()
    world.open()
    assert world.send(b"next").first_offset == COUNT


@INDEXES
def test_damage_after_the_index_of_an_earlier_segment_spoils_its_message_and_no_other(
    entries_kept: int, rest: bytes
) -> None:
    begin = entries_kept * SIZE
    for at in sampled_range(EARLIER * SIZE - begin, 13):
        world = with_short_index(entries_kept, rest)
        world.disk.poke(FIRST_LOG, begin + at, bytes([world.disk.read(FIRST_LOG)[begin + at] ^ 0x41]))
        damaged = (begin + at) // SIZE
        # Without a good message after it nothing tells that the last message of a segment was one.
        is_last = damaged == EARLIER - 1
        expect_after_damage(world, set() if is_last else {damaged}, {damaged} if is_last else set())


@INDEXES
def test_a_whole_message_of_another_place_after_the_index_of_an_earlier_segment_is_not_served(
    entries_kept: int, rest: bytes
) -> None:
    """Its checksum is right, and its offset is not the next one."""
    for place, unreadable, lost in ((4, {4}, set()), (5, set(), {5})):
        world = with_short_index(entries_kept, rest)
        world.disk.poke(FIRST_LOG, place * SIZE, encode_message(text(9), offset=9, timestamp=1))
        expect_after_damage(world, unreadable, lost)


@INDEXES
def test_an_earlier_segment_that_is_cut_after_its_index_loses_what_was_cut(entries_kept: int, rest: bytes) -> None:
    begin = entries_kept * SIZE
    for size in (begin + at for at in sampled_range(EARLIER * SIZE - begin, 13)):
        world = with_short_index(entries_kept, rest)
        world.disk.replace(FIRST_LOG, world.disk.read(FIRST_LOG)[:size])
        expect_after_damage(world, set(), set(range(size // SIZE, EARLIER)))


@pytest.mark.parametrize("entries_kept", [1, 3])
def test_damage_after_the_index_of_an_earlier_segment_is_told_with_its_range(
    entries_kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    middle, end = with_short_index(entries_kept), with_short_index(entries_kept)
    middle.disk.poke(FIRST_LOG, 3 * SIZE + 5, bytes(SIZE))
    end.disk.poke(FIRST_LOG, 4 * SIZE + 5, bytes(SIZE))
    for world, unreadable, lost, told in (
        (
            middle,
            {3, 4},
            set(),
            [
                f"{FIRST_LOG}: damaged between {3 * SIZE} and {5 * SIZE}: 2 messages from offset 3 on cannot be read",
                f"{FIRST_INDEX}: {6 - entries_kept} messages at the end of the log had no entry",
            ],
        ),
        (
            end,
            set(),
            {4, 5},
            [
                f"{FIRST_INDEX}: {4 - entries_kept} messages at the end of the log had no entry",
                f"{FIRST_LOG}: {2 * SIZE} bytes after the last good message; left alone",
                f"{ROOT}: segment 6 begins where offset 4 is expected; polls continue after the gap",
            ],
        ),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            expect_after_damage(world, unreadable, lost)
        assert [record.getMessage() for record in caplog.records][: len(told)] == told


def test_with_validation_damage_after_the_index_of_an_earlier_segment_refuses_the_start() -> None:
    world = with_short_index(2)
    world.disk.poke(FIRST_LOG, 3 * SIZE + 70, b"?")
    with pytest.raises(StreamsError, match=f"the message with offset 3 at {3 * SIZE} is damaged"):
        world.open(validate_checksum=True)


def test_damage_after_an_index_that_is_cut_itself_spoils_no_other_message_of_the_last_segment() -> None:
    """Only after a whole index a bad message may be the torn end of the last flush."""
    world = filled()
    rewrite_index(world, lambda data: data[: 2 * ENTRY_BYTES + 5])
    world.disk.poke(FIRST_LOG, 3 * SIZE + 70, b"?")
    world.open()
    assert offsets(world.partition.reader.poll_offset(0, 3)) == [0, 1, 2]
    assert poll_one(world.partition, 3) is StreamStatus.INVALID_MESSAGE_CHECKSUM
    assert payloads(world.partition.reader.poll_offset(4, 9)) == [text(4), text(5)]
    assert world.send(b"next").first_offset == 6


# Crashes at every operation.


class Written:
    """The operations that were done, and the messages that must be there after a crash."""

    def __init__(self) -> None:
        # By offset, since the last purge. A message that is not acknowledged yet may be there or not.
        self.messages: dict[int, bytes] = {}
        self.durable_end = 0
        self.deleted: set[int] = set()
        # During a purge any message may be deleted or still be there.
        self.purging = False


def run(world: World, written: Written) -> None:
    """Appends, flushes, rolls, a delete, another codec, a purge."""
    is_durable = world.options.enforce_fsync and world.options.messages_required_to_save == 1

    def send(count: int) -> None:
        first = world.partition.current_offset + 1 if world.partition.has_messages else 0
        for place in range(count):
            written.messages[first + place] = b"%d of %d" % (first + place, count)
        world.send(*[written.messages[first + place] for place in range(count)])
        if is_durable:
            written.durable_end = first + count

    def sync() -> None:
        world.partition.flush(fsync=True)
        written.durable_end = max(written.messages) + 1

    world.open()
    for count in (1, 3, 2):
        send(count)
        world.clock.advance(1)
    sync()
    send(2)
    send(2)
    world.partition.flush()
    send(1)
    sealed = [info for info in world.partition.segments if info.is_sealed]
    written.deleted |= set(range(sealed[0].start_offset, sealed[0].end_offset + 1))
    world.partition.delete_segment(sealed[0].start_offset)
    send(4)
    world.partition.set_codec(Codec.GZIP)
    send(2)
    send(2)
    sync()
    written.purging = True
    world.partition.purge()
    written.purging = False
    written.messages, written.durable_end, written.deleted = {}, 0, set()
    send(2)
    world.partition.close()
    written.durable_end = max(written.messages) + 1


def check(world: World, written: Written, *, purged: bool) -> None:
    """Every readable message was written with this offset, and every durable message is readable."""
    partition = world.partition
    there: set[int] = set()
    for info in partition.segments:
        there |= set(range(info.start_offset, info.start_offset + info.messages_count))
    for offset in there:
        found = poll_one(partition, offset)
        if isinstance(found, StreamStatus):
            assert found in UNREADABLE
            assert offset >= written.durable_end, f"{offset} was durable and is damaged"
        else:
            assert found is not None
            assert found[:2] == (offset, written.messages[offset])
    if not purged:
        gone = set(range(written.durable_end)) - there - written.deleted
        assert not gone, f"{gone} were durable and are gone"
        assert partition.current_offset + 1 >= written.durable_end


CASES = {
    "durable": DURABLE,
    "flushed": PartitionOptions(messages_required_to_save=1, cache_indexes="none"),
    "buffered": PartitionOptions(messages_required_to_save=4, cache_indexes="all"),
}


@pytest.mark.parametrize("damage", [None, *Damage], ids=lambda damage: damage.name if damage else "KILL")
@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_any_operation_loses_nothing_durable_and_invents_nothing(
    case: str, damage: Damage | None, record_property: Callable[[str, object], None]
) -> None:
    """Crash, recover, recover again, write, crash, recover."""
    options = CASES[case]
    points = 0
    # Seven does not divide the number of operations of a step, so all kinds of operations are hit.
    step = 1 if FULL else 7
    operation_index = SEED % step
    while True:
        world = World(options)
        world.options = PartitionOptions(
            segment_size=300,
            messages_required_to_save=options.messages_required_to_save,
            enforce_fsync=options.enforce_fsync,
            cache_indexes=options.cache_indexes,
        )
        written = Written()
        hook = CrashAt(operation_index)
        world.disk.on_operation = hook
        try:
            run(world, written)
        except CrashNow:
            pass
        world.disk.on_operation = None
        try:
            survive(world, written, damage, operation_index)
        except Exception as error:
            raise AssertionError(f"{case}, {damage}: before operation {operation_index}: {error}") from error
        points += 1
        if hook.count <= operation_index:
            break
        operation_index += step
    record_property("sweep", ["partition sweep", points, points * 3])


def survive(world: World, written: Written, damage: Damage | None, seed: int) -> None:
    blow(world, damage, seed)
    world.codec = Codec.NONE
    world.open()
    check(world, written, purged=written.purging)
    files = world.disk.files()
    world.restart()
    assert world.disk.files() == files, "a second recovery changes nothing"
    check(world, written, purged=written.purging)
    appended = world.send(b"after the crash")
    world.partition.flush(fsync=True)
    blow(world, Damage.DROP, seed + 1)
    world.open()
    assert payloads(world.partition.reader.poll_offset(appended.first_offset, 1)) == [b"after the crash"]


def blow(world: World, damage: Damage | None, seed: int) -> None:
    if damage is None:
        world.disk.kill()
    else:
        world.disk.crash(damage, seed)
    world.forget_monitor()


@pytest.mark.parametrize("damage", list(Damage))
def test_a_crash_while_recovering_is_recovered_from(damage: Damage) -> None:
    """Indexes and tails are bad, and the start crashes at each operation, five times in a row."""
    step = 1 if FULL else 2
    operation_index = SEED % step
    while True:
        world = filled(8, segment_size=3 * SIZE)
        rewrite_index(world, lambda data: b"garbage")
        world.disk.unlink(f"{ROOT}/{3:020d}.index")
        last = f"{ROOT}/{6:020d}.log"
        world.disk.replace(last, world.disk.read(last) + b"x" * 100)
        world.disk.replace(f"{ROOT}/{6:020d}.index", world.disk.read(f"{ROOT}/{6:020d}.index")[:17])
        counts = []
        for attempt in range(5):
            hook = CrashAt(operation_index)
            world.disk.on_operation = hook
            try:
                world.open()
            except CrashNow:
                pass
            counts.append(hook.count)
            world.disk.on_operation = None
            world.disk.crash(damage, operation_index + attempt)
            world.forget_monitor()
        world.open()
        assert world.all() == [(number, text(number)) for number in range(8)]
        if max(counts) <= operation_index:
            break
        operation_index += step


# Failures at every call.


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC] if FULL else [errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    "operation", ["pwrite", "pwritev", "fdatasync", "fsync", "truncate", "create", "sync_dir", "unlink", "rename"]
)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("case", ["durable", "buffered"])
def test_a_call_that_fails_refuses_a_request_and_spoils_no_other(
    case: str, operation: Any, number: int, lasts: bool
) -> None:
    """Refused messages are never seen, and accepted ones are there, in the same process and in the next one."""
    at = 0
    while True:
        options = CASES[case]
        world = World(
            PartitionOptions(
                segment_size=250,
                messages_required_to_save=options.messages_required_to_save,
                enforce_fsync=options.enforce_fsync,
            )
        )
        world.open()
        fault = world.faults.fail(operation, error=number, at=at, lasts=lasts)
        accepted: dict[int, bytes] = {}
        saved_end = 0
        for step in range(12):
            payload = b"%d" % step
            try:
                if step == 5:
                    world.partition.flush(fsync=True)
                elif step == 8:
                    world.partition.delete_segment(0)
                    accepted = {offset: kept for offset, kept in accepted.items() if offset >= 4}
                else:
                    appended = world.send(payload)
                    accepted[appended.first_offset] = payload
            except StreamsError:
                pass
            if not any(info.start_offset == 0 for info in world.partition.segments):
                accepted = {offset: kept for offset, kept in accepted.items() if offset >= 4}
            assert dict(world.all()) == accepted, f"call {at}, step {step}"
            saved_end = max(accepted, default=-1) + 1 - world.partition.unsaved_messages_count
        is_stopped = world.partition.stopped is not None
        world.restart()
        saved = {offset: payload for offset, payload in accepted.items() if offset < saved_end}
        found = dict(world.all())
        if not is_stopped:
            # If the disk refused to delete a file, its segment comes back.
            assert {offset: found.get(offset) for offset in saved} == saved
        assert all(found[offset] == payload for offset, payload in accepted.items() if offset in found)
        assert set(found) <= set(range(max(accepted, default=-1) + 1))
        if not fault.fired_count:
            break
        at += 1 if FULL else 2


# Directories that an Apache Iggy server wrote.


def test_segments_of_a_real_server_are_opened_as_they_are_and_written_on(shared_fixtures: Path, tmp_path: Path) -> None:
    source = shared_fixtures / "iggy-0.8.0" / "streams"
    logs = sorted(source.rglob("*.log"))
    assert logs
    for place, log in enumerate(logs):
        directory = tmp_path / str(place)
        shutil.copytree(log.parent, directory)
        before = {path.name: path.read_bytes() for path in directory.glob("0*")}
        partition = Partition.open(
            RealFs(),
            str(directory),
            PartitionOptions(validate_checksum=True),
            partition_id=place,
            order=BodyOrder.PAYLOAD_FIRST,
            pool=new_pool(),
            clock=ManualClock(),
        )
        polled = partition.reader.poll_first(1_000_000)
        assert b"".join(message.to_bytes() for message in polled) == before[log.name]
        partition.close()
        assert {path.name: path.read_bytes() for path in directory.glob("0*")} == before
        (directory / log.with_suffix(".index").name).unlink()
        fs = RealFs()
        assert recover(fs, str(directory), validate_checksum=True)[0].messages_count == len(polled)
        assert {path.name: path.read_bytes() for path in directory.glob("0*")} == before


def test_segments_that_overlap_are_read_once_and_appends_go_on_behind_them() -> None:
    """Files of two partitions were mixed: an earlier segment has higher offsets than the last one."""
    world = filled(6)
    for suffix in (".log", ".index"):
        world.disk.replace(f"{ROOT}/{4:020d}{suffix}", b"")
    world.open()
    for offset in range(6):
        expected = [(at, text(at)) for at in range(offset, 6)]
        polled = world.partition.reader.poll_offset(offset, 100)
        assert list(zip(offsets(polled), payloads(polled), strict=True)) == expected
    assert world.send(text(6)).first_offset == 6
    world.reopen()
    expect_whole(world, 7)


def test_a_disk_with_nothing_but_other_files_is_a_new_partition() -> None:
    disk = FakeDisk()
    disk.makedirs(f"{ROOT}/offsets/consumers")
    world = World(EAGER, disk)
    world.open()
    expect_whole(world, 0)
