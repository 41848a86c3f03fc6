"""Checkpoints: when they run, which files they keep, changes while one runs, and what a failed one leaves."""

import errno
import os
from typing import Any

import pytest

from tests.engine.small_log import (
    ROOT,
    SEGMENT_EVENTS,
    HeldRuntime,
    SmallLog,
    segment_names,
    snapshot_names,
    wal_names,
)
from topics.engine.runtime import InlineRuntime
from topics.errors import StorageFull, Throttled, TopicsError
from topics.limits import CHECKPOINT_INTERVAL_MS, CHECKPOINT_RETRY_MS
from topics.storage.checkpoints.job import Job, JobResult
from topics.storage.checkpoints.runner import InlineRunner, JobFailed
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def log(disk: FakeDisk) -> SmallLog:
    return SmallLog(disk)


# --- when ---------------------------------------------------------------------------------------------------


def test_enough_bytes_of_wal_start_one(disk: FakeDisk) -> None:
    log = SmallLog(disk, checkpoint_wal_bytes=600)
    log.append(count=3)
    log.tick()
    assert log.checkpointer.number == 0
    log.append(count=10)
    log.tick()
    assert log.checkpointer.number == 1
    log.tick()
    assert log.checkpointer.number == 1, "the marks of a checkpoint do not start the next one"


def test_what_was_replayed_counts_so_that_a_log_that_dies_again_and_again_puts_something_away(disk: FakeDisk) -> None:
    log, lives = SmallLog(disk, checkpoint_wal_bytes=600), 1
    while not log.checkpointer.number:
        assert lives < 20, "each start has more to replay, and no checkpoint runs"
        log.append()
        disk.kill()
        log = SmallLog(disk, checkpoint_wal_bytes=600)
        log.tick()
        lives += 1
    assert lives > 3, "no process alone wrote enough"
    assert log.report.bytes_replayed >= 600
    disk.kill()
    again = SmallLog(disk, checkpoint_wal_bytes=600)
    assert again.report.bytes_replayed < 600, "only frames written after the checkpoint"
    again.tick()
    assert again.checkpointer.number == 1
    assert again.seqs() == list(range(1, lives))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_files_of_expired_segments_go_within_a_minute_although_nothing_is_written(
    disk: FakeDisk, is_restarted: bool
) -> None:
    log = SmallLog(disk)
    log.create(ttl_ms=100_000)
    log.append(count=2 * SEGMENT_EVENTS)
    log.checkpoint()
    log.tick(50_000)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    assert segment_names(disk) == [1, 1 + SEGMENT_EVENTS, 1 + 2 * SEGMENT_EVENTS]
    if is_restarted:
        disk.kill()
        log = SmallLog(disk, clock=log.clock)
    _pass_time(log, 50_000)
    assert segment_names(disk) == [1, 1 + SEGMENT_EVENTS, 1 + 2 * SEGMENT_EVENTS]
    _pass_time(log, 50_000)
    assert segment_names(disk) == [1 + 2 * SEGMENT_EVENTS]
    if is_restarted:
        disk.kill()
        log.clock.advance(10_000)
        log = SmallLog(disk, clock=log.clock)
    _pass_time(log, 60_000)
    assert segment_names(disk) == []
    number = log.checkpointer.number
    _pass_time(log, 200_000)
    assert log.checkpointer.number == number, "nothing is left to remove"
    assert log.seqs() == []


def test_expired_segments_that_a_reader_noticed_go_too(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.create(ttl_ms=100_000)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.clock.advance(100_001)
    assert log.seqs() == []
    _pass_time(log, 60_000)
    assert segment_names(disk) == []


def test_a_shorter_ttl_frees_the_files_of_a_quiet_log(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.create(ttl_ms=10_000_000)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.create(ttl_ms=1000)
    _pass_time(log, 2 * CHECKPOINT_INTERVAL_MS)
    assert segment_names(disk) == []


def _pass_time(log: SmallLog, ms: int) -> None:
    for _ in range(0, ms, 1000):
        log.tick(1000)


def test_enough_time_starts_one_and_an_idle_log_writes_no_snapshot(log: SmallLog) -> None:
    log.append()
    log.tick(CHECKPOINT_INTERVAL_MS - 1)
    assert log.checkpointer.number == 0
    log.tick(1)
    assert log.checkpointer.number == 1
    # The next checkpoint gives the reservation of the idle topic back. After that nothing changes any more.
    log.tick(CHECKPOINT_INTERVAL_MS)
    for _ in range(5):
        log.tick(CHECKPOINT_INTERVAL_MS)
    assert log.checkpointer.number == 2


def test_a_clean_stop_puts_everything_into_segments(disk: FakeDisk, log: SmallLog) -> None:
    log.append(count=3)
    log.close()
    again = SmallLog(disk)
    assert again.report.frames_replayed == 0 or again.topic().live.replayed is None
    assert again.topic().live.checkpointed_seq == 3
    assert again.seqs() == [1, 2, 3]


def test_one_that_is_asked_for_while_one_runs_comes_right_behind_it(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    done: list[Any] = []
    log.append()
    log.checkpointer.start(done.append)
    log.append()
    log.checkpointer.start(done.append)
    log.checkpointer.start(done.append)
    runtime.checkpoints.run_all()
    assert done == [None, None, None]
    assert log.checkpointer.number == 2
    assert log.topic().live.checkpointed_seq == 2


def test_a_topic_is_sealed_when_that_is_asked_for_also_behind_a_running_checkpoint(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    done: list[Any] = []
    log.append("a")
    log.append("b")
    log.checkpointer.start(done.append)
    log.append("a")
    log.checkpointer.seal(log.topic("a"), done.append)
    runtime.checkpoints.run_all()
    assert done == [None, None]
    assert [(state.last_seq, state.sealed) for state in log.topic("a").live.segments.segments] == [(2, True)]
    assert [state.sealed for state in log.topic("b").live.segments.segments] == [False], (
        "only the named topic is sealed"
    )
    log.append("a")
    disk.kill()
    again = SmallLog(disk)
    assert again.seqs("a") == [1, 2, 3]
    assert [(state.last_seq, state.sealed) for state in again.topic("a").live.segments.segments] == [(2, True)]


def test_writers_that_outrun_the_checkpoints_are_held_back_until_one_is_done(disk: FakeDisk) -> None:
    """Records that are in no segment are in memory, and the memory must stay bounded."""
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime, checkpoint_wal_bytes=600)
    log.append(count=10)
    log.tick()
    assert log.checkpointer.is_running
    log.append(count=40)
    log.tick()
    with pytest.raises(Throttled):
        log.append()
    runtime.checkpoints.run_all()
    log.tick()
    runtime.checkpoints.run_all()
    assert log.append().first_seq == 51
    assert log.seqs() == list(range(1, 52))


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, StorageFull), (errno.EIO, Throttled)])
def test_writers_ahead_of_checkpoints_that_fail_are_told_why_and_not_to_wait(
    disk: FakeDisk, number: int, told: type[TopicsError]
) -> None:
    """The WAL may still have room when segments have none."""

    def fail_segments(operation: str, path: str) -> None:
        if "/topics/" in path and operation == "pwrite":
            raise OSError(number, os.strerror(number), path)

    log = SmallLog(disk, checkpoint_wal_bytes=600)
    disk.on_operation = fail_segments
    log.append(count=50)
    log.tick()
    log.tick()
    with pytest.raises(told) as refused:
        log.append()
    assert type(refused.value) is told
    assert told is StorageFull or refused.value.detail is not None
    disk.on_operation = None
    log.tick(CHECKPOINT_RETRY_MS)
    assert log.append().first_seq == 51
    assert log.seqs() == list(range(1, 52))


def test_a_stop_while_one_runs_still_gives_reservations_back(disk: FakeDisk) -> None:
    """After a clean stop nothing is lost, so a start after a reboot must not report a loss."""
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    log.append()
    log.checkpointer.start()
    log.append()
    done: list[Any] = []
    log.opened.close(done.append)
    runtime.checkpoints.run_all()
    assert done == [None]
    log.opened.release()
    disk.crash(Damage.DROP)
    again = SmallLog(disk)
    assert again.report.lost_seqs == 0
    assert again.append().first_seq == 3


def test_topics_that_nobody_wrote_to_have_no_files_and_need_no_second_snapshot(disk: FakeDisk) -> None:
    """A hundred thousand such topics must cost little."""
    log = SmallLog(disk)
    for name in ("a", "b", "c"):
        log.create(name, ttl_ms=5000)
    log.close()
    assert disk.listdir(f"{ROOT}/topics") == []
    before = snapshot_names(disk)
    again = SmallLog(disk)
    assert sorted(again.engine.topics) == ["a", "b", "c"]
    again.close()
    assert snapshot_names(disk) == before, "no topic changed"
    again = SmallLog(disk)
    assert again.topic("b").config.ttl_ms == 5000
    again.append("b")
    again.create("c", ttl_ms=7000)
    again.drop("a")
    again.close()
    assert disk.listdir(f"{ROOT}/topics") == ["00000002"]
    disk.crash(Damage.DROP)
    last = SmallLog(disk)
    assert sorted(last.engine.topics) == ["b", "c"]
    assert last.seqs("b") == [1]
    assert last.topic("c").config.ttl_ms == 7000


def test_a_restart_writes_no_topic_json_that_says_the_same(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.append()
    log.close()
    written: list[str] = []
    disk.on_operation = lambda operation, path: written.append(path) if operation == "rename" else None
    again = SmallLog(disk)
    again.append()
    again.close()
    assert not [path for path in written if path.endswith("topic.json")]
    third = SmallLog(disk)
    third.create(cap_records=1)
    third.close()
    assert [path for path in written if path.endswith("topic.json")]


# --- kept files ---------------------------------------------------------------------------------------------


def test_two_snapshots_are_kept(disk: FakeDisk, log: SmallLog) -> None:
    for number in range(1, 6):
        log.append()
        log.checkpoint()
        assert snapshot_names(disk) == [number] if number == 1 else [number - 1, number]


def test_wal_files_go_only_when_neither_kept_snapshot_needs_them(disk: FakeDisk, log: SmallLog) -> None:
    log.append(count=60)
    log.append(count=60)
    first, *later = wal_names(disk)
    assert later
    log.checkpoint()
    assert first in wal_names(disk), "a start from the previous snapshot needs it"
    log.append(count=60)
    log.checkpoint()
    assert first not in wal_names(disk)
    before = log.engine.wal.positions[0].file_frame
    log.append(count=120)
    log.checkpoint()
    assert before in wal_names(disk)


def test_files_of_dead_segments_go_only_when_no_kept_snapshot_lists_them(disk: FakeDisk, log: SmallLog) -> None:
    """A start may use the previous snapshot."""
    log.create(cap_records=SEGMENT_EVENTS)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.append(count=SEGMENT_EVENTS)
    assert log.seqs() == [6, 7, 8, 9, 10]
    assert segment_names(disk) == [1]
    log.checkpoint()
    assert segment_names(disk)[0] == 1, "the previous snapshot lists it"
    log.append()
    log.checkpoint()
    log.append()
    log.checkpoint()
    assert 1 not in segment_names(disk)
    log.close()
    assert SmallLog(disk).seqs() == [8, 9, 10, 11, 12]


def test_a_segment_whose_records_were_all_deleted_goes_too(disk: FakeDisk, log: SmallLog) -> None:
    log.append(count=SEGMENT_EVENTS)
    log.append(count=SEGMENT_EVENTS, tag="red")
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    assert segment_names(disk) == [1, 6, 11]
    assert log.delete(tag="red") == SEGMENT_EVENTS
    for _ in range(4):
        log.append()
        log.checkpoint()
    assert 6 not in segment_names(disk)
    assert log.seqs() == [1, 2, 3, 4, 5, *range(11, 20)]
    log.close()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4, 5, *range(11, 20)]


def test_the_reservation_of_an_idle_topic_is_given_back(disk: FakeDisk, log: SmallLog) -> None:
    """An idle topic has no seqs to lose with a power loss."""
    log.append()
    assert log.topic().writes.ceiling > 200
    log.checkpoint()
    assert log.topic().writes.ceiling > 200, "the topic was written to since the last checkpoint"
    log.checkpoint()
    assert log.topic().writes.ceiling == 2
    disk.crash(Damage.DROP)
    again = SmallLog(disk)
    assert again.report.lost_seqs == 0
    assert again.seqs() == [1]
    assert again.append().first_seq == 2


def test_an_active_segment_is_sealed_by_age_though_its_topic_is_idle(disk: FakeDisk) -> None:
    log = SmallLog(disk, segment_age_ms_max=5000)
    log.append(tag="red")
    log.checkpoint()
    assert not log.topic().live.segments.segments[0].sealed
    log.clock.advance(5000)
    log.checkpoint()
    assert log.topic().live.segments.segments[0].sealed
    assert segment_names(disk, kind="tags") == [1]


def test_the_order_of_calls_is_kept_over_many_checkpoints(disk: FakeDisk) -> None:
    monitor = MonitorFs(disk)
    log = SmallLog(monitor)
    log.create(cap_records=12)
    for turn in range(12):
        log.append(count=4, tag="red" if turn % 3 else None)
        if turn == 5:
            log.delete(tag="red")
        log.checkpoint()
    assert monitor.violations == []
    log.close()
    assert monitor.violations == []
    assert monitor.check_settled() == []


# --- while one runs -----------------------------------------------------------------------------------------


class RunningCheckpoint:
    """A log whose checkpoint has captured all topics and waits for its job."""

    def __init__(self, disk: FakeDisk, count: int = 8) -> None:
        self.runtime = HeldRuntime()
        self.log = SmallLog(disk, runtime=self.runtime)
        self.done: list[Any] = []
        self.log.append(count=count, tag="red")

    def start(self) -> None:
        self.log.checkpointer.start(self.done.append)
        assert len(self.runtime.checkpoints) == 1

    def finish(self) -> None:
        self.runtime.checkpoints.run_all()
        assert self.done == [None]
        self.done.clear()

    def whole(self) -> None:
        self.start()
        self.finish()


def test_writes_made_while_a_checkpoint_runs_are_not_in_it_and_not_lost(disk: FakeDisk) -> None:
    held = RunningCheckpoint(disk)
    held.start()
    held.log.append(count=3)
    held.finish()
    assert held.log.topic().live.checkpointed_seq == 8
    assert held.log.seqs() == list(range(1, 12))
    disk.kill()
    assert SmallLog(disk).seqs() == list(range(1, 12))


@pytest.mark.parametrize("when", ["before the job", "between job and snapshot", "before the marks"])
@pytest.mark.parametrize("how", [{"before_seq": 4}, {"tag": "red", "before_seq": 6}, {"seqs": [2, 7]}])
def test_deletes_made_while_a_checkpoint_runs_stay_pending_and_are_not_lost(
    disk: FakeDisk, when: str, how: dict[str, Any]
) -> None:
    """The files of this checkpoint, those of the next, and every start agree on the delete."""
    expected = {4: [4, 5, 6, 7, 8], 6: [6, 7, 8]}.get(how.get("before_seq", 0), [1, 3, 4, 5, 6, 8])
    held = RunningCheckpoint(disk)
    held.start()
    for _ in range(["before the job", "between job and snapshot", "before the marks"].index(when)):
        held.runtime.checkpoints.step()
    assert held.log.delete(**how) == 8 - len(expected)
    held.finish()
    assert held.log.seqs() == expected
    machine = disk.clone()
    assert SmallLog(machine).seqs() == expected
    held.whole()
    assert held.log.seqs() == expected
    held.whole()
    disk.kill()
    again = SmallLog(disk)
    assert again.seqs() == expected
    again.checkpoint()
    again.close()
    assert SmallLog(disk).seqs() == expected


def test_deletes_in_older_segments_made_while_their_delete_bytes_are_set_stay_pending(disk: FakeDisk) -> None:
    held = RunningCheckpoint(disk)
    held.whole()
    held.log.delete(seqs=[1])
    held.start()
    held.log.delete(seqs=[2])
    held.finish()
    assert held.log.topic().live.segments.pending_runs(held.log.topic().live.segments.segments[:1]) == [(2, 2)]
    assert held.log.seqs() == [3, 4, 5, 6, 7, 8]
    disk.kill()
    assert SmallLog(disk).seqs() == [3, 4, 5, 6, 7, 8]


def test_evictions_made_while_a_checkpoint_runs_hold(disk: FakeDisk) -> None:
    held = RunningCheckpoint(disk)
    held.start()
    held.log.create(cap_records=3)
    held.log.append()
    held.finish()
    assert held.log.seqs() == [7, 8, 9]
    disk.kill()
    assert SmallLog(disk).seqs() == [7, 8, 9]


@pytest.mark.parametrize("turns_before", range(4))
def test_topics_go_on_with_their_segments_in_many_turns_with_other_calls_between_them(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, turns_before: int
) -> None:
    monkeypatch.setattr("topics.engine.checkpointing.checkpoint.TOPICS_PER_TURN", 2)
    runtime = InlineRuntime()
    log = SmallLog(disk, runtime=runtime)
    names = [f"t{number}" for number in range(7)]
    for name in names:
        log.append(name, 6)
    ended: list[Exception | None] = []
    log.checkpointer.start(ended.append)
    for _ in range(turns_before):
        assert ended == []
        assert runtime.take_turn()
    # Whether a topic has its segments already or not makes no difference.
    for name in names[1:]:
        log.append(name, 2)
        assert log.delete(name, seqs=[2, 7]) == 2
    assert log.drop("t0")
    while runtime.take_turn():
        log.engine.flush()
    assert ended == [None]
    expected = [1, 3, 4, 5, 6, 8]
    assert [log.seqs(name) for name in names[1:]] == [expected] * 6
    disk.kill()
    again = SmallLog(disk)
    assert [again.seqs(name) for name in names[1:]] == [expected] * 6
    monkeypatch.undo()
    again.checkpoint()
    disk.crash(Damage.DROP)
    last = SmallLog(disk)
    assert sorted(last.engine.topics) == names[1:]
    assert [last.seqs(name) for name in names[1:]] == [expected] * 6


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_topic_removed_while_a_checkpoint_runs_is_gone_for_good(disk: FakeDisk, steps: int) -> None:
    """At any step its files are removed, and it does not come back."""
    held = RunningCheckpoint(disk)
    held.log.append("b", 3)
    held.start()
    for _ in range(steps):
        if len(held.runtime.checkpoints):
            held.runtime.checkpoints.step()
    assert held.log.drop("a")
    held.runtime.checkpoints.run_all()
    held.log.append("b")
    held.log.checkpointer.start()
    held.runtime.checkpoints.run_all()
    assert disk.listdir(f"{ROOT}/topics") == ["00000002"]
    disk.kill()
    again = SmallLog(disk)
    assert sorted(again.engine.topics) == ["b"]
    assert again.seqs("b") == [1, 2, 3, 4]
    assert disk.listdir(f"{ROOT}/topics") == ["00000002"]


def test_a_topic_removed_and_made_again_while_a_checkpoint_runs_starts_anew(disk: FakeDisk) -> None:
    held = RunningCheckpoint(disk)
    held.start()
    held.log.drop()
    held.log.append(count=2)
    held.finish()
    assert held.log.seqs() == [1, 2]
    held.whole()
    disk.kill()
    again = SmallLog(disk)
    assert again.seqs() == [1, 2]
    assert again.topic().id == 2


def test_a_config_changed_while_a_checkpoint_runs_is_kept(disk: FakeDisk) -> None:
    held = RunningCheckpoint(disk)
    held.start()
    held.log.create(ttl_ms=5000, durability="fsync")
    held.finish()
    held.whole()
    disk.kill()
    config = SmallLog(disk).topic().config
    assert (config.ttl_ms, config.durability) == (5000, "fsync")


# --- failures -----------------------------------------------------------------------------------------------


class Stubborn(InlineRunner):
    """Fails the first jobs, before or after their work."""

    def __init__(self, fs: FakeDisk, failures: list[str]) -> None:
        super().__init__(fs)
        self.failures = failures

    def run(self, job: Job) -> JobResult:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise JobFailed("no")
        result = super().run(job)
        if failure == "after":
            raise JobFailed("the worker died with status -9")
        return result


@pytest.mark.parametrize("failures", [["before"], ["after"], ["after", "before", "after"]])
def test_a_failing_job_leaves_everything_usable_and_the_next_one_does_it_all(
    disk: FakeDisk, failures: list[str]
) -> None:
    count = len(failures)
    log = SmallLog(disk, runner=Stubborn(disk, failures))
    for turn in range(count):
        log.append(count=3, tag="red" if turn == 0 else None)
        with pytest.raises(JobFailed):
            log.checkpoint()
        assert log.seqs() == list(range(1, 3 * turn + 4))
    machine = disk.clone()
    assert SmallLog(machine).seqs() == list(range(1, 3 * count + 1))
    log.delete(seqs=[2])
    log.checkpoint()
    expected = [seq for seq in range(1, 3 * count + 1) if seq != 2]
    assert log.seqs() == expected
    assert log.topic().live.checkpointed_seq == 3 * count
    disk.kill()
    assert SmallLog(disk).seqs() == expected


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_snapshot_that_cannot_be_written_leaves_the_one_before_and_is_tried_again(disk: FakeDisk, error: int) -> None:
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.append(count=3)
    log.checkpoint()
    log.append(count=3)
    log.delete(seqs=[1])
    fs.fail("pwrite", error=error, path=lambda path: "snapshot" in path)
    with pytest.raises(OSError, check=lambda raised: raised.errno == error):
        log.checkpoint()
    assert log.seqs() == [2, 3, 4, 5, 6]
    machine = disk.clone()
    assert SmallLog(machine).seqs() == [2, 3, 4, 5, 6]
    log.append()
    log.checkpoint()
    assert log.checkpointer.number == 2
    disk.kill()
    assert SmallLog(disk).seqs() == [2, 3, 4, 5, 6, 7]


def test_files_that_cannot_be_removed_stay_and_fail_nothing(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    log = SmallLog(fs)
    fs.fail("unlink", error=errno.EIO, lasts=True, path=lambda path: not path.endswith(".tmp"))
    for _ in range(4):
        log.append(count=3)
        log.checkpoint()
    assert snapshot_names(disk) == [1, 2, 3, 4]
    fs.heal()
    log.append()
    log.checkpoint()
    assert snapshot_names(disk) == [4, 5]
    disk.kill()
    assert SmallLog(disk).seqs() == list(range(1, 14))


def test_a_dead_shard_fails_the_checkpoint_and_reads_go_on(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.create(durability="fsync")
    log.append(count=3)
    fs.fail("fdatasync")
    with pytest.raises(Exception, match="read-only"):
        log.append()
    with pytest.raises(Exception, match="read-only"):
        log.checkpoint()
    assert log.seqs() == [1, 2, 3]
    disk.kill()
    assert SmallLog(disk).seqs()[:3] == [1, 2, 3]


def test_records_rotten_in_the_wal_fail_the_checkpoint_instead_of_vanishing(disk: FakeDisk, log: SmallLog) -> None:
    """WAL files with records that are in no segment must never be removed."""
    log.append(count=6)
    log.engine.wal.shards[0].sync()
    path = f"{ROOT}/wal/wal-0000000000000001.log"
    content = disk.read(path)
    disk.poke(path, content.index(b'"n":3'), b'"n":9')
    for _ in range(3):
        with pytest.raises(Exception, match="damaged"):
            log.checkpoint()
    assert log.seqs() == [1, 2, 3, 4, 5, 6], "memory still has the records"
    assert snapshot_names(disk) == []
    assert wal_names(disk) == [1]
