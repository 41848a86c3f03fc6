"""A checkpoint writes sealed segments again of which more than half is deleted."""

import errno
from typing import Any

import pytest

from tests.engine.offers import purged
from tests.engine.small_log import ROOT, HeldRuntime, SmallLog
from topics.engine.manifest import take_manifest
from topics.errors import SegmentBusy
from topics.limits import CHECKPOINT_INTERVAL_MS
from topics.storage import layout
from topics.storage.checkpoints.job import Job, JobResult
from topics.storage.checkpoints.runner import InlineRunner, JobFailed
from topics.storage.fs import Fs
from topics.storage.inspect.verify import Verifier
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

EVENTS = 10


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def open_log(disk: Fs, **settings: Any) -> SmallLog:
    return SmallLog(disk, segment_events_max=EVENTS, **settings)


def filled(disk: Fs, **options: Any) -> SmallLog:
    """Two sealed segments and records beyond. In each segment, 7 of 10 records have the tag "old"."""
    log = open_log(disk, **options)
    log.create(durability="fsync")
    for seq in range(1, 2 * EVENTS + 4):
        log.append(tag="old" if seq % EVENTS not in (2, 5, 8) else "new")
    log.checkpoint()
    return log


def data_bytes(disk: FakeDisk, first_seq: int = 1) -> int:
    return len(disk.read(f"{ROOT}/{layout.segment_object(1, first_seq, 'data')}"))


LIVE = [2, 5, 8, 12, 15, 18, 22]


def check(log: SmallLog, disk: FakeDisk, live: list[int]) -> None:
    assert log.seqs() == live
    for state in log.topic().live.segments.segments:
        assert len(disk.read(f"{ROOT}/{layout.segment_object(1, state.first_seq, 'data')}")) == state.data_bytes
        assert state.entry_count == EVENTS or not state.sealed


def verify(disk: FakeDisk) -> None:
    assert [finding for finding in Verifier(disk, ROOT).run() if finding.severity != "note"] == []


def test_a_segment_with_more_than_half_deleted_is_written_again(disk: FakeDisk) -> None:
    log = filled(disk)
    before = data_bytes(disk)
    assert log.delete(tag="old") == 16
    log.checkpoint()
    # 3 of 10 records are live. The last record of a segment stays in the file, deleted or not.
    assert data_bytes(disk) < before * 0.5
    assert data_bytes(disk, 1 + EVENTS) < before * 0.5
    check(log, disk, LIVE)
    assert log.delete(tag="new", before_seq=6) == 2, "the tag index knows the new files"
    check(log, disk, LIVE[2:])


def test_half_or_less_is_not_written_again_and_nothing_is_written_twice(disk: FakeDisk) -> None:
    log = open_log(disk)
    for seq in range(1, 2 * EVENTS + 1):
        log.append(tag="old" if seq % 2 else "new")
    log.checkpoint()
    before = data_bytes(disk)
    log.delete(tag="old")
    log.checkpoint()
    assert data_bytes(disk) == before
    log.delete(tag="new", before_seq=3)
    log.checkpoint()
    smaller = data_bytes(disk)
    assert smaller < before * 0.5
    writes: list[str] = []
    disk.on_operation = lambda operation, path: writes.append(path) if operation == "create" else None
    log.append()
    log.checkpoint()
    assert [path for path in writes if "seg-0000000000000001" in path] == []
    assert data_bytes(disk) == smaller


@pytest.mark.parametrize("damage", [None, Damage.DROP])
def test_a_start_finds_the_new_files_whichever_snapshot_it_uses(disk: FakeDisk, damage: Damage | None) -> None:
    log = filled(disk)
    log.delete(tag="old")
    log.checkpoint()
    if damage is None:
        disk.kill()
    else:
        disk.crash(damage)
    newest = max(path for path in disk.files() if "/snapshot." in path)
    disk.poke(newest, 40, b"\xa5\x5a")
    log = open_log(disk)
    check(log, disk, LIVE)
    log.checkpoint()
    log.checkpoint()
    log.close()
    verify(disk)


def test_deletes_during_the_rewriting_hold(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = open_log(disk, runtime=runtime)
    for seq in range(1, 2 * EVENTS + 1):
        log.append(tag="old" if seq % EVENTS not in (2, 5, 8) else "new")
    _checkpoint_held(log, runtime)
    log.delete(tag="old")
    log.checkpointer.start(lambda error: None)
    # The job is under way.
    runtime.checkpoints.begin()
    log.delete(before_seq=3)
    assert log.seqs() == [5, 8, 12, 15, 18]
    runtime.checkpoints.run_all()
    check(log, disk, [5, 8, 12, 15, 18])
    _checkpoint_held(log, runtime)
    disk.kill()
    check(open_log(disk), disk, [5, 8, 12, 15, 18])


def _checkpoint_held(log: SmallLog, runtime: HeldRuntime) -> None:
    outcome: list[Exception | None] = []
    log.checkpointer.start(outcome.append)
    runtime.checkpoints.run_all()
    assert outcome == [None]


def test_a_pinned_segment_waits_for_the_end_of_its_pin(disk: FakeDisk) -> None:
    log = filled(disk)
    before = data_bytes(disk)
    take_manifest(log.engine, "a", to_seq=1, pin_ms=2 * CHECKPOINT_INTERVAL_MS)
    log.delete(tag="old")
    log.tick(CHECKPOINT_INTERVAL_MS)
    assert data_bytes(disk) == before
    assert data_bytes(disk, 1 + EVENTS) < before * 0.5
    for _ in range(3):
        log.tick(CHECKPOINT_INTERVAL_MS)
    assert data_bytes(disk) < before * 0.5
    check(log, disk, LIVE)


def test_a_pinned_segment_costs_no_snapshot_while_it_waits(disk: FakeDisk) -> None:
    log = filled(disk)
    before = data_bytes(disk)
    take_manifest(log.engine, "a", to_seq=1, pin_ms=20 * CHECKPOINT_INTERVAL_MS)
    log.delete(tag="old")
    for _ in range(4):
        log.tick(CHECKPOINT_INTERVAL_MS)
    number = log.checkpointer.number
    for _ in range(8):
        log.tick(CHECKPOINT_INTERVAL_MS)
    assert log.checkpointer.number == number
    assert data_bytes(disk) == before
    for _ in range(10):
        log.tick(CHECKPOINT_INTERVAL_MS)
    assert data_bytes(disk) < before * 0.5
    check(log, disk, LIVE)


def test_a_segment_that_is_written_again_cannot_be_replaced_meanwhile(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = open_log(disk, runtime=runtime)
    log.append(count=EVENTS, tag="old")
    _checkpoint_held(log, runtime)
    log.engine.delete_records("a", lambda result: None, seqs=list(range(1, EVENTS)))
    log.engine.flush()
    (state,) = log.topic().live.segments.segments
    offer = purged(disk, ROOT, log.topic(), state)
    log.checkpointer.start(lambda error: None)
    with pytest.raises(SegmentBusy):
        log.opened.replacer.replace(offer, lambda result: None)
    runtime.checkpoints.run_all()
    check(log, disk, [EVENTS])


def test_a_full_disk_leaves_the_segment_as_it_was_and_the_checkpoint_goes_on(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    log = filled(fs)
    before = data_bytes(disk)
    log.delete(tag="old")
    fs.fail("pwrite", error=errno.ENOSPC, lasts=True, path=lambda path: ".replacing" in path)
    log.checkpoint()
    fs.heal()
    assert data_bytes(disk) == before
    check(log, disk, LIVE)
    disk.kill()
    check(open_log(disk), disk, LIVE)


class DyingRunner(InlineRunner):
    """A worker that dies after its work, before it answers."""

    dies = False

    def run(self, job: Job) -> JobResult:
        result = super().run(job)
        if self.dies:
            self.dies = False
            raise JobFailed("the checkpoint worker died")
        return result


def test_a_worker_that_dies_after_the_exchange_leaves_a_log_that_goes_on(disk: FakeDisk) -> None:
    runner = DyingRunner(disk)
    log = filled(disk, runner=runner)
    before = data_bytes(disk)
    log.delete(tag="old")
    runner.dies = True
    with pytest.raises(JobFailed):
        log.checkpoint()
    assert data_bytes(disk) < before * 0.5
    assert log.seqs() == LIVE, "read with the old numbers"
    log.delete(tag="new", before_seq=3)
    log.checkpoint()
    check(log, disk, LIVE[1:])
    disk.kill()
    check(open_log(disk), disk, LIVE[1:])


def test_one_checkpoint_writes_a_bounded_part_again(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.checkpointing.rewriting.REWRITE_BYTES_MAX", 1)
    log = filled(disk)
    first, second = data_bytes(disk), data_bytes(disk, 1 + EVENTS)
    log.delete(tag="old")
    log.checkpoint()
    assert (data_bytes(disk) < first * 0.5, data_bytes(disk, 1 + EVENTS) == second) == (True, True)
    log.checkpoint()
    assert data_bytes(disk, 1 + EVENTS) < second * 0.5
    check(log, disk, LIVE)


def test_the_order_of_calls_breaks_no_rule_of_the_file_system(disk: FakeDisk) -> None:
    monitor = MonitorFs(disk)
    log = filled(monitor)
    log.delete(tag="old")
    log.checkpoint()
    log.close()
    assert data_bytes(disk) < 600


def test_after_a_failed_snapshot_nothing_is_written_again_before_the_next_one_is_on_disk(disk: FakeDisk) -> None:
    faults = FaultFs(disk)
    log = filled(MonitorFs(faults))
    before = data_bytes(disk)
    log.append()
    faults.fail("sync_dir", error=errno.EIO, path=lambda path: path.endswith("/meta"))
    with pytest.raises(OSError, match="meta"):
        log.checkpoint()
    log.delete(tag="old")
    log.checkpoint()
    assert data_bytes(disk) == before
    log.checkpoint()
    assert data_bytes(disk) < before * 0.5
    check(log, disk, [*LIVE, 24])
