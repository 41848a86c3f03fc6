"""A disk in memory that can lose power.

What the running process sees and what a machine would find after a power cut are kept apart, for the
bytes of files and for the entries of directories alike:

- A write, truncate or preallocate is *pending* until `fdatasync` or `fsync` of that file, which covers
  every earlier change of the file, by whichever handle.
- A create, mkdir, rename, unlink or rmdir is pending until `sync_dir` of the directory it is in. Syncing
  a new file does not make its name durable. A rename across directories ties the two together: syncing
  either makes it, and all that is pending in both, durable.

`crash` decides the fate of everything pending by a `Damage` and a seed; `kill` loses nothing. After either,
handles are dead and locks are free, as they are for the next process.

Not modelled: hard links, symbolic links, permissions, times: every file is from 1970. Directories take no room.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NoReturn, assert_never

from topics.storage.fs import IOV_MAX, Buffer, OpenMode
from topics.testing.disk_state import (
    Change,
    Copies,
    DirectoryChange,
    DirectoryNode,
    FileChange,
    FileNode,
    Link,
    Node,
    Rename,
    Resize,
    Unlink,
    Write,
    durable_directories,
    order_of,
    patch,
    resize,
    walk,
)

SECTOR_BYTES: Final = 512

# The unit in which `seek_data` answers, as most file systems keep holes by the page.
PAGE_BYTES: Final = 4096

# Shares of pending pieces that survive a crash. With a fixed share of one half, a crash would almost never keep or lose
# nearly all of them.
_KEEP_SHARES: Final = (0.1, 0.5, 0.9)

# Called with the operation and its path before anything changes or is synced; for a rename with the target.
# Operations: pwrite, truncate, preallocate, fdatasync, fsync, create, rename, unlink, mkdir, rmdir, sync_dir.
OperationHook = Callable[[str, str], None]


class CrashNow(BaseException):
    """Raised by a hook to stop the code under test at this point.

    Not an `Exception`, so that no error handling of that code takes a dying machine for a failed call.
    """


class CrashAt:
    """A hook that stops the machine before operation `operation_index`, counted from 0.

    Every later operation stops too: clean-up code that runs while the stack unwinds does not reach a disk
    that has no power. A run that ends with `count <= operation_index` was not stopped.
    """

    def __init__(self, operation_index: int) -> None:
        self.operation_index = operation_index
        self.count = 0

    def __call__(self, operation: str, path: str) -> None:
        self.count += 1
        if self.count > self.operation_index:
            raise CrashNow(f"before operation {self.operation_index}, {operation} of {path}")


class Damage(Enum):
    """What a power cut does to pending changes."""

    DROP = "all lost"
    KEEP = "all kept"
    PREFIX = "kept up to some moment, lost after it"
    SUBSET = "each sector of a write and each other change kept or lost, in no order"
    TORN = "as PREFIX, and the last write is cut at some byte"
    ZERO_FILL = "sizes kept; lost sectors are zeros where a file grew, else as before"
    GARBLE = "sizes kept; lost sectors of writes are random bytes"


class FakeFile:
    """An open file of a `FakeDisk`. Closed it answers EBADF, after a crash or kill EIO."""

    __slots__ = ("_disk", "_generation", "_is_writable", "_node", "path")

    def __init__(self, disk: "FakeDisk", path: str, node: FileNode, *, is_writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._is_writable = is_writable
        self._generation = disk._generation

    def _check_usable(self) -> None:
        if self._generation != self._disk._generation:
            _fail(errno.EBADF if self._generation < 0 else errno.EIO, self.path)

    def _begin_change(self, operation: str, refusal: int = errno.EBADF) -> None:
        self._check_usable()
        if not self._is_writable:
            _fail(refusal, self.path)
        hook = self._disk.on_operation
        if hook is not None:
            hook(operation, self.path)

    def pread(self, size: int, offset: int) -> bytes:
        self._check_usable()
        if offset < 0 or size < 0:
            _fail(errno.EINVAL, self.path)
        return bytes(self._node.content[offset : offset + size])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pread_into_nowait(self, buffer: memoryview, offset: int) -> bool:
        return self.pread_into(buffer, offset) == len(buffer)

    def is_cached(self, size: int, offset: int) -> bool:
        self._check_usable()
        return True

    def pwrite(self, data: Buffer, offset: int) -> int:
        self._begin_change("pwrite")
        with self._disk._mutex:
            return self._disk._write(self._node, bytes(data), offset, self.path)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) > IOV_MAX:
            _fail(errno.EINVAL, self.path)
        self._begin_change("pwritev")
        with self._disk._mutex:
            return self._disk._write(self._node, b"".join(buffers), offset, self.path)

    def truncate(self, size: int) -> None:
        self._begin_change("truncate", errno.EINVAL)
        with self._disk._mutex:
            self._disk._set_size(self._node, size, self.path)

    def preallocate(self, size: int) -> None:
        self._begin_change("preallocate")
        with self._disk._mutex:
            self._disk._set_size(self._node, max(size, len(self._node.content)), self.path)

    def seek_data(self, offset: int) -> int | None:
        self._check_usable()
        content = self._node.content
        position = offset
        while position < len(content):
            end = position - position % PAGE_BYTES + PAGE_BYTES
            page = content[position:end]
            if page.count(0) != len(page):
                return position
            position = end
        return None

    def map(self) -> Buffer:
        self._check_usable()
        content = self._node.content
        return memoryview(content).toreadonly() if content else b""

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")

    def _sync(self, operation: str) -> None:
        self._check_usable()
        hook = self._disk.on_operation
        if hook is not None:
            hook(operation, self.path)
        with self._disk._mutex:
            if not self._disk.lying_fsync:
                self._disk._settle_file(self._node)

    def forsake(self) -> None:
        """What a failed sync does: the kernel counts the pages as clean, though they never reached the disk.

        The process goes on seeing its pending changes, but no later sync makes them durable. Only writing
        them again does.
        """
        self._check_usable()
        with self._disk._mutex:
            self._disk._forsake(self._node)

    def size(self) -> int:
        self._check_usable()
        return len(self._node.content)

    def close(self) -> None:
        self._generation = -1


class FakeLock:
    """A held lock of a `FakeDisk`; a crash or kill of the holder frees it."""

    __slots__ = ("_disk", "_generation", "_node", "path")

    def __init__(self, disk: "FakeDisk", path: str, node: FileNode) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._generation = disk._generation

    def fileno(self) -> int:
        return -1

    def release(self) -> None:
        if self._generation == self._disk._generation:
            self._node.is_locked = False
            self._generation = -1


class FakeDisk:
    """An `Fs` whose power can be cut. The root directory is there from the start and always durable.

    `lying_fsync`: no sync, of a file or of a directory, makes anything durable. `capacity_bytes`: the sum
    of all file sizes beyond which writes fall short and then fail with ENOSPC. Both may be changed later.
    """

    def __init__(
        self, *, lying_fsync: bool = False, capacity_bytes: int | None = None, sector_bytes: int = SECTOR_BYTES
    ) -> None:
        self.lying_fsync = lying_fsync
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = sector_bytes
        self.on_operation: OperationHook | None = None
        self._mutex = threading.Lock()
        self._root = DirectoryNode()
        self._order = 0
        self._generation = 0
        self._boot_count = 1
        self._used_bytes = 0
        # All nodes with pending changes. Dicts, because a crash must visit them in the same order each time.
        self._dirty_files: dict[FileNode, None] = {}
        self._dirty_directories: dict[DirectoryNode, None] = {}
        self._locked: list[FileNode] = []

    # The calls of `Fs`.

    def open(self, path: str, mode: OpenMode) -> FakeFile:
        if mode == "create":
            return FakeFile(self, path, self._create(path), is_writable=True)
        node = self._find(path)
        if isinstance(node, DirectoryNode):
            _fail(errno.EISDIR, path)
        return FakeFile(self, path, node, is_writable=mode == "write")

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def modified_ms(self, path: str) -> int:
        self._file(path)
        return 0

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def makedirs(self, path: str) -> None:
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = _parent(path)
        self._directory(path)
        for directory in reversed(missing):
            self.mkdir(directory)
            self.sync_dir(_parent(directory))

    def mkdir(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._announce("mkdir", path)
        with self._mutex:
            self._link(path, DirectoryNode())

    def rename(self, source: str, target: str) -> None:
        self._check_rename(source, target)
        self._announce("rename", target)
        with self._mutex:
            self._rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self._file(source)
        self._place(target)
        self._announce("rename", target)
        with self._mutex:
            directory, name = self._place(target)
            if name in directory.entries:
                _fail(errno.EEXIST, target)
            self._rename(source, target)

    def unlink(self, path: str) -> None:
        self._file(path)
        self._announce("unlink", path)
        with self._mutex:
            self._unlink(path)

    def rmdir(self, path: str) -> None:
        if self._directory(path).entries:
            _fail(errno.ENOTEMPTY, path)
        self._announce("rmdir", path)
        with self._mutex:
            self._unlink(path)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._announce("sync_dir", path)
        with self._mutex:
            if not self.lying_fsync:
                self._settle_directory(directory)

    def lock(self, path: str) -> FakeLock | None:
        node = self._file(path) if self.exists(path) else self._create(path)
        if node.is_locked:
            return None
        node.is_locked = True
        self._locked.append(node)
        return FakeLock(self, path, node)

    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boot_count:012d}"

    # The end of a process or of the machine, and looking at what is left.

    def kill(self) -> None:
        """The process dies. The kernel lives, so nothing is lost and what was pending still is."""
        with self._mutex:
            self._end_process()

    def crash(self, damage: Damage, seed: int = 0) -> None:
        """The machine loses power and starts again; all that is left is durable."""
        with self._mutex:
            self._end_process()
            self._boot_count += 1
            changes = self._rewind()
            self._replay(changes, damage, random.Random(f"{damage.name} {seed}"))
            self._remount()

    def clone(self) -> "FakeDisk":
        """An independent disk in the same state, pending changes included, with no handles and no locks."""
        copy = FakeDisk(
            lying_fsync=self.lying_fsync, capacity_bytes=self.capacity_bytes, sector_bytes=self.sector_bytes
        )
        copy.restore(self)
        return copy

    def restore(self, snapshot: "FakeDisk") -> None:
        """Takes the state of a clone made earlier, which stays as it is. Handles of this disk die."""
        with self._mutex, snapshot._mutex:
            self._end_process()
            copies = Copies()
            self._root = copies.directory(snapshot._root)
            self._dirty_files = {copies.file(node): None for node in snapshot._dirty_files}
            self._dirty_directories = {copies.directory(node): None for node in snapshot._dirty_directories}
            self._order = snapshot._order
            self._boot_count = snapshot._boot_count
            self._used_bytes = snapshot._used_bytes

    def files(self) -> dict[str, bytes]:
        """Every file as a process sees it now, by path."""
        return {path: bytes(node.content) for path, node in walk(self._root, "", is_durable=False)}

    def durable_files(self) -> dict[str, bytes]:
        """Every file as a crash that drops all pending changes would leave it, by path."""
        return {path: bytes(node.durable_content()) for path, node in walk(self._root, "", is_durable=True)}

    def read(self, path: str) -> bytes:
        return bytes(self._file(path).content)

    def poke(self, path: str, offset: int, data: bytes) -> None:
        """Changes bytes durably without any call of the code under test, as bit rot would. Pending changes become
        durable."""
        node = self._file(path)
        assert offset + len(data) <= len(node.content), "rot does not make a file longer"
        with self._mutex:
            self._settle_file(node)
            node.put(offset, data)
            node.forsaken = None

    def replace(self, path: str, data: bytes) -> None:
        """Gives the file this content, durably; makes it when missing. Its directory must be there."""
        directory, name = self._place(path)
        with self._mutex:
            node = directory.entries.get(name)
            if isinstance(node, DirectoryNode):
                _fail(errno.EISDIR, path)
            if node is None:
                node = FileNode()
                self._link(path, node)
                self._settle_directory(directory)
            self._settle_file(node)
            self._used_bytes += len(data) - len(node.content)
            node.content = bytearray(data)
            node.forsaken = None

    # Finding things by path.

    def _find(self, path: str) -> Node:
        node: Node = self._root
        for name in _names(path):
            if isinstance(node, FileNode):
                _fail(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                _fail(errno.ENOENT, path)
            node = found
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if isinstance(node, DirectoryNode):
            _fail(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._find(path)
        if isinstance(node, FileNode):
            _fail(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[DirectoryNode, str]:
        """The directory that has, or would have, the last name of the path."""
        names = _names(path)
        if not names:
            _fail(errno.EBUSY, path)
        return self._directory(_parent(path)), names[-1]

    # Changes, each noted as pending. Callers hold the mutex, but for the hook.

    def _announce(self, operation: str, path: str) -> None:
        # Outside the mutex: a hook may look at the disk, and it may raise.
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _write(self, node: FileNode, data: bytes, offset: int, path: str) -> int:
        if offset < 0:
            _fail(errno.EINVAL, path)
        old_size = len(node.content)
        growth = offset + len(data) - old_size
        if growth > 0:
            fitting = self._fit(node, growth, path, may_be_short=offset <= old_size)
            if fitting < growth:
                data = data[: fitting - growth]
                if not data:
                    _fail(errno.ENOSPC, path)
        if data:
            old = bytes(node.content[offset : offset + len(data)])
            self._note_file_change(node, Write(self._next_order(), node, offset, data, old, old_size))
            node.put(offset, data)
        return len(data)

    def _set_size(self, node: FileNode, size: int, path: str) -> None:
        if size < 0:
            _fail(errno.EINVAL, path)
        old_size = len(node.content)
        if size == old_size:
            return
        if size > old_size:
            self._fit(node, size - old_size, path, may_be_short=False)
        elif node.is_linked:
            self._used_bytes -= old_size - size
        cut = bytes(node.content[size:])
        self._note_file_change(node, Resize(self._next_order(), node, size, old_size, cut))
        node.resize(size)

    def _fit(self, node: FileNode, growth: int, path: str, *, may_be_short: bool) -> int:
        """How much of the growth there is room for, which is then taken."""
        if not node.is_linked:
            return growth
        if self.capacity_bytes is not None and self._used_bytes + growth > self.capacity_bytes:
            if not may_be_short:
                _fail(errno.ENOSPC, path)
            growth = max(self.capacity_bytes - self._used_bytes, 0)
        self._used_bytes += growth
        return growth

    def _note_file_change(self, node: FileNode, change: FileChange) -> None:
        if not node.pending:
            self._dirty_files[node] = None
        node.pending.append(change)

    def _note_directory_change(self, directory: DirectoryNode, change: DirectoryChange) -> None:
        self._dirty_directories[directory] = None
        directory.pending.append(change)

    def _create(self, path: str) -> FileNode:
        directory, name = self._place(path)
        if name in directory.entries:
            _fail(errno.EEXIST, path)
        self._announce("create", path)
        node = FileNode()
        with self._mutex:
            self._link(path, node)
        return node

    def _link(self, path: str, node: Node) -> None:
        directory, name = self._place(path)
        directory.entries[name] = node
        self._note_directory_change(directory, Link(self._next_order(), directory, name, node))

    def _unlink(self, path: str) -> None:
        directory, name = self._place(path)
        self._forget(directory.entries.pop(name))
        self._note_directory_change(directory, Unlink(self._next_order(), directory, name))

    def _forget(self, node: Node | None) -> None:
        if isinstance(node, FileNode):
            # Its room is free at once, although a handle may still be open: no test depends on that.
            self._used_bytes -= len(node.content)
            node.is_linked = False

    def _check_rename(self, source: str, target: str) -> None:
        node = self._find(source)
        directory, name = self._place(target)
        there = directory.entries.get(name)
        if isinstance(node, DirectoryNode) and f"{target}/".startswith(f"{source}/") and node is not there:
            _fail(errno.EINVAL, target)
        if there is None or there is node:
            return
        if isinstance(node, FileNode) and isinstance(there, DirectoryNode):
            _fail(errno.EISDIR, target)
        if isinstance(node, DirectoryNode) and isinstance(there, FileNode):
            _fail(errno.ENOTDIR, target)
        if isinstance(there, DirectoryNode) and there.entries:
            _fail(errno.ENOTEMPTY, target)

    def _rename(self, source: str, target: str) -> None:
        source_directory, source_name = self._place(source)
        directory, name = self._place(target)
        node = source_directory.entries[source_name]
        if directory.entries.get(name) is node:
            return
        self._forget(directory.entries.get(name))
        del source_directory.entries[source_name]
        directory.entries[name] = node
        self._note_directory_change(directory, Rename(self._next_order(), directory, name, node))
        if source_directory is not directory:
            source_directory.tied.append(directory)
            directory.tied.append(source_directory)

    # From pending to durable.

    def _settle_file(self, node: FileNode) -> None:
        if node.pending:
            node.settle()
            del self._dirty_files[node]

    def _forsake(self, node: FileNode) -> None:
        if node.pending:
            node.forsake()
            del self._dirty_files[node]

    def _settle_directory(self, directory: DirectoryNode) -> None:
        group = directory.tied_group()
        changes = [change for member in group for change in member.pending]
        for change in sorted(changes, key=order_of):
            change.redo()
        for member in group:
            member.pending.clear()
            member.tied.clear()
            self._dirty_directories.pop(member, None)

    # The crash, in three steps: back to the durable state, forward by what survives, up again.

    def _end_process(self) -> None:
        self._generation += 1
        for node in self._locked:
            node.is_locked = False
        self._locked.clear()

    def _rewind(self) -> list[Change]:
        changes: list[Change] = []
        for node in self._dirty_files:
            changes += node.rewind()
        for directory in self._dirty_directories:
            changes += directory.rewind()
        self._dirty_files.clear()
        self._dirty_directories.clear()
        changes.sort(key=order_of)
        return changes

    def _replay(self, changes: list[Change], damage: Damage, rng: random.Random) -> None:
        match damage:
            case Damage.DROP:
                pass
            case Damage.KEEP:
                self._redo(changes)
            case Damage.PREFIX:
                self._redo(changes[: rng.randint(0, len(changes))])
            case Damage.TORN:
                self._replay_torn(changes, rng)
            case Damage.SUBSET | Damage.ZERO_FILL | Damage.GARBLE:
                self._replay_scattered(changes, damage, rng)
            case _:
                assert_never(damage)

    def _redo(self, changes: list[Change]) -> None:
        for change in changes:
            change.redo()

    def _replay_torn(self, changes: list[Change], rng: random.Random) -> None:
        writes = [index for index, change in enumerate(changes) if isinstance(change, Write)]
        if not writes:
            self._redo(changes[: rng.randint(0, len(changes))])
            return
        last = rng.choice(writes)
        self._redo(changes[:last])
        write = changes[last]
        assert isinstance(write, Write)
        patch(write.node.content, write.offset, write.data[: rng.randint(0, len(write.data))])

    def _replay_scattered(self, changes: list[Change], damage: Damage, rng: random.Random) -> None:
        share = rng.choice(_KEEP_SHARES)
        for change in changes:
            if isinstance(change, Write):
                self._scatter(change, damage, rng, share)
            elif isinstance(change, Resize):
                if damage is not Damage.SUBSET or rng.random() < share:
                    change.redo()
            elif rng.random() < share:
                change.redo()

    def _scatter(self, write: Write, damage: Damage, rng: random.Random, share: float) -> None:
        content = write.node.content
        end = write.offset + len(write.data)
        if damage is not Damage.SUBSET and len(content) < end:
            resize(content, end)
        for start, stop in _sectors(write.offset, end, self.sector_bytes):
            if rng.random() < share:
                patch(content, start, write.data[start - write.offset : stop - write.offset])
            elif damage is Damage.GARBLE:
                patch(content, start, rng.randbytes(stop - start))

    def _remount(self) -> None:
        for directory in durable_directories(self._root):
            directory.entries = dict(directory.durable)
        self._used_bytes = 0
        for _, node in walk(self._root, "", is_durable=True):
            if node.forsaken is not None:
                # Nothing was pending here, but the disk did not have everything that the process saw.
                node.rewind()
            node.is_linked = True
            self._used_bytes += len(node.content)


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


def _names(path: str) -> list[str]:
    assert path.startswith("/"), "paths are absolute"
    return [name for name in path.split("/") if name]


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


def _sectors(start: int, end: int, sector_bytes: int) -> Iterator[tuple[int, int]]:
    """The range cut at sector borders."""
    while start < end:
        stop = min(end, start - start % sector_bytes + sector_bytes)
        yield start, stop
        start = stop
