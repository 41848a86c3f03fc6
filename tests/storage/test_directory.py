"""The data directory: who holds it, whether the machine went down, what is made and what goes."""

import errno
import logging
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from topics.clock import SystemClock
from topics.errors import DirectoryLocked, FutureVersion, StartRefused
from topics.limits import LOCK_WAIT_MS
from topics.storage import layout
from topics.storage.directory import open_directory
from topics.storage.fs import RealFs
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

ROOT = "/data"
LOCK = f"{ROOT}/{layout.LOCK}"


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


class HurryingClock(ManualClock):
    """Every look at the monotonic hand moves it on: a wait in the code under test comes to its end."""

    def monotonic_ms(self) -> int:
        self.advance(LOCK_WAIT_MS // 3)
        return super().monotonic_ms()


def holder(disk: FakeDisk) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(disk.read(LOCK))
    return found


def write_holder(disk: FakeDisk, **members: object) -> None:
    disk.replace(LOCK, msgspec.json.encode({"pid": 0, "host": "", "boot_id": "", **members}))


# --- the lock -----------------------------------------------------------------------------------------------


def test_a_directory_is_opened_once(disk: FakeDisk) -> None:
    """The second names the holder."""
    first = open_directory(disk, ROOT, ManualClock())
    with pytest.raises(DirectoryLocked, match=f"process {os.getpid()} on {socket.gethostname()}"):
        open_directory(disk, ROOT, ManualClock())
    first.release()
    open_directory(disk, ROOT, ManualClock()).release()


def test_the_lock_of_a_dead_process_is_waited_for_and_then_refused(disk: FakeDisk) -> None:
    """A killed server's worker may still be ending; it gets its five seconds."""
    disk.makedirs(ROOT)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_holder(disk, pid=gone.pid, host=socket.gethostname())
    lock = disk.lock(LOCK)
    assert lock is not None
    with pytest.raises(DirectoryLocked, match=f"process {gone.pid}"):
        open_directory(disk, ROOT, HurryingClock())
    lock.release()
    open_directory(disk, ROOT, HurryingClock()).release()


def test_the_lock_of_a_dead_process_is_taken_as_soon_as_it_is_let_go(disk: FakeDisk) -> None:
    disk.makedirs(ROOT)
    lock = disk.lock(LOCK)
    assert lock is not None
    tries = 0

    original = disk.lock

    def lock_at_third_try(path: str) -> object:
        nonlocal tries
        tries += 1
        if tries == 3:
            lock.release()
        return original(path)

    disk.lock = lock_at_third_try  # type: ignore[method-assign, assignment]
    open_directory(disk, ROOT, ManualClock())
    assert tries == 3


def test_a_holder_on_another_machine_counts_as_alive(disk: FakeDisk) -> None:
    """Its pid says nothing here."""
    disk.makedirs(ROOT)
    write_holder(disk, pid=2**22 + 1, host="elsewhere.example")
    assert disk.lock(LOCK) is not None
    with pytest.raises(DirectoryLocked, match=r"elsewhere\.example"):
        open_directory(disk, ROOT, ManualClock())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"not json", b"\xff\xfe\x00", b"[]", b'{"pid":"x"}', b"null", bytes(60)]
)
def test_a_torn_lock_file_reads_as_unknown(disk: FakeDisk, content: bytes) -> None:
    disk.makedirs(ROOT)
    disk.replace(LOCK, content)
    directory = open_directory(disk, ROOT, ManualClock())
    assert directory.power_was_lost
    assert holder(disk)["pid"] == os.getpid()


HOLD = """
import sys
from topics.clock import SystemClock
from topics.storage.directory import open_directory
from topics.storage.fs import RealFs

open_directory(RealFs(), sys.argv[1], SystemClock())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first_until_that_is_killed(tmp_path: Path) -> None:
    """For real."""
    root = str(tmp_path / "data")
    first = subprocess.Popen([sys.executable, "-c", HOLD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLocked, match=f"process {first.pid} "):
            open_directory(RealFs(), root, SystemClock())
    finally:
        first.kill()
        first.communicate()
    open_directory(RealFs(), root, SystemClock()).release()


# --- power --------------------------------------------------------------------------------------------------


def test_a_killed_process_is_no_power_loss_and_a_crash_is(disk: FakeDisk) -> None:
    directory = open_directory(disk, ROOT, ManualClock())
    assert directory.power_was_lost, "nobody knows of a fresh directory"
    directory.note_recovered()
    disk.kill()
    directory = open_directory(disk, ROOT, ManualClock())
    assert not directory.power_was_lost
    directory.note_recovered()
    disk.crash(Damage.DROP)
    assert open_directory(disk, ROOT, ManualClock()).power_was_lost


def test_a_kill_in_the_middle_of_recovery_does_not_hide_the_power_loss_before_it(disk: FakeDisk) -> None:
    """The boot id is noted only when recovery has made its conclusions durable."""
    open_directory(disk, ROOT, ManualClock()).note_recovered()
    disk.crash(Damage.DROP)
    for _ in range(5):
        directory = open_directory(disk, ROOT, ManualClock())
        assert directory.power_was_lost
        disk.kill()
    directory = open_directory(disk, ROOT, ManualClock())
    directory.note_recovered()
    disk.kill()
    assert not open_directory(disk, ROOT, ManualClock()).power_was_lost


def test_an_unknown_boot_id_counts_as_a_power_loss(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "boot_id", lambda: "")
    open_directory(disk, ROOT, ManualClock()).note_recovered()
    disk.kill()
    assert open_directory(disk, ROOT, ManualClock()).power_was_lost


def test_the_pid_is_noted_at_once_and_the_boot_id_later(disk: FakeDisk) -> None:
    directory = open_directory(disk, ROOT, ManualClock())
    assert holder(disk) == {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": ""}
    directory.note_recovered()
    assert holder(disk)["boot_id"] == disk.boot_id()
    assert disk.durable_files()[LOCK] == disk.read(LOCK)


def test_a_shorter_holder_leaves_no_rest_of_a_longer_one(disk: FakeDisk) -> None:
    disk.makedirs(ROOT)
    write_holder(disk, pid=1, host="h" * 200, boot_id=disk.boot_id())
    directory = open_directory(disk, ROOT, ManualClock())
    assert not directory.power_was_lost
    assert holder(disk)["host"] == socket.gethostname()


def test_a_holder_that_cannot_be_noted_is_only_a_warning(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk."""
    open_directory(disk, ROOT, ManualClock()).release()
    fs = FaultFs(disk)
    fs.fail("pwrite", error=errno.ENOSPC, path=lambda path: path == LOCK)
    with caplog.at_level(logging.WARNING):
        open_directory(fs, ROOT, ManualClock()).release()
    assert "cannot note the holder" in caplog.text


# --- what is made, and what goes ----------------------------------------------------------------------------


def test_a_fresh_directory_gets_what_it_needs_for_its_owner_only(tmp_path: Path) -> None:
    """Directories 0700, files 0600, whatever the umask."""
    root = tmp_path / "deep" / "data"
    before = os.umask(0)
    try:
        directory = open_directory(RealFs(), str(root), SystemClock())
    finally:
        os.umask(before)
    assert sorted(path.name for path in root.iterdir()) == [".topics.lock", "STORE", "meta", "topics", "wal"]
    for path in [root, *root.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    directory.release()


def test_the_store_id_stays(disk: FakeDisk) -> None:
    first = open_directory(disk, ROOT, ManualClock())
    first.release()
    second = open_directory(disk, ROOT, ManualClock())
    assert second.store_id == first.store_id
    assert len(first.store_id) == 32


def test_temporary_files_go_and_everything_else_stays(disk: FakeDisk) -> None:
    """Never loaded. What is not ours is not touched."""
    open_directory(disk, ROOT, ManualClock()).release()
    disk.makedirs(f"{ROOT}/wal/shard-00")
    disk.makedirs(f"{ROOT}/topics/00000001")
    disk.makedirs(f"{ROOT}/other")
    doomed = [
        f"{ROOT}/STORE.tmp",
        f"{ROOT}/meta/snapshot.0002.bin.tmp",
        f"{ROOT}/wal/wal-next.tmp",
        f"{ROOT}/wal/shard-00/CURRENT.tmp",
        f"{ROOT}/topics/00000001/seg-0000000000000001.idx.tmp",
    ]
    kept = [
        f"{ROOT}/other/mine.tmp",
        f"{ROOT}/wal/wal-0000000000000001.log.9.torn",
        f"{ROOT}/topics/00000001/notes",
        f"{ROOT}/readme.txt",
    ]
    for path in doomed + kept:
        disk.replace(path, b"?")
    open_directory(disk, ROOT, ManualClock()).release()
    assert [path for path in doomed if disk.exists(path)] == []
    assert [path for path in kept if not disk.exists(path)] == []


@pytest.mark.parametrize("operation", ["listdir", "open", "makedirs", "lock", "sync_dir"])
@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
def test_a_directory_that_cannot_be_read_is_refused_with_the_reason_and_not_taken_for_empty(
    disk: FakeDisk, operation: str, error: int
) -> None:
    open_directory(disk, ROOT, ManualClock()).release()
    before = disk.files()
    fs = FaultFs(disk)
    fs.fail(operation, error=error, lasts=True)  # type: ignore[arg-type]
    with pytest.raises(StartRefused, match=os.strerror(error)):
        open_directory(fs, ROOT, ManualClock())
    assert {path: data for path, data in disk.files().items() if path != LOCK} == {
        path: data for path, data in before.items() if path != LOCK
    }
    fs.heal()
    open_directory(fs, ROOT, ManualClock()).release()


def test_a_read_only_file_system_is_refused_with_the_reason(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    fs.fail("makedirs", "create", "pwrite", "lock", error=errno.EROFS, lasts=True)
    with pytest.raises(StartRefused, match="Read-only file system"):
        open_directory(fs, ROOT, ManualClock())


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"")
    with pytest.raises(StartRefused, match="Not a directory"):
        open_directory(RealFs(), str(path), SystemClock())


def test_a_store_of_a_newer_format_is_refused(disk: FakeDisk) -> None:
    open_directory(disk, ROOT, ManualClock()).release()
    content = disk.read(f"{ROOT}/{layout.STORE}")
    described = msgspec.json.decode(content)
    described["format"] = described.get("format", 1) + 1
    disk.replace(f"{ROOT}/{layout.STORE}", msgspec.json.encode(described))
    with pytest.raises(FutureVersion):
        open_directory(disk, ROOT, ManualClock())


def test_a_refused_start_lets_go_of_the_lock(disk: FakeDisk) -> None:
    """A start that is tried again in the same process must not meet itself."""
    open_directory(disk, ROOT, ManualClock()).release()
    fs = FaultFs(disk)
    fs.fail("listdir", error=errno.EIO)
    with pytest.raises(StartRefused):
        open_directory(fs, ROOT, ManualClock())
    open_directory(fs, ROOT, ManualClock()).release()
