"""File systems that misbehave: `FaultFs` on demand, `OneByteFs` always.

A fault is armed with `FaultFs.fail`, `short_write` or `torn_write`. It counts the calls of its operations from 0,
starting when it is armed. A sweep arms a fault at call 0, 1, 2 … until a run ends with `fault.fired_count == 0`.
"""

import errno
import os
from collections.abc import Callable, Sequence
from typing import Literal

from topics.storage.fs import Buffer, File, Fs, Lock, OpenMode
from topics.testing.fake_disk import FakeFile
from topics.testing.wrapped_fs import WrappedFile, WrappedFs

# "create" is an open that makes the file, "open" one that does not; "rename" is matched by its target.
Operation = Literal[
    "pread",
    "pwrite",
    "pwritev",
    "truncate",
    "preallocate",
    "map",
    "fdatasync",
    "fsync",
    "open",
    "create",
    "exists",
    "size",
    "listdir",
    "makedirs",
    "rename",
    "unlink",
    "rmdir",
    "sync_dir",
    "lock",
]

PathTest = Callable[[str], bool]


class Fault:
    """An armed fault. `fired_count` says how often it struck."""

    def __init__(
        self, operations: tuple[Operation, ...], *, at: int, lasts: bool, path: PathTest | None, error: int | None
    ) -> None:
        self.operations = operations
        self.at = at
        self.lasts = lasts
        self.path = path
        # None: the write is cut in half instead, and reports so.
        self.error = error
        self.call_count = 0
        self.fired_count = 0

    def strikes(self, operation: Operation, path: str) -> bool:
        if operation not in self.operations or (self.path is not None and not self.path(path)):
            return False
        index = self.call_count
        self.call_count += 1
        if index < self.at or (index > self.at and not self.lasts):
            return False
        self.fired_count += 1
        return True


class FaultFs(WrappedFs):
    """Hands calls on until a fault strikes. A call that fails has had no effect, but for a failed sync.

    A sync that fails over a `FakeDisk` takes the pending changes of the file along (`FakeFile.forsake`), as
    a kernel does, unless `syncs_lose_writes` is off. For that it must be wrapped right around the disk.
    """

    def __init__(self, inner: Fs, *, syncs_lose_writes: bool = True) -> None:
        super().__init__(inner)
        self.syncs_lose_writes = syncs_lose_writes
        self._faults: list[Fault] = []

    def fail(
        self,
        *operations: Operation,
        error: int = errno.EIO,
        at: int = 0,
        lasts: bool = False,
        path: PathTest | None = None,
    ) -> Fault:
        """Call `at` of these operations, or every call from there on, raises `OSError(error)`."""
        return self._arm(Fault(operations, at=at, lasts=lasts, path=path, error=error))

    def short_write(self, *, at: int = 0, lasts: bool = False, path: PathTest | None = None) -> Fault:
        """The write moves half of what it was given, at least a byte, and says so."""
        return self._arm(Fault(("pwrite", "pwritev"), at=at, lasts=lasts, path=path, error=None))

    def torn_write(
        self, *, error: int = errno.ENOSPC, at: int = 0, lasts: bool = False, path: PathTest | None = None
    ) -> tuple[Fault, Fault]:
        """The write moves half of what it was given, and the next one raises: a disk that fills up."""
        # The second one counts the same calls, so that it strikes right after the first.
        return (
            self.short_write(at=at, path=path),
            self._arm(Fault(("pwrite", "pwritev"), at=at + 1, lasts=lasts, path=path, error=error)),
        )

    def heal(self) -> None:
        """Disarms all faults."""
        self._faults.clear()

    def _arm(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def strike(self, operation: Operation, path: str) -> Fault | None:
        """Counts a call; raises if it is to fail, and returns the fault if it is to fall short."""
        short = None
        # Every fault counts every call, whichever of them strikes.
        striking = [fault for fault in self._faults if fault.strikes(operation, path)]
        for fault in striking:
            if fault.error is not None:
                raise OSError(fault.error, os.strerror(fault.error), path)
            short = fault
        return short

    def open(self, path: str, mode: OpenMode) -> File:
        self.strike("create" if mode == "create" else "open", path)
        return FaultFile(self.inner.open(path, mode), self)

    def exists(self, path: str) -> bool:
        self.strike("exists", path)
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        self.strike("size", path)
        return self.inner.size(path)

    def listdir(self, path: str) -> list[str]:
        self.strike("listdir", path)
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self.strike("makedirs", path)
        self.inner.makedirs(path)

    def mkdir(self, path: str) -> None:
        self.strike("makedirs", path)
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.strike("rename", target)
        self.inner.rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self.strike("rename", target)
        self.inner.rename_new(source, target)

    def unlink(self, path: str) -> None:
        self.strike("unlink", path)
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self.strike("rmdir", path)
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.strike("sync_dir", path)
        self.inner.sync_dir(path)

    def lock(self, path: str) -> Lock | None:
        self.strike("lock", path)
        return self.inner.lock(path)


class FaultFile(WrappedFile):
    __slots__ = ("_fs",)

    def __init__(self, inner: File, fs: FaultFs) -> None:
        super().__init__(inner)
        self._fs = fs

    def pread(self, size: int, offset: int) -> bytes:
        self._fs.strike("pread", self.path)
        return self.inner.pread(size, offset)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        self._fs.strike("pread", self.path)
        return self.inner.pread_into(buffer, offset)

    def pread_into_nowait(self, buffer: memoryview, offset: int) -> bool:
        self._fs.strike("pread", self.path)
        return self.inner.pread_into_nowait(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        if self._fs.strike("pwrite", self.path) is not None:
            data = memoryview(data)[: max(len(data) // 2, 1)]
        return self.inner.pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if self._fs.strike("pwritev", self.path) is not None:
            data = b"".join(buffers)
            buffers = [data[: max(len(data) // 2, 1)]]
        return self.inner.pwritev(buffers, offset)

    def truncate(self, size: int) -> None:
        self._fs.strike("truncate", self.path)
        self.inner.truncate(size)

    def preallocate(self, size: int) -> None:
        self._fs.strike("preallocate", self.path)
        self.inner.preallocate(size)

    def map(self) -> Buffer:
        self._fs.strike("map", self.path)
        return self.inner.map()

    def fdatasync(self) -> None:
        self._strike_sync("fdatasync")
        self.inner.fdatasync()

    def fsync(self) -> None:
        self._strike_sync("fsync")
        self.inner.fsync()

    def _strike_sync(self, operation: Literal["fdatasync", "fsync"]) -> None:
        try:
            self._fs.strike(operation, self.path)
        except OSError:
            if self._fs.syncs_lose_writes and isinstance(self.inner, FakeFile):
                self.inner.forsake()
            raise


class OneByteFs(WrappedFs):
    """Moves a single byte per write, so that every loop that is missing shows."""

    def open(self, path: str, mode: OpenMode) -> File:
        return OneByteFile(self.inner.open(path, mode))


class OneByteFile(WrappedFile):
    __slots__ = ()

    def pwrite(self, data: Buffer, offset: int) -> int:
        return self.inner.pwrite(memoryview(data)[:1], offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return self.inner.pwritev([b"".join(buffers)[:1]], offset)
