"""A file system on which another program works while one reads: something is done between the calls of the reader."""

from collections.abc import Callable

from topics.storage.fs import File, Fs, OpenMode
from topics.testing.wrapped_fs import WrappedFile, WrappedFs


class BusyFs(WrappedFs):
    """Calls `work` before each call that reads, or only before the one with the number `turn`."""

    def __init__(self, inner: Fs, work: Callable[[], object], turn: int | None = None) -> None:
        super().__init__(inner)
        self.calls = 0
        self._work = work
        self._turn = turn

    def count(self) -> None:
        self.calls += 1
        if self._turn in (None, self.calls):
            self._work()

    def open(self, path: str, mode: OpenMode) -> File:
        self.count()
        return BusyFile(self.inner.open(path, mode), self)

    def exists(self, path: str) -> bool:
        self.count()
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        self.count()
        return self.inner.size(path)

    def listdir(self, path: str) -> list[str]:
        self.count()
        return self.inner.listdir(path)


class BusyFile(WrappedFile):
    __slots__ = ("_fs",)

    def __init__(self, inner: File, fs: BusyFs) -> None:
        super().__init__(inner)
        self._fs = fs

    def pread(self, size: int, offset: int) -> bytes:
        self._fs.count()
        return self.inner.pread(size, offset)

    def size(self) -> int:
        self._fs.count()
        return self.inner.size()
