"""A partition from outside: offsets, thresholds, rolling, polls, deleting, and its state after failures."""

import base64
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.streams.partitions.partition_world import (
    DURABLE,
    EAGER,
    FIRST_INDEX,
    FIRST_LOG,
    PATIENT,
    ROOT,
    World,
    batch,
    offsets,
    payloads,
)
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import BodyOrder
from topics.storage.fs import RealFs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.partition import UNSYNCED_SEGMENTS_MAX, Partition, PartitionOptions
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeFile

KEY = base64.b64encode(bytes(range(32))).decode()
START_US = ManualClock().now_ms() * 1000


def numbered(first: int, count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def log_name(start_offset: int) -> str:
    return f"{start_offset:020d}.log"


def log_names(world: World) -> list[str]:
    return [name for name in world.names() if name.endswith(".log")]


def refusal(world: World, *messages: bytes) -> StreamStatus:
    with pytest.raises(StreamsError) as refused:
        world.send(*messages)
    return refused.value.number


# Appending.


def test_offsets_begin_at_0_and_go_on_without_a_gap() -> None:
    world = World()
    partition = world.open()
    assert (partition.current_offset, partition.has_messages, partition.messages_count) == (0, False, 0)
    assert [world.send(b"a"), world.send(b"b", b"c"), world.send(b"d")] == [
        type(world.send(b"e"))(0, 1),
        type(world.send(b"f"))(1, 2),
        type(world.send(b"g"))(3, 1),
    ]
    assert (partition.current_offset, partition.has_messages, partition.messages_count) == (6, True, 7)
    assert world.all() == [(place, payload) for place, payload in enumerate([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])]


def test_a_new_partition_is_an_empty_pair_of_files_that_a_power_loss_keeps() -> None:
    world = World()
    world.open()
    world.disk.crash(Damage.DROP)
    assert world.names() == [f"{0:020d}.index", log_name(0)]
    assert world.monitor.check_settled() == []


def test_messages_of_a_batch_share_a_time_and_times_never_fall() -> None:
    world = World()
    world.open()
    world.send(b"a", b"b")
    world.clock.set(world.clock.now_ms() - 5000)
    world.send(b"c")
    world.reopen()
    world.send(b"d")
    world.clock.advance(10_000)
    world.send(b"e")
    times = [message.timestamp for message in world.partition.reader.poll_first(10)]
    assert times == [START_US, START_US, START_US, START_US, START_US + 5_000_000]


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({"messages_required_to_save": 5}, [0, 0, 6, 6]),
        ({"messages_required_to_save": 1}, [2, 4, 6, 8]),
        ({"size_of_messages_required_to_save": 4 * 65}, [0, 4, 4, 8]),
        ({"segment_size": 4 * 65}, [0, 4, 4, 8]),
        ({}, [0, 0, 0, 0]),
    ],
)
def test_an_append_flushes_when_a_threshold_is_reached_and_whole_batches_only(
    changes: dict[str, int], saved: list[int]
) -> None:
    world = World()
    world.open(**changes)
    seen = []
    for _ in range(4):
        world.send(b"x", b"y")
        seen.append(sum(world.disk.size(f"{ROOT}/{name}") for name in log_names(world)) // 65)
    assert seen == saved
    assert offsets(world.partition.reader.poll_first(100)) == list(range(8))


def test_a_flush_restarts_the_counters_and_a_save_with_nothing_to_do_says_so() -> None:
    world = World()
    partition = world.open(messages_required_to_save=3)
    world.send(b"a", b"b")
    partition.flush()
    assert partition.unsaved_messages_count == 0
    world.send(b"c", b"d")
    assert partition.unsaved_messages_count == 2
    assert partition.save(fsync=False)
    assert not partition.save(fsync=False)
    assert partition.save(fsync=True), "what earlier flushes wrote is not durable yet"
    assert not partition.save(fsync=True)
    world.disk.crash(Damage.DROP)
    world.forget_monitor()
    world.open()
    assert payloads(world.partition.reader.poll_first(10)) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("damage", list(Damage))
def test_with_fsync_and_a_threshold_of_1_what_is_acknowledged_is_durable(damage: Damage) -> None:
    world = World(DURABLE)
    world.open(segment_size=200)
    for number in range(7):
        world.send(b"%d" % number)
        world.monitor.require_synced(ROOT)
    world.disk.crash(damage)
    world.forget_monitor()
    world.open()
    assert world.all() == [(number, b"%d" % number) for number in range(7)]


def test_a_flush_with_fsync_covers_segments_that_were_sealed_before() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    for number in range(9):
        world.send(b"%d" % number)
    partition.flush(fsync=True)
    world.monitor.require_synced(ROOT)
    world.disk.crash(Damage.DROP)
    world.forget_monitor()
    world.open()
    assert offsets(world.partition.reader.poll_first(100)) == list(range(9))


def test_sealed_segments_that_wait_for_a_sync_are_few() -> None:
    """They keep files open, so the oldest is synced when there are too many."""
    world = World(EAGER)
    world.open(segment_size=65)
    for _ in range(UNSYNCED_SEGMENTS_MAX + 3):
        world.send(b"x")
    durable = {name: len(data) for name, data in world.disk.durable_files().items() if name.endswith(".log")}
    assert list(durable.values()) == [65] * 3 + [0] * (UNSYNCED_SEGMENTS_MAX + 1)


def test_close_makes_everything_durable_and_ends_it() -> None:
    world = World()
    partition = world.open(segment_size=200)
    for number in range(8):
        world.send(b"%d" % number)
    partition.close()
    partition.close()
    assert refusal(world, b"x") is StreamStatus.IO_ERROR
    with pytest.raises(StreamsError):
        partition.reader.poll_first(1)
    world.disk.crash(Damage.DROP)
    world.forget_monitor()
    world.open()
    assert offsets(world.partition.reader.poll_first(100)) == list(range(8))


def test_a_dropped_partition_saves_nothing_and_answers_that_it_is_not_there() -> None:
    world = World()
    partition = world.open()
    world.send(b"a")
    partition.drop()
    assert world.disk.read(FIRST_LOG) == b""
    assert refusal(world, b"x") is StreamStatus.PARTITION_NOT_FOUND
    assert not partition.save(fsync=True)


# Rolling.


def test_a_full_segment_is_sealed_and_the_next_begins_at_once_behind_it() -> None:
    world = World()
    partition = world.open(segment_size=200)
    world.send(b"1")
    world.send(b"2")
    assert len(partition.segments) == 1
    world.send(b"3", b"4", b"5")
    assert [(info.start_offset, info.end_offset, info.is_sealed) for info in partition.segments] == [
        (0, 4, True),
        (5, 5, False),
    ]
    assert partition.segments[0].size_bytes == 5 * 65, "a batch is never split, the limit is soft"
    assert world.names() == [f"{0:020d}.index", log_name(0), f"{5:020d}.index", log_name(5)]
    assert world.disk.size(f"{ROOT}/{log_name(5)}") == 0


def test_a_flush_or_a_save_never_rolls() -> None:
    world = World(EAGER)
    partition = world.open()
    world.send(b"1", b"2")
    world.reopen(segment_size=130)
    partition = world.partition
    partition.flush(fsync=True)
    partition.save(fsync=True)
    assert len(partition.segments) == 1
    world.send(b"3")
    assert [info.start_offset for info in partition.segments] == [0, 2], "a segment found full takes no more"


def test_positions_that_do_not_fit_in_32_bits_roll_first() -> None:
    world = World()
    partition = world.open(position_max=300)
    world.send(b"1", b"2")
    world.send(b"3", b"4", b"5")
    world.send(b"6")
    assert [(info.start_offset, info.messages_count) for info in partition.segments] == [(0, 2), (2, 4)]
    assert refusal(world, bytes(300)) is StreamStatus.INVALID_MESSAGES_SIZE
    assert offsets(partition.reader.poll_first(100)) == list(range(6))
    assert PartitionOptions().position_max == 2**32 - 1


def test_a_roll_without_room_leaves_the_messages_and_is_made_up_for_by_the_next_append() -> None:
    """The batch that filled the segment is accepted."""
    world = World()
    partition = world.open(segment_size=130)
    fault = world.faults.fail("create", error=errno.ENOSPC, lasts=True)
    assert world.send(b"1", b"2").count == 2
    assert fault.fired_count == 1
    assert refusal(world, b"3") is StreamStatus.CANNOT_APPEND_TO_FILE
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2"]
    assert [info.is_sealed for info in partition.segments] == [True]
    world.faults.heal()
    world.send(b"3")
    assert [info.start_offset for info in partition.segments] == [0, 2]
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2", b"3"]


# Failures while writing.


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_batch_that_cannot_be_written_is_refused_and_never_seen(suffix: str) -> None:
    """Earlier batches stay, are readable, and are written by the next flush."""
    world = World(deduplicate=(0, 0))
    partition = world.open(messages_required_to_save=3)
    world.send(b"1", ids=(1,))
    world.send(b"2", ids=(2,))
    world.faults.torn_write(error=errno.ENOSPC, lasts=True, path=lambda path: path.endswith(suffix))
    with pytest.raises(StreamsError) as refused:
        partition.append(batch(b"3", ids=(3,)))
    assert refused.value.number is StreamStatus.CANNOT_APPEND_TO_FILE
    assert partition.stopped is None
    assert world.all() == [(0, b"1"), (1, b"2")]
    assert (partition.messages_count, partition.size_bytes, partition.unsaved_messages_count) == (2, 130, 2)
    assert (world.disk.read(FIRST_LOG), world.disk.read(FIRST_INDEX)) == (b"", b"")
    world.faults.heal()
    assert world.send(b"4", b"retried", ids=(4, 3)).first_offset == 2
    world.restart()
    assert world.all() == [(0, b"1"), (1, b"2"), (2, b"4"), (3, b"retried")]


def test_a_failed_write_whose_rest_cannot_be_cut_off_stops_the_partition() -> None:
    world = World(EAGER)
    partition = world.open()
    world.send(b"1")
    world.faults.torn_write(error=errno.EIO)
    world.faults.fail("truncate")
    assert refusal(world, b"2") is StreamStatus.CANNOT_APPEND_TO_FILE
    assert partition.stopped is not None
    assert "cannot be cut off" in partition.stopped
    world.faults.heal()
    assert refusal(world, b"3") is StreamStatus.CANNOT_SYNC_FILE
    assert world.all() == [(0, b"1")]
    world.restart()
    assert world.all() == [(0, b"1")], "what was left was half a message"


def test_an_append_that_is_interrupted_leaves_nothing_behind() -> None:
    """Ctrl-C between the two writes: the next batch is shorter, and no rest of the interrupted one follows it."""
    world = World(EAGER)
    world.open()
    world.send(b"1")

    def interrupt(operation: str, path: str) -> None:
        if operation == "pwrite":
            world.disk.on_operation = None
            raise KeyboardInterrupt

    world.disk.on_operation = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.send(b"2", b"3", b"4", b"5")
    assert world.disk.size(FIRST_LOG) == 65
    world.send(b"6")
    assert world.all() == [(0, b"1"), (1, b"6")]
    world.restart()
    assert world.all() == [(0, b"1"), (1, b"6")]


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_failed_sync_refuses_the_batch_and_everything_after_it_but_no_poll(suffix: str) -> None:
    """A later sync does not help."""
    world = World(DURABLE)
    partition = world.open()
    world.send(b"1")
    world.faults.fail("fdatasync", path=lambda path: path.endswith(suffix))
    assert refusal(world, b"2") is StreamStatus.CANNOT_SYNC_FILE
    assert refusal(world, b"3") is StreamStatus.CANNOT_SYNC_FILE
    with pytest.raises(StreamsError):
        partition.flush(fsync=True)
    assert not partition.save(fsync=True)
    assert partition.stopped is not None
    assert world.all() == [(0, b"1")]
    partition.close()
    world.restart()
    assert world.all() == [(0, b"1")], "the batch was refused, so it is not there"
    assert world.send(b"4").first_offset == 1


def test_what_was_acknowledged_before_a_failed_sync_is_kept_where_it_can_be() -> None:
    world = World()
    partition = world.open(messages_required_to_save=3, enforce_fsync=True)
    world.send(b"1")
    world.send(b"2")
    world.faults.fail("fdatasync")
    assert refusal(world, b"3") is StreamStatus.CANNOT_SYNC_FILE
    assert world.all() == [(0, b"1"), (1, b"2")]
    partition.close()
    world.restart()
    assert world.all() == [(0, b"1"), (1, b"2")]


def test_a_failed_sync_of_the_directory_stops_the_partition() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.faults.fail("sync_dir")
    assert world.send(b"1", b"2").count == 2
    assert partition.stopped is not None
    assert refusal(world, b"3") is StreamStatus.CANNOT_SYNC_FILE
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2"]


def test_a_poll_during_a_flush_reads_what_is_in_flight_and_waits_for_nothing() -> None:
    world = World()
    partition = world.open(enforce_fsync=True)
    world.send(b"1")
    world.send(b"2")
    seen: list[list[bytes]] = []
    world.disk.on_operation = lambda operation, path: seen.append(payloads(partition.reader.poll_first(10)))
    partition.flush()
    assert len(seen) == 4, "two writes and two syncs"
    assert seen == [[b"1", b"2"]] * 4


def test_a_batch_does_not_show_before_it_is_accepted() -> None:
    world = World(DURABLE)
    partition = world.open()
    world.send(b"1")
    seen: list[list[bytes]] = []
    world.disk.on_operation = lambda operation, path: seen.append(payloads(partition.reader.poll_first(10)))
    world.send(b"2")
    assert seen == [[b"1"]] * 4
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2"]


# Deleting.


def test_a_deleted_segment_is_gone_with_its_files_and_its_numbers_and_offsets_go_on() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    for number in range(5):
        world.send(b"%d" % number)
    deleted = partition.delete_segment(0)
    assert (deleted.start_offset, deleted.end_offset, deleted.messages_count) == (0, 1, 2)
    assert (partition.messages_count, partition.size_bytes, partition.current_offset) == (3, 3 * 65, 4)
    assert log_names(world) == [log_name(2), log_name(4)]
    assert offsets(partition.reader.poll_offset(0, 10)) == [2, 3, 4], "a start below the oldest is moved up to it"
    assert offsets(partition.reader.poll_first(1)) == [2]
    assert offsets(partition.reader.poll_last(100)) == [2, 3, 4]
    assert offsets(partition.reader.poll_timestamp(0, 1)) == [2]
    world.disk.crash(Damage.DROP)
    assert not world.disk.exists(FIRST_LOG)


def test_only_sealed_segments_are_deleted() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.send(b"1", b"2")
    world.send(b"3")
    for start_offset in (2, 1, 99):
        with pytest.raises(StreamsError) as refused:
            partition.delete_segment(start_offset)
        assert refused.value.number is StreamStatus.RESOURCE_NOT_FOUND
    assert offsets(partition.reader.poll_first(10)) == [0, 1, 2]


def test_with_all_messages_deleted_offsets_go_on_also_after_a_restart() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.send(b"1", b"2")
    partition.delete_segment(0)
    for _ in range(2):
        partition = world.partition
        assert (partition.messages_count, partition.current_offset, partition.has_messages) == (0, 1, True)
        assert (
            len(partition.reader.poll_first(10))
            == len(partition.reader.poll_last(10))
            == len(partition.reader.poll_offset(1, 1))
            == 0
        )
        world.reopen()
    assert world.send(b"3").first_offset == 2


def test_the_last_segment_is_deleted_only_when_there_is_one_behind_it() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.faults.fail("create", error=errno.ENOSPC, lasts=True)
    world.send(b"1", b"2")
    with pytest.raises(StreamsError) as refused:
        partition.delete_segment(0)
    assert refused.value.number is StreamStatus.CANNOT_APPEND_TO_FILE
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2"]
    world.faults.heal()
    partition.delete_segment(0)
    world.restart()
    assert world.send(b"3").first_offset == 2


def test_a_poll_jumps_over_a_deleted_segment_in_the_middle() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    for number in range(7):
        world.send(b"%d" % number)
    partition.delete_segment(2)
    assert offsets(partition.reader.poll_offset(1, 100)) == [1, 4, 5, 6]
    assert offsets(partition.reader.poll_offset(2, 1)) == [4]
    world.reopen()
    assert offsets(world.partition.reader.poll_offset(1, 100)) == [1, 4, 5, 6]


def test_an_error_of_the_disk_keeps_the_segment() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.send(b"1", b"2")
    world.faults.fail("unlink")
    with pytest.raises(StreamsError) as refused:
        partition.delete_segment(0)
    assert refused.value.number is StreamStatus.IO_ERROR
    assert payloads(partition.reader.poll_first(10)) == [b"1", b"2"]


def meddle_before_the_next_read(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], object]) -> None:
    """Calls a function right before a log is read: the poll knows where the messages are by then."""
    read = FakeFile.pread_into

    def pread_into(file: FakeFile, buffer: memoryview, offset: int) -> int:
        monkeypatch.setattr(FakeFile, "pread_into", read)
        meddle()
        return read(file, buffer, offset)

    monkeypatch.setattr(FakeFile, "pread_into", pread_into)


def test_a_reader_of_a_segment_that_is_deleted_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is deleted between the lookup and the read."""
    world = World(EAGER)
    partition = world.open(segment_size=130, cache_indexes="none")
    for number in range(4):
        world.send(b"%d" % number)
    meddle_before_the_next_read(monkeypatch, lambda: world.partition.delete_segment(0))
    assert payloads(partition.reader.poll_offset(0, 2)) == [b"0", b"1"]
    assert [info.start_offset for info in partition.segments] == [2, 4]
    assert offsets(partition.reader.poll_offset(0, 2)) == [2, 3]
    world.restart()
    assert offsets(world.partition.reader.poll_first(10)) == [2, 3]


def test_a_purge_drops_segments_and_journal_and_offsets_restart() -> None:
    """Buffered messages do not survive it."""
    world = World(PATIENT, deduplicate=(0, 0))
    partition = world.open(segment_size=130)
    world.send(b"1", b"2", ids=(1, 2))
    world.send(b"3", ids=(3,))
    assert partition.unsaved_messages_count == 1
    partition.purge()
    assert (partition.messages_count, partition.size_bytes, partition.current_offset) == (0, 0, 0)
    assert not partition.has_messages
    assert world.all() == []
    partition.flush(fsync=True)
    assert world.names() == [f"{0:020d}.index", log_name(0)]
    assert world.send(b"again", ids=(1,)).first_offset == 0
    world.reopen()
    assert world.all() == [(0, b"again")]


def test_a_poll_that_a_purge_overtakes_does_not_mix_old_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EAGER)

    def purge_and_fill() -> None:
        world.partition.purge()
        for number in range(6):
            world.send(b"new %d" % number)

    partition = world.open(segment_size=60)
    for number in range(6):
        world.send(b"old %d" % number)
    meddle_before_the_next_read(monkeypatch, purge_and_fill)
    assert payloads(partition.reader.poll_first(100)) == [b"old 0"]
    assert payloads(partition.reader.poll_first(2)) == [b"new 0", b"new 1"]


def test_a_purge_that_fails_in_the_middle_keeps_the_end() -> None:
    world = World(EAGER)
    partition = world.open(segment_size=130)
    for number in range(5):
        world.send(b"%d" % number)
    world.faults.fail("unlink", at=1)
    with pytest.raises(StreamsError):
        partition.purge()
    assert offsets(partition.reader.poll_first(10)) == [2, 3, 4]
    assert world.send(b"5").first_offset == 5
    world.faults.heal()
    partition.purge()
    assert world.all() == []


# Compression and deduplication.


def test_another_codec_rolls_with_the_next_append_and_each_segment_keeps_its_own() -> None:
    world = World()
    partition = world.open()
    partition.set_codec(Codec.GZIP)
    world.send(b"0" * 500)
    assert [info.codec for info in partition.segments] == [Codec.GZIP], "an empty segment only changes its codec"
    partition.set_codec(Codec.NONE)
    world.send(b"1" * 500)
    partition.set_codec(Codec.ZSTD)
    assert len(partition.segments) == 2
    world.send(b"2" * 500)
    world.send(b"3" * 500)
    assert [(info.start_offset, info.codec) for info in partition.segments] == [
        (0, Codec.GZIP),
        (1, Codec.NONE),
        (2, Codec.ZSTD),
    ]
    assert [name for name in world.names() if name.endswith(".codec")] == [f"{0:020d}.codec", f"{2:020d}.codec"]
    expected = [b"%d" % number * 500 for number in range(4)]
    assert payloads(partition.reader.poll_first(10)) == expected
    world.reopen()
    assert payloads(world.partition.reader.poll_first(10)) == expected
    world.partition.delete_segment(0)
    assert [name for name in world.names() if name.endswith(".codec")] == [f"{2:020d}.codec"]
    world.partition.purge()
    assert world.names() == [f"{0:020d}.index", log_name(0)]


@pytest.mark.parametrize("operation", ["create", "pwrite", "fsync", "rename", "sync_dir"])
def test_a_codec_that_could_not_be_noted_is_noted_before_the_next_message(operation: Any) -> None:
    """The file may have been written in spite of the error, and the messages must have the codec that it names."""
    world = World(EAGER)
    partition = world.open()
    partition.set_codec(Codec.ZSTD)
    world.faults.fail(operation)
    assert refusal(world, b"1") is StreamStatus.CANNOT_APPEND_TO_FILE
    partition.set_codec(Codec.NONE)
    world.send(b"2")
    world.restart()
    assert world.all() == [(0, b"2")]
    assert [info.codec for info in world.partition.segments] == [Codec.NONE]


def test_duplicates_are_dropped_before_offsets_are_given() -> None:
    """There are no gaps and no wrong entries. A batch of duplicates only succeeds and appends nothing."""
    world = World(EAGER, deduplicate=(100, 1_000_000))
    partition = world.open()
    assert world.send(b"a", b"b", b"b again", ids=(1, 2, 2)).count == 2
    assert world.send(b"c", b"a again", b"d", ids=(3, 1, 4)) == world.send(b"x", ids=(1,)).__class__(2, 2)
    nothing = world.send(b"y", b"z", ids=(1, 4))
    assert (nothing.first_offset, nothing.count) == (4, 0)
    assert world.send(b"e", b"f").count == 2, "messages without an id are never duplicates"
    expected = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (4, b"e"), (5, b"f")]
    assert world.all() == expected
    assert [offsets(partition.reader.poll_offset(place, 1)) for place in range(6)] == [[place] for place in range(6)]
    world.clock.advance(1001)
    assert world.send(b"later", ids=(1,)).count == 1
    world.restart()
    assert world.all() == [*expected, (6, b"later")]


def test_every_partition_that_is_given_a_deduplicator_has_one_from_its_first_message_on() -> None:
    world = World(deduplicate=(100, 0))
    world.open()
    world.send(b"a", ids=(1,))
    assert world.send(b"a", ids=(1,)).count == 0


# Threads, and real files.


def test_writers_and_readers_at_once_see_each_message_once_and_in_order(tmp_path: Path) -> None:
    world = World(PartitionOptions(segment_size=4096, messages_required_to_save=7, cache_indexes="open_segment"))
    partition = Partition.open(
        RealFs(),
        str(tmp_path / "partition"),
        world.options,
        partition_id=1,
        order=BodyOrder.HEADERS_FIRST,
        pool=world.pool,
        clock=world.clock,
    )
    batches_each, writer_count = 100, 3
    total = batches_each * writer_count * 3
    failures: list[Exception] = []

    def write(writer: int) -> None:
        for number in range(batches_each):
            partition.append(batch(*[b"%d %d %d" % (writer, number, place) for place in range(3)]))

    def read() -> None:
        seen: list[bytes] = []
        while len(seen) < total and not failures:
            polled = partition.reader.poll_offset(len(seen), 50)
            assert offsets(polled) == list(range(len(seen), len(seen) + len(polled)))
            seen += payloads(polled)
        for writer in range(writer_count):
            mine = [payload for payload in seen if payload.startswith(b"%d " % writer)]
            assert mine == [
                b"%d %d %d" % (writer, number, place) for number in range(batches_each) for place in range(3)
            ]

    def guarded(work: object, *arguments: object) -> None:
        try:
            work(*arguments)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - the outer edge of a thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(write, writer), daemon=True) for writer in range(writer_count)]
    threads += [threading.Thread(target=guarded, args=(read,), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not failures
        assert not thread.is_alive()
    assert partition.messages_count == total
    partition.close()
