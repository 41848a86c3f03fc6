"""Recovery itself crashes at every call that changes the disk, several times. The result is the same as without a
crash."""

import pytest

from tests.conftest import FULL
from tests.crash.harness import BLOWS, Blow, Broken, World
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally, count_operations, run_until, sampled
from topics.testing.fake_disk import Damage

NAMES = (
    "append",
    "rotate",
    "checkpoint",
    "seal",
    "delete",
    "drop_and_recreate",
    "change_shards",
    "several_shards",
    "replace_segments",
)
STARTS = 16 if FULL else 4
POINTS = None if FULL else 5


@pytest.mark.parametrize("name", NAMES)
def test_a_crash_during_recovery_changes_nothing_about_its_outcome(name: str, record_property: RecordProperty) -> None:
    """Five crashes in a row, the last one with other damage. Then every promised record is there."""
    script, settings = SCRIPTS[name]
    tally = Tally(f"crashes in recovery: {name}")
    operation_count = count_operations(script, World(settings))
    for operation_index in sampled(operation_count, STARTS):
        world = World(settings)
        run_until(script, world, operation_index)
        for place, blow in enumerate(BLOWS if FULL else (Damage.SUBSET, None)):
            crashed = world.fork()
            crashed.crash(blow, operation_index)
            _sweep_recovery(crashed, tally, BLOWS[(operation_index + place) % len(BLOWS)])
    tally.record(record_property)


def _sweep_recovery(crashed: World, tally: Tally, blow: Blow) -> None:
    for operation_index in sampled(count_operations(World.recover, crashed.fork()), POINTS):
        world = crashed.fork()
        tally.points += 1
        try:
            for again in range(5):
                run_until(_open, world, operation_index + again)
                world.crash(blow if again == 4 else None, operation_index)
            world.recover()
            world.check_second_recovery()
            world.write_more()
            world.crash(Damage.DROP)
            world.recover()
        except Exception as error:
            raise Broken(f"{tally.sweep}: operation {operation_index} of recovery, then {blow}: {error}") from error
        tally.recoveries += 3


def _open(world: World) -> None:
    world.open()


def test_a_change_of_the_shard_count_survives_a_crash_at_any_operation(record_property: RecordProperty) -> None:
    """1, 3, 2 shards. A crash interrupts the change at any operation, and the next start changes to another count."""
    script, settings = SCRIPTS["several_shards"]
    tally = Tally("crashes in recovery: change of shards")
    before = World(settings)
    script(before)
    for shards, other in ((1, 2), (2, 3)):
        killed = before.fork()
        killed.use_shards(shards)
        killed.crash(None)
        for operation_index in sampled(count_operations(World.recover, killed.fork()), None if FULL else 8):
            for blow in BLOWS if FULL else (BLOWS[operation_index % len(BLOWS)],):
                world = killed.fork()
                run_until(_open, world, operation_index)
                world.crash(blow, operation_index)
                world.use_shards(other)
                world.recover()
                world.check_second_recovery()
                world.write_more()
                world.crash(Damage.DROP)
                world.recover()
                tally.points += 1
                tally.recoveries += 3
    tally.record(record_property)
