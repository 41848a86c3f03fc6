"""An `Fs` and a `SegmentStore` that keep all changes to themselves: for a recovery that must not change the directory.

rule 1  Files below are opened for reading only, listed, and measured. Nothing else is done with them.
rule 2  A file that is opened for writing is copied into the scratch directory first, as a whole; new files are made
        there. Names (renames, removals, directories) change in memory alone.
rule 3  The scratch directory is the caller's: outside of everything that is looked at, empty before, removed after.

A handle that was opened before a file was copied goes on showing the file below. A lock is granted to the first caller
in this overlay. Whether another process holds the lock below is for the caller to find out.

Decided against: changes in memory. A file in memory would have to show writes through its maps, and a whole log file of
64 MiB would be in memory. A real file in the scratch directory does both.
"""

import errno
import os
from typing import Final, Literal

from topics.limits import MIB
from topics.storage.fs import Buffer, File, Fs, Lock, OpenMode, write_all
from topics.storage.tiers.store import Names, SegmentStore, missing_object

_ZEROS: Final = bytes(MIB)


class OverlayLock:
    """Held in this overlay only."""

    def __init__(self, path: str, held: set[str]) -> None:
        self.path = path
        self._held = held

    def fileno(self) -> int:
        return -1

    def release(self) -> None:
        self._held.discard(self.path)


class OverlayFs:
    """Not thread-safe."""

    def __init__(self, below: Fs, scratch: str) -> None:
        self._below = below
        self._scratch = scratch
        self._copies_made = 0
        # Where the content of a name is, if it is not the file below of the same name: a copy in the scratch directory,
        # or a file below that was renamed.
        self._files: dict[str, str] = {}
        self._directories: set[str] = set()
        # Files and directories below that are hidden, with everything in them.
        self._hidden: set[str] = set()
        self._locked: set[str] = set()

    def is_changed(self, path: str) -> bool:
        """Whether this name leads to another file here than below."""
        return path in self._files

    # Names.

    def _kind(self, path: str) -> Literal["file", "directory"] | None:
        if path in self._files:
            return "file"
        if path in self._directories:
            return "directory"
        parent = os.path.dirname(path)
        if any(ancestor in self._files for ancestor in _ancestors(parent)):
            raise _error(errno.ENOTDIR, path)
        if not self._hidden.isdisjoint(_ancestors(path)):
            return None
        try:
            self._below.size(path)
        except IsADirectoryError:
            return "directory"
        except FileNotFoundError:
            # A broken link does not count as absent: this raises for it.
            self._below.exists(path)
            return None
        return "file"

    def _require_parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        kind = self._kind(parent)
        if kind != "directory":
            raise _error(errno.ENOTDIR if kind == "file" else errno.ENOENT, path)

    def _found(self, path: str) -> str:
        """The path of the content, for reading."""
        kind = self._kind(path)
        if kind != "file":
            raise _error(errno.ENOENT if kind is None else errno.EISDIR, path)
        return self._files.get(path, path)

    def open(self, path: str, mode: OpenMode) -> File:
        if mode == "create":
            if self._kind(path) is not None:
                raise _error(errno.EEXIST, path)
            self._require_parent(path)
            file = self._new_copy(path)
        else:
            found = self._found(path)
            if mode == "write" and not found.startswith(self._scratch + "/"):
                file = self._copy(found, path)
            else:
                file = self._below.open(found, mode)
        file.path = path
        return file

    def _new_copy(self, path: str) -> File:
        self._copies_made += 1
        copy = f"{self._scratch}/{self._copies_made}"
        file = self._below.open(copy, "create")
        self._let_go(path)
        self._files[path] = copy
        return file

    def _copy(self, source: str, path: str) -> File:
        original = self._below.open(source, "read")
        try:
            copy = self._new_copy(path)
            size = original.size()
            copy.truncate(size)
            for offset in range(0, size, len(_ZEROS)):
                piece = original.pread(len(_ZEROS), offset)
                # Most of a preallocated log file is zeros. They take no room in the copy.
                if piece != _ZEROS[: len(piece)]:
                    write_all(copy, piece, offset)
        finally:
            original.close()
        return copy

    def _let_go(self, path: str) -> None:
        """From now on there is no file of this name."""
        found = self._files.pop(path, None)
        if found is not None and found.startswith(self._scratch + "/"):
            self._below.unlink(found)
        self._hidden.add(path)

    def exists(self, path: str) -> bool:
        return self._kind(path) is not None

    def size(self, path: str) -> int:
        return self._below.size(self._found(path))

    def modified_ms(self, path: str) -> int:
        return self._below.modified_ms(self._found(path))

    def listdir(self, path: str) -> list[str]:
        kind = self._kind(path)
        if kind != "directory":
            raise _error(errno.ENOENT if kind is None else errno.ENOTDIR, path)
        names = {os.path.basename(name) for name in (*self._files, *self._directories) if os.path.dirname(name) == path}
        if path not in self._directories:
            prefix = path.rstrip("/")
            names.update(name for name in self._below.listdir(path) if f"{prefix}/{name}" not in self._hidden)
        return sorted(names)

    def makedirs(self, path: str) -> None:
        missing = []
        while (kind := self._kind(path)) is None:
            missing.append(path)
            path = os.path.dirname(path)
        if kind != "directory":
            raise _error(errno.ENOTDIR, path)
        self._directories.update(missing)

    def mkdir(self, path: str) -> None:
        self._require_parent(path)
        if self._kind(path) is not None:
            raise _error(errno.EEXIST, path)
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        kind, replaced = self._kind(source), self._kind(target)
        if kind is None:
            raise _error(errno.ENOENT, source)
        self._require_parent(target)
        if source == target:
            return
        if kind == "file":
            if replaced == "directory":
                raise _error(errno.EISDIR, target)
            self._rename_file(source, target)
            return
        if target.startswith(source + "/"):
            raise _error(errno.EINVAL, target)
        if replaced == "file":
            raise _error(errno.ENOTDIR, target)
        if replaced == "directory" and self.listdir(target):
            raise _error(errno.ENOTEMPTY, target)
        self._rename_directory(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self._found(source)
        self._require_parent(target)
        if self._kind(target) is not None:
            raise _error(errno.EEXIST, target)
        self._rename_file(source, target)

    def _rename_file(self, source: str, target: str) -> None:
        content = self._found(source)
        self._files.pop(source, None)
        self._hidden.add(source)
        self._let_go(target)
        self._files[target] = content

    def _rename_directory(self, source: str, target: str) -> None:
        self._hidden.add(target)
        self._directories.add(target)
        for name in self.listdir(source):
            child, moved = f"{source}/{name}", f"{target}/{name}"
            if self._kind(child) == "file":
                self._rename_file(child, moved)
            else:
                self._rename_directory(child, moved)
        self._directories.discard(source)
        self._hidden.add(source)

    def unlink(self, path: str) -> None:
        self._found(path)
        self._let_go(path)

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        self._directories.discard(path)
        self._hidden.add(path)

    def sync_dir(self, path: str) -> None:
        self.listdir(path)

    def lock(self, path: str) -> Lock | None:
        if path in self._locked:
            return None
        if self._kind(path) is None:
            self.open(path, "create").close()
        self._locked.add(path)
        return OverlayLock(path, self._locked)

    def boot_id(self) -> str:
        return self._below.boot_id()


def _ancestors(path: str) -> list[str]:
    """The path itself first."""
    found = [path]
    while (parent := os.path.dirname(path)) != path:
        found.append(parent)
        path = parent
    return found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class OverlayStore:
    """A tier whose puts and deletes stay in memory. The tier below is only read."""

    def __init__(self, below: SegmentStore) -> None:
        self.address = below.address
        self._below = below
        # None = deleted.
        self._objects: dict[str, bytes | None] = {}

    def put(self, name: str, data: Buffer) -> None:
        self._objects[name] = bytes(data)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        if name not in self._objects:
            return self._below.read_range(name, offset, size)
        return self._content(name)[offset : offset + size]

    def _content(self, name: str) -> bytes:
        content = self._objects[name]
        if content is None:
            raise missing_object(self.address, name)
        return content

    def delete(self, name: str) -> None:
        self._objects[name] = None

    def list(self, prefix: str) -> Names:
        names = {name for name in self._below.list(prefix) if name not in self._objects}
        names |= {name for name, content in self._objects.items() if content is not None and name.startswith(prefix)}
        return sorted(names)

    def exists(self, name: str) -> bool:
        return self._objects[name] is not None if name in self._objects else self._below.exists(name)

    def size(self, name: str) -> int:
        return len(self._content(name)) if name in self._objects else self._below.size(name)

    def close(self) -> None:
        self._below.close()
