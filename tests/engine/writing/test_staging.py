"""Staged records: durable, not visible, stored once, and removed when they are not needed any more."""

import errno
from typing import Any

import pytest

from tests.engine.driver import SteppedBackground
from tests.engine.small_log import raised
from tests.engine.staging_log import WRITER, StagingLog, opened, staged_names
from topics.engine.runtime import InlineRuntime, Turn
from topics.engine.writing.intake import batch_of_records
from topics.engine.writing.staging import StagedPart
from topics.errors import Closed, InvalidRequest, StageIncomplete, StorageFull, Throttled, TopicNotFound, TopicsError
from topics.limits import STAGED_KEEP_MS, STAGED_SWEEP_MS, STAGED_TOUCH_MS
from topics.results import NewRecord
from topics.storage.background import Background
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs


class SteppedStaging(InlineRuntime):
    """Files of chunks are written when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SteppedBackground()

    def use_turns(self, run_turn: Turn) -> None:
        super().use_turns(run_turn)
        self.files.use_turns(run_turn)

    def background(self, name: str) -> Background:
        return self.files if name == "stage" else super().background(name)


def tick(log: StagingLog, ms: int) -> None:
    log.clock.advance(ms)
    log.opened.tick()


def test_a_repeat_is_no_new_chunk_whatever_it_holds() -> None:
    log = opened()
    assert log.stage([1, 2]) == (2, False)
    assert log.stage([3]) == (2, True)
    log.commit([StagedPart(0, 0, 1, 2)])
    assert log.payloads() == [b"1", b"2"]


def test_a_repeat_that_comes_while_the_first_is_written_waits_for_it() -> None:
    runtime = SteppedStaging()
    log = StagingLog(FakeDisk(), runtime=runtime)
    log.create()
    answers: list[Any] = []
    for _ in range(2):
        batch = batch_of_records([NewRecord(1)])
        log.engine.staging.stage("a", WRITER, (1, 0, 0, 0), batch, answers.append)
    assert answers == []
    with pytest.raises(StageIncomplete):
        log.start_commit([StagedPart(0, 0, 1, 1)])
    runtime.files.step()
    assert answers == [(1, False), (1, True)]
    assert not runtime.files.step()


@pytest.mark.parametrize("damage", list(Damage))
def test_staged_records_outlive_a_power_loss(damage: Damage) -> None:
    disk = FakeDisk()
    log = opened(disk, durability="memory")
    log.stage([1])
    log.stage([2], chunk=1)
    disk.crash(damage)
    log = StagingLog(disk)
    assert log.stage([9]) == (1, True)
    assert log.commit([StagedPart(0, 0, 2, 2)]).count == 2
    assert log.payloads() == [b"1", b"2"]


def test_what_nobody_touches_goes_after_a_day() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.stage([1])
    log.stage([2], part=1)
    tick(log, STAGED_KEEP_MS - STAGED_TOUCH_MS)
    assert log.stage([1]).deduped is False, "written again, for the sake of its time"
    assert len(staged_names(disk)) == 2
    tick(log, STAGED_TOUCH_MS + STAGED_SWEEP_MS)
    assert len(staged_names(disk)) == 1
    with pytest.raises(StageIncomplete):
        log.commit([StagedPart(1, 0, 1, 1)])
    assert log.commit([StagedPart(0, 0, 1, 1)]).count == 1


def test_a_start_lets_go_of_what_is_too_old() -> None:
    disk = FakeDisk()
    clock = ManualClock()
    log = StagingLog(disk, clock=clock)
    log.create()
    log.stage([1])
    log.stage([2], epoch=2)
    log.close()
    clock.advance(STAGED_KEEP_MS - 1000)
    log = StagingLog(disk, clock=clock)
    assert len(staged_names(disk)) == 2
    log.close()
    clock.advance(2000)
    log = StagingLog(disk, clock=clock)
    assert staged_names(disk) == []
    assert log.stage([1]).deduped is False


def test_a_repeat_or_a_refused_commit_counts_as_a_touch() -> None:
    log = opened()
    log.stage([1])
    log.stage([1], part=1)
    tick(log, STAGED_KEEP_MS - 1000)
    with pytest.raises(StageIncomplete):
        log.commit([StagedPart(0, 0, 1, 1), StagedPart(2, 0, 1, 1)])
    tick(log, STAGED_SWEEP_MS)
    assert log.commit([StagedPart(0, 0, 1, 1)]).count == 1
    with pytest.raises(StageIncomplete):
        log.commit([StagedPart(1, 0, 1, 1)], 2)


def test_an_abort_is_for_one_epoch_of_one_writer_and_for_topics_the_caller_may_name() -> None:
    log = opened()
    log.create("b")
    for name in ("a", "b"):
        log.stage([1], epoch=1, name=name)
        log.stage([1], epoch=2, name=name)
    staging = log.engine.staging
    assert staging.abort("somebody-else", 1, lambda _: True) == 0
    assert staging.abort(WRITER, 1, lambda name: name == "a") == 1
    assert staging.abort(WRITER, 1, lambda name: name == "a") == 0
    with pytest.raises(StageIncomplete):
        log.commit([StagedPart(0, 0, 1, 1)], name="a")
    assert log.commit([StagedPart(0, 0, 1, 1)], name="b").count == 1
    assert log.commit([StagedPart(0, 0, 1, 1)], 2, name="a").count == 1


def test_a_chunk_of_a_committed_epoch_is_not_kept() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.commit([], 5)
    assert log.stage([1, 2], epoch=5) == (2, True)
    assert staged_names(disk) == []
    assert log.stage([1], epoch=6) == (1, False)


def test_a_chunk_whose_epoch_or_topic_ends_while_it_is_written_is_not_kept() -> None:
    disk = FakeDisk()
    runtime = SteppedStaging()
    log = StagingLog(disk, runtime=runtime)
    log.create()
    log.create("b")
    answers: list[Any] = []
    for name in ("a", "b"):
        log.engine.staging.stage(name, WRITER, (1, 0, 0, 0), batch_of_records([NewRecord(1)]), answers.append)
    log.commit([], 1)
    log.drop("b")
    while runtime.files.step():
        pass
    assert answers[0] == (1, True)
    assert isinstance(answers[1], TopicNotFound)
    assert staged_names(disk) == []


def test_a_crash_between_the_commit_and_the_removal_leaves_nothing_staged() -> None:
    disk = FakeDisk()
    runtime = SteppedStaging()
    log = StagingLog(disk, runtime=runtime)
    log.create(durability="fsync")
    answers: list[Any] = []
    log.engine.staging.stage("a", WRITER, (1, 0, 0, 0), batch_of_records([NewRecord(1)]), answers.append)
    runtime.files.step()
    raised(answers)
    log.commit([StagedPart(0, 0, 1, 1)])
    assert len(staged_names(disk)) == 1
    disk.crash(Damage.DROP)
    log = StagingLog(disk)
    assert staged_names(disk) == []
    assert log.commit([StagedPart(0, 0, 1, 1)]).deduped


def test_a_full_disk_and_a_bad_one_are_told_apart() -> None:
    faults = FaultFs(FakeDisk())
    log = opened(faults)
    faults.fail("pwrite", error=errno.ENOSPC, path=lambda path: "/staging/" in path)
    with pytest.raises(StorageFull):
        log.stage([1])
    faults.fail("fsync", error=errno.EIO, path=lambda path: "/staging/" in path)
    with pytest.raises(TopicsError, match="could not be staged") as caught:
        log.stage([1])
    assert caught.value.code == "internal"
    assert log.stage([1]) == (1, False)


def test_names_topics_and_counts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened()
    batch = batch_of_records([NewRecord(1)])
    for name in ("", "a b", "a/b", "x" * 129, "ä", "a\n"):
        with pytest.raises(InvalidRequest, match="is not a writer's name"):
            log.engine.staging.stage("a", name, (1, 0, 0, 0), batch, [].append)
        with pytest.raises(InvalidRequest):
            log.engine.staging.abort(name, 1, lambda _: True)
    with pytest.raises(TopicNotFound):
        log.stage([1], name="b")
    monkeypatch.setattr("topics.engine.writing.staging.STAGED_CHUNKS_MAX", 2)
    log.stage([1])
    log.stage([1], part=1)
    with pytest.raises(Throttled, match="2 chunks are staged already"):
        log.stage([1], part=2)
    assert log.stage([1]).deduped
    log.commit([StagedPart(0, 0, 1, 1)])
    assert log.stage([1], epoch=2).deduped is False
    log.engine.stop_writes()
    with pytest.raises(Closed):
        log.stage([1], epoch=3)


def test_a_chunk_that_rots_on_the_disk_is_told_by_the_start() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.stage([1])
    (name,) = staged_names(disk)
    file = disk.open(f"/data/staging/{name}", "write")
    file.pwrite(b"X", 30)
    file.close()
    disk.kill()
    log = StagingLog(disk)
    assert "a staged chunk is unreadable and counts as not staged" in log.warnings
    assert log.stage([1]).deduped is False
    assert log.commit([StagedPart(0, 0, 1, 1)]).count == 1
