"""Staged writes under the crash sweep: a committed epoch is there whole and once, and the ledger has it."""

from dataclasses import replace
from typing import Final

import msgspec
import pytest

from tests.conftest import FULL
from tests.crash.harness import BLOWS, SETTINGS, Blow, Broken
from tests.crash.sweep import RecordProperty, Tally, run_until, sampled
from tests.crash.writers_world import CHUNKS, WritersWorld
from topics.formats.snapshot import TopicState, encode_topic
from topics.testing.fake_disk import Damage

POINTS = None if FULL else 40
BLOWS_AT_ONE_POINT = len(BLOWS) if FULL else 2

# An epoch takes three turns, and some turns need a new WAL file.
SMALL: Final = replace(SETTINGS, commit_turn_bytes=250, wal_file_bytes=2048)


def work(world: WritersWorld) -> None:
    """Epochs of several turns, attempts that are never committed, checkpoints and a clean stop in between."""
    world.open()
    world.put()
    world.add(2)
    world.stage(1)
    world.commit(1)
    world.stage(2, attempt=1, chunks=CHUNKS[:1])
    world.stage(2)
    world.checkpoint()
    world.commit(2)
    world.commit(2)
    world.stage(3, chunks=CHUNKS[1:])
    world.close()
    world.open()
    world.stage(3)
    world.commit(3)
    world.commit(1)
    world.checkpoint()
    world.add(1)
    world.stage(4)
    world.commit(4)


def survive(world: WritersWorld, seed: int, blow: Blow, next_blow: Blow) -> None:
    world.crash(blow, seed)
    world.open()
    world.check()
    world.crash(None)
    world.open()
    world.check()
    if "t" not in world.engine.topics or "other" not in world.engine.topics:
        return
    world.add(1)
    world.finish()
    world.crash(next_blow, seed + 1)
    world.open()
    world.check()
    world.finish()
    world.checkpoint()
    world.crash(next_blow, seed + 2)
    world.open()
    world.check()
    world.finish()


CASES = {
    "fsync": (SMALL, "fsync", BLOWS),
    "fsync, three shards": (replace(SMALL, wal_shards=3), "fsync", BLOWS),
    "disk": (SMALL, "disk", BLOWS),
    "memory": (SMALL, "memory", BLOWS),
    "memory, three shards, killed": (replace(SMALL, wal_shards=3), "memory", (None,)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_crash_at_any_operation_keeps_epochs_whole_and_the_ledger_true(
    name: str, record_property: RecordProperty
) -> None:
    settings, durability, blows = CASES[name]
    tally = Tally(f"crash sweep: writers, {name}")
    operation_count = run_until(work, WritersWorld(settings, durability), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        tally.points += 1
        for place in range(min(BLOWS_AT_ONE_POINT, len(blows))):
            world = WritersWorld(settings, durability)
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


def _encode_without_writers(state: TopicState) -> msgspec.Raw:
    return encode_topic(msgspec.structs.replace(state, writers=[]))


def test_the_sweep_notices_a_ledger_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the sweep: it finds a snapshot without the ledgers of writers."""
    monkeypatch.setattr("topics.formats.snapshot.encode_topic", _encode_without_writers)
    world = WritersWorld(SMALL)
    run_until(work, world, 1 << 60)
    world.checkpoint()
    world.crash(Damage.KEEP)
    world.open()
    with pytest.raises(AssertionError, match="nor behind them"):
        world.check()


def test_the_sweep_notices_a_replay_that_keeps_half_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the sweep: it finds a start that counts an unfinished write."""
    monkeypatch.setattr("topics.engine.starting.topic_replay.TopicReplay.drop_open", lambda replay: replay.finish(0))
    operation_count = run_until(work, WritersWorld(SMALL), 1 << 60)

    def sweep() -> None:
        for operation_index in range(operation_count):
            world = WritersWorld(SMALL)
            run_until(work, world, operation_index)
            world.crash(None)
            world.open()
            world.check()

    with pytest.raises(AssertionError, match="is there whole, in order and once"):
        sweep()
