"""The loop of every crash sweep: stop at an operation, damage the disk, recover, compare with the model, go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.conftest import SEED
from tests.crash.harness import BLOWS, Blow, Broken, World
from tests.crash.scripts import Script
from topics.engine.settings import EngineSettings
from topics.testing.fake_disk import CrashAt, CrashNow, Damage

RecordProperty = Callable[[str, object], None]


@dataclass
class Tally:
    """Counts of a sweep. The summary of the test run adds them up."""

    sweep: str
    points: int = 0
    recoveries: int = 0

    def record(self, record_property: RecordProperty) -> None:
        record_property("sweep", [self.sweep.partition(":")[0], self.points, self.recoveries])


def run_until(script: Script, world: World, operation_index: int) -> int:
    """Runs the script until the power fails at that disk operation. Returns the number of operations."""
    hook = CrashAt(operation_index)
    world.disk.on_operation = hook
    try:
        script(world)
    except CrashNow:
        pass
    finally:
        world.disk.on_operation = None
    return hook.count


def count_operations(script: Script, world: World) -> int:
    return run_until(script, world, 1 << 60)


def sampled(count: int, samples_max: int | None) -> list[int]:
    """Indexes 0 to `count` (one past the last operation: not stopped at all). A sample has that last one, and one of
    each of equal parts of the others; the seed decides which."""
    if samples_max is None or count < samples_max:
        return list(range(count + 1))
    chance = random.Random(SEED)
    step = count / (samples_max - 1)
    return [*sorted({int(step * (place + chance.random())) for place in range(samples_max - 1)}), count]


def blows_at(operation_index: int, blows_max: int | None) -> Iterator[tuple[Blow, Blow]]:
    """Pairs of damage modes for one crash point: for the first crash and for the next one."""
    for place in range(len(BLOWS) if blows_max is None else blows_max):
        # Steps of three through eight modes use all modes, and neighbouring points get different ones.
        first = (SEED + operation_index + place * 3) % len(BLOWS)
        yield BLOWS[first], BLOWS[(first + 1 + operation_index) % len(BLOWS)]


def crash_sweep(
    script: Script, settings: EngineSettings, tally: Tally, *, points_max: int | None, blows_max: int | None
) -> None:
    """Crash, recover, recover again, write, crash, recover, checkpoint, crash, recover; checks after each."""
    operation_count = count_operations(script, World(settings))
    for operation_index in sampled(operation_count, points_max):
        world = World(settings)
        run_until(script, world, operation_index)
        tally.points += 1
        for blow, next_blow in blows_at(operation_index, blows_max):
            try:
                tally.recoveries += survive(world.fork(), SEED + operation_index, blow, next_blow)
            except Exception as error:
                raise Broken(
                    f"{tally.sweep}: before operation {operation_index} of {operation_count}, "
                    f"{_name(blow)} and then {_name(next_blow)}: {error}"
                ) from error


def survive(world: World, seed: int, blow: Blow, next_blow: Blow) -> int:
    """How many recoveries agreed with the model."""
    world.crash(blow, seed)
    world.recover()
    world.check_second_recovery()
    world.write_more()
    world.crash(next_blow, seed + 1)
    world.recover()
    world.write_more()
    world.relocate()
    failure = world.checkpoint()
    if failure is not None:
        raise Broken(f"the checkpoint failed: {failure}")
    world.check()
    # After kills only, this is the first power loss. Data that was only in the page cache is lost now.
    world.crash(blow or Damage.DROP, seed + 2)
    world.recover()
    return 4


def _name(blow: Blow) -> str:
    return "kill" if blow is None else blow.name
