"""Bridges: their definitions and positions, and records that come in with a position."""

from typing import Any

import pytest

from tests.engine.small_log import SmallLog, raised
from topics.engine.writing.intake import batch_of_records
from topics.errors import Closed, RouterNotFound, TopicFull, WalFailed
from topics.formats.snapshot import BridgeState
from topics.results import NewRecord
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
STORED = CLASSES[1:]


class BridgeLog(SmallLog):
    """A small log with calls for bridges of topic `a`. A position is a number: how many records came in before."""

    def settle(self, results: list[Any]) -> Any:
        self.engine.flush()
        return raised(results)

    def put(self, name: str = "b", definition: bytes = b"from x", position: int = 0) -> bool:
        results: list[Any] = []
        self.engine.bridges.put(name, "a", definition, b"%d" % position, results.append)
        created: bool = self.settle(results)
        return created

    def copy(self, count: int, name: str = "b") -> None:
        """Appends the next `count` records of the other side. Each payload is the number of its record."""
        first = self.position(name) + 1
        batch = batch_of_records([NewRecord(number) for number in range(first, first + count)])
        results: list[Any] = []
        self.engine.bridges.append(name, batch, b"%d" % (first + count - 1), results.append)
        self.settle(results)

    def advance(self, position: int, name: str = "b") -> None:
        results: list[Any] = []
        self.engine.bridges.advance(name, b"%d" % position, results.append)
        self.settle(results)

    def remove(self, name: str = "b") -> bool:
        results: list[Any] = []
        self.engine.bridges.delete(name, results.append)
        deleted: bool = self.settle(results)
        return deleted

    def state(self, name: str = "b") -> BridgeState | None:
        bridge = self.engine.bridges.find(name)
        return None if bridge is None else bridge.state

    def position(self, name: str = "b") -> int:
        state = self.state(name)
        assert state is not None
        return int(state.position)

    def copies(self) -> list[int]:
        records, _ = self.read("a")
        return [int(record.data) for record in records]


def bridged(disk: FakeDisk | None = None, **config: Any) -> BridgeLog:
    log = BridgeLog(disk or FakeDisk())
    log.create("a", **config)
    log.put()
    return log


# Rules.


def test_a_bridge_creates_its_topic_and_is_found_by_its_name() -> None:
    log = BridgeLog(FakeDisk())
    assert log.put(definition=b"one")
    assert log.engine.bridges.names() == ["b"]
    assert log.state() == BridgeState("b", b"one", b"0")
    assert not log.put(definition=b"two", position=5), "it was there"
    assert log.state() == BridgeState("b", b"two", b"5")
    assert log.engine.bridges.find("c") is None


@pytest.mark.parametrize("durability", CLASSES)
def test_records_and_the_position_after_them_come_together(durability: str) -> None:
    log = bridged(durability=durability)
    log.copy(3)
    log.copy(2)
    assert (log.copies(), log.position()) == ([1, 2, 3, 4, 5], 5)
    log.advance(9)
    assert (log.copies(), log.position()) == ([1, 2, 3, 4, 5], 9)


def test_direct_writes_come_between() -> None:
    log = bridged()
    log.copy(2)
    log.append("a", 1)
    log.copy(1)
    assert log.topic().head_seq == 4
    assert log.position() == 3


def test_a_bridge_that_is_not_there_is_told() -> None:
    log = BridgeLog(FakeDisk())
    assert not log.remove()
    with pytest.raises(RouterNotFound):
        log.advance(1)


def test_a_deleted_bridge_leaves_its_records() -> None:
    log = bridged()
    log.copy(3)
    assert log.remove()
    assert (log.copies(), log.state()) == ([1, 2, 3], None)


def test_bridges_end_with_their_topic_which_is_told() -> None:
    log = bridged()
    ended: list[str] = []
    log.engine.bridges.on_ended.append(ended.append)
    log.drop("a")
    assert (ended, log.state()) == (["b"], None)
    log.create("a")
    assert log.state() is None


def test_a_full_topic_takes_neither_records_nor_position() -> None:
    log = bridged(cap_records=2, discard="reject")
    log.copy(2)
    with pytest.raises(TopicFull):
        log.engine.bridges.append("b", batch_of_records([NewRecord(3)]), b"3", [].append)
    log.engine.flush()
    assert (log.copies(), log.position()) == ([1, 2], 2)


def test_a_closed_log_refuses_every_change() -> None:
    log = bridged()
    log.engine.stop_writes()
    for call in (log.put, log.remove, lambda: log.advance(1), lambda: log.copy(1)):
        with pytest.raises(Closed):
            call()


@pytest.mark.parametrize("durability", STORED)
def test_a_write_that_fails_leaves_the_position(durability: str) -> None:
    fs = FaultFs(FakeDisk())
    log = BridgeLog(fs)
    log.create("a", durability=durability)
    log.put()
    log.copy(2)
    fs.fail("pwrite")
    with pytest.raises(WalFailed):
        log.copy(2)
    assert (log.copies(), log.position()) == ([1, 2], 2)


# Restarts.


@pytest.mark.parametrize("durability", STORED)
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("ends", ["close", "kill"])
def test_bridges_are_there_after_a_restart(durability: str, ends: str, *, checkpoints: bool) -> None:
    disk = FakeDisk()
    log = bridged(disk, durability=durability)
    log.put("gone")
    log.copy(3)
    if checkpoints:
        log.checkpoint()
    log.copy(4)
    log.advance(9)
    log.remove("gone")
    if ends == "close":
        log.close()
    else:
        disk.kill()
    again = BridgeLog(disk)
    assert again.engine.bridges.names() == ["b"]
    assert again.state() == BridgeState("b", b"from x", b"9")
    assert again.copies() == [1, 2, 3, 4, 5, 6, 7]


class Sweep:
    """One run on a disk that stops at some operation."""

    def __init__(self, durability: str) -> None:
        self.disk = FakeDisk()
        self.durability = durability
        # How many records were answered.
        self.answered = -1

    def run(self) -> None:
        log = bridged(self.disk, durability=self.durability)
        self.answered = 0
        for count in (2, 3, 0, 6, 1, 0, 4):
            if count:
                log.copy(count)
                self.answered += count
            else:
                log.checkpoint()


@pytest.mark.parametrize("durability", STORED)
def test_wherever_the_power_goes_no_record_is_copied_twice_or_missed(durability: str) -> None:
    """The program goes on at the position: the topic must have the records up to it, and no other."""
    stopped = True
    operation_index = 0
    while stopped:
        for damage in Damage:
            sweep = Sweep(durability)
            sweep.disk.on_operation = CrashAt(operation_index)
            try:
                sweep.run()
                stopped = False
            except CrashNow:
                stopped = True
            sweep.disk.on_operation = None
            sweep.disk.crash(damage, operation_index)
            log = BridgeLog(sweep.disk)
            if log.state() is None:
                assert sweep.answered == -1, (operation_index, damage)
                continue
            where = (operation_index, damage, sweep.answered)
            assert log.copies() == list(range(1, log.position() + 1)), where
            if durability == "fsync":
                assert log.position() >= sweep.answered, where
            log.copy(2)
            assert log.copies() == list(range(1, log.position() + 1)), where
        operation_index += 1
    assert operation_index > 50
