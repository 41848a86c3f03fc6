"""Consumer groups: their cursors, the calls that move them, and their state after a crash."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.small_log import HeldRuntime, SmallLog, raised
from topics.errors import Closed, GroupNotFound, InvalidRequest, Throttled, TopicNotFound, WalFailed
from topics.formats.control import GroupUpdate
from topics.limits import GROUPS_PER_TOPIC_MAX
from topics.results import GroupChanged as Changed
from topics.results import GroupCursor as Cursor
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
STORED = CLASSES[1:]


class GroupLog(SmallLog):
    """A small log with calls for groups of topic `a`."""

    def start_put(self, group: str, position: Any = None) -> list[Any]:
        results: list[Any] = []
        self.engine.groups.put("a", group, position, results.append)
        return results

    def start_commit(self, group: str, seq: int, *, rewind: bool = False) -> list[Any]:
        results: list[Any] = []
        self.engine.groups.commit("a", group, seq, results.append, rewind=rewind)
        return results

    def start_delete(self, group: str) -> list[Any]:
        results: list[Any] = []
        self.engine.groups.delete("a", group, results.append)
        return results

    def settle(self, results: list[Any]) -> Any:
        self.engine.flush()
        return raised(results)

    def put(self, group: str, position: Any = None) -> Changed:
        changed: Changed = self.settle(self.start_put(group, position))
        return changed

    def commit(self, group: str, seq: int, *, rewind: bool = False) -> Changed:
        changed: Changed = self.settle(self.start_commit(group, seq, rewind=rewind))
        return changed

    def remove(self, group: str) -> bool:
        deleted: bool = self.settle(self.start_delete(group))
        return deleted

    def cursors(self) -> dict[str, int]:
        return {cursor.group: cursor.seq for cursor in self.engine.groups.cursors("a")}


def log_of(count: int, disk: FakeDisk | None = None, **config: Any) -> GroupLog:
    """A log with a topic `a` that has `count` records."""
    log = GroupLog(disk or FakeDisk())
    log.create("a", **config)
    if count:
        log.append("a", count)
    return log


# Rules.


@pytest.mark.parametrize("durability", CLASSES)
def test_a_group_stands_where_it_was_put_and_moves_with_its_commits(durability: str) -> None:
    log = log_of(5, durability=durability)
    now_ms = log.clock.now_ms()
    assert log.put("g", 2) == (Cursor("g", 2, 5, 3, now_ms), True, True)
    log.clock.advance(10)
    assert log.commit("g", 4) == (Cursor("g", 4, 5, 1, now_ms + 10), False, True)
    log.append("a", 3)
    assert log.engine.groups.cursor("a", "g") == Cursor("g", 4, 8, 4, now_ms + 10)


def test_a_new_group_stands_at_the_start_and_an_old_one_stays_when_no_place_is_named() -> None:
    log = log_of(5)
    assert log.put("g").cursor.seq == 0
    log.commit("g", 3)
    again = log.put("g")
    assert (again.cursor.seq, again.created, again.moved) == (3, False, False)


def test_the_start_is_before_what_can_be_read_and_the_head_behind_it() -> None:
    log = log_of(0, cap_records=3)
    for _ in range(5):
        log.append("a")
    assert log.put("s", "start").cursor.seq == 2
    assert log.put("h", "head").cursor.seq == 5
    assert log.put("s", "head").cursor.seq == 5
    assert log.cursors() == {"h": 5, "s": 5}


def test_a_group_of_an_empty_topic_stands_at_zero() -> None:
    log = log_of(0)
    assert log.put("s", "start").cursor.seq == log.put("h", "head").cursor.seq == 0


def test_a_lower_commit_changes_nothing_unless_it_is_meant() -> None:
    log = log_of(5)
    log.put("g", 4)
    assert not log.commit("g", 4).moved
    assert not log.commit("g", 1).moved
    assert log.cursors() == {"g": 4}
    assert log.commit("g", 1, rewind=True).moved
    assert log.cursors() == {"g": 1}


def test_commits_that_overtake_each_other_leave_the_highest() -> None:
    log = log_of(5)
    log.put("g", 0)
    results = [log.start_commit("g", seq) for seq in (3, 5, 4)]
    log.engine.flush()
    assert [raised(result).cursor.seq for result in results] == [3, 5, 5]
    assert log.cursors() == {"g": 5}


@pytest.mark.parametrize("seq", [-1, 6, 2**64])
def test_no_group_stands_beyond_the_head(seq: int) -> None:
    log = log_of(5)
    log.put("g", 5)
    with pytest.raises(InvalidRequest):
        log.commit("g", seq)
    with pytest.raises(InvalidRequest):
        log.put("g", seq)
    assert log.cursors() == {"g": 5}


@pytest.mark.parametrize("name", ["", "-g", "a/b", "x" * 256, "ü"])
def test_a_group_is_named_like_a_topic(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a group name"):
        log_of(1).put(name)


def test_what_is_not_there_is_told() -> None:
    log = log_of(1)
    with pytest.raises(GroupNotFound, match='topic "a" has no group "g"'):
        log.commit("g", 1)
    with pytest.raises(GroupNotFound):
        log.engine.groups.cursor("a", "g")
    assert not log.remove("g")
    log.drop("a")
    for call in (lambda: log.put("g"), lambda: log.commit("g", 0), lambda: log.remove("g"), log.cursors):
        with pytest.raises(TopicNotFound):
            call()


def test_a_topic_has_only_so_many_groups() -> None:
    log = log_of(1)
    results = [log.start_put(f"g{place}") for place in range(GROUPS_PER_TOPIC_MAX)]
    with pytest.raises(Throttled) as refused:
        log.put("one-more")
    assert refused.value.detail == {"limit": "max_groups", "max": GROUPS_PER_TOPIC_MAX}
    log.engine.flush()
    assert all(raised(result).created for result in results)
    with pytest.raises(Throttled):
        log.put("one-more")
    assert log.put("g1", "head").moved, "an existing group can be moved"
    assert log.remove("g0")
    assert log.put("one-more").created


def test_groups_hold_nothing_back_and_their_readers_get_the_usual_tombstones() -> None:
    log = log_of(0, cap_records=2)
    log.append("a")
    log.put("g", 0)
    for _ in range(4):
        log.append("a")
    page = log.engine.read("a", log.engine.groups.cursor("a", "g").seq)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to) == (1, 3)


def test_groups_go_with_their_topic() -> None:
    log = log_of(3)
    log.put("g", 2)
    log.drop("a")
    log.create("a")
    assert log.cursors() == {}


def test_a_commit_behind_the_end_of_its_topic_finds_none() -> None:
    log = log_of(3)
    log.put("g", 0)
    dropped: list[Any] = []
    log.engine.delete_topic("a", if_empty=False, done=dropped.append)
    waiting = log.start_commit("g", 2)
    with pytest.raises(TopicNotFound):
        log.settle(waiting)
    assert dropped == [True]


def test_a_commit_behind_a_new_config_is_made_under_it() -> None:
    log = log_of(3, durability="ephemeral")
    log.put("g", 0)
    log.engine.put_topic("a", log.topic().config, [].append)
    waiting = log.start_commit("g", 2)
    assert waiting == []
    assert log.settle(waiting).cursor.seq == 2


def test_a_commit_behind_the_deletion_of_its_group_finds_none() -> None:
    log = log_of(3)
    log.put("g", 0)
    deleted, late = log.start_delete("g"), log.start_commit("g", 2)
    assert log.settle(deleted) is True
    with pytest.raises(GroupNotFound):
        raised(late)
    assert log.cursors() == {}


def test_a_log_that_is_closed_takes_no_commits() -> None:
    log = log_of(3)
    log.put("g", 0)
    log.engine.stop_writes()
    with pytest.raises(Closed):
        log.commit("g", 1)


# What is left after a restart.


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_groups_are_there_after_a_clean_restart(durability: str, *, checkpoints: bool) -> None:
    disk, clock = FakeDisk(), ManualClock()
    log = GroupLog(disk, clock=clock)
    log.create("a", durability=durability)
    log.append("a", 5)
    log.put("g", 1)
    log.put("gone", 1)
    if checkpoints:
        log.checkpoint()
    log.commit("g", 3)
    log.remove("gone")
    before = log.engine.groups.cursors("a")
    log.close()
    assert GroupLog(disk, clock=clock).engine.groups.cursors("a") == before


@pytest.mark.parametrize("durability", STORED)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_after_a_kill_every_answered_commit_is_there(durability: str, *, checkpoints: bool) -> None:
    disk = FakeDisk()
    log = log_of(5, disk, durability=durability)
    log.put("g", 1)
    if checkpoints:
        log.checkpoint()
    log.commit("g", 4)
    log.commit("g", 2, rewind=True)
    disk.kill()
    assert GroupLog(disk).cursors() == {"g": 2}


@pytest.mark.parametrize("durability", CLASSES)
def test_a_power_loss_takes_no_group_that_was_put_and_brings_none_back(durability: str) -> None:
    disk = FakeDisk()
    log = log_of(5, disk, durability=durability)
    log.put("g", 3)
    log.put("gone", 3)
    log.remove("gone")
    disk.crash(Damage.DROP)
    after = GroupLog(disk)
    # The records of the ephemeral topic are gone, so the cursor of the group is above the head.
    assert after.cursors() == {"g": 0 if durability == "ephemeral" else 3}


@pytest.mark.parametrize("seed", range(5))
def test_a_power_loss_takes_no_commit_of_the_fsync_class(seed: int) -> None:
    disk = FakeDisk()
    log = log_of(9, disk, durability="fsync")
    log.put("g", 0)
    for seq in range(1, 10):
        log.commit("g", seq)
    disk.crash(Damage.TORN, seed)
    assert GroupLog(disk).cursors() == {"g": 9}


@pytest.mark.parametrize("durability", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(10))
def test_a_power_loss_never_leaves_a_group_ahead_of_its_topic(durability: str, seed: int) -> None:
    disk = FakeDisk()
    log = log_of(1, disk, durability=durability)
    log.put("g", 0)
    for seq in range(2, 12):
        log.append("a")
        log.commit("g", seq)
    disk.crash(Damage.TORN, seed)
    after = GroupLog(disk)
    assert 0 <= after.cursors()["g"] <= after.topic().head_seq


def test_commits_made_while_a_checkpoint_runs_are_kept() -> None:
    disk, runtime = FakeDisk(), HeldRuntime()
    log = GroupLog(disk, runtime=runtime)
    log.create("a")
    log.append("a", 5)
    log.put("g", 1)
    log.checkpointer.start([].append)
    log.commit("g", 3)
    runtime.checkpoints.run_all()
    disk.kill()
    assert GroupLog(disk).cursors() == {"g": 3}


@pytest.mark.parametrize("durability", STORED)
def test_a_commit_whose_frame_cannot_be_written_fails_and_changes_nothing(durability: str) -> None:
    disk = FakeDisk()
    fs = FaultFs(disk)
    log = GroupLog(fs)
    log.create("a", durability=durability)
    log.append("a", 5)
    log.put("g", 1)
    fs.fail("pwrite")
    with pytest.raises(WalFailed):
        log.commit("g", 4)
    assert log.cursors() == {"g": 1}


# Cursors from a snapshot and from the log.

updates = st.builds(
    GroupUpdate,
    st.sampled_from(["g", "h"]),
    st.sampled_from(["created", "moved", "committed", "rewound", "deleted"]),
    st.integers(0, 5),
)


@given(st.lists(updates, max_size=20))
def test_a_replay_comes_to_what_the_engine_came_to(steps: list[GroupUpdate]) -> None:
    disk = FakeDisk()
    log = log_of(5, disk)
    for step in steps:
        if step.event == "created":
            log.put(step.name)
        elif step.event == "moved":
            log.put(step.name, step.seq)
        elif step.event == "deleted":
            log.remove(step.name)
        elif step.name in log.cursors():
            log.commit(step.name, step.seq, rewind=step.event == "rewound")
    before = log.cursors()
    disk.kill()
    assert GroupLog(disk).cursors() == before


# A crash at every operation.


class Sweep:
    """One run on a disk that stops at some operation, and the cursors that a start may find."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        # The answered cursors, and the cursors that a call without an answer may have set.
        self.answered: dict[str, int] = {}
        self.possible: list[dict[str, int]] = [{}]

    def expect(self, cursors: dict[str, int]) -> None:
        self.possible = [self.answered, cursors]

    def run(self) -> None:
        log = GroupLog(self.disk)
        log.create("a", durability="fsync")
        log.append("a", 9)
        for step, cursors in (
            (lambda: log.put("g", 1), {"g": 1}),
            (lambda: log.commit("g", 3), {"g": 3}),
            (lambda: log.put("h", "head"), {"g": 3, "h": 9}),
            (log.checkpoint, {"g": 3, "h": 9}),
            (lambda: log.commit("g", 2, rewind=True), {"g": 2, "h": 9}),
            (lambda: log.remove("h"), {"g": 2}),
            (lambda: log.commit("g", 7), {"g": 7}),
            (log.checkpoint, {"g": 7}),
            (lambda: log.put("h", 5), {"g": 7, "h": 5}),
        ):
            self.expect(cursors)
            step()
            self.answered = cursors
            self.possible = [cursors]


def test_wherever_the_power_goes_answered_changes_stay() -> None:
    stopped = True
    operation_index = 0
    while stopped:
        for damage in Damage:
            sweep = Sweep()
            hook = CrashAt(operation_index)
            sweep.disk.on_operation = hook
            try:
                sweep.run()
                stopped = False
            except CrashNow:
                stopped = True
            sweep.disk.on_operation = None
            sweep.disk.crash(damage, operation_index)
            log = GroupLog(sweep.disk)
            found = log.cursors() if "a" in log.engine.topics else {}
            assert found in sweep.possible, (operation_index, damage)
        operation_index += 1
    assert operation_index > 50
