"""A folder that several processes write to at once, such as the folder of a lake."""

from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import Final

from topics.errors import StorageFull
from topics.storage.fs import NO_SPACE, Buffer, write_all
from topics.storage.layout import TEMPORARY
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import ListedObject, ListedObjects

# Unfinished puts of a folder are here, away from where readers look.
SCRATCH: Final = "_topics/tmp"


class SharedFolder(FolderStore):
    """A folder, also one on a network file system that has hard links.

    A put that dies leaves a file in `SCRATCH`, which no later put replaces: `remove_unfinished` does.
    """

    def put(self, name: str, data: Buffer) -> None:
        self._put(name, data, self._fs.rename)

    def put_if_absent(self, name: str, data: Buffer) -> bool:
        return self._put(name, data, self._rename_new)

    def entries(self, prefix: str) -> ListedObjects:
        found = []
        for name in self.list(prefix):
            path = self._path(name)
            with self._translated("measure", name):
                try:
                    found.append(ListedObject(name, self._fs.size(path), self._fs.modified_ms(path)))
                except FileNotFoundError:
                    # Removed since it was listed: the same as removed before.
                    continue
        return found

    def modified_ms(self, name: str) -> int:
        with self._translated("measure", name):
            return self._fs.modified_ms(self._path(name))

    def settle(self, names: Iterable[str]) -> None:
        """Content is synced before an object gets its name. So only names may be missing on the disk."""
        directories = {self._root.rpartition("/")[0] or "/", self._root}
        for name in names:
            directory = self._path(name).rpartition("/")[0]
            while directory not in directories:
                directories.add(directory)
                directory = directory.rpartition("/")[0]
        for directory in sorted(directories):
            with self._translated("sync", directory):
                self._fs.sync_dir(directory)

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
                    # Finished, or removed by another process.
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
        # Rule 6 of `store`. Another process may have made the object before this one and not synced it yet.
        self._fs.sync_dir(target.rpartition("/")[0])
        self._fs.rename_new(source, target)

    def _prune(self, directory: str) -> None:
        """Removes no empty folder: another process may be about to put a file into it."""
