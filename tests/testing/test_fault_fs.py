"""Faults strike the call they are armed for, and no other."""

import errno
from collections.abc import Callable

import pytest

from topics.storage.fs import Fs, write_all, write_atomic
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, OneByteFs, Operation


def raises(number: int) -> "pytest.RaisesExc[OSError]":
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs("/d")
    disk.replace("/d/a", b"abc")
    return disk


@pytest.fixture
def fs(disk: FakeDisk) -> FaultFs:
    return FaultFs(disk)


CALLS: dict[Operation, Callable[[Fs], object]] = {
    "pread": lambda fs: fs.open("/d/a", "read").pread(1, 0),
    "pwrite": lambda fs: fs.open("/d/a", "write").pwrite(b"x", 0),
    "truncate": lambda fs: fs.open("/d/a", "write").truncate(1),
    "preallocate": lambda fs: fs.open("/d/a", "write").preallocate(9),
    "map": lambda fs: fs.open("/d/a", "read").map(),
    "fdatasync": lambda fs: fs.open("/d/a", "write").fdatasync(),
    "fsync": lambda fs: fs.open("/d/a", "write").fsync(),
    "open": lambda fs: fs.open("/d/a", "read"),
    "create": lambda fs: fs.open("/d/new", "create"),
    "exists": lambda fs: fs.exists("/d/a"),
    "size": lambda fs: fs.size("/d/a"),
    "listdir": lambda fs: fs.listdir("/d"),
    "makedirs": lambda fs: fs.makedirs("/d/e"),
    "rename": lambda fs: fs.rename("/d/a", "/d/b"),
    "unlink": lambda fs: fs.unlink("/d/a"),
    "rmdir": lambda fs: fs.rmdir("/d/a"),
    "sync_dir": lambda fs: fs.sync_dir("/d"),
    "lock": lambda fs: fs.lock("/d/.lock"),
}


@pytest.mark.parametrize("operation", list(CALLS))
def test_each_operation_fails_when_it_is_told_to_and_then_has_no_effect(
    disk: FakeDisk, fs: FaultFs, operation: Operation
) -> None:
    fault = fs.fail(operation, error=errno.ESTALE)
    with raises(errno.ESTALE):
        CALLS[operation](fs)
    assert fault.fired_count == 1
    assert disk.files() == {"/d/a": b"abc"}
    assert not disk.exists("/d/e")


@pytest.mark.parametrize("operation", list(CALLS))
def test_a_fault_leaves_other_operations_alone(fs: FaultFs, operation: Operation) -> None:
    others: list[Operation] = [other for other in CALLS if other not in (operation, "open", "rmdir")]
    fault = fs.fail(*others)
    if operation != "rmdir":
        CALLS[operation](fs)
    assert fault.fired_count == 0


def test_a_fault_strikes_once_at_its_call(fs: FaultFs) -> None:
    fs.fail("pwrite", at=2)
    file = fs.open("/d/a", "write")
    file.pwrite(b"0", 0)
    file.pwrite(b"1", 1)
    with raises(errno.EIO):
        file.pwrite(b"2", 2)
    file.pwrite(b"3", 3)
    assert file.pread(9, 0) == b"01c3"


def test_a_lasting_fault_strikes_from_its_call_on_until_it_is_healed(fs: FaultFs) -> None:
    fault = fs.fail("fsync", "fdatasync", error=errno.EROFS, at=1, lasts=True)
    file = fs.open("/d/a", "write")
    file.fsync()
    for sync in (file.fdatasync, file.fsync, file.fdatasync):
        with raises(errno.EROFS):
            sync()
    assert fault.fired_count == 3
    fs.heal()
    file.fsync()


def test_a_fault_may_be_for_some_paths_only_and_counts_only_those(disk: FakeDisk, fs: FaultFs) -> None:
    disk.replace("/d/wal.log", b"")
    fs.fail("pwrite", at=1, path=lambda path: path.endswith(".log"))
    other, log = fs.open("/d/a", "write"), fs.open("/d/wal.log", "write")
    other.pwrite(b"x", 0)
    other.pwrite(b"x", 0)
    log.pwrite(b"0", 0)
    with raises(errno.EIO):
        log.pwrite(b"1", 1)


def test_a_rename_is_matched_by_its_target(fs: FaultFs) -> None:
    fs.fail("rename", path=lambda path: path == "/d/b")
    with raises(errno.EIO):
        fs.rename("/d/a", "/d/b")
    fs.rename("/d/a", "/d/c")


def test_several_faults_count_for_themselves(fs: FaultFs) -> None:
    first, second = fs.fail("pwrite", at=0), fs.fail("pwrite", error=errno.EDQUOT, at=1)
    file = fs.open("/d/a", "write")
    with raises(errno.EIO):
        file.pwrite(b"x", 0)
    with raises(errno.EDQUOT):
        file.pwrite(b"x", 0)
    assert file.pwrite(b"x", 0) == 1
    assert (first.fired_count, second.fired_count) == (1, 1)


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 1), (3, 1), (10, 5)])
def test_a_short_write_moves_half_and_says_so(fs: FaultFs, size: int, count: int) -> None:
    fs.short_write()
    file = fs.open("/d/new", "create")
    assert file.pwrite(b"x" * size, 0) == count
    assert file.size() == count


def test_write_all_gets_past_short_writes(fs: FaultFs) -> None:
    fault = fs.short_write(lasts=True)
    file = fs.open("/d/new", "create")
    write_all(file, [b"01234567", b"89"], 0)
    assert file.pread(99, 0) == b"0123456789"
    assert fault.fired_count == 6


def test_a_torn_write_leaves_half_a_frame_on_a_full_disk(disk: FakeDisk, fs: FaultFs) -> None:
    fs.torn_write()
    file = fs.open("/d/new", "create")
    with raises(errno.ENOSPC):
        write_all(file, b"01234567", 0)
    assert disk.read("/d/new") == b"0123"
    write_all(file, b"again", 0)
    assert disk.read("/d/new") == b"again"


def test_a_torn_write_may_leave_the_disk_full(fs: FaultFs) -> None:
    fs.torn_write(error=errno.EDQUOT, at=1, lasts=True)
    file = fs.open("/d/new", "create")
    write_all(file, b"first", 0)
    for _ in range(3):
        with raises(errno.EDQUOT):
            write_all(file, b"second", 5)


def test_a_failed_sync_takes_the_writes_along_although_the_process_still_sees_them(disk: FakeDisk, fs: FaultFs) -> None:
    fs.fail("fdatasync")
    file = fs.open("/d/a", "write")
    file.pwrite(b"new", 0)
    with raises(errno.EIO):
        file.fdatasync()
    file.fdatasync()
    assert file.pread(9, 0) == b"new"
    disk.crash(Damage.KEEP)
    assert disk.read("/d/a") == b"abc"


def test_a_failed_sync_may_leave_the_writes_pending(disk: FakeDisk) -> None:
    fs = FaultFs(disk, syncs_lose_writes=False)
    fs.fail("fsync")
    file = fs.open("/d/a", "write")
    file.pwrite(b"new", 0)
    with raises(errno.EIO):
        file.fsync()
    file.fsync()
    disk.crash(Damage.DROP)
    assert disk.read("/d/a") == b"new"


def test_a_sweep_over_write_atomic_ends_and_never_leaves_a_mixture() -> None:
    """Failing call 0, 1, 2 … until nothing fails: the old or the new content, whatever failed."""
    operations: list[Operation] = ["create", "pwrite", "fsync", "rename", "sync_dir", "exists"]
    for at in range(20):
        disk = FakeDisk()
        disk.makedirs("/d")
        disk.replace("/d/a", b"old")
        fs = FaultFs(disk)
        fault = fs.fail(*operations, error=errno.EIO, at=at)
        try:
            write_atomic(fs, "/d/a", b"new")
        except OSError:
            assert fault.fired_count == 1
        disk.crash(Damage.SUBSET, at)
        assert disk.read("/d/a") in (b"old", b"new")
        if fault.fired_count == 0:
            break
    assert at == len(operations)


def test_one_byte_fs_moves_a_byte_per_write_and_reads_in_full() -> None:
    disk = FakeDisk()
    file = OneByteFs(disk).open("/a", "create")
    assert file.pwrite(b"abc", 0) == 1
    assert file.pwrite(b"", 1) == 0
    assert write_all(file, b"abc", 0) == 3
    assert file.pread(3, 0) == b"abc"
