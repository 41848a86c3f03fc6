"""Segments are replaced, by offers and by checkpoints, with a crash at every call that changes the disk; then a start
on each of the two snapshots."""

from __future__ import annotations

import pytest
from xxhash import xxh3_128

from tests.conftest import FULL
from tests.crash.harness import ROOT, Blow, Broken, World
from tests.crash.scripts import SCRIPTS, Script
from tests.crash.sweep import RecordProperty, Tally, blows_at, count_operations, run_until, sampled
from topics.engine.checkpointing.replacement import ReplacedSegment
from topics.formats import segment as codec
from topics.storage import layout
from topics.testing.fake_disk import Damage

REPLACES, SETTINGS = SCRIPTS["replace_segments"]
REWRITES, _ = SCRIPTS["rewrite_segments"]
POINTS = None if FULL else 40


def test_the_workload_replaces_segments() -> None:
    world = World(SETTINGS)
    REPLACES(world)
    results = [result for result in world.replaced if isinstance(result, ReplacedSegment)]
    assert results == world.replaced
    assert sum(result.removed_count > 0 for result in results) >= 5


def test_the_workload_makes_checkpoints_write_segments_again() -> None:
    world = World(SETTINGS)
    written: list[str] = []
    world.disk.on_operation = lambda operation, path: written.append(path) if operation == "create" else None
    REWRITES(world)
    again = [path for path in written if path.endswith(".data.replacing.tmp")]
    assert len(again) - len(world.replaced) >= 4


@pytest.mark.parametrize("script", [REPLACES, REWRITES])
@pytest.mark.parametrize("is_newest_bad", [False, True])
def test_after_a_crash_the_log_knows_which_files_are_in_place(
    is_newest_bad: bool, script: Script, record_property: RecordProperty
) -> None:
    """The records are right, and length and digest agree with the files, whichever snapshot was used."""
    tally = Tally("replace sweep: segments")
    operation_count = count_operations(script, World(SETTINGS))
    for operation_index in sampled(operation_count, POINTS):
        world = World(SETTINGS)
        run_until(script, world, operation_index)
        tally.points += 1
        for blow, next_blow in blows_at(operation_index, None if FULL else 2):
            try:
                tally.recoveries += _survive(world.fork(), operation_index, blow, next_blow, is_newest_bad)
            except Exception as error:
                raise Broken(f"before operation {operation_index} of {operation_count}, {blow}: {error}") from error
    tally.record(record_property)


def _survive(world: World, seed: int, blow: Blow, next_blow: Blow, is_newest_bad: bool) -> int:
    world.crash(blow, seed)
    snapshots = sorted(path for path in world.disk.files() if "/snapshot." in path and path.endswith(".bin"))
    if is_newest_bad:
        if len(snapshots) < 2:
            return 0
        world.disk.poke(snapshots[-1], 40, b"\xa5\x5a")
    world.recover()
    _check_segments(world)
    world.check_second_recovery()
    world.write_more()
    for name in list(world.histories):
        world.purge(name)
    assert world.checkpoint() is None
    world.check()
    world.crash(next_blow or Damage.DROP, seed)
    world.recover()
    _check_segments(world)
    return 3


def _check_segments(world: World) -> None:
    assert world.opened is not None
    for topic in world.engine.topics.values():
        for state in topic.live.segments.segments:
            data = world.disk.read(f"{ROOT}/{layout.segment_object(topic.id, state.first_seq, 'data')}")
            if len(data) != state.data_bytes:
                raise Broken(f"segment {state.first_seq} of {topic.name}: {len(data)} bytes, not {state.data_bytes}")
            digest = xxh3_128(b"".join(data[frame.end - 9 : frame.end - 1] for frame in codec.walk(data, 0, len(data))))
            if state.digest and digest.digest() != state.digest:
                raise Broken(f"segment {state.first_seq} of {topic.name} has another digest")
    damaged = [warning for warning in world.opened.report.warnings if "damaged" in warning]
    assert damaged == []
