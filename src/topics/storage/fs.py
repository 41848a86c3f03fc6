"""The file-system seam: every byte of disk I/O of this package goes through `Fs` and `File`.

Three kinds answer to it: `RealFs` here, and in `topics.testing` a fake disk that keeps pending and
durable bytes apart, plus wrappers that inject faults and watch the order of calls. All of them raise
plain `OSError` with an `errno`; `storage/` decides what an `errno` means (never by its text).

Rules that callers keep, and that the order monitor checks in every test:

1. A file is fsynced before it is renamed to its final name.
2. A directory is synced after a create, rename or unlink that must survive a power cut.
3. The replacement of a file is durable before the old file is unlinked.

Paths are absolute strings. Positions are byte offsets. Not thread-safe per file unless noted:
`pread` and `fdatasync` may run beside `pwrite`.
"""

import errno
import fcntl
import logging
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Literal, Protocol

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

# How many buffers one vectored write takes.
IOV_MAX: Final = 1024

# "read": must exist, read only. "write": must exist, read and write.
# "create": must not exist, read and write, mode 0600.
# What exists must be a regular file: `NotAFile` or `IsADirectoryError` is raised for anything else.
OpenMode = Literal["read", "write", "create"]


class File(Protocol):
    """An open file. `path` is the name it was opened by."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer and says how much it got; less than its length only at the end of the file."""
        ...

    def pread_into_nowait(self, buffer: memoryview, offset: int) -> bool:
        """Fills the whole buffer if that does not wait for a disk. False if it would, if the file ends before, or if
        the system does not tell: then the content of the buffer is undefined."""
        ...

    def is_cached(self, size: int, offset: int) -> bool:
        """Whether a `pread` of this would not wait for a disk. False also where the system does not tell."""
        ...

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at `offset` and says how much it wrote, which may be less than asked."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """As `pwrite`, of several buffers back to back, at most `IOV_MAX` of them."""
        ...

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Makes the file `size` bytes long, the new part zeros with room reserved for it."""
        ...

    def seek_data(self, offset: int) -> int | None:
        """First position >= `offset` that may hold non-zero bytes, None when there is none."""
        ...

    def map(self) -> Buffer:
        """The whole file as it is now, for reading; in-place writes show through."""
        ...

    def fdatasync(self) -> None:
        """Makes data, and the size needed to read it back, durable."""
        ...

    def fsync(self) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Fs(Protocol):
    def open(self, path: str, mode: OpenMode) -> File: ...

    def exists(self, path: str) -> bool:
        """False only when there is surely nothing; any other trouble raises."""
        ...

    def size(self, path: str) -> int:
        """Of a regular file."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, by the clock of the file system, milliseconds since the Unix epoch."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def makedirs(self, path: str) -> None:
        """Creates what is missing, mode 0700, and syncs each parent it adds to."""
        ...

    def mkdir(self, path: str) -> None:
        """Creates one directory, mode 0700. The caller syncs its parent. Raises `FileExistsError`."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically; replaces `target`."""
        ...

    def rename_new(self, source: str, target: str) -> None:
        """As `rename`, but raises `FileExistsError` when there is a `target`: of two callers only one succeeds.

        Files only. A process that dies in it may leave both names."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Makes the directory's entries durable. A file system that cannot is tolerated, with a warning."""
        ...

    def lock(self, path: str) -> "Lock | None":
        """An exclusive advisory lock on the file (created when missing), or None when it is held."""
        ...

    def boot_id(self) -> str:
        """Changes when the machine restarts; empty when the system does not tell."""
        ...


class Host(Protocol):
    """Facts about the file system of a path. Only `topics doctor` asks for them."""

    def mode(self, path: str) -> int:
        """Permission bits."""
        ...

    def free_bytes(self, path: str) -> int:
        """Free bytes for this user."""
        ...

    def can_sync_dir(self, path: str) -> bool:
        """Whether this file system makes directories durable when asked."""
        ...


class Lock(Protocol):
    """A held lock. The file's content is for the holder to write, through the ordinary calls."""

    path: str

    def fileno(self) -> int:
        """A descriptor a child process can inherit to hold the lock too; -1 where there is none."""
        ...

    def release(self) -> None: ...


def read_file(fs: Fs, path: str) -> bytes:
    file = fs.open(path, "read")
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_all(file: File, buffers: Sequence[Buffer] | Buffer, offset: int) -> int:
    """Writes everything, however short each write falls; returns the end position."""
    parts = [buffers] if isinstance(buffers, bytes | bytearray | memoryview) else buffers
    for part in parts:
        view = memoryview(part)
        while view:
            count = file.pwrite(view, offset)
            offset += count
            view = view[count:]
    return offset


def write_vectors(file: File, buffers: Sequence[Buffer], offset: int) -> int:
    """Writes everything with as few calls as the system allows; returns the end position."""
    left = [memoryview(buffer) for buffer in buffers if len(buffer)]
    done = 0
    while done < len(left):
        count = file.pwritev(left[done : done + IOV_MAX], offset)
        offset += count
        while done < len(left) and count >= len(left[done]):
            count -= len(left[done])
            done += 1
        if count:
            left[done] = left[done][count:]
    return offset


def write_atomic(fs: Fs, path: str, data: Buffer) -> None:
    """Replaces `path` so that a crash leaves the old or the new content, never neither."""
    temporary = path + ".tmp"
    if fs.exists(temporary):
        fs.unlink(temporary)
    file = fs.open(temporary, "create")
    try:
        write_all(file, data, 0)
        file.fsync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


# No room on the disk, or no file descriptors. The disk did not fail: another try can succeed once there is room.
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE))

# The answers of a file system that has no such operation, as opposed to one that failed at it.
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})

# No descriptor has this number, so the system answers EBADF. Python's fsync takes -1 for a wrong argument.
_CLOSED_FD: Final = 2**31 - 1

_OPEN_FLAGS: Final[dict[OpenMode, int]] = {
    "read": os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
    "write": os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
}


class NotAFile(OSError):
    """A FIFO, a device, a socket or a symbolic link is in the place of a file. It is never read or written: a FIFO
    would wait for another process, and a link may lead out of the directory."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(errno.EINVAL, f"is {kind}, not a file", path)


_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _check_file(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotAFile(next((name for is_kind, name in _KINDS if is_kind(mode)), "something else"), path)


def _open_file(path: str, flags: int) -> int:
    """A descriptor of a regular file. Does not wait for the other end of a FIFO, and follows no link at the end of the
    path."""
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            # A link, or a socket.
            _check_file(os.lstat(path).st_mode, path)
        raise
    try:
        _check_file(os.fstat(fd).st_mode, path)
    except OSError:
        os.close(fd)
        raise
    return fd


if sys.platform == "darwin":

    def _fsync(fd: int) -> None:
        # An ordinary fsync on macOS only reaches the drive's cache, which a power cut empties.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.fsync(fd)

    _fdatasync = _fsync
else:
    _fsync = os.fsync
    _fdatasync = os.fdatasync


# Takes bytes that are read only to learn whether they are cached. The content is never used, so threads may share it.
_NOWHERE: Final = memoryview(bytearray(256 * 1024))

_RWF_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class RealFile:
    """A file descriptor. Errors come from the system as they are; a closed file answers EBADF."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        return self._pread_rest(data, size, offset)

    def _pread_rest(self, data: bytes, size: int, offset: int) -> bytes:
        # A short answer is no proof of the end: one call moves 2 GiB at most, and network file
        # systems stop where they like. Only an empty answer is the end.
        parts = [data]
        have = len(data)
        while have < size and (data := os.pread(self._fd, size - have, offset + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        have = 0
        while have < len(buffer) and (count := os.preadv(self._fd, [buffer[have:]], offset + have)):
            have += count
        return have

    def pread_into_nowait(self, buffer: memoryview, offset: int) -> bool:
        if _RWF_NOWAIT is None:
            return False
        have = 0
        while have < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[have:] if have else buffer], offset + have, _RWF_NOWAIT)
            except OSError as error:
                if error.errno != errno.EAGAIN and error.errno not in _UNSUPPORTED:
                    raise
                return False
            if count == 0:
                return False
            have += count
        return True

    def is_cached(self, size: int, offset: int) -> bool:
        if _RWF_NOWAIT is None:
            return False
        end = offset + size
        while offset < end:
            try:
                count = os.preadv(self._fd, [_NOWHERE[: end - offset]], offset, _RWF_NOWAIT)
            except OSError as error:
                if error.errno != errno.EAGAIN and error.errno not in _UNSUPPORTED:
                    raise
                return False
            if count == 0:
                # Beyond the end of the file there is nothing to wait for.
                return True
            offset += count
        return True

    def pwrite(self, data: Buffer, offset: int) -> int:
        return os.pwrite(self._fd, data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def preallocate(self, size: int) -> None:
        if size and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, size)
                return
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
        # No room can be reserved here. The length alone still gives the zeros that readers expect.
        if self.size() < size:
            os.ftruncate(self._fd, size)

    def seek_data(self, offset: int) -> int | None:
        try:
            # This moves the position of the descriptor. No other call here uses that position.
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno not in _UNSUPPORTED:
                raise
            return offset if offset < self.size() else None

    def map(self) -> Buffer:
        size = self.size()
        if size == 0:
            return b""
        # The view keeps the map alive, and the map does not need the descriptor to stay open.
        if sys.version_info >= (3, 13):
            return memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ, trackfd=False))
        else:
            return memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ))

    def fdatasync(self) -> None:
        _fdatasync(self._fd)

    def fsync(self) -> None:
        _fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            os.close(fd)


class RealLock:
    """Held while any process has the descriptor open. A child that inherited it holds it longer than its parent."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def release(self) -> None:
        # By closing, not by LOCK_UN: that would take the lock from a child that inherited it, too.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFs:
    """The machine's file system."""

    def __init__(self) -> None:
        self._warned_about_sync_dir = False

    def open(self, path: str, mode: OpenMode) -> RealFile:
        return RealFile(path, _open_file(path, _OPEN_FLAGS[mode]))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except FileNotFoundError:
            if os.path.islink(path):
                # A broken link, such as a link to a disk that is not mounted, does not count as absent.
                raise
            return False
        return True

    def size(self, path: str) -> int:
        status = os.lstat(path)
        _check_file(status.st_mode, path)
        return status.st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        for directory in reversed(missing):
            try:
                self.mkdir(directory)
            except FileExistsError:
                # Another thread or process made the name first. That is fine if it is a directory.
                if not os.path.isdir(directory):
                    raise
            self.sync_dir(os.path.dirname(directory))

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        # A hard link under the new name, then the old name is unlinked. Not every system has a rename that refuses to
        # replace.
        os.link(source, target)
        os.unlink(source)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(fd)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._warn_about_sync_dir(path)
        finally:
            os.close(fd)

    def _warn_about_sync_dir(self, path: str) -> None:
        if not self._warned_about_sync_dir:
            self._warned_about_sync_dir = True
            logger.warning("%s: this file system cannot sync directories; a power cut may undo renames", path)

    def mode(self, path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """The size of the disk."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def can_sync_dir(self, path: str) -> bool:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(fd)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return False
        finally:
            os.close(fd)
        return True

    def lock(self, path: str) -> RealLock | None:
        fd = _open_file(path, _OPEN_FLAGS["write"] | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return RealLock(path, fd)

    def lock_shared(self, path: str) -> RealLock | None:
        """A shared lock on an existing file; None while another process holds it exclusively.

        For readers only: the file is neither created nor opened for writing.
        """
        fd = _open_file(path, _OPEN_FLAGS["read"])
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return RealLock(path, fd)

    def boot_id(self) -> str:
        return _boot_id()


if sys.platform == "darwin":

    def _boot_id() -> str:
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return answer.stdout.strip()
else:

    def _boot_id() -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""
