"""Queues under the crash sweep: acks, durable leases, moves of dead letters, redrives."""

from dataclasses import replace

import pytest

from tests.conftest import FULL
from tests.crash.harness import BLOWS, SETTINGS, Blow, Broken
from tests.crash.queue_world import QueueWorld
from tests.crash.sweep import RecordProperty, Tally, run_until, sampled
from tests.engine.small_log import rot_snapshots
from topics.testing.fake_disk import Damage

POINTS = None if FULL else 40
POINTS_WITHOUT_SNAPSHOTS = None if FULL else 15
BLOWS_AT_ONE_POINT = len(BLOWS) if FULL else 2


def work(world: QueueWorld) -> None:
    """All calls of a queue, with a checkpoint and a clean stop in between."""
    world.open()
    world.put()
    world.add(6)
    first = world.claim(4)
    world.ack(first[:1])
    world.nack(first[1:3])
    second = world.claim(2)
    world.nack(second)
    # These jobs were delivered twice, so they become dead letters, and the claim gets other jobs.
    third = world.claim(2)
    world.redrive(1)
    world.tick()
    world.checkpoint()
    world.redrive(3)
    world.add(3)
    world.nack(third)
    world.ack(world.claim(3)[:2])
    world.close()
    world.open()
    world.forget_leases()
    world.add(2)
    world.ack(world.claim(2))
    world.nack(list(world.known.leased)[:1])
    world.claim(5)
    world.checkpoint()
    world.claim(5)
    world.redrive(2)


def survive(world: QueueWorld, seed: int, blow: Blow, next_blow: Blow) -> None:
    world.crash(blow, seed)
    world.open()
    world.forget_leases()
    world.check()
    world.crash(None)
    world.open()
    world.check()
    if "q" not in world.engine.topics or "dead" not in world.engine.topics:
        return
    world.add(2)
    world.tick()
    world.claim(2)
    world.check()
    world.redrive(9)
    world.check()
    world.crash(next_blow, seed + 1)
    world.open()
    world.forget_leases()
    world.check()
    world.checkpoint()
    world.finish()
    world.crash(next_blow, seed + 2)
    world.open()
    world.check()


CASES = {
    "fsync": (SETTINGS, "fsync", True, BLOWS),
    "fsync, three shards": (replace(SETTINGS, wal_shards=3), "fsync", True, BLOWS),
    "fsync, leases in memory": (SETTINGS, "fsync", False, BLOWS),
    "disk": (SETTINGS, "disk", True, BLOWS),
    "disk, killed": (SETTINGS, "disk", True, (None,)),
    "memory, three shards, killed": (replace(SETTINGS, wal_shards=3), "memory", True, (None,)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_crash_at_any_operation_loses_no_job_and_brings_none_back(name: str, record_property: RecordProperty) -> None:
    settings, durability, durable, blows = CASES[name]
    tally = Tally(f"crash sweep: queue, {name}")
    operation_count = run_until(work, QueueWorld(settings, durability, durable=durable), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        tally.points += 1
        for place in range(min(BLOWS_AT_ONE_POINT, len(blows))):
            # An engine with callbacks cannot be forked, so every point runs the script from the start.
            world = QueueWorld(settings, durability, durable=durable)
            run_until(work, world, operation_index)
            first = (operation_index + place * 3) % len(blows)
            blow, next_blow = blows[first], blows[(first + 1 + operation_index) % len(blows)]
            try:
                survive(world, operation_index, blow, next_blow)
            except Exception as error:
                raise Broken(
                    f"before operation {operation_index} of {operation_count}, {blow} and then {next_blow}: {error}"
                ) from error
            tally.recoveries += 4
    tally.record(record_property)


@pytest.mark.parametrize("name", CASES)
def test_a_kill_and_no_readable_snapshot_lose_no_job_and_bring_none_back(
    name: str, record_property: RecordProperty
) -> None:
    """Acked jobs stay acked, and no job is lost, although only the log and the segments can be read."""
    settings, durability, durable, _ = CASES[name]
    tally = Tally(f"crash sweep: queue without snapshots, {name}")
    operation_count = run_until(work, QueueWorld(settings, durability, durable=durable), 1 << 60)
    for operation_index in sampled(operation_count, POINTS_WITHOUT_SNAPSHOTS):
        tally.points += 1
        world = QueueWorld(settings, durability, durable=durable)
        run_until(work, world, operation_index)
        try:
            for _ in range(2):
                world.crash(None)
                rot_snapshots(world.disk)
                world.open()
                world.forget_leases()
                world.check()
        except Exception as error:
            raise Broken(f"before operation {operation_index} of {operation_count}: {error}") from error
        tally.recoveries += 2
    tally.record(record_property)


def test_the_sweep_notices_a_move_that_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the sweep: it finds a start that does not read the notes of dead letters."""
    monkeypatch.setattr("topics.engine.starting.finishing.finish_moves", lambda topics, letters: None)
    settings = replace(SETTINGS, wal_shards=1)
    operation_count = run_until(work, QueueWorld(settings), 1 << 60)

    def sweep() -> None:
        for operation_index in range(operation_count):
            world = QueueWorld(settings)
            run_until(work, world, operation_index)
            world.crash(Damage.KEEP)
            world.open()
            world.check()

    with pytest.raises(AssertionError, match="a job is in one place"):
        sweep()


def test_a_power_loss_takes_no_job_of_an_fsync_queue_from_a_dead_letter_topic_of_a_lower_class() -> None:
    """Jobs that are moved are synced before they are deleted, whatever the class of the topic that they go to."""
    settings = replace(SETTINGS, wal_shards=3)

    def world() -> QueueWorld:
        return QueueWorld(settings, "fsync", dead_durability="memory")

    operation_count = run_until(work, world(), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        blow, next_blow = BLOWS[operation_index % len(BLOWS)], BLOWS[(operation_index + 1) % len(BLOWS)]
        broken = world()
        run_until(work, broken, operation_index)
        try:
            survive(broken, operation_index, blow, next_blow)
        except Exception as error:
            raise Broken(f"before operation {operation_index} of {operation_count}, {blow}: {error}") from error
