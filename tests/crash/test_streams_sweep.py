"""The partitioned engine under sweeps: appends, flushes, rolls, retention, offsets, state, purges, archive.

After every crash the promises hold: synced messages, answered deletions and durable commands are kept. Buffered
messages may be lost, from the end of their partition only. No message is invented or comes twice, a second recovery
finds the same as the first, and the order of file operations is kept.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pytest

from tests.conftest import FULL, SEED
from tests.crash.faults import HARMLESS, KINDS
from tests.crash.harness import BLOWS, Blow
from tests.crash.streams_world import ROOT, ROOT_USER, SECTOR_BYTES, Broken, StreamsWorld, expect, may_refuse
from tests.crash.sweep import RecordProperty, Tally, sampled
from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.formats.state_entry import StateEntry
from topics.formats.stream_command import Command
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.state_log import StateLog
from topics.streams.partitions import recovery
from topics.streams.partitions.log_walk import Walked
from topics.streams.settings import StreamsSettings, from_mapping
from topics.streams.system import System
from topics.testing import monitor_fs
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import Fault
from topics.testing.monitor_fs import MonitorFs

POINTS: Final = None if FULL else 5
BLOWS_AT_ONE_POINT: Final = len(BLOWS) if FULL else 2

Script = Callable[[StreamsWorld], None]

# Segments are sealed after a few messages, so that a short script has all cases.
SMALL: Final = {"segment": {"size": 512}, "memory_pool": {"enabled": False}}


def settings(system: dict[str, Any], **sections: Any) -> StreamsSettings:
    return from_mapping({"system": {**SMALL, **system}, **sections})


DURABLE: Final = settings(
    {"partition": {"enforce_fsync": True, "messages_required_to_save": 1}, "state": {"enforce_fsync": True}}
)
LAZY: Final = settings({"partition": {"messages_required_to_save": 4}})
CLEANED: Final = {"messages": {"cleaner_enabled": True}}
ARCHIVED: Final = {
    "messages": {"cleaner_enabled": True, "archiver_enabled": True},
    "archiver": {"enabled": True, "kind": "disk"},
}


def append(world: StreamsWorld) -> None:
    """Batches of one and of many messages, a flush by hand, a clean stop, and the saver."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 2)
    world.send("s", "t", 0)
    world.send("s", "t", 1, count=3, size=40)
    world.send("s", "t", 0, count=2)
    world.flush("s", "t", 0)
    world.send("s", "t", 0)
    world.close()
    world.open()
    world.send("s", "t", 0, count=3)
    world.send("s", "t", 1, size=200)
    world.wait(30_000)
    world.send("s", "t", 1)


def roll(world: StreamsWorld) -> None:
    """Several segments, sealed by batches that fit and by one that does not."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 1)
    for _ in range(4):
        world.send("s", "t", 0, count=2, size=100)
    world.send("s", "t", 0, size=700)
    world.send("s", "t", 0, count=2)
    world.flush("s", "t", 0)
    world.send("s", "t", 0, count=6, size=60)
    world.send("s", "t", 0)


def retain(world: StreamsWorld) -> None:
    """Segments are deleted by age, by size and by request, between appends."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "aged", 1, message_expiry=1_000_000)
    world.create_topic("s", "sized", 1, max_topic_size=1024)
    for _ in range(3):
        world.send("s", "aged", 0, count=3, size=120)
        world.send("s", "sized", 0, count=3, size=120)
    world.wait(60_000)
    world.send("s", "aged", 0, count=3, size=120)
    world.send("s", "sized", 0, count=6, size=120)
    world.delete_segments("s", "sized", 0, 1)
    world.send("s", "sized", 0)
    world.wait(60_000)


def offsets(world: StreamsWorld) -> None:
    """Consumers and a group store, commit, rewind and delete offsets; the group is deleted, and another one gets its
    id."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 2)
    world.send("s", "t", 0, count=4)
    world.send("s", "t", 1, count=4)
    world.store_offset("s", "t", 0, "c", 2)
    world.store_offset("s", "t", 0, "c", 3)
    world.store_offset("s", "t", 1, "c", 1)
    world.create_group("s", "t", "g")
    world.consume("s", "t", "g", 2)
    world.consume("s", "t", "g", 1)
    world.delete_offset("s", "t", 0, "c")
    world.delete_group("s", "t", "g")
    world.create_group("s", "t", "h")
    world.consume("s", "t", "h", 3)
    world.store_offset("s", "t", 0, "c", 0)


def state(world: StreamsWorld) -> None:
    """Streams, topics and groups are created and deleted, with messages in them, and ids are used again."""
    world.open()
    world.create_stream("a")
    world.create_stream("b")
    world.create_topic("a", "t", 2)
    world.send("a", "t", 1, count=2)
    world.create_topic("a", "u", 1)
    world.create_partitions("a", "t", 2)
    world.send("a", "t", 3, count=2)
    world.create_group("a", "t", "g")
    world.delete_partitions("a", "t", 3)
    world.create_partitions("a", "t", 1)
    world.send("a", "t", 1)
    world.delete_topic("a", "t")
    world.create_topic("a", "v", 1)
    world.send("a", "v", 0, count=2)
    world.delete_stream("a")
    world.create_stream("c")
    world.create_topic("c", "t", 1)
    world.send("c", "t", 0)
    world.delete_stream("b")


def purge(world: StreamsWorld) -> None:
    """Two purges, each of sealed, active and buffered messages and of offsets."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 2)
    world.send("s", "t", 0, count=3, size=120)
    world.send("s", "t", 0, count=3, size=120)
    world.send("s", "t", 0)
    world.send("s", "t", 1)
    world.store_offset("s", "t", 0, "c", 4)
    world.purge("s", "t")
    world.send("s", "t", 0, count=2)
    world.store_offset("s", "t", 0, "c", 1)
    world.flush("s", "t", 0)
    world.purge("s", "t")
    world.send("s", "t", 1)


def archive(world: StreamsWorld) -> None:
    """Sealed segments are archived and then deleted; after a purge other segments get the same names."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 1, message_expiry=1_000_000)
    world.send("s", "t", 0, count=3, size=120)
    world.send("s", "t", 0, count=3, size=120)
    world.wait(60_000)
    world.send("s", "t", 0, count=5, size=120)
    world.purge("s", "t")
    world.send("s", "t", 0, count=3, size=110)
    world.wait(60_000)


def compress(world: StreamsWorld) -> None:
    """A topic changes its codec, and back, with messages on disk and in memory."""
    world.open()
    world.create_stream("s")
    world.create_topic("s", "t", 1)
    world.update_topic("s", "t", Codec.GZIP)
    world.send("s", "t", 0, count=2, size=300)
    world.send("s", "t", 0)
    world.update_topic("s", "t", Codec.NONE)
    world.send("s", "t", 0, count=2)
    world.flush("s", "t", 0)
    world.update_topic("s", "t", Codec.GZIP)
    world.purge("s", "t")
    world.send("s", "t", 0, count=2, size=100)


IGGY: Final = settings(
    {
        "flavour": "iggy",
        "partition": {"enforce_fsync": True, "messages_required_to_save": 1},
        "state": {"enforce_fsync": True},
    }
)
COMPRESSING: Final = settings(
    {
        "partition": {"enforce_fsync": True, "messages_required_to_save": 1},
        "compression": {"allow_override": True},
    }
)
CASES: Final[dict[str, tuple[Script, StreamsSettings]]] = {
    "append, durable": (append, DURABLE),
    "append, lazy": (append, LAZY),
    "append, iggy": (append, IGGY),
    "roll, durable": (roll, DURABLE),
    "roll, lazy": (roll, LAZY),
    "retain, durable": (
        retain,
        settings(
            {"partition": {"enforce_fsync": True, "messages_required_to_save": 1}, "state": {"enforce_fsync": True}},
            data_maintenance=CLEANED,
        ),
    ),
    "retain, lazy": (retain, settings({"partition": {"messages_required_to_save": 4}}, data_maintenance=CLEANED)),
    "offsets, durable": (offsets, DURABLE),
    "offsets, lazy": (offsets, LAZY),
    "state, durable": (state, DURABLE),
    "state, lazy": (state, LAZY),
    "state, iggy": (state, IGGY),
    "purge, durable": (purge, DURABLE),
    "purge, lazy": (purge, LAZY),
    "archive, lazy": (
        archive,
        settings({"segment": {"size": 512, "archive_expired": True}}, data_maintenance=ARCHIVED),
    ),
    "compress, durable": (compress, COMPRESSING),
}


@cache
def _born(flavour: str) -> FakeDisk:
    """A directory with only its root user, whose password is slow to hash."""
    disk = FakeDisk(sector_bytes=SECTOR_BYTES)
    fresh = from_mapping({"system": {"flavour": flavour, "memory_pool": {"enabled": False}}})
    System.open(disk, ROOT, fresh, clock=ManualClock(), root_user=ROOT_USER).close()
    disk.crash(Damage.KEEP)
    return disk


def new_world(case: str) -> StreamsWorld:
    its_settings = CASES[case][1]
    return StreamsWorld(its_settings, _born(its_settings.system.flavour).clone())


def run_until(script: Script, world: StreamsWorld, operation_index: int) -> int:
    """Runs the script until the power fails at this operation. Returns the number of operations."""
    hook = CrashAt(operation_index)
    world.disk.on_operation = hook
    try:
        script(world)
    except CrashNow:
        pass
    finally:
        world.disk.on_operation = None
    return hook.count


@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_any_operation_keeps_what_was_promised_and_invents_nothing(
    case: str, record_property: RecordProperty
) -> None:
    script = CASES[case][0]
    tally = Tally(f"streams crash sweep: {case}")
    operation_count = run_until(script, new_world(case), 1 << 60)
    for operation_index in sampled(operation_count, POINTS):
        world = new_world(case)
        run_until(script, world, operation_index)
        tally.points += 1
        for place in range(BLOWS_AT_ONE_POINT):
            # Steps of three through eight kinds of crashes use all kinds, and neighbours differ.
            first = (operation_index + place * 3) % len(BLOWS)
            blow, next_blow = BLOWS[first], BLOWS[(first + 1 + operation_index) % len(BLOWS)]
            try:
                tally.recoveries += survive(world.fork(), operation_index, blow, next_blow)
            except Exception as error:
                raise Broken(
                    f"{case}: before operation {operation_index} of {operation_count}, {blow} and then {next_blow}: "
                    f"{error}"
                ) from error
    tally.record(record_property)


def survive(world: StreamsWorld, seed: int, blow: Blow, next_blow: Blow) -> int:
    """How many recoveries agreed with the model."""
    world.crash(blow, seed)
    try:
        world.recover(blow)
    except StartRefused as refused:
        if may_refuse(world, blow, refused):
            return 0
        raise
    world.check_second_recovery()
    world.write_more()
    world.crash(next_blow, seed + 1)
    world.recover(next_blow)
    world.write_more()
    world.close()
    world.crash(Damage.DROP)
    world.recover()
    return 4


def sweep_by(blow: Blow, case: str) -> None:
    script = CASES[case][0]
    operation_count = run_until(script, new_world(case), 1 << 60)
    for operation_index in range(0, operation_count + 1, 2):
        world = new_world(case)
        run_until(script, world, operation_index)
        world.crash(blow, operation_index)
        world.recover(blow)


def test_the_sweep_notices_entries_about_folders_that_are_not_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the durable entries of `lifecycle.py` a power loss takes topics that were answered."""
    append_entry = StateLog.append

    def forgetful(log: StateLog, user_id: int, command: Command, **_: object) -> StateEntry:
        return append_entry(log, user_id, command)

    monkeypatch.setattr(StateLog, "append", forgetful)
    with pytest.raises(Broken, match=r"the metadata are .* which is none of"):
        sweep_by(Damage.DROP, "state, lazy")


def test_the_sweep_notices_messages_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `Segment` synced no log file. The files skip it: the compiled form of `Segment` cannot be patched."""
    sync = monitor_fs._MonitorFile.fdatasync

    def forgetful(file: monitor_fs._MonitorFile) -> None:
        if not file.path.endswith(".log"):
            sync(file)

    monkeypatch.setattr(monitor_fs._MonitorFile, "fdatasync", forgetful)
    with pytest.raises(AssertionError, match="unsynced writes when they had to be durable"):
        sweep_by(Damage.DROP, "append, durable")
    monkeypatch.setattr(MonitorFs, "require_synced", lambda monitor, prefix: None)
    with pytest.raises(Broken, match="durable"):
        sweep_by(Damage.DROP, "append, durable")


def test_the_sweep_notices_a_torn_batch_that_is_taken_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 4 of `recovery.py`: a gap among messages that were not promised would block every reader."""
    walk = recovery.walk

    def patient(*arguments: Any, **_: object) -> Walked:
        return walk(*arguments)

    monkeypatch.setattr(recovery, "walk", patient)
    world = new_world("append, durable")
    run_until(append, world, _operations_before_first_sync_of_a_batch())

    def crash_by_many_seeds() -> None:
        for seed in range(100):
            torn = world.fork()
            torn.crash(Damage.SUBSET, seed)
            torn.recover(Damage.SUBSET)

    with pytest.raises(Broken, match=r"begins at|offsets without a gap"):
        crash_by_many_seeds()


def _operations_before_first_sync_of_a_batch() -> int:
    """In the script `append` the first batch of several messages goes to partition 1."""
    world = new_world("append, durable")
    operations: list[str] = []
    world.disk.on_operation = lambda operation, path: operations.append(
        f"{operation} {path.rpartition('/partitions/')[2]}"
    )
    append(world)
    return operations.index(f"fdatasync 1/{0:020d}.log")


# Faults.

# Requests make and delete folders, so the result of a fault "anywhere" cannot be predicted.
FAULTS: Final = {name: arm for name, arm in KINDS.items() if name not in ("EDQUOT once, anywhere", "EROFS for good")}
STRIDE: Final = 1 if FULL else 97


@pytest.mark.parametrize("case", CASES)
def test_a_failed_call_fails_its_request_and_nothing_else(case: str, record_property: RecordProperty) -> None:
    tally = Tally(f"streams fault sweep: {case}")
    for place, kind in enumerate(FAULTS):
        at = (SEED + 31 * place) % STRIDE
        while strike(case, kind, at):
            tally.points += 1
            tally.recoveries += 3
            at += STRIDE
    tally.record(record_property)


def strike(case: str, kind: str, at: int) -> bool:
    """Runs the workload with the fault at call `at` of each process. Returns whether the fault happened."""
    faults: list[Fault] = []
    world = new_world(case)
    world.arm = lambda fs: faults.extend(FAULTS[kind](fs, at))
    try:
        has_started = True
        try:
            CASES[case][0](world)
        except StartRefused:
            has_started = False
        except StreamsError as error:
            # A clean stop in the middle of a script failed: unsaved messages are not promised.
            world.give_up(error)
        world.arm = None
        world.faults.heal()
        if has_started and world.opened is not None:
            go_on(world, kind)
        restart(world, at)
    except Exception as error:
        raise Broken(f"{case}: {kind}, at call {at}: {error!r}") from error
    return any(fault.fired_count for fault in faults)


def go_on(world: StreamsWorld, kind: str) -> None:
    """The disk works again, and the process is alive: polls show accepted messages, and requests go on."""
    world.check()
    world.refusals.clear()
    world.write_more()
    if kind in HARMLESS:
        expect(world.refusals, [], "refusals on a healed disk")
    expect(
        set(world.refusals) - {StreamStatus.CANNOT_SYNC_FILE, StreamStatus.CANNOT_APPEND_TO_FILE},
        set(),
        "refusals other than of what has stopped",
    )
    world.check()


def restart(world: StreamsWorld, seed: int) -> None:
    dropped = world.fork()
    dropped.crash(Damage.DROP)
    dropped.recover(Damage.DROP)
    dropped.write_more()
    dropped.crash(Damage.SUBSET, seed)
    dropped.recover(Damage.SUBSET)
    world.crash(None)
    world.recover()
    world.check_second_recovery()
    world.write_more()
