"""The monitor objects to the orders that a crash could punish, and to no other."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.storage.fs import Fs, RealFs, write_all, write_atomic
from topics.testing.fake_disk import CrashAt, CrashNow, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs, OrderViolation


@pytest.fixture(params=[RealFs, FakeDisk])
def monitor(request: pytest.FixtureRequest) -> MonitorFs:
    make: Callable[[], Fs] = request.param
    return MonitorFs(make())


@pytest.fixture
def root(monitor: MonitorFs, tmp_path: Path) -> str:
    root = str(tmp_path / "data")
    monitor.makedirs(root)
    return root


def put(monitor: MonitorFs, path: str) -> None:
    """A file done right."""
    file = monitor.open(path, "create")
    write_all(file, b"abc", 0)
    file.fsync()
    file.close()
    monitor.sync_dir(path.rpartition("/")[0])


class TestRenames:
    def test_a_file_written_but_not_synced_must_not_get_its_final_name(self, monitor: MonitorFs, root: str) -> None:
        file = monitor.open(f"{root}/a.tmp", "create")
        file.pwrite(b"abc", 0)
        file.close()
        with pytest.raises(OrderViolation) as caught:
            monitor.rename(f"{root}/a.tmp", f"{root}/a")
        assert str(caught.value) == f"{root}/a.tmp: 1 unsynced writes at its rename to {root}/a"
        assert monitor.violations == [str(caught.value)]
        assert monitor.listdir(root) == ["a.tmp"]

    @pytest.mark.parametrize("change", ["truncate", "preallocate"])
    def test_changes_of_size_count_as_writes(self, monitor: MonitorFs, root: str, change: str) -> None:
        file = monitor.open(f"{root}/a.tmp", "create")
        getattr(file, change)(10)
        file.close()
        with pytest.raises(OrderViolation):
            monitor.rename(f"{root}/a.tmp", f"{root}/a")

    @pytest.mark.parametrize("sync", ["fsync", "fdatasync"])
    def test_a_synced_file_may_be_renamed(self, monitor: MonitorFs, root: str, sync: str) -> None:
        file = monitor.open(f"{root}/a.tmp", "create")
        file.pwrite(b"abc", 0)
        getattr(file, sync)()
        file.close()
        monitor.rename(f"{root}/a.tmp", f"{root}/a")
        assert monitor.listdir(root) == ["a"]

    def test_a_write_after_the_sync_needs_another(self, monitor: MonitorFs, root: str) -> None:
        file = monitor.open(f"{root}/a.tmp", "create")
        file.fsync()
        file.pwrite(b"abc", 0)
        file.close()
        with pytest.raises(OrderViolation):
            monitor.rename(f"{root}/a.tmp", f"{root}/a")

    def test_a_sync_by_another_handle_counts(self, monitor: MonitorFs, root: str) -> None:
        file = monitor.open(f"{root}/a.tmp", "create")
        file.pwrite(b"abc", 0)
        other = monitor.open(f"{root}/a.tmp", "read")
        other.fsync()
        monitor.rename(f"{root}/a.tmp", f"{root}/a")
        file.close()
        other.close()

    def test_the_files_of_a_renamed_directory_must_be_synced(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/d")
        file = monitor.open(f"{root}/d/a", "create")
        file.pwrite(b"abc", 0)
        file.close()
        with pytest.raises(OrderViolation):
            monitor.rename(f"{root}/d", f"{root}/e")

    def test_what_is_put_away_for_deletion_need_not_be_synced(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/d")
        file = monitor.open(f"{root}/d/a", "create")
        file.pwrite(b"abc", 0)
        monitor.rename(f"{root}/d", f"{root}/d.deleted")
        file.close()
        with pytest.raises(OrderViolation):
            monitor.require_synced(f"{root}/d.deleted/")

    def test_write_atomic_is_in_order(self, monitor: MonitorFs, root: str) -> None:
        write_atomic(monitor, f"{root}/a", b"first")
        write_atomic(monitor, f"{root}/a", b"second")
        assert monitor.check_settled() == []
        assert monitor.violations == []


class TestSettledDirectories:
    def test_a_new_directory_tree_is_settled(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/a/b/c")
        assert monitor.check_settled() == []

    def test_create_rename_and_unlink_wait_for_a_sync_of_the_directory(self, monitor: MonitorFs, root: str) -> None:
        steps: list[Callable[[], object]] = [
            lambda: monitor.open(f"{root}/a", "create").close(),
            lambda: monitor.rename(f"{root}/a", f"{root}/b"),
            lambda: monitor.unlink(f"{root}/b"),
        ]
        for step in steps:
            step()
            assert monitor.check_settled() == [root]
            monitor.sync_dir(root)
            assert monitor.check_settled() == []

    def test_temporary_files_need_no_sync(self, monitor: MonitorFs, root: str) -> None:
        monitor.open(f"{root}/a.tmp", "create").close()
        monitor.rename(f"{root}/a.tmp", f"{root}/b.tmp")
        monitor.unlink(f"{root}/b.tmp")
        assert monitor.check_settled() == []

    def test_a_rename_across_directories_waits_for_both(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/d")
        put(monitor, f"{root}/a")
        monitor.rename(f"{root}/a", f"{root}/d/a")
        assert monitor.check_settled() == [root, f"{root}/d"]
        monitor.sync_dir(f"{root}/d")
        assert monitor.check_settled() == [root]
        monitor.sync_dir(root)
        assert monitor.check_settled() == []

    def test_a_directory_that_waits_is_known_by_its_new_name(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/d")
        monitor.open(f"{root}/d/a", "create").close()
        monitor.rename(f"{root}/d", f"{root}/e")
        assert monitor.check_settled() == [root, f"{root}/e"]

    def test_a_removed_directory_waits_no_more_but_its_parent_does(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/d")
        put(monitor, f"{root}/d/a")
        monitor.unlink(f"{root}/d/a")
        monitor.rmdir(f"{root}/d")
        assert monitor.check_settled() == [root]

    def test_a_directory_sync_that_failed_does_not_count(self) -> None:
        fs = FaultFs(FakeDisk())
        monitor = MonitorFs(fs)
        monitor.makedirs("/d")
        monitor.open("/d/a", "create").close()
        fs.fail("sync_dir")
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
            monitor.sync_dir("/d")
        assert monitor.check_settled() == ["/d"]
        monitor.sync_dir("/d")
        assert monitor.check_settled() == []

    def test_a_lock_file_need_not_be_durable(self, monitor: MonitorFs, root: str) -> None:
        lock = monitor.lock(f"{root}/.lock")
        assert lock is not None
        lock.release()
        assert monitor.check_settled() == []


PRECIOUS = pytest.mark.parametrize(
    "name", ["wal-0000000000000001.log", "seg-0000000000000001.data", "seg-0000000000000001.idx", "snapshot.0001.bin"]
)


class TestUnlinks:
    @PRECIOUS
    def test_nothing_precious_goes_while_a_rename_is_not_durable(
        self, monitor: MonitorFs, root: str, name: str
    ) -> None:
        put(monitor, f"{root}/{name}")
        monitor.makedirs(f"{root}/meta")
        put(monitor, f"{root}/meta/new")
        monitor.rename(f"{root}/meta/new", f"{root}/meta/current")
        with pytest.raises(OrderViolation) as caught:
            monitor.unlink(f"{root}/{name}")
        assert str(caught.value) == (f"{root}/{name}: unlinked before {root}/meta was synced after rename to current")
        assert monitor.exists(f"{root}/{name}")
        monitor.sync_dir(f"{root}/meta")
        monitor.unlink(f"{root}/{name}")

    @PRECIOUS
    def test_nothing_precious_goes_while_a_create_is_not_durable(
        self, monitor: MonitorFs, root: str, name: str
    ) -> None:
        put(monitor, f"{root}/{name}")
        monitor.open(f"{root}/new", "create").close()
        with pytest.raises(OrderViolation):
            monitor.unlink(f"{root}/{name}")

    def test_several_precious_files_may_go_in_a_row(self, monitor: MonitorFs, root: str) -> None:
        for name in ("a.log", "b.log"):
            put(monitor, f"{root}/{name}")
        for name in ("a.log", "b.log"):
            monitor.unlink(f"{root}/{name}")
        assert monitor.violations == []

    def test_other_files_may_go_at_any_time(self, monitor: MonitorFs, root: str) -> None:
        put(monitor, f"{root}/note")
        put(monitor, f"{root}/snapshot.0001.bin.tmp")
        monitor.open(f"{root}/new", "create").close()
        monitor.unlink(f"{root}/note")
        monitor.unlink(f"{root}/snapshot.0001.bin.tmp")

    def test_a_temporary_file_being_written_does_not_hold_up_an_unlink(self, monitor: MonitorFs, root: str) -> None:
        put(monitor, f"{root}/a.log")
        monitor.open(f"{root}/b.tmp", "create").close()
        monitor.unlink(f"{root}/a.log")


class TestSealedFiles:
    def test_a_sealed_file_takes_delete_bytes_only(self, monitor: MonitorFs, root: str) -> None:
        put(monitor, f"{root}/a")
        file = monitor.open(f"{root}/a", "write")
        monitor.seal(f"{root}/a")
        assert file.pwrite(b"\xd5", 1) == 1
        for data in (b"\xd4", b"\xd5\xd5", b"x"):
            with pytest.raises(OrderViolation):
                file.pwrite(data, 1)
        with pytest.raises(OrderViolation) as caught:
            file.truncate(0)
        assert str(caught.value) == f"{root}/a: sealed file resized to 0 bytes"
        with pytest.raises(OrderViolation):
            file.preallocate(99)
        assert file.pread(9, 0) == b"a\xd5c"
        file.close()

    def test_a_seal_follows_the_file_and_not_the_name(self, monitor: MonitorFs, root: str) -> None:
        put(monitor, f"{root}/a")
        monitor.seal(f"{root}/a")
        monitor.rename(f"{root}/a", f"{root}/b")
        put(monitor, f"{root}/a")
        sealed, free = monitor.open(f"{root}/b", "write"), monitor.open(f"{root}/a", "write")
        with pytest.raises(OrderViolation):
            sealed.pwrite(b"x", 0)
        free.pwrite(b"x", 0)
        sealed.close()
        free.close()

    def test_a_sealed_file_may_be_replaced_or_unlinked(self, monitor: MonitorFs, root: str) -> None:
        put(monitor, f"{root}/seg-1.data")
        monitor.seal(f"{root}/seg-1.data")
        write_atomic(monitor, f"{root}/seg-1.data", b"new")
        file = monitor.open(f"{root}/seg-1.data", "write")
        file.pwrite(b"free again", 0)
        file.close()
        monitor.unlink(f"{root}/seg-1.data")


class TestRequireSynced:
    def test_unsynced_writes_under_the_prefix_are_found(self, monitor: MonitorFs, root: str) -> None:
        monitor.makedirs(f"{root}/wal")
        file = monitor.open(f"{root}/wal/a.log", "create")
        file.pwrite(b"1", 0)
        file.pwrite(b"2", 1)
        monitor.require_synced(f"{root}/meta")
        with pytest.raises(OrderViolation) as caught:
            monitor.require_synced(f"{root}/wal")
        assert str(caught.value) == f"{root}/wal/a.log: 2 unsynced writes when they had to be durable"
        file.fdatasync()
        monitor.require_synced(f"{root}/wal")
        file.close()

    def test_a_closed_file_is_not_a_synced_one(self, monitor: MonitorFs, root: str) -> None:
        file = monitor.open(f"{root}/a", "create")
        file.pwrite(b"1", 0)
        file.close()
        with pytest.raises(OrderViolation):
            monitor.require_synced(root)

    def test_an_unlinked_file_does_not_count(self, monitor: MonitorFs, root: str) -> None:
        file = monitor.open(f"{root}/a", "create")
        file.pwrite(b"1", 0)
        file.close()
        monitor.unlink(f"{root}/a")
        monitor.require_synced(root)

    def test_a_failed_sync_is_not_made_good_by_the_next(self) -> None:
        fs = FaultFs(FakeDisk())
        monitor = MonitorFs(fs)
        for sync in ("fsync", "fdatasync"):
            file = monitor.open(f"/{sync}", "create")
            file.pwrite(b"1", 0)
            fs.fail("fsync", "fdatasync")
            with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
                getattr(file, sync)()
            getattr(file, sync)()
            with pytest.raises(OrderViolation) as caught:
                monitor.require_synced(f"/{sync}")
            assert str(caught.value) == f"/{sync}: writes lost to a failed sync when they had to be durable"

    def test_a_write_that_failed_half_way_counts_as_one(self) -> None:
        fs = FaultFs(FakeDisk())
        monitor = MonitorFs(fs)
        file = monitor.open("/a", "create")
        fs.fail("pwrite", error=errno.ENOSPC)
        with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
            file.pwrite(b"1", 0)
        with pytest.raises(OrderViolation):
            monitor.require_synced("/")


def test_a_crash_passes_through_the_monitor() -> None:
    disk = FakeDisk()
    monitor = MonitorFs(disk)
    disk.on_operation = CrashAt(0)
    with pytest.raises(CrashNow):
        monitor.open("/a", "create")
    assert monitor.check_settled() == []


def test_a_violation_that_is_caught_by_somebody_is_still_known() -> None:
    monitor = MonitorFs(FakeDisk())
    file = monitor.open("/a.tmp", "create")
    file.pwrite(b"1", 0)
    try:
        monitor.rename("/a.tmp", "/a")
    except AssertionError:
        pass
    assert monitor.violations == ["/a.tmp: 1 unsynced writes at its rename to /a"]
