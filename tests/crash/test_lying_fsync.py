"""A device that reports a sync and has not synced. Answered writes may be lost. The rest is a prefix, or the start is
refused.
"""

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
    """A crash when no sync since the first start was real. Each topic has the state after some of its first operations,
    or the start names the missing data."""
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
                raise Broken(f"{name}: no operation wrote {record}")
        told = {seq for first, last, _ in shown.tombstones for seq in range(first, last + 1)}
        _check_contiguous(name, history, set(shown.records), told)


def _recovered(world: World, name: str, records: list[Record]) -> History:
    """Records of a topic whose name is lost are kept under a generated name, and the start reports that."""
    assert world.opened is not None
    if not any(name in warning for warning in world.opened.report.warnings):
        raise Broken(f"topic {name} was never created, and no warning says where it comes from")
    for history in world.histories.values():
        attempted = history.attempted()
        if all(record in attempted.get(record.seq, []) for record in records):
            return history
    raise Broken(f"{name}: no operation wrote {records}")


def _check_contiguous(name: str, history: History, present: set[int], told: set[int]) -> None:
    """Below the newest record, only deleted and evicted records and ranges of tombstones are missing."""
    newest = max(present, default=0)
    missing = {seq for seq in range(1, newest) if seq not in present | told} - history.removed()
    if missing:
        raise Broken(f"{name}: {sorted(missing)} are missing below {newest}")
