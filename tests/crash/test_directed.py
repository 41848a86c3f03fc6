"""Single cases of failures and crashes that a sweep reaches only by chance."""

import dataclasses
import errno

import pytest

from tests.crash.harness import ROOT, SETTINGS, World, expect
from tests.crash.scripts import SCRIPTS, TINY_WAL
from topics.errors import Damaged, StartRefused
from topics.testing.fake_disk import CrashNow, Damage

WAL = f"{ROOT}/wal/wal-0000000000000001.log"


def _logs(world: World) -> list[str]:
    return sorted(path for path in world.disk.files() if path.endswith(".log"))


def test_a02_after_a_failed_sync_no_later_sync_counts() -> None:
    """Reads go on, writes are refused, and after a restart every earlier answered record is there."""
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 2)
    world.faults.fail("fdatasync")
    failed = world.append("a", 1)
    assert failed.fate == "failed"
    syncs_before = world.engine.wal.shards[0].stats.fsyncs
    assert world.append("a", 1).fate == "failed"
    world.check()
    expect(world.engine.wal.shards[0].stats.fsyncs, syncs_before, "syncs counted as good")
    world.crash(Damage.DROP)
    world.recover()
    assert world.engine.topics["a"].head_seq == 2


def test_a03_what_a_restart_serves_from_the_page_cache_survives_the_next_power_loss() -> None:
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 2)
    world.faults.fail("fdatasync")
    world.append("a", 3)
    world.crash(None)
    world.recover()
    served = world.engine.topics["a"].head_seq
    assert served == 5, "the page cache still has the failed batch, whole"
    world.crash(Damage.DROP)
    world.recover()
    assert world.engine.topics["a"].head_seq == served


def test_a05_a_batch_that_met_a_full_disk_never_appears_and_later_ones_survive() -> None:
    """The disk gets full in the middle of a frame, then room is freed, and more is written."""
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 2)
    world.faults.torn_write(path=lambda path: path.endswith(".log"))
    world.append("a", 3, size=200)
    assert world.refusals == ["storage_full"]
    world.append("a", 1)
    world.append("a", 1)
    world.check()
    world.crash(Damage.DROP)
    world.recover()
    assert world.engine.topics["a"].head_seq == 4


def test_a06_a_rotation_without_room_refuses_and_goes_on_when_there_is_some() -> None:
    world = World(TINY_WAL)
    world.open()
    world.put("a", durability="fsync")
    while len(_logs(world)) == 1 and not world.refusals:
        world.disk.capacity_bytes = sum(map(len, world.disk.files().values()))
        world.append("a", 2, size=400)
    assert set(world.refusals) == {"storage_full"}
    world.check()
    world.disk.capacity_bytes = None
    world.refusals.clear()
    world.append("a", 2, size=400)
    assert world.refusals == []
    world.crash(Damage.DROP)
    world.recover()


@pytest.mark.parametrize("blow", [Damage.TORN, Damage.GARBLE, Damage.DROP, None])
def test_a07_on_a_full_disk_a_start_serves_reads_and_deletes_nothing(blow: Damage | None) -> None:
    world = World()
    SCRIPTS["delete"][0](world)
    world.append("a", 3, size=900)
    world.append("b", 3, size=900)
    world.crash(blow, 5)
    before = set(world.disk.files())
    world.disk.capacity_bytes = sum(map(len, world.disk.files().values()))
    world.recover()
    gone = {path for path in before - set(world.disk.files()) if not path.endswith(".tmp")}
    assert gone == set()
    world.disk.capacity_bytes = None
    world.write_more()
    assert world.refusals == []
    world.crash(Damage.DROP)
    world.recover()


def test_a08_a_disk_that_turns_read_only_keeps_what_is_in_memory() -> None:
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 4)
    changes = ("pwrite", "truncate", "preallocate", "fdatasync", "fsync", "create", "rename", "unlink", "sync_dir")
    world.faults.fail(*changes, error=errno.EROFS, lasts=True)  # type: ignore[arg-type]
    world.append("a", 1)
    world.check()
    assert world.checkpoint() is not None
    world.check()
    world.crash(None)
    world.recover()
    world.write_more()


def test_b03_a_bad_byte_in_an_earlier_file_is_damage() -> None:
    world = World(TINY_WAL)
    SCRIPTS["rotate"][0](world)
    world.crash(None)
    first = _logs(world)[0]
    world.disk.poke(first, 100, b"\xff")
    with pytest.raises(Damaged) as refused:
        world.open()
    assert refused.value.path == first


def test_b04_a_bad_frame_that_a_later_sync_mark_covers_refuses_the_start_and_cuts_nothing() -> None:
    world = World()
    world.open()
    world.put("a", durability="fsync")
    for _ in range(4):
        world.append("a", 1)
    world.crash(None)
    world.disk.poke(WAL, 200, b"\xff\xff")
    before = world.disk.read(WAL)
    with pytest.raises(Damaged):
        world.open()
    assert world.disk.read(WAL) == before


@pytest.mark.parametrize("name", ["append", "batch", "delete", "configure", "drop_and_recreate"])
def test_b11_b15_a_replay_from_scratch_equals_snapshot_and_tail(name: str) -> None:
    """With the whole WAL still there, no snapshot, no CURRENT and no segment is needed."""
    script, settings = SCRIPTS[name]
    settings = dataclasses.replace(settings, wal_file_bytes=1 << 20)
    world = World(settings)
    script(world)
    world.crash(None)
    scratch = world.fork()
    for path in list(scratch.disk.files()):
        if "/meta/" in path or "/topics/" in path or path.endswith("CURRENT"):
            scratch.disk.unlink(path)
    scratch.recover()
    world.recover()
    expect(scratch.dump(), world.dump(), "the state after a replay from scratch")


@pytest.mark.parametrize(
    "name",
    ["checkpoint", "checkpoint_and_rotate", "delete", "delete_everything", "configure", "replace_segments"],
)
def test_d03_a_bad_newest_snapshot_falls_back_to_the_one_before(name: str) -> None:
    script, settings = SCRIPTS[name]
    world = World(settings)
    script(world)
    world.crash(None)
    newest = max(path for path in world.disk.files() if "/snapshot." in path)
    world.disk.poke(newest, 40, b"\xa5\x5a")
    world.recover()
    assert world.opened is not None
    assert any(newest in warning for warning in world.opened.report.warnings)
    world.write_more()
    expect(world.checkpoint(), None, "the outcome of a checkpoint")
    world.crash(Damage.DROP)
    world.recover()


def test_d04_with_all_snapshots_bad_and_the_log_trimmed_no_record_is_lost() -> None:
    script, settings = SCRIPTS["checkpoint_tiny_wal"]
    world = World(settings)
    script(world)
    for _ in range(3):
        world.append("fsync", 6, size=300)
        world.checkpoint()
    states = {name: history.latest() for name, history in world.histories.items()}
    world.crash(None)
    assert _logs(world)[0] != WAL, "the log must be trimmed for this"
    for path in list(world.disk.files()):
        if "/snapshot." in path:
            world.disk.poke(path, 40, b"\xa5\x5a")
    world.open()
    for name, topic in world.engine.topics.items():
        shown = world.dump()[name]
        assert shown.records == states[name].records
        assert topic.head_seq >= states[name].head_seq


@pytest.mark.parametrize("content", [b"", b"wal-0000000000009999.lo", b"\xff\xfe garbage"])
def test_d05_a_wrong_current_is_derived_from_the_files(content: bytes) -> None:
    world = World(TINY_WAL)
    SCRIPTS["rotate"][0](world)
    world.crash(None)
    world.disk.replace(f"{ROOT}/wal/CURRENT", content)
    world.recover()
    assert world.disk.read(f"{ROOT}/wal/CURRENT") == _logs(world)[-1].rpartition("/")[2].encode()


def test_d07_a_snapshot_beyond_the_end_of_the_log_loses_nothing() -> None:
    """All records before the noted position are in segments, so the log goes on in a new file."""
    world = World()
    SCRIPTS["checkpoint"][0](world)
    expect(world.checkpoint(), None, "the outcome of a checkpoint")
    world.crash(None)
    world.disk.replace(WAL, world.disk.read(WAL)[:200].ljust(SETTINGS.wal_file_bytes, b"\0"))
    world.recover()
    world.write_more()
    world.crash(Damage.DROP)
    world.recover()


def test_d08_stray_temporary_files_go_and_are_never_loaded() -> None:
    world = World()
    SCRIPTS["seal"][0](world)
    world.crash(None)
    strays = [f"{ROOT}/meta/snapshot.0009.bin.tmp", f"{ROOT}/wal/CURRENT.tmp", f"{ROOT}/topics/00000001/topic.json.tmp"]
    for path in strays:
        world.disk.replace(path, b"half of something")
    world.recover()
    assert not set(strays) & set(world.disk.files())


def test_a_missing_segment_that_is_still_needed_refuses_the_start_and_is_named() -> None:
    world = World()
    SCRIPTS["seal"][0](world)
    world.crash(None)
    path = next(path for path in sorted(world.disk.files()) if path.endswith(".data"))
    world.disk.unlink(path)
    with pytest.raises(StartRefused, match=path):
        world.open()


def test_b13_a_power_loss_while_the_end_of_the_log_is_written_again_loses_no_answer() -> None:
    """Bytes that are being written may be anything after the crash. The copy next to the log restores them."""
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 3, size=300)
    world.crash(None)
    writes = 0

    def stop_after_the_rewrite(operation: str, path: str) -> None:
        nonlocal writes
        if path == WAL and writes:
            raise CrashNow
        writes += operation == "pwrite" and path == WAL

    world.disk.on_operation = stop_after_the_rewrite
    with pytest.raises(CrashNow):
        world.open()
    assert any(path.endswith(".rewrite") for path in world.disk.files())
    for seed in range(8):
        garbled = world.fork()
        garbled.crash(Damage.GARBLE, seed)
        garbled.recover()
        assert not any(path.endswith(".rewrite") for path in garbled.disk.files())


def test_h13_a_key_is_known_after_a_crash_between_its_segment_and_the_snapshot() -> None:
    """The records come from the unfinished checkpoint, the key and its answer from the log."""
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 2)
    expect(world.checkpoint(), None, "the outcome of a checkpoint")
    first = world.append("a", 3, key="once")
    world.faults.fail("create", path=lambda path: "/meta/" in path)
    assert world.checkpoint() is not None
    world.crash(Damage.DROP)
    world.recover()
    assert world.engine.topics["a"].live.checkpointed_seq == 5
    known = world.engine.topics["a"].keys.get("once")
    assert known is not None
    assert (known.first_seq, known.count) == (first.first_seq, 3)


def test_names_that_a_killed_process_made_survive_the_next_power_loss() -> None:
    """A directory that is only in the page cache is synced by the start that uses it."""
    world = World()
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 2)

    def stop_before_the_parent_is_synced(operation: str, path: str) -> None:
        if operation == "sync_dir" and path == f"{ROOT}/topics":
            raise CrashNow

    world.disk.on_operation = stop_before_the_parent_is_synced
    with pytest.raises(CrashNow):
        world.checkpoint()
    world.crash(None)
    world.recover()
    expect(world.checkpoint(), None, "the outcome of a checkpoint")
    world.crash(Damage.DROP)
    world.recover()
    assert world.engine.topics["a"].head_seq == 2
