"""Stores that several processes write to at once, none of whom knows of the others: what a lake stands on.

They keep the rules of `stores`, and two more:

5. A put works under a name that nobody else has, so two puts of one object do not meet before it is whole.
6. `put_if_absent` is the only thing that decides between writers. An object that it made is durable before one is
   made after it: a chain of them has no holes after a power cut.

On S3 both come with the service: an object appears whole, and `If-None-Match: *` decides.
"""

from collections.abc import Callable
from secrets import token_hex
from typing import Final, NamedTuple, Protocol

from topics.errors import StorageFull
from topics.storage.fs import NO_SPACE, Buffer, Fs, write_all
from topics.storage.layout import TEMPORARY
from topics.storage.stores import FolderStore, SegmentStore, open_store

# Unfinished puts of a folder are here, away from where readers look.
SCRATCH: Final = "_topics/tmp"


class Entry(NamedTuple):
    """An object as a listing shows it; the time is by the store's own clock."""

    name: str
    size_bytes: int
    modified_ms: int


# Inside the stores `list` is a method.
Entries = list[Entry]


class SharedStore(SegmentStore, Protocol):
    def put_if_absent(self, name: str, data: Buffer) -> bool:
        """Stores the object if there is none of that name, for good on return; False when there is one.

        After an error it may be there. When an answer got lost on the way and the call was repeated, the one that
        is there may be this very one: who is told False compares.
        """
        ...

    def entries(self, prefix: str) -> Entries:
        """What `list` names, with sizes and times."""
        ...

    def modified_ms(self, name: str) -> int:
        """When the object was put, by the store's own clock."""
        ...

    def remove_unfinished(self, before_ms: int) -> int:
        """Removes what puts left that broke off before that time; returns how many."""
        ...


class SharedFolder(FolderStore):
    """A folder, also one on a network file system that has hard links.

    A put that dies leaves a file in `SCRATCH`, which no later put replaces: `remove_unfinished` does.
    """

    def put(self, name: str, data: Buffer) -> None:
        self._put(name, data, self._fs.rename)

    def put_if_absent(self, name: str, data: Buffer) -> bool:
        return self._put(name, data, self._rename_new)

    def entries(self, prefix: str) -> Entries:
        found = []
        for name in self.list(prefix):
            path = self._path(name)
            with self._translated("measure", name):
                try:
                    found.append(Entry(name, self._fs.size(path), self._fs.modified_ms(path)))
                except FileNotFoundError:
                    # Removed since it was listed, which is as if it had been removed before.
                    continue
        return found

    def modified_ms(self, name: str) -> int:
        with self._translated("measure", name):
            return self._fs.modified_ms(self._path(name))

    def remove_unfinished(self, before_ms: int) -> int:
        scratch = f"{self._root}/{SCRATCH}"
        count = 0
        with self._translated("tidy", SCRATCH):
            if not self._fs.exists(scratch):
                return 0
            for name in self._fs.listdir(scratch):
                path = f"{scratch}/{name}"
                try:
                    if self._fs.modified_ms(path) < before_ms:
                        self._fs.unlink(path)
                        count += 1
                except FileNotFoundError:
                    # Finished, or removed by another.
                    continue
            self._fs.sync_dir(scratch)
        return count

    def _put(self, name: str, data: Buffer, rename: Callable[[str, str], None]) -> bool:
        path = self._path(name)
        directory = path.rpartition("/")[0]
        temporary = f"{self._root}/{SCRATCH}/{token_hex(16)}{TEMPORARY}"
        with self._translated("put", name):
            self._require_mark()
            try:
                self._fs.makedirs(directory)
                self._fs.makedirs(f"{self._root}/{SCRATCH}")
                file = self._fs.open(temporary, "create")
                try:
                    write_all(file, data, 0)
                    file.fsync()
                finally:
                    file.close()
                rename(temporary, path)
                self._fs.sync_dir(directory)
            except FileExistsError:
                self._discard(temporary)
                return False
            except OSError as error:
                self._discard(temporary)
                if error.errno in NO_SPACE:
                    raise StorageFull(f"{self.address}: no space left for {name}; make room there") from error
                raise self._unavailable("put", name, error) from error
        return True

    def _rename_new(self, source: str, target: str) -> None:
        # Rule 6. The object before this one may be another process's, which has not synced it yet.
        self._fs.sync_dir(target.rpartition("/")[0])
        self._fs.rename_new(source, target)

    def _prune(self, directory: str) -> None:
        """A folder that is empty now may be the one that somebody else is about to put something into."""


def open_shared_store(address: str, fs: Fs) -> SharedStore:
    """The store at a path, a `file:` address or `s3://bucket/prefix`. Touches neither disk nor network.

    A bucket is given more time than as a cold tier: here jobs wait for it, not a server with its clients.
    """
    store = open_store(address, fs)
    if isinstance(store, FolderStore):
        return SharedFolder(fs, store.address)
    from topics.storage.s3_store import S3Bounds, S3Store

    return S3Store(address, bounds=S3Bounds(connect_ms=10_000, idle_ms=30_000, transfer_ms=600_000, retries_max=5))
