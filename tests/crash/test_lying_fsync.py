"""A19: a device that says "synced" and is not. Answered writes may go; what is left is a prefix, or a refusal."""

import pytest

from tests.conftest import FULL
from tests.crash.harness import Broken, World, shown_by
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally, count_operations, run_until, sampled
from topics.errors import CorruptRecord, StartRefused
from topics.testing.fake_disk import Damage, FakeDisk

NAMES = ("append", "rotate", "checkpoint", "delete", "several_shards")


@pytest.mark.parametrize("name", NAMES)
def test_a_lying_sync_leaves_a_prefix_or_a_refusal_and_never_wrong_data(
    name: str, record_property: RecordProperty
) -> None:
    """Crash where nothing since the first start was really synced: each topic is what some of its first
    operations made of it, or the start names what is missing."""
    script, settings = SCRIPTS[name]
    tally = Tally(f"lying fsync: {name}")
    for operation_index in sampled(count_operations(script, World(settings)), None if FULL else 12):
        world = World(settings, FakeDisk(lying_fsync=True))
        run_until(script, world, operation_index)
        tally.points += 1
        for damage in Damage:
            lied_to = world.fork()
            lied_to.disk.lying_fsync = False
            lied_to.crash(damage, operation_index)
            tally.recoveries += 1
            try:
                _check_prefix(lied_to)
            except Exception as error:
                raise Broken(f"{name}: operation {operation_index}, {damage.name}: {error}") from error
    tally.record(record_property)


def _check_prefix(world: World) -> None:
    try:
        world.open()
    except StartRefused as refusal:
        assert refusal.message
        return
    for name, topic in world.engine.topics.items():
        try:
            shown = shown_by(world.engine, topic)
        except CorruptRecord:
            continue
        attempted = world.histories[name].attempted()
        for seq, record in shown.records.items():
            if record not in attempted.get(seq, []):
                raise Broken(f"{name}: nobody wrote {record}")
        _check_contiguous(name, world, set(shown.records))


def _check_contiguous(name: str, world: World, present: set[int]) -> None:
    """Below the newest survivor only what was deleted or evicted is missing."""
    newest = max(present, default=0)
    deletable = world.histories[name].removed()
    missing = {seq for seq in range(1, newest) if seq not in present} - deletable
    if missing:
        raise Broken(f"{name}: {sorted(missing)} are missing below {newest}")
