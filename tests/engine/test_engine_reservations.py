"""Head reservations of class `disk` that cannot be written: every write still gets an answer."""

import errno
from typing import Any

import pytest

from tests.engine.small_log import SmallLog, raised
from topics.errors import StorageFull, TopicsError, WalFailed
from topics.limits import RESERVE_SEQS_MIN, WAL_QUEUE_SUBMISSIONS_MAX
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def test_a_write_whose_reservation_cannot_be_synced_is_answered_with_the_failure(disk: FakeDisk) -> None:
    """The frames are written. But the seq must not be answered, because after a power loss another record could get
    it."""
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.create()
    fs.fail("fdatasync")
    results: list[Any] = []
    log.start_append("a", 1, results)
    log.engine.flush()
    with pytest.raises(WalFailed):
        raised(results)
    assert log.seqs() == []
    topic = log.topic()
    assert (topic.writes.count_in_flight, topic.writes.bytes_in_flight, len(topic.writes.in_flight)) == (0, 0, 0)


def test_several_refused_reservations_leave_none_that_later_writes_count_on(disk: FakeDisk) -> None:
    """When a full disk has room again, every write is answered, also writes far below the refused ceiling."""
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.create()
    log.append(count=3)
    fs.fail("pwrite", error=errno.ENOSPC, lasts=True, path=lambda path: "wal" in path)
    results: list[Any] = []
    for _ in range(3):
        log.start_append("a", RESERVE_SEQS_MIN, results)
        # With a key each write is staged alone and asks for a ceiling.
        log.start_append("a", RESERVE_SEQS_MIN, results, key=f"key {len(results)} {log.topic().writes.next_seq}")
    log.engine.flush()
    assert len(results) == 6
    assert all(isinstance(result, StorageFull) for result in results)
    fs.heal()
    for _ in range(2 * RESERVE_SEQS_MIN):
        log.append()
    assert log.topic().head_seq == 3 + 2 * RESERVE_SEQS_MIN
    disk.kill()
    assert log_after(disk) == 3 + 2 * RESERVE_SEQS_MIN


def log_after(disk: FakeDisk) -> int:
    return len(SmallLog(disk).read()[0])


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", range(6))
def test_every_write_is_answered_exactly_once_whichever_call_fails(disk: FakeDisk, error: int, at: int) -> None:
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.create()
    log.create("b", durability="fsync")
    fs.fail("pwrite", "fdatasync", error=error, at=at)
    results: list[Any] = []
    asked = 0
    for _ in range(8):
        for name in ("a", "b"):
            try:
                log.start_append(name, 90, results)
            except TopicsError:
                continue
            asked += 1
        log.engine.flush()
    assert len(results) == asked
    acked = {name: sum(r.count for r in results if not isinstance(r, TopicsError) and r.topic == name) for name in "ab"}
    assert {name: len(log.read(name)[0]) for name in "ab"} == acked


def test_a_turn_that_fills_the_commit_queue_gets_its_reservation_too(disk: FakeDisk) -> None:
    """The writes have their places. The frame that reserves their seqs needs none, so all of them are answered."""
    log = SmallLog(disk)
    log.create()
    results: list[Any] = []
    for _ in range(WAL_QUEUE_SUBMISSIONS_MAX):
        log.start_append("a", 1, results)
    log.engine.flush()
    assert [result.last_seq for result in results] == list(range(1, WAL_QUEUE_SUBMISSIONS_MAX + 1))
