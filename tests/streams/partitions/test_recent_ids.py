"""After a restart a partition knows the ids of its newest messages: the ones whose time runs, and no others."""

import errno
from typing import Any, Final

import pytest

from tests.streams.partitions.partition_world import EAGER, FIRST_LOG, ROOT, World
from topics.storage.fs import File, OpenMode
from topics.streams.partitions import recent_ids
from topics.streams.partitions.deduplication import Deduplicator
from topics.streams.partitions.partition import PartitionOptions
from topics.streams.partitions.recovery import RecoveredSegment, recover
from topics.testing.wrapped_fs import WrappedFile, WrappedFs

SECOND_US: Final = 1_000_000


class CountingFs(WrappedFs):
    log_bytes_read = 0

    def open(self, path: str, mode: OpenMode) -> File:
        return CountingFile(super().open(path, mode), self) if path.endswith(".log") else super().open(path, mode)


class CountingFile(WrappedFile):
    def __init__(self, inner: File, fs: CountingFs) -> None:
        super().__init__(inner)
        self.fs = fs

    def pread(self, size: int, offset: int) -> bytes:
        self.fs.log_bytes_read += size
        return super().pread(size, offset)


def opened(*deduplicate: int, **options: Any) -> World:
    world = World(PartitionOptions(messages_required_to_save=1, **options), deduplicate=deduplicate)
    world.open()
    return world


def recovered(world: World) -> list[RecoveredSegment]:
    return recover(world.monitor, ROOT, validate_checksum=False)


@pytest.mark.parametrize("how", ["reopen", "restart"])
def test_a_message_that_is_sent_again_after_a_restart_is_a_duplicate(how: str) -> None:
    world = opened(100, SECOND_US)
    world.send(b"a", b"b", ids=(1, 2))
    getattr(world, how)()
    assert world.send(b"a again", b"c", ids=(1, 3)).count == 1
    assert world.all() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_time_of_an_id_runs_on_from_the_message() -> None:
    world = opened(100, SECOND_US)
    world.send(b"a", ids=(1,))
    world.clock.advance(600)
    world.send(b"b", ids=(2,))
    world.restart()
    world.clock.advance(399)
    assert world.send(b"a again", ids=(1,)).count == 0
    world.clock.advance(1)
    assert world.send(b"a later", b"b again", ids=(1, 2)).count == 1


def test_ids_are_found_in_as_many_segments_as_the_time_reaches_into() -> None:
    world = opened(100, SECOND_US, segment_size=1)
    for number in range(1, 5):
        world.send(b"x", ids=(number,))
        world.clock.advance(300)
    world.restart()
    assert [world.send(b"again", ids=(number,)).count for number in (1, 2, 3, 4)] == [1, 0, 0, 0]


def test_no_more_ids_are_known_than_the_settings_allow() -> None:
    world = opened(2, 0)
    world.send(b"1", b"2", b"3", ids=(1, 2, 3))
    world.restart()
    assert world.send(b"2", b"3", ids=(2, 3)).count == 0
    assert world.send(b"1", ids=(1,)).count == 1


def test_a_damaged_message_may_be_sent_again() -> None:
    world = opened(100, 0)
    world.send(b"first", b"second", b"third", ids=(1, 2, 3))
    world.partition.close()
    world.disk.poke(FIRST_LOG, world.disk.read(FIRST_LOG).index(b"second"), b"S")
    world.open()
    assert [world.send(b"again", ids=(number,)).count for number in (1, 2, 3)] == [0, 1, 0]


def test_an_id_from_the_future_is_remembered_for_its_time_and_not_longer() -> None:
    world = opened(100, SECOND_US)
    world.clock.advance(60_000)
    world.send(b"a", ids=(1,))
    world.clock.set(world.clock.now_ms() - 60_000)
    world.restart()
    world.clock.advance(999)
    assert world.send(b"a", ids=(1,)).count == 0
    world.clock.advance(1)
    assert world.send(b"a", ids=(1,)).count == 1


def test_a_log_that_cannot_be_read_does_not_refuse_the_start(caplog: pytest.LogCaptureFixture) -> None:
    world = World(EAGER, deduplicate=(100, 0))
    world.open()
    world.send(b"a", ids=(1,))
    segments = recovered(world)
    deduplicator = Deduplicator(100, 0)
    world.faults.fail("pread", error=errno.EIO, path=lambda path: path.endswith(".log"))
    recent_ids.recall_ids(deduplicator, world.monitor, ROOT, segments, 0)
    assert len(deduplicator) == 0
    assert "may be stored twice" in caplog.text


@pytest.mark.parametrize(("piece_entries", "piece_bytes"), [(1, 1 << 20), (3, 1 << 20), (4096, 1), (4096, 200)])
def test_pieces_of_every_size_give_the_same_ids(
    piece_entries: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opened(0, SECOND_US, segment_size=700)
    for number in range(1, 21):
        world.send(b"x" * number, ids=(number,))
        world.clock.advance(100)
    monkeypatch.setattr(recent_ids, "ENTRIES_PER_PIECE", piece_entries)
    monkeypatch.setattr(recent_ids, "PIECE_BYTES_MAX", piece_bytes)
    world.restart()
    assert [n for n in range(1, 21) if not world.send(b"again", ids=(n,)).count] == list(range(12, 21))


def test_a_start_reads_only_the_messages_whose_ids_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EAGER)
    world.open()
    for number in range(1, 101):
        world.send(b"x" * 936, ids=(number,))
    segments = recovered(world)
    monkeypatch.setattr(recent_ids, "PIECE_BYTES_MAX", 4000)

    def bytes_read(deduplicator: Deduplicator) -> int:
        counting = CountingFs(world.disk)
        recent_ids.recall_ids(deduplicator, counting, ROOT, segments, world.clock.now_ms() * 1000)
        return counting.log_bytes_read

    assert bytes_read(Deduplicator(10, 0)) == 12_000
    world.clock.advance(2000)
    assert bytes_read(Deduplicator(0, SECOND_US)) == 0
    assert bytes_read(Deduplicator(0, 0)) == 100_000
    monkeypatch.setattr(recent_ids, "READ_BYTES_MAX", 20_000)
    assert bytes_read(Deduplicator(0, 0)) == 20_000
