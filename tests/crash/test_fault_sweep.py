"""Fault sweeps: one kind of failure at a time, at every call that can fail, once or for good.

A call that fails is answered with an error or works after a retry. A failed write is never visible. After a restart on
a healed disk every write that was answered before is there, with the page cache and without it.
"""

import errno
from typing import Final

import pytest

from tests.conftest import FULL, SEED
from tests.crash.faults import CHANGES, HARMLESS, KINDS, READ_KINDS, READS
from tests.crash.harness import Broken, World, expect
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally
from topics.errors import StartRefused
from topics.testing.fake_disk import Damage
from topics.testing.fault_fs import Fault, Operation

NAMES: Final = (
    "append",
    "batch",
    "rotate",
    "checkpoint",
    "seal",
    "delete",
    "delete_everything",
    "drop_and_recreate",
    "configure",
    "reject",
    "several_shards",
    "replace_segments",
)
STRIDE: Final = 1 if FULL else 59
# Workloads whose deletes, caps and expiry look into segment files.
READING_NAMES: Final = ("delete", "delete_everything", "configure", "reject", "rewrite_segments")
READ_STRIDE: Final = 3 if FULL else 37


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_call_fails_its_write_and_nothing_else(name: str, record_property: RecordProperty) -> None:
    tally = Tally(f"fault sweep: {name}")
    for place, kind in enumerate(KINDS):
        at = (SEED + 7 * place) % STRIDE
        while _strike(name, kind, at):
            tally.points += 1
            tally.recoveries += 4
            at += STRIDE
    tally.record(record_property)


@pytest.mark.parametrize("name", READING_NAMES)
def test_a_segment_file_that_cannot_be_read_leaves_no_call_without_an_answer(
    name: str, record_property: RecordProperty
) -> None:
    """A delete is whole or refused. Retention and checkpoints catch up on a healed disk."""
    tally = Tally(f"failed reads of segments: {name}")
    for place, kind in enumerate(READ_KINDS):
        at = (SEED + 7 * place) % READ_STRIDE
        while _strike(name, kind, at):
            tally.points += 1
            tally.recoveries += 4
            at += READ_STRIDE
    tally.record(record_property)


def _strike(name: str, kind: str, at: int) -> bool:
    """Runs the workload with the fault at call `at`. Returns whether the fault happened."""
    script, settings = SCRIPTS[name]
    faults: list[Fault] = []
    arm = KINDS.get(kind) or READ_KINDS[kind]
    world = World(settings, arm=lambda fs: faults.extend(arm(fs, at)))
    try:
        started = True
        try:
            script(world)
        except StartRefused:
            started = False
        world.arm = None
        world.faults.heal()
        if started:
            _go_on(world, kind)
        _restart(world, at)
    except Exception as error:
        raise Broken(f"{name}: {kind}, at call {at}: {error}") from error
    return any(fault.fired_count for fault in faults)


def _go_on(world: World, kind: str) -> None:
    """The disk works again, and the process lives: reads show the answered records, and writes go on where they can."""
    unanswered = [op.kind for history in world.histories.values() for op in history.ops if op.fate == "unanswered"]
    expect(unanswered, [], "operations without an answer")
    if kind in READ_KINDS:
        # A byte cap that could not look into a segment evicts with the next write.
        world.write_more()
    world.check()
    failure = world.engine.wal.failure()
    if kind in HARMLESS and failure is not None:
        raise Broken(f"a shard failed for want of room: {failure}")
    world.refusals.clear()
    world.write_more()
    if failure is None:
        expect([code for code in world.refusals if code != "topic_full"], [], "refusals on a healed disk")
        expect(world.checkpoint(), None, "the outcome of a checkpoint on a healed disk")
    else:
        expect(set(world.refusals) - {"wal_failed", "topic_not_found", "topic_full"}, set(), "other refusals")
    world.check()


def _restart(world: World, seed: int) -> None:
    dropped = world.fork()
    dropped.crash(Damage.DROP)
    dropped.recover()
    dropped.write_more()
    # The next process finds data in the page cache that the disk never got. Records that it serves must stay.
    world.crash(None)
    world.recover()
    world.check_second_recovery()
    world.crash(Damage.DROP)
    world.recover()
    world.write_more()
    expect(world.checkpoint(), None, "the outcome of a checkpoint after a restart")
    world.crash(Damage.SUBSET, seed)
    world.recover()


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "EROFS", "EACCES"])
@pytest.mark.parametrize("name", ["rotate", "delete", "several_shards"])
def test_a_start_that_meets_a_failing_disk_is_refused_or_right(
    name: str, kind: str, record_property: RecordProperty
) -> None:
    """The start gives an error and never an empty log. After a refused start no record is lost."""
    script, settings = SCRIPTS[name]
    tally = Tally(f"faults at a start: {name}")
    before = World(settings)
    script(before)
    number = getattr(errno, kind)
    operations: tuple[Operation, ...] = ("pwrite", "preallocate", "create")
    if kind != "ENOSPC":
        operations = (*CHANGES, *READS)
    stride = 1 if FULL else 43
    for blow in (None, Damage.TORN):
        killed = before.fork()
        killed.crash(blow, 3)
        for lasts in (False, True):
            at = SEED % stride
            while True:
                world = killed.fork()
                faults: list[Fault] = []
                world.arm = lambda fs, at=at, lasts=lasts, faults=faults: faults.append(  # type: ignore[misc]
                    fs.fail(*operations, error=number, at=at, lasts=lasts)
                )
                try:
                    world.open()
                    world.faults.heal()
                    world.settle()
                    started = True
                except StartRefused:
                    started = False
                if kind == "ENOSPC" and not started:
                    raise Broken(f"{name}: a full disk at call {at} kept the server from starting")
                world.arm = None
                if not faults[0].fired_count:
                    break
                world.crash(Damage.DROP if started else None)
                world.recover()
                world.write_more()
                tally.points += 1
                tally.recoveries += 2
                at += stride
    tally.record(record_property)
