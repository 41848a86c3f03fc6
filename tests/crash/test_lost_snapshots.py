"""Every workload is stopped at many disk operations, and no snapshot can be read any more. All other files are healthy.

Nothing that was answered is missing without a tombstone, no deleted record comes back, and no seq is given out twice.
"""

import pytest

from tests.conftest import FULL
from tests.crash.harness import Broken, World, shown_by
from tests.crash.model import History
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally, count_operations, run_until, sampled
from tests.engine.small_log import rot_snapshots
from topics.engine.topic.topic import Topic

POINTS = None if FULL else 12


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_kill_and_no_readable_snapshot_lose_nothing_without_a_tombstone(
    name: str, record_property: RecordProperty
) -> None:
    script, settings = SCRIPTS[name]
    tally = Tally(f"lost snapshots: {name}")
    operation_count = count_operations(script, World(settings))
    for operation_index in sampled(operation_count, POINTS):
        world = World(settings)
        run_until(script, world, operation_index)
        tally.points += 1
        try:
            tally.recoveries += _survive(world)
        except Exception as error:
            raise Broken(f"{name}: before operation {operation_index} of {operation_count}: {error}") from error
    tally.record(record_property)


def _survive(world: World) -> int:
    world.crash(None)
    rot_snapshots(world.disk)
    for _ in range(2):
        world.open()
        _check(world)
        world.crash(None)
    world.open()
    failure = world.checkpoint()
    if failure is not None:
        raise Broken(f"the checkpoint failed: {failure}")
    world.crash(None)
    world.open()
    _check(world)
    world.crash(None)
    rot_snapshots(world.disk)
    world.open()
    _check(world)
    return 4


def _check(world: World) -> None:
    for name, history in world.histories.items():
        if not _was_ephemeral(history):
            _check_topic(world, name, history)


def _was_ephemeral(history: History) -> bool:
    configs = [history.base.config, *(op.config for op in history.ops if op.config is not None)]
    return any(config.durability == "ephemeral" for config in configs)


def _nameless(world: World, history: History) -> Topic | None:
    """A topic that had no record at the last checkpoint has no directory. Without its creation in the log its name is
    lost, and a start keeps its records under a made-up name, and warns."""
    attempted = history.attempted()
    for name, topic in world.engine.topics.items():
        if name.startswith("recovered-"):
            records = shown_by(world.engine, topic).records
            if records and all(record in attempted.get(seq, []) for seq, record in records.items()):
                found: Topic = topic
                return found
    return None


def _check_topic(world: World, name: str, history: History) -> None:
    state = history.latest()
    state.refresh(world.clock.now_ms())
    unanswered = {op.kind for op in history.ops if op.fate != "acked"}
    topic = world.engine.topics.get(name) or _nameless(world, history)
    if topic is None:
        if state.exists and state.records and "drop" not in unanswered:
            raise Broken(f"topic {name} is gone")
        return
    shown = shown_by(world.engine, topic)
    attempted = history.attempted()
    for seq, record in shown.records.items():
        if record not in attempted.get(seq, []):
            raise Broken(f"{name}: no operation wrote {record}")
        if seq <= state.head_seq and seq not in state.records and "drop" not in unanswered and state.exists:
            raise Broken(f"{name}: {seq} came back")
    told = {seq for first, last, _ in shown.tombstones for seq in range(first, last + 1)}
    missing = set(state.records) - set(shown.records) - told
    if missing and not unanswered & {"delete", "config", "drop", "create"}:
        raise Broken(f"{name}: {sorted(missing)} are missing without a tombstone")
    if state.exists and not unanswered & {"drop", "create"} and topic.head_seq < state.head_seq:
        raise Broken(f"{name}: the head fell from {state.head_seq} to {topic.head_seq}")
