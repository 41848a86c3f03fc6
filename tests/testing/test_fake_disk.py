"""The fake disk loses exactly what a power cut may take, and nothing that was synced."""

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.storage.fs import File, Fs, write_all, write_atomic
from topics.testing.fake_disk import SECTOR_BYTES, CrashAt, CrashNow, Damage, FakeDisk, FakeFile

SEEDS = range(40)
EVERY_DAMAGE = pytest.mark.parametrize("damage", list(Damage))


def raises(number: int) -> "pytest.RaisesExc[OSError]":
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


def new_disk(**files: bytes) -> FakeDisk:
    """A disk with a directory /d that holds these files, all durable."""
    disk = FakeDisk()
    disk.makedirs("/d")
    for name, content in files.items():
        disk.replace(f"/d/{name}", content)
    return disk


def crashed(disk: FakeDisk, damage: Damage, seed: int = 0) -> FakeDisk:
    copy = disk.clone()
    copy.crash(damage, seed)
    return copy


def outcomes(disk: FakeDisk, damage: Damage) -> list[dict[str, bytes]]:
    return [crashed(disk, damage, seed).files() for seed in SEEDS]


class TestFileBytes:
    @EVERY_DAMAGE
    def test_synced_writes_survive_everything(self, damage: Damage) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.pwrite(b"new", 0)
        file.truncate(2)
        file.preallocate(5)
        file.fdatasync()
        assert all(outcome == {"/d/a": b"ne\0\0\0"} for outcome in outcomes(disk, damage))

    def test_a_sync_covers_writes_by_other_handles(self) -> None:
        disk = new_disk(a=b"")
        disk.open("/d/a", "write").pwrite(b"abc", 0)
        disk.open("/d/a", "read").fsync()
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"abc"}

    def test_a_sync_of_one_file_does_not_cover_another(self) -> None:
        disk = new_disk(a=b"", b=b"")
        disk.open("/d/a", "write").pwrite(b"abc", 0)
        disk.open("/d/b", "write").fsync()
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"", "/d/b": b""}

    def test_drop_brings_back_what_was_overwritten_cut_and_grown(self) -> None:
        disk = new_disk(a=b"0123456789")
        file = disk.open("/d/a", "write")
        file.pwrite(b"xx", 3)
        file.truncate(4)
        file.pwrite(b"yyyy", 2)
        file.preallocate(100)
        file.pwrite(b"z", 200)
        assert disk.durable_files() == {"/d/a": b"0123456789"}
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"0123456789"}

    def test_prefix_keeps_writes_over_the_whole_disk_in_order(self) -> None:
        disk = new_disk(a=b"", b=b"")
        files = [disk.open("/d/a", "write"), disk.open("/d/b", "write")]
        for index in range(6):
            files[index % 2].pwrite(bytes([index]), index // 2)
        found = {tuple(outcome.values()) for outcome in outcomes(disk, Damage.PREFIX)}
        in_order = [(bytes(range(0, count, 2)), bytes(range(1, count, 2))) for count in range(7)]
        assert found == set(in_order)

    def test_torn_cuts_the_last_write_at_any_byte(self) -> None:
        disk = new_disk(a=b"")
        disk.open("/d/a", "write").pwrite(b"12345", 0)
        found = {outcome["/d/a"] for outcome in outcomes(disk, Damage.TORN)}
        assert found == {b"12345"[:end] for end in range(6)}

    def test_torn_keeps_what_came_before_the_cut_write(self) -> None:
        disk = new_disk(a=b"")
        file = disk.open("/d/a", "write")
        file.pwrite(b"first", 0)
        file.pwrite(b"second", 5)
        assert all(b"firstsecond".startswith(outcome["/d/a"]) for outcome in outcomes(disk, Damage.TORN))

    def test_torn_without_writes_is_a_prefix(self) -> None:
        disk = new_disk(a=b"abc")
        disk.open("/d/a", "write").truncate(1)
        assert {outcome["/d/a"] for outcome in outcomes(disk, Damage.TORN)} == {b"abc", b"a"}

    def test_subset_keeps_or_loses_whole_sectors_in_any_order(self) -> None:
        old, new = b"o" * (4 * SECTOR_BYTES), b"n" * (4 * SECTOR_BYTES)
        disk = new_disk(a=old)
        disk.open("/d/a", "write").pwrite(new, 0)
        patterns = set()
        for outcome in outcomes(disk, Damage.SUBSET):
            content = outcome["/d/a"]
            sectors = [content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)]
            assert all(sector in (old[:SECTOR_BYTES], new[:SECTOR_BYTES]) for sector in sectors)
            patterns.add(bytes(sector[0] for sector in sectors))
        assert b"onon" in patterns or b"oonn" in patterns or b"ooon" in patterns
        assert len(patterns) > 4

    def test_sectors_start_at_multiples_of_their_size_in_the_file(self) -> None:
        disk = new_disk(a=bytes(2 * SECTOR_BYTES))
        disk.open("/d/a", "write").pwrite(b"n" * 100, SECTOR_BYTES - 50)
        found = {outcome["/d/a"].strip(b"\0").count(b"n") for outcome in outcomes(disk, Damage.SUBSET)}
        assert found == {0, 50, 100}

    def test_subset_may_keep_a_later_write_and_lose_an_earlier_one(self) -> None:
        disk = new_disk(a=b"")
        file = disk.open("/d/a", "write")
        file.pwrite(b"1", 0)
        file.pwrite(b"2", SECTOR_BYTES)
        assert {outcome["/d/a"] for outcome in outcomes(disk, Damage.SUBSET)} == {
            b"",
            b"1",
            bytes(SECTOR_BYTES) + b"2",
            b"1" + bytes(SECTOR_BYTES - 1) + b"2",
        }

    def test_zero_fill_grows_the_file_and_loses_data(self) -> None:
        disk = new_disk(a=b"old")
        disk.open("/d/a", "write").pwrite(b"NEW", 1)
        disk.open("/d/a", "write").pwrite(b"more", SECTOR_BYTES)
        found = {outcome["/d/a"] for outcome in outcomes(disk, Damage.ZERO_FILL)}
        assert {len(content) for content in found} == {SECTOR_BYTES + 4}
        assert {content[:4] for content in found} == {b"oNEW", b"old\0"}
        assert {content[SECTOR_BYTES:] for content in found} == {b"more", bytes(4)}

    def test_garble_fills_lost_sectors_with_noise_and_spares_their_neighbours(self) -> None:
        disk = new_disk(a=b"o" * 1000)
        disk.open("/d/a", "write").pwrite(b"n" * 32, 500)
        found = {outcome["/d/a"] for outcome in outcomes(disk, Damage.GARBLE)}
        assert all(content[:500] == b"o" * 500 and content[532:] == b"o" * 468 for content in found)
        assert any(b"o" * 8 not in content[500:532] and b"n" * 8 not in content[500:532] for content in found)
        assert any(content[500:532] == b"n" * 32 for content in found)

    def test_an_unsynced_preallocation_may_vanish(self) -> None:
        disk = new_disk(a=b"")
        disk.open("/d/a", "write").preallocate(1000)
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b""}
        assert {len(outcome["/d/a"]) for outcome in outcomes(disk, Damage.SUBSET)} == {0, 1000}


class TestDirectoryEntries:
    def test_a_synced_file_without_a_synced_name_is_gone(self) -> None:
        disk = new_disk()
        file = disk.open("/d/a", "create")
        file.pwrite(b"abc", 0)
        file.fsync()
        assert crashed(disk, Damage.DROP).files() == {}
        assert crashed(disk, Damage.KEEP).files() == {"/d/a": b"abc"}

    def test_a_synced_name_without_synced_bytes_is_an_empty_file(self) -> None:
        disk = new_disk()
        disk.open("/d/a", "create").pwrite(b"abc", 0)
        disk.sync_dir("/d")
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b""}

    def test_a_file_and_its_name_are_kept_or_lost_in_no_order(self) -> None:
        disk = new_disk()
        disk.open("/d/a", "create").pwrite(b"abc", 0)
        found = [outcome.get("/d/a") for outcome in outcomes(disk, Damage.SUBSET)]
        assert set(found) == {None, b"", b"abc"}

    @EVERY_DAMAGE
    def test_a_rename_leaves_the_old_or_the_new_file_but_never_none(self, damage: Damage) -> None:
        disk = new_disk(current=b"0")
        for version in (b"1", b"2", b"3"):
            file = disk.open("/d/current.tmp", "create")
            file.pwrite(version, 0)
            file.fsync()
            disk.rename("/d/current.tmp", "/d/current")
        found = {outcome["/d/current"] for outcome in outcomes(disk, damage)}
        assert found <= {b"0", b"1", b"2", b"3"}
        if damage is Damage.SUBSET:
            assert found == {b"0", b"1", b"2", b"3"}

    @EVERY_DAMAGE
    def test_a_renamed_file_never_has_two_names(self, damage: Damage) -> None:
        disk = new_disk(a=b"x")
        for source, target in ("ab", "bc", "cd"):
            disk.rename(f"/d/{source}", f"/d/{target}")
        assert all(list(outcome.values()) == [b"x"] for outcome in outcomes(disk, damage))

    def test_an_unlink_may_survive_while_the_rename_before_it_does_not(self) -> None:
        disk = new_disk(old=b"old")
        file = disk.open("/d/new.tmp", "create")
        file.pwrite(b"new", 0)
        file.fsync()
        disk.rename("/d/new.tmp", "/d/new")
        disk.unlink("/d/old")
        assert any("/d/new" not in outcome and "/d/old" not in outcome for outcome in outcomes(disk, Damage.SUBSET))

    def test_an_unsynced_unlink_may_come_undone_with_all_its_bytes(self) -> None:
        disk = new_disk(a=b"abc")
        disk.unlink("/d/a")
        assert disk.files() == {}
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"abc"}
        disk.sync_dir("/d")
        assert crashed(disk, Damage.DROP).files() == {}

    def test_a_name_taken_again_is_the_old_or_the_new_file(self) -> None:
        disk = new_disk(a=b"old")
        disk.unlink("/d/a")
        file = disk.open("/d/a", "create")
        file.pwrite(b"new", 0)
        file.fsync()
        found = {outcome.get("/d/a") for outcome in outcomes(disk, Damage.SUBSET)}
        assert found == {None, b"old", b"new"}

    def test_makedirs_is_durable_by_itself(self) -> None:
        disk = FakeDisk()
        disk.makedirs("/a/b/c")
        disk.crash(Damage.DROP)
        assert disk.exists("/a/b/c")

    def test_a_directory_removed_without_a_sync_may_come_back(self) -> None:
        disk = new_disk(a=b"abc")
        disk.unlink("/d/a")
        disk.rmdir("/d")
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"abc"}

    @EVERY_DAMAGE
    def test_a_directory_does_not_vanish_with_files_in_it(self, damage: Damage) -> None:
        disk = new_disk(a=b"abc")
        disk.unlink("/d/a")
        disk.rmdir("/d")
        for seed in SEEDS:
            after = crashed(disk, damage, seed)
            assert after.files() in ({}, {"/d/a": b"abc"})
            assert after.exists("/d") or damage is not Damage.DROP

    def test_a_renamed_directory_keeps_its_files(self) -> None:
        disk = new_disk(a=b"abc")
        disk.rename("/d", "/d.deleted")
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"abc"}
        disk.sync_dir("/")
        assert crashed(disk, Damage.DROP).files() == {"/d.deleted/a": b"abc"}

    @pytest.mark.parametrize("synced", ["/d", "/e"])
    def test_a_rename_across_directories_is_durable_when_either_is_synced(self, synced: str) -> None:
        disk = new_disk(a=b"abc")
        disk.makedirs("/e")
        disk.rename("/d/a", "/e/b")
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"abc"}
        disk.sync_dir(synced)
        assert crashed(disk, Damage.DROP).files() == {"/e/b": b"abc"}

    @EVERY_DAMAGE
    def test_a_file_that_moves_between_directories_has_one_name(self, damage: Damage) -> None:
        disk = new_disk(a=b"abc")
        disk.makedirs("/e")
        disk.rename("/d/a", "/e/a")
        disk.rename("/e/a", "/d/b")
        disk.rename("/d/b", "/e/c")
        assert all(list(outcome.values()) == [b"abc"] for outcome in outcomes(disk, damage))

    def test_a_lost_directory_takes_along_what_was_put_into_it(self) -> None:
        disk = new_disk()
        disk.on_operation = CrashAt(1)
        with pytest.raises(CrashNow):
            disk.makedirs("/d/e")
        disk.on_operation = None
        write_atomic(disk, "/d/e/a", b"abc")
        assert disk.files() == {"/d/e/a": b"abc"}
        assert crashed(disk, Damage.DROP).files() == {}


class TestLifeAndDeath:
    def test_after_a_crash_old_handles_are_dead_and_new_ones_work(self) -> None:
        disk = new_disk(a=b"abc")
        file = disk.open("/d/a", "write")
        disk.crash(Damage.KEEP)
        calls: list[Callable[[], object]] = [
            lambda: file.pread(1, 0),
            lambda: file.pwrite(b"x", 0),
            lambda: file.truncate(0),
            file.fdatasync,
            file.size,
            file.map,
        ]
        for call in calls:
            with raises(errno.EIO):
                call()
        file.close()
        disk.open("/d/a", "write").pwrite(b"X", 0)
        assert disk.read("/d/a") == b"Xbc"

    def test_a_kill_loses_nothing_and_leaves_it_pending(self) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.pwrite(b"new", 0)
        disk.open("/d/b", "create")
        boot_id = disk.boot_id()
        disk.kill()
        with raises(errno.EIO):
            file.fsync()
        assert disk.boot_id() == boot_id
        assert disk.files() == {"/d/a": b"new", "/d/b": b""}
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"old"}

    @pytest.mark.parametrize("end", [FakeDisk.kill, lambda disk: disk.crash(Damage.KEEP)])
    def test_the_end_of_the_holder_frees_its_lock(self, end: Callable[[FakeDisk], None]) -> None:
        disk = new_disk()
        held = disk.lock("/d/.lock")
        assert held is not None
        end(disk)
        again = disk.lock("/d/.lock")
        assert again is not None
        held.release()
        assert disk.lock("/d/.lock") is None

    def test_a_crash_changes_the_boot_id(self) -> None:
        disk = FakeDisk()
        seen = {disk.boot_id()}
        for _ in range(3):
            disk.crash(Damage.DROP)
            seen.add(disk.boot_id())
        assert len(seen) == 4

    @EVERY_DAMAGE
    def test_a_second_crash_takes_nothing_more(self, damage: Damage) -> None:
        disk = busy_disk()
        disk.crash(damage, 7)
        assert disk.durable_files() == disk.files()
        assert all(outcome == disk.files() for outcome in outcomes(disk, Damage.SUBSET))

    @EVERY_DAMAGE
    def test_the_same_seed_gives_the_same_disk(self, damage: Damage) -> None:
        assert outcomes(busy_disk(), damage) == outcomes(busy_disk(), damage)

    def test_maps_made_before_a_crash_do_not_hinder_it(self) -> None:
        disk = new_disk(a=b"abc")
        file = disk.open("/d/a", "write")
        view = file.map()
        file.pwrite(b"X", 0)
        disk.crash(Damage.DROP)
        assert bytes(view) == b"Xbc"
        disk.open("/d/a", "write").pwrite(b"longer", 0)
        assert disk.read("/d/a") == b"longer"


def busy_disk() -> FakeDisk:
    """Some of everything, pending."""
    disk = new_disk(a=b"a" * 2000, b=b"b" * 2000)
    first = disk.open("/d/a", "write")
    first.pwrite(b"1" * 1500, 700)
    disk.rename("/d/b", "/d/c")
    second = disk.open("/d/new", "create")
    second.preallocate(4096)
    second.pwrite(b"2" * 900, 100)
    first.truncate(1000)
    disk.unlink("/d/a")
    second.pwrite(b"3" * 900, 800)
    return disk


class TestFailedSync:
    def test_a_later_sync_does_not_bring_forsaken_writes_to_the_disk(self) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.pwrite(b"new!", 0)
        file.forsake()
        file.fsync()
        assert file.pread(9, 0) == b"new!"
        assert crashed(disk, Damage.KEEP).files() == {"/d/a": b"old"}

    def test_later_writes_are_durable_although_earlier_ones_were_forsaken(self) -> None:
        disk = new_disk(a=b"")
        file = disk.open("/d/a", "write")
        file.pwrite(b"1", 0)
        file.forsake()
        file.pwrite(b"2", 1)
        file.fsync()
        file.pwrite(b"3", 2)
        assert disk.files() == {"/d/a": b"123"}
        assert disk.durable_files() == {"/d/a": b"\x002"}
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"\x002"}
        assert crashed(disk, Damage.KEEP).files() == {"/d/a": b"\x0023"}

    def test_writing_them_again_makes_forsaken_writes_durable_even_after_a_kill(self) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.pwrite(b"new", 0)
        file.forsake()
        disk.kill()
        again = disk.open("/d/a", "write")
        assert again.pread(9, 0) == b"new"
        again.pwrite(b"new", 0)
        again.fsync()
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"new"}

    def test_forsaking_nothing_changes_nothing(self) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.forsake()
        file.pwrite(b"new", 0)
        file.fsync()
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"new"}

    def test_a_clone_of_a_disk_with_forsaken_writes_behaves_the_same(self) -> None:
        disk = new_disk(a=b"old")
        file = disk.open("/d/a", "write")
        file.pwrite(b"new", 0)
        file.forsake()
        assert crashed(disk.clone(), Damage.KEEP).files() == {"/d/a": b"old"}


class TestLyingDisk:
    def test_no_sync_makes_anything_durable(self) -> None:
        disk = new_disk(a=b"old")
        disk.lying_fsync = True
        file = disk.open("/d/a", "write")
        file.pwrite(b"new", 0)
        file.fsync()
        file.fdatasync()
        write_atomic(disk, "/d/b", b"b")
        assert crashed(disk, Damage.DROP).files() == {"/d/a": b"old"}
        assert crashed(disk, Damage.KEEP).files() == {"/d/a": b"new", "/d/b": b"b"}

    def test_a_disk_may_lie_from_the_start(self) -> None:
        disk = FakeDisk(lying_fsync=True)
        disk.makedirs("/d")
        disk.crash(Damage.DROP)
        assert not disk.exists("/d")


class TestCapacity:
    def test_a_write_falls_short_at_the_limit_and_then_fails(self) -> None:
        disk = FakeDisk(capacity_bytes=10)
        file = disk.open("/a", "create")
        assert file.pwrite(b"12345678", 0) == 8
        assert file.pwrite(b"9abc", 8) == 2
        with raises(errno.ENOSPC):
            file.pwrite(b"bc", 10)
        assert disk.files() == {"/a": b"123456789a"}

    def test_writes_in_place_need_no_room(self) -> None:
        disk = FakeDisk(capacity_bytes=4)
        file = disk.open("/a", "create")
        file.preallocate(4)
        assert file.pwrite(b"abcd", 0) == 4

    def test_preallocation_and_growth_by_truncate_need_all_their_room(self) -> None:
        disk = FakeDisk(capacity_bytes=10)
        file = disk.open("/a", "create")
        for grow in (file.preallocate, file.truncate):
            with raises(errno.ENOSPC):
                grow(11)
        with raises(errno.ENOSPC):
            file.pwrite(b"x", 10)
        assert file.size() == 0

    def test_room_comes_back_by_unlink_truncate_and_replacing_rename(self) -> None:
        disk = FakeDisk(capacity_bytes=30)
        files = {name: disk.open(f"/{name}", "create") for name in "abc"}
        for file in files.values():
            file.preallocate(10)
        disk.unlink("/a")
        files["b"].truncate(5)
        disk.rename("/b", "/c")
        disk.open("/d", "create").preallocate(25)
        with raises(errno.ENOSPC):
            disk.open("/e", "create").preallocate(1)

    def test_a_crash_counts_anew(self) -> None:
        disk = FakeDisk(capacity_bytes=10)
        disk.open("/a", "create").preallocate(10)
        disk.crash(Damage.DROP)
        disk.open("/b", "create").preallocate(10)

    def test_the_limit_may_be_moved(self) -> None:
        disk = FakeDisk(capacity_bytes=0)
        file = disk.open("/a", "create")
        with raises(errno.ENOSPC):
            file.pwrite(b"a", 0)
        disk.capacity_bytes = None
        assert file.pwrite(b"a", 0) == 1


class TestOperations:
    def test_every_call_that_changes_or_syncs_is_announced_before_it_happens(self) -> None:
        disk = FakeDisk()
        seen: list[tuple[str, str]] = []
        disk.on_operation = lambda operation, path: seen.append((operation, path))
        disk.makedirs("/d")
        file = disk.open("/d/a", "create")
        file.preallocate(9)
        file.pwrite(b"abc", 0)
        file.fdatasync()
        file.truncate(2)
        file.fsync()
        file.close()
        disk.rename("/d/a", "/d/b")
        disk.sync_dir("/d")
        disk.unlink("/d/b")
        disk.rmdir("/d")
        assert seen == [
            ("mkdir", "/d"),
            ("sync_dir", "/"),
            ("create", "/d/a"),
            ("preallocate", "/d/a"),
            ("pwrite", "/d/a"),
            ("fdatasync", "/d/a"),
            ("truncate", "/d/a"),
            ("fsync", "/d/a"),
            ("rename", "/d/b"),
            ("sync_dir", "/d"),
            ("unlink", "/d/b"),
            ("rmdir", "/d"),
        ]

    def test_reads_are_not_announced(self) -> None:
        disk = new_disk(a=b"abc")
        disk.on_operation = CrashAt(0)
        file = disk.open("/d/a", "read")
        file.pread(9, 0)
        file.map()
        file.seek_data(0)
        file.close()
        disk.listdir("/d")
        disk.exists("/d/x")
        disk.clone()

    def test_a_sweep_stops_before_each_operation_and_ends_with_a_whole_run(self) -> None:
        """Crashing before operation 0, 1, 2 … and keeping all shows write_atomic step by step."""
        found = []
        for operation_index in range(100):
            disk = new_disk(a=b"old")
            disk.on_operation = CrashAt(operation_index)
            try:
                write_atomic(disk, "/d/a", b"new")
            except CrashNow:
                disk.crash(Damage.KEEP)
                found.append(disk.files())
            else:
                break
        assert found == [
            {"/d/a": b"old"},
            {"/d/a": b"old", "/d/a.tmp": b""},
            {"/d/a": b"old", "/d/a.tmp": b"new"},
            {"/d/a": b"old", "/d/a.tmp": b"new"},
            {"/d/a": b"new"},
        ]

    def test_a_stopped_machine_does_not_clean_up(self) -> None:
        disk = new_disk(a=b"abc")
        disk.on_operation = CrashAt(0)

        def write_and_clean_up() -> None:
            try:
                disk.open("/d/a", "write").pwrite(b"x", 0)
            finally:
                disk.unlink("/d/a")

        with pytest.raises(CrashNow):
            write_and_clean_up()
        assert disk.files() == {"/d/a": b"abc"}

    def test_a_crash_is_not_taken_for_an_error(self) -> None:
        assert not issubclass(CrashNow, Exception)


class TestLookingInside:
    def test_a_clone_goes_its_own_way(self) -> None:
        disk = busy_disk()
        copy = disk.clone()
        assert copy.files() == disk.files()
        assert copy.durable_files() == disk.durable_files()
        before = disk.files()
        copy.open("/d/new", "write").pwrite(b"other", 0)
        copy.unlink("/d/c")
        copy.crash(Damage.GARBLE)
        assert disk.files() == before

    def test_a_clone_has_no_hook_and_no_locks(self) -> None:
        disk = new_disk()
        assert disk.lock("/d/.lock") is not None
        disk.on_operation = CrashAt(0)
        copy = disk.clone()
        assert copy.lock("/d/.lock") is not None
        copy.open("/d/a", "create")

    def test_restore_brings_back_a_clone_as_often_as_wanted(self) -> None:
        disk = busy_disk()
        snapshot = disk.clone()
        expected = snapshot.files(), snapshot.durable_files()
        for damage in Damage:
            file = disk.open("/d/new", "write")
            disk.crash(damage)
            disk.restore(snapshot)
            assert (disk.files(), disk.durable_files()) == expected
            with raises(errno.EIO):
                file.size()

    def test_poke_is_durable_at_once(self) -> None:
        disk = new_disk(a=b"abc")
        disk.poke("/d/a", 1, b"X")
        disk.crash(Damage.DROP)
        assert disk.read("/d/a") == b"aXc"
        with pytest.raises(AssertionError):
            disk.poke("/d/a", 2, b"XX")

    def test_poke_shows_in_maps(self) -> None:
        disk = new_disk(a=b"abc")
        view = disk.open("/d/a", "read").map()
        disk.poke("/d/a", 0, b"X")
        assert bytes(view) == b"Xbc"

    def test_replace_makes_or_changes_a_file_durably(self) -> None:
        disk = new_disk(a=b"abc")
        disk.replace("/d/a", b"longer than before")
        disk.replace("/d/b", b"b")
        disk.crash(Damage.DROP)
        assert disk.files() == {"/d/a": b"longer than before", "/d/b": b"b"}
        with raises(errno.EISDIR):
            disk.replace("/d", b"")

    def test_writes_beside_syncs_in_threads_are_all_counted(self) -> None:
        """No write may fall between the lists when a sync takes them over."""
        disk = new_disk(a=bytes(4000))
        file = disk.open("/d/a", "write")
        is_done = threading.Event()

        def sync() -> None:
            while not is_done.is_set():
                file.fdatasync()

        thread = threading.Thread(target=sync)
        thread.start()
        for offset in range(4000):
            file.pwrite(b"x", offset)
        is_done.set()
        thread.join()
        file.fdatasync()
        assert disk.durable_files() == {"/d/a": b"x" * 4000}


@dataclass
class Model:
    """The dumb way: all operations, replayed from the start without those that are to be lost.

    One directory. A file is known by the number of its create, whatever it is called.
    """

    operations: list[tuple[str, int, object]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def add(self, kind: str, file: int, argument: object) -> None:
        self.pending.append(len(self.operations))
        self.operations.append((kind, file, argument))

    def sync_file(self, file: int) -> None:
        self.pending = [
            index
            for index in self.pending
            if self.operations[index][0] not in ("write", "resize") or self.operations[index][1] != file
        ]

    def sync_dir(self) -> None:
        self.pending = [index for index in self.pending if self.operations[index][0] in ("write", "resize")]

    def replay(self, lost: list[int]) -> dict[str, bytes]:
        contents: dict[int, bytes] = {}
        names: dict[str, int] = {}
        for index, (kind, file, argument) in enumerate(self.operations):
            if index in lost:
                continue
            old = contents.get(file, b"")
            match kind, argument:
                case "write", (int(offset), bytes(data)):
                    padded = old.ljust(offset, b"\0")
                    contents[file] = padded[:offset] + data + padded[offset + len(data) :]
                case "resize", int(size):
                    contents[file] = old[:size].ljust(size, b"\0")
                case "create", str(name):
                    names[name] = file
                case "rename", (str(name), str(target)):
                    assert names.pop(name) == file
                    names[target] = file
                case "unlink", str(name):
                    del names[name]
        return {f"/d/{name}": contents.get(file, b"") for name, file in sorted(names.items())}


NAMES = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.integers(0, 1200), st.binary(min_size=1, max_size=1300)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 1500)),
        st.tuples(st.just("preallocate"), NAMES, st.integers(0, 1500)),
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("fsync"), NAMES),
        st.tuples(st.just("sync_dir")),
    ),
    max_size=30,
)


class Run:
    """Takes the same steps on a fake disk and on the model."""

    def __init__(self, steps: list[tuple[str, ...]]) -> None:
        self.disk = new_disk()
        self.model = Model()
        self.numbers: dict[str, int] = {}
        for step in steps:
            self.take(*step)

    def take(self, kind: str, name: str = "", *arguments: object) -> None:
        if kind == "sync_dir":
            self.disk.sync_dir("/d")
            self.model.sync_dir()
        elif kind == "create" and name not in self.numbers:
            self.disk.open(f"/d/{name}", "create")
            self.numbers[name] = len(self.model.operations)
            self.model.add("create", self.numbers[name], name)
        elif name in self.numbers and kind != "create":
            self.change(kind, name, arguments)

    def change(self, kind: str, name: str, arguments: tuple[object, ...]) -> None:
        number = self.numbers[name]
        file = self.disk.open(f"/d/{name}", "write")
        match kind, arguments:
            case "write", (int(offset), bytes(data)):
                assert file.pwrite(data, offset) == len(data)
                self.model.add("write", number, (offset, data))
            case "truncate", (int(size),):
                self.resize(number, file, size)
            case "preallocate", (int(size),):
                self.resize(number, file, max(size, file.size()))
            case "fsync", ():
                file.fsync()
                self.model.sync_file(number)
            case "unlink", ():
                self.disk.unlink(f"/d/{name}")
                self.model.add("unlink", self.numbers.pop(name), name)
            case "rename", (str(target),) if target != name:
                self.disk.rename(f"/d/{name}", f"/d/{target}")
                self.numbers[target] = self.numbers.pop(name)
                self.model.add("rename", number, (name, target))

    def resize(self, number: int, file: FakeFile, size: int) -> None:
        if size != file.size():
            file.truncate(size)
            self.model.add("resize", number, size)


class TestAgainstTheModel:
    @given(STEPS)
    def test_a_process_sees_all_its_changes_and_keep_keeps_them(self, steps: list[tuple[str, ...]]) -> None:
        run = Run(steps)
        assert run.disk.files() == run.model.replay(lost=[])
        run.disk.crash(Damage.KEEP)
        assert run.disk.files() == run.model.replay(lost=[])

    @given(STEPS)
    def test_drop_leaves_the_last_synced_state(self, steps: list[tuple[str, ...]]) -> None:
        run = Run(steps)
        expected = run.model.replay(lost=run.model.pending)
        assert run.disk.durable_files() == expected
        run.disk.crash(Damage.DROP)
        assert run.disk.files() == expected

    @given(STEPS, st.integers(0, 1000))
    def test_prefix_leaves_the_state_of_some_moment(self, steps: list[tuple[str, ...]], seed: int) -> None:
        run = Run(steps)
        pending = run.model.pending
        moments = [run.model.replay(lost=pending[kept:]) for kept in range(len(pending) + 1)]
        run.disk.crash(Damage.PREFIX, seed)
        assert run.disk.files() in moments

    @given(STEPS, st.sampled_from(Damage), st.integers(0, 1000))
    def test_a_clone_crashes_like_its_original(self, steps: list[tuple[str, ...]], damage: Damage, seed: int) -> None:
        disk = Run(steps).disk
        copy = disk.clone()
        disk.crash(damage, seed)
        copy.crash(damage, seed)
        assert copy.files() == disk.files()
        assert copy.durable_files() == disk.durable_files() == disk.files()


WRITES = st.lists(st.tuples(st.integers(0, 1500), st.binary(min_size=1, max_size=1500)), min_size=1, max_size=6)


class TestEachByte:
    """What each byte of a file may be after a crash in the middle of unsynced writes."""

    @given(st.binary(max_size=2000), WRITES, st.integers(0, 1000))
    def test_every_damage_leaves_only_bytes_that_it_may(
        self, old: bytes, writes: list[tuple[int, bytes]], seed: int
    ) -> None:
        disk = new_disk(a=old)
        file = disk.open("/d/a", "write")
        for offset, data in writes:
            file.pwrite(data, offset)
        new = disk.read("/d/a")
        for damage in Damage:
            found = crashed(disk, damage, seed).read("/d/a")
            assert len(old) <= len(found) <= len(new)
            if damage in (Damage.KEEP, Damage.ZERO_FILL, Damage.GARBLE):
                assert len(found) == len(new)
            for position, byte in enumerate(found):
                written = [
                    data[position - offset] for offset, data in writes if offset <= position < offset + len(data)
                ]
                before = old[position] if position < len(old) else 0
                assert byte in (before, *written) or (damage is Damage.GARBLE and written)

    @given(st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 1000), st.sampled_from([512, 4096]))
    def test_each_sector_of_a_write_is_old_or_new_as_a_whole(
        self, offset: int, size: int, seed: int, sector_bytes: int
    ) -> None:
        disk = FakeDisk(sector_bytes=sector_bytes)
        disk.replace("/a", b"o" * 6000)
        disk.open("/a", "write").pwrite(b"n" * size, offset)
        for damage in (Damage.SUBSET, Damage.ZERO_FILL):
            found = crashed(disk, damage, seed).read("/a")
            for start in range(0, 6000, sector_bytes):
                inside = found[max(start, offset) : min(start + sector_bytes, offset + size)]
                assert inside in (b"o" * len(inside), b"n" * len(inside))


def test_the_fake_answers_to_the_protocols() -> None:
    fs: Fs = FakeDisk()
    file: File = fs.open("/a", "create")
    assert write_all(file, b"abc", 0) == 3
