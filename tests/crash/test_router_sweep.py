"""Routers under the crash sweep: copies without frames, logged copies, and operations that make a router log its
copies.

Every scene is stopped before a disk operation, and the disk is damaged or the process killed. Then it is opened, in
part and completely, written to, stopped in a checkpoint, and so on: see `survive`. After each start `RouterWorld.check`
compares the topics with the answers and with the records that were read.
"""

from dataclasses import dataclass, replace

import pytest

from tests.conftest import FULL
from tests.crash.harness import BLOWS, SETTINGS, Blow, Broken
from tests.crash.router_scenes import SCENES, Scene
from tests.crash.router_world import RouterWorld
from tests.crash.sweep import RecordProperty, Tally, sampled
from tests.engine.small_log import rot_snapshots
from topics.engine.settings import EngineSettings
from topics.testing.fake_disk import CrashAt, CrashNow

POINTS = None if FULL else 3
# Neighbouring operations get different kinds of damage.
BLOWS_AT_ONE_POINT = 4 if FULL else 2

THREE_SHARDS = replace(SETTINGS, wal_shards=3)


@dataclass(frozen=True)
class Case:
    settings: EngineSettings
    # Class of topics that have none in the scene, and the class of the source if it differs.
    durability: str
    source_durability: str | None = None
    blows: tuple[Blow, ...] = BLOWS

    def world(self, scene: Scene) -> RouterWorld:
        return RouterWorld(scene.topics, self.durability, self.settings, source_durability=self.source_durability)


CASES = {
    "fsync": Case(SETTINGS, "fsync"),
    "fsync, three shards": Case(THREE_SHARDS, "fsync"),
    "fsync behind memory": Case(THREE_SHARDS, "fsync", "memory"),
    "fsync behind disk": Case(THREE_SHARDS, "fsync", "disk"),
    "disk": Case(THREE_SHARDS, "disk"),
    "memory, killed": Case(THREE_SHARDS, "memory", blows=(None,)),
}


def run_until(scene: Scene, world: RouterWorld, operation_index: int) -> int:
    """Runs the scene until the power fails at that disk operation. Returns the number of operations."""
    hook = CrashAt(operation_index)
    world.disk.on_operation = hook
    try:
        scene.work(world)
    except CrashNow:
        pass
    finally:
        world.disk.on_operation = None
    return hook.count


def survive(scene: Scene, world: RouterWorld, seed: int, blow: Blow, next_blow: Blow) -> int:
    """How many starts agreed with the notes."""
    world.crash(blow, seed)
    world.cut_short(world.open, seed % 5)
    world.crash(next_blow, seed)
    world.open()
    world.check()
    world.crash(None)
    world.open()
    world.check()
    if set(world.engine.topics) != set(scene.topics):
        return 2
    world.burst(*scene.sources)
    world.check()
    world.burst(*scene.sources)
    world.cut_short(world.checkpoint, seed % 11)
    world.crash(next_blow, seed + 1)
    world.open()
    world.check()
    world.burst(*scene.sources)
    world.cut_short(world.checkpoint, seed % 17)
    world.crash(blow, seed + 2)
    world.open()
    world.check()
    world.checkpoint()
    world.write(1)
    world.check()
    world.crash(next_blow, seed + 3)
    world.open()
    world.check()
    for name in scene.drained:
        world.drain(name)
    world.check()
    return 5


def survive_rot(scene: Scene, world: RouterWorld, seed: int, blow: Blow) -> int:
    """No snapshot can be read after the crash and the next checkpoints. How many starts agreed with the notes."""
    world.crash(blow, seed)
    rot_snapshots(world.disk)
    world.open()
    world.check()
    world.crash(None)
    world.open()
    world.check()
    if set(world.engine.topics) != set(scene.topics):
        return 2
    world.burst(*scene.sources)
    world.cut_short(world.checkpoint, seed % 17)
    world.crash(None)
    rot_snapshots(world.disk)
    world.open()
    world.check()
    world.burst(*scene.sources)
    world.checkpoint()
    world.burst(*scene.sources)
    world.checkpoint()
    world.crash(blow, seed + 1)
    rot_snapshots(world.disk)
    world.open()
    world.check()
    return 4


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("scene_name", SCENES)
def test_a_crash_and_no_readable_snapshot_lose_no_copy_and_make_none_twice(
    scene_name: str, case_name: str, record_property: RecordProperty
) -> None:
    """One wrong byte in each snapshot takes nothing away. After each start the rules in `router_world` hold."""
    scene, case = SCENES[scene_name], CASES[case_name]
    tally = Tally(f"crash sweep: routers without snapshots, {scene_name}, {case_name}")
    operation_count = run_until(scene, case.world(scene), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        tally.points += 1
        world = case.world(scene)
        run_until(scene, world, operation_index)
        blow = case.blows[operation_index % len(case.blows)]
        try:
            tally.recoveries += survive_rot(scene, world, operation_index, blow)
        except Exception as error:
            raise Broken(f"before operation {operation_index} of {operation_count}, {blow}: {error}") from error
    tally.record(record_property)


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("scene_name", SCENES)
def test_a_crash_at_any_operation_loses_no_copy_and_makes_none_twice(
    scene_name: str, case_name: str, record_property: RecordProperty
) -> None:
    """After each start the rules in `router_world` hold. Invariants 30, 31, 33 to 36, 38, 41 and 42."""
    scene, case = SCENES[scene_name], CASES[case_name]
    blows = case.blows
    tally = Tally(f"crash sweep: routers, {scene_name}, {case_name}")
    operation_count = run_until(scene, case.world(scene), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        tally.points += 1
        stopped = case.world(scene)
        run_until(scene, stopped, operation_index)
        for place in range(min(BLOWS_AT_ONE_POINT, len(blows))):
            first = (operation_index + place * 3) % len(blows)
            blow, next_blow = blows[first], blows[(first + 1 + operation_index) % len(blows)]
            try:
                tally.recoveries += survive(scene, stopped.fork(), operation_index, blow, next_blow)
            except Exception as error:
                raise Broken(
                    f"before operation {operation_index} of {operation_count}, {blow} and then {next_blow}: {error}"
                ) from error
    tally.record(record_property)
