"""Watches the order of calls, and raises at the first call after which a crash could lose data.

The rules, numbered as in `topics.storage.fs` where they are also there:

1. A file is renamed to a final name only when its writes are synced. A name that ends in `.tmp` is not
   final, nor is a directory's that ends in `.deleted`.
2. A create, rename or unlink is followed by a sync of its directory before the run ends: `check_settled`
   returns the directories that wait for one. Temporary files are exempt until they are renamed.
3. A log, segment or snapshot is unlinked only while no directory waits for a sync after a create or
   rename: the file that replaces it might not be durable.
4. A file declared sealed takes single delete bytes and nothing else, and is never cut.
5. Nothing is acked before it is synced: `require_synced`. A sync that failed is never made good by one
   that succeeds, because the kernel may have dropped the writes in between. For that file the answer
   stays no as long as the monitor lives; the next process gets a new monitor.

Violations are raised, and also kept in `violations` in case the code under test catches them. Among several wrappers
the monitor is the outermost, where it sees the calls of the code under test.
"""

import os
import threading
from collections.abc import Callable, Sequence

from topics.storage.fs import Buffer, File, Fs, OpenMode
from topics.testing.wrapped_fs import WrappedFile, WrappedFs

DELETE_BYTE = 0xD5


class OrderViolation(AssertionError):
    """A call came in an order that a crash could turn into loss."""


class _Watched:
    """What is known of a file, whichever name it goes by. Versions count its changes."""

    __slots__ = ("is_sealed", "sync_failed", "synced_version", "version")

    def __init__(self) -> None:
        self.version = 0
        self.synced_version = 0
        self.sync_failed = False
        self.is_sealed = False

    def is_synced(self) -> bool:
        return self.synced_version == self.version and not self.sync_failed


class _Waiting:
    """Changes of one directory that no sync has covered, in words."""

    __slots__ = ("additions", "removals")

    def __init__(self) -> None:
        self.additions: list[str] = []
        self.removals: list[str] = []

    def words(self) -> str:
        return ", ".join(self.additions + self.removals)


class MonitorFs(WrappedFs):
    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self.violations: list[str] = []
        self._watched: dict[str, _Watched] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._mutex = threading.RLock()

    # Questions and declarations of the test.

    def check_settled(self) -> list[str]:
        """Directories with changes that no sync has covered, sorted."""
        with self._mutex:
            return sorted(self._waiting)

    def seal(self, path: str) -> None:
        """From here on the file takes delete bytes only."""
        with self._mutex:
            self._watch(path).is_sealed = True

    def require_synced(self, path_prefix: str) -> None:
        """Raises when a file under the prefix has writes that no sync has covered."""
        with self._mutex:
            for path, watched in sorted(self._watched.items()):
                if path.startswith(path_prefix) and not watched.is_synced():
                    self._object(f"{path}: {_unsynced_words(watched)} when they had to be durable")

    def _object(self, text: str) -> None:
        self.violations.append(text)
        raise OrderViolation(text)

    # Calls that are watched.

    def open(self, path: str, mode: OpenMode) -> File:
        file = self.inner.open(path, mode)
        with self._mutex:
            if mode == "create":
                self._watched[path] = _Watched()
                if not _is_temporary(path):
                    self._wait(path).additions.append(f"create of {_name(path)}")
            return _MonitorFile(file, self, self._watch(path))

    def rename(self, source: str, target: str) -> None:
        self._rename(source, target, self.inner.rename)

    def rename_new(self, source: str, target: str) -> None:
        self._rename(source, target, self.inner.rename_new)

    def _rename(self, source: str, target: str, rename: Callable[[str, str], None]) -> None:
        with self._mutex:
            if not _is_passing(target):
                self._check_synced_before_rename(source, target)
            rename(source, target)
            self._move(source, target)
            if not _is_temporary(target):
                waiting = self._wait(target)
                words = f"rename to {_name(target)}"
                (waiting.removals if _is_passing(target) else waiting.additions).append(words)
            if _parent(source) != _parent(target) and not _is_temporary(source):
                self._wait(source).removals.append(f"rename of {_name(source)}")

    def unlink(self, path: str) -> None:
        with self._mutex:
            if _is_precious(path):
                self._check_settled_before_unlink(path)
            self.inner.unlink(path)
            self._watched.pop(path, None)
            if not _is_temporary(path):
                self._wait(path).removals.append(f"unlink of {_name(path)}")

    def rmdir(self, path: str) -> None:
        with self._mutex:
            self.inner.rmdir(path)
            self._waiting.pop(path, None)
            self._wait(path).removals.append(f"rmdir of {_name(path)}")

    def sync_dir(self, path: str) -> None:
        # What another thread adds during the call is not covered by it, hence the new list afterwards.
        with self._mutex:
            covered = self._waiting.pop(path, None)
        try:
            self.inner.sync_dir(path)
        except BaseException:
            with self._mutex:
                if covered is not None:
                    later = self._waiting.setdefault(path, _Waiting())
                    later.additions[:0] = covered.additions
                    later.removals[:0] = covered.removals
            raise

    def _check_synced_before_rename(self, source: str, target: str) -> None:
        for path, watched in sorted(self._watched.items()):
            if _is_at_or_under(path, source) and not watched.is_synced():
                self._object(f"{path}: {_unsynced_words(watched)} at its rename to {target}")

    def _check_settled_before_unlink(self, path: str) -> None:
        for directory, waiting in sorted(self._waiting.items()):
            if waiting.additions:
                self._object(f"{path}: unlinked before {directory} was synced after {waiting.words()}")

    # What the monitor remembers.

    def _watch(self, path: str) -> _Watched:
        return self._watched.setdefault(path, _Watched())

    def _wait(self, path: str) -> _Waiting:
        return self._waiting.setdefault(_parent(path), _Waiting())

    def _move(self, source: str, target: str) -> None:
        self._watched.pop(target, None)
        for path in [path for path in self._watched if _is_at_or_under(path, source)]:
            self._watched[target + path[len(source) :]] = self._watched.pop(path)
        for path in [path for path in self._waiting if _is_at_or_under(path, source)]:
            self._waiting[target + path[len(source) :]] = self._waiting.pop(path)

    def _begin_write(self, file: "_MonitorFile", data: Buffer) -> None:
        with self._mutex:
            watched = file._watched
            if watched.is_sealed and bytes(data) != bytes([DELETE_BYTE]):
                self._object(f"{file.path}: write of {len(data)} bytes to a sealed file")
            watched.version += 1

    def _begin_resize(self, file: "_MonitorFile", size: int) -> None:
        with self._mutex:
            watched = file._watched
            if watched.is_sealed:
                self._object(f"{file.path}: sealed file resized to {size} bytes")
            watched.version += 1


class _MonitorFile(WrappedFile):
    __slots__ = ("_fs", "_watched")

    def __init__(self, inner: File, fs: MonitorFs, watched: _Watched) -> None:
        super().__init__(inner)
        self._fs = fs
        self._watched = watched

    def pwrite(self, data: Buffer, offset: int) -> int:
        self._fs._begin_write(self, data)
        return self.inner.pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._fs._begin_write(self, b"".join(buffers))
        return self.inner.pwritev(buffers, offset)

    def truncate(self, size: int) -> None:
        self._fs._begin_resize(self, size)
        self.inner.truncate(size)

    def preallocate(self, size: int) -> None:
        self._fs._begin_resize(self, size)
        self.inner.preallocate(size)

    def fdatasync(self) -> None:
        version = self._watched.version
        try:
            self.inner.fdatasync()
        except OSError:
            self._watched.sync_failed = True
            raise
        self._watched.synced_version = version

    def fsync(self) -> None:
        version = self._watched.version
        try:
            self.inner.fsync()
        except OSError:
            self._watched.sync_failed = True
            raise
        self._watched.synced_version = version


def _unsynced_words(watched: _Watched) -> str:
    if watched.sync_failed:
        return "writes lost to a failed sync"
    return f"{watched.version - watched.synced_version} unsynced writes"


def _parent(path: str) -> str:
    return os.path.dirname(path)


def _name(path: str) -> str:
    return os.path.basename(path)


def _is_at_or_under(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def _is_temporary(path: str) -> bool:
    return path.endswith(".tmp")


def _is_passing(path: str) -> bool:
    """Whether no start looks for this name."""
    return path.endswith((".tmp", ".deleted"))


def _is_precious(path: str) -> bool:
    """Whether the file may hold the only copy of something."""
    name = _name(path)
    if _is_temporary(name) or _is_passing(_parent(path)):
        return False
    return name.endswith(".log") or name.startswith(("seg-", "snapshot."))
