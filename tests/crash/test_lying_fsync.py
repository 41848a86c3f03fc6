"""A19: a device that says "synced" and is not. Answered writes may go; what is left is a prefix, or a refusal."""

import pytest

from tests.conftest import FULL
from tests.crash.harness import Broken, World, shown_by
from tests.crash.model import History
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally, count_operations, run_until, sampled
from topics.errors import CorruptRecord, StartRefused
from topics.formats.records import Record
from topics.testing.fake_disk import Damage, FakeDisk

NAMES = ("append", "rotate", "checkpoint", "delete", "several_shards", "replace_segments")


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
    except StartRefused:
        return
    for name, topic in world.engine.topics.items():
        try:
            shown = shown_by(world.engine, topic)
        except CorruptRecord:
            continue
        history = world.histories.get(name) or _recovered(world, name, list(shown.records.values()))
        attempted = history.attempted()
        for seq, record in shown.records.items():
            if record not in attempted.get(seq, []):
                raise Broken(f"{name}: nobody wrote {record}")
        told = {seq for first, last, _ in shown.tombstones for seq in range(first, last + 1)}
        _check_contiguous(name, history, set(shown.records), told)


def _recovered(world: World, name: str, records: list[Record]) -> History:
    """B20: records whose topic's name went are kept under a made-up one, and the start says so."""
    assert world.opened is not None
    if not any(name in warning for warning in world.opened.report.warnings):
        raise Broken(f"topic {name} was never made, and nobody says where it comes from")
    for history in world.histories.values():
        attempted = history.attempted()
        if all(record in attempted.get(record.seq, []) for record in records):
            return history
    raise Broken(f"{name}: nobody wrote {records}")


def _check_contiguous(name: str, history: History, present: set[int], told: set[int]) -> None:
    """Below the newest survivor only what was deleted, evicted, or is told of by a tombstone is missing."""
    newest = max(present, default=0)
    missing = {seq for seq in range(1, newest) if seq not in present | told} - history.removed()
    if missing:
        raise Broken(f"{name}: {sorted(missing)} are missing below {newest}")
