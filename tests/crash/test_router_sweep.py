"""Routers under the crash sweep: copies without frames, logged ones, and what makes one the other (H01, 36, 42)."""

from dataclasses import replace

import pytest

from tests.conftest import FULL
from tests.crash.harness import BLOWS, SETTINGS, Blow, Broken
from tests.crash.router_world import RouterWorld
from tests.crash.sweep import RecordProperty, Tally, run_until, sampled
from topics.protocol.tag_match import TagMatch

POINTS = None if FULL else 40
BLOWS_AT_ONE_POINT = len(BLOWS) if FULL else 2


def work(world: RouterWorld) -> None:
    """Everything that makes a router log what it had only derived, with checkpoints and a clean stop in between."""
    world.open()
    world.put()
    world.route("copy", "source", "copy")
    world.route("chain", "copy", "chain")
    world.route("pair", "source", "pair")
    world.write(4)
    world.look()
    world.write(2)
    world.write(1, "copy")
    world.look()
    world.checkpoint()
    world.write(3)
    world.route("pair.filtered", "source", "pair", filter=TagMatch("t1", is_prefix=False))
    world.look()
    world.delete_first("source", 3)
    world.write(2)
    world.look()
    world.delete_first("copy", 2)
    world.look()
    world.route("copy", "source", "copy", preserve_tag=False, guarantee="exactly_once")
    world.write(3)
    world.look()
    world.delete_first("source", 4)
    world.unroute("pair.filtered")
    world.write(2)
    world.look()
    world.close()
    world.open()
    world.write(3)
    world.look()
    world.delete_first("chain", 1)
    world.checkpoint()
    world.write(2)
    world.unroute("chain")
    world.look()


def survive(world: RouterWorld, seed: int, blow: Blow, next_blow: Blow) -> None:
    world.crash(blow, seed)
    world.open()
    world.check()
    world.crash(None)
    world.open()
    world.check()
    if "pair" not in world.engine.topics:
        return
    world.write(2)
    world.check()
    world.crash(next_blow, seed + 1)
    world.open()
    world.check()
    world.checkpoint()
    world.write(1)
    world.check()
    world.crash(next_blow, seed + 2)
    world.open()
    world.check()


CASES = {
    "fsync": (SETTINGS, "fsync", BLOWS),
    "fsync, three shards": (replace(SETTINGS, wal_shards=3), "fsync", BLOWS),
    "disk, killed": (SETTINGS, "disk", (None,)),
    "memory, three shards, killed": (replace(SETTINGS, wal_shards=3), "memory", (None,)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_crash_at_any_operation_loses_no_copy_and_makes_none_twice(
    name: str, record_property: RecordProperty
) -> None:
    settings, durability, blows = CASES[name]
    tally = Tally(f"crash sweep: routers, {name}")
    operation_count = run_until(work, RouterWorld(settings, durability), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        tally.points += 1
        for place in range(min(BLOWS_AT_ONE_POINT, len(blows))):
            world = RouterWorld(settings, durability)
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
