"""What the log holds beyond a snapshot, for a reader that changes nothing."""

import pytest

from tests.engine.small_log import ROOT, SmallLog
from topics.errors import Damaged
from topics.formats.snapshot import Snapshot
from topics.storage.fs import write_all
from topics.storage.snapshots import load_snapshots
from topics.storage.wal.log_beyond import log_beyond
from topics.testing.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def newest(disk: FakeDisk) -> Snapshot:
    snapshot = load_snapshots(disk, ROOT).newest
    assert snapshot is not None
    return snapshot


@pytest.mark.parametrize("wal_shards", [1, 3])
def test_records_behind_the_checkpoint_are_found_by_topic(disk: FakeDisk, wal_shards: int) -> None:
    log = SmallLog(disk, wal_shards=wal_shards)
    log.append("a", count=3)
    log.append("b")
    log.checkpoint()
    assert log_beyond(disk, ROOT, newest(disk)).records == {}
    log.append("a", count=2)
    log.append("c")
    log.drop("b")
    found = log_beyond(disk, ROOT, newest(disk))
    assert found.records == {1: (4, 5), 3: (1, 1)}
    assert found.removed == {2}


def test_a_frame_that_is_being_written_is_no_damage(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.checkpoint()
    log.append("a", count=3)
    position = log.engine.wal.positions[0]
    file = disk.open(f"{ROOT}/wal/wal-{position.file_frame:016d}.log", "write")
    write_all(file, b"\x55" * 30, position.offset)
    file.close()
    assert log_beyond(disk, ROOT, newest(disk)).records == {1: (1, 3)}


def test_bytes_that_stay_bad_before_a_sync_mark_are_damage(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.create("a", durability="fsync")
    log.checkpoint()
    start = newest(disk).wal[0]
    for _ in range(3):
        log.append("a")
    file = disk.open(f"{ROOT}/wal/wal-{start.file_frame:016d}.log", "write")
    end = log.engine.wal.positions[0].offset
    middle = (start.offset + end) // 2
    write_all(file, b"\x55" * 30, middle)
    file.close()
    with pytest.raises(Damaged):
        log_beyond(disk, ROOT, newest(disk))


def test_files_that_a_checkpoint_took_away_are_missing(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.append("a")
    log.checkpoint()
    old = newest(disk)
    for _ in range(4):
        log.append("a", count=100)
        log.checkpoint()
    with pytest.raises((Damaged, FileNotFoundError)):
        log_beyond(disk, ROOT, old)
