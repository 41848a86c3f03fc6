"""An `Fs` and a `File` that pass every call on. Wrappers override the few calls that they change."""

from collections.abc import Sequence

from topics.storage.fs import Buffer, File, Fs, Lock, OpenMode


class WrappedFile:
    __slots__ = ("inner", "path")

    def __init__(self, inner: File) -> None:
        self.inner = inner
        self.path = inner.path

    def pread(self, size: int, offset: int) -> bytes:
        return self.inner.pread(size, offset)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        return self.inner.pread_into(buffer, offset)

    def pread_into_nowait(self, buffer: memoryview, offset: int) -> bool:
        return self.inner.pread_into_nowait(buffer, offset)

    def is_cached(self, size: int, offset: int) -> bool:
        return self.inner.is_cached(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        return self.inner.pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return self.inner.pwritev(buffers, offset)

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)

    def preallocate(self, size: int) -> None:
        self.inner.preallocate(size)

    def seek_data(self, offset: int) -> int | None:
        return self.inner.seek_data(offset)

    def map(self) -> Buffer:
        return self.inner.map()

    def fdatasync(self) -> None:
        self.inner.fdatasync()

    def fsync(self) -> None:
        self.inner.fsync()

    def size(self) -> int:
        return self.inner.size()

    def close(self) -> None:
        self.inner.close()


class WrappedFs:
    def __init__(self, inner: Fs) -> None:
        self.inner = inner

    def open(self, path: str, mode: OpenMode) -> File:
        return self.inner.open(path, mode)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self.inner.makedirs(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self.inner.rename_new(source, target)

    def unlink(self, path: str) -> None:
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)

    def lock(self, path: str) -> Lock | None:
        return self.inner.lock(path)

    def boot_id(self) -> str:
        return self.inner.boot_id()
