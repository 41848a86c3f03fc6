"""A tier in a local folder."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from topics.errors import ColdUnavailable, StorageFull
from topics.storage.fs import Buffer, Fs, write_atomic
from topics.storage.layout import STORE, TEMPORARY
from topics.storage.tiers.store import Names, check_name, check_range, missing_object, missing_tier

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class FolderStore:
    """A tier in a folder, which the first put makes.

    A put writes and syncs `<name>.tmp`, renames it and syncs the directory. A crash may leave a `.tmp` file:
    `list` does not show it, and the next put of that name replaces it. Directories that a delete leaves empty
    go too, as names are all there is to see of a tier; so puts and deletes take turns.
    """

    def __init__(self, fs: Fs, root: str) -> None:
        assert root.startswith("/"), "paths are absolute"
        self.address = root
        self._fs = fs
        self._root = root.rstrip("/")
        self._turn = threading.Lock()
        # Set once STORE was read or written, and never unset: rule 3 of `store`.
        self._is_marked = False

    def put(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        with self._turn, self._translated("put", name):
            self._require_mark()
            try:
                self._fs.makedirs(path.rpartition("/")[0])
                write_atomic(self._fs, path, data)
            except OSError as error:
                self._discard(path + TEMPORARY)
                if error.errno in _FULL:
                    raise StorageFull(
                        f"{self.address}: no space left for {name}; make room in the cold tier"
                    ) from error
                raise self._unavailable("put", name, error) from error
        self._is_marked |= name == STORE

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        check_range(offset, size)
        with self._translated("read", name):
            file = self._fs.open(self._path(name), "read")
            try:
                data = file.pread(size, offset)
            finally:
                file.close()
        self._is_marked |= name == STORE
        return data

    def delete(self, name: str) -> None:
        path = self._path(name)
        directory = path.rpartition("/")[0]
        with self._turn, self._translated("delete", name):
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                self._require_mark()
            try:
                # Also for an absent object: an earlier delete may have been interrupted before the sync.
                self._fs.sync_dir(directory)
            except FileNotFoundError:
                return
            self._prune(directory)

    def list(self, prefix: str) -> Names:
        with self._translated("list", prefix):
            self._require_mark()
            return sorted(self._names_below(prefix.rpartition("/")[0], prefix))

    def exists(self, name: str) -> bool:
        path = self._path(name)
        try:
            if self._fs.exists(path):
                return True
        except OSError as error:
            raise self._unavailable("look for", name, error) from error
        self._require_mark()
        return False

    def size(self, name: str) -> int:
        with self._translated("measure", name):
            return self._fs.size(self._path(name))

    def close(self) -> None:
        pass

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root}/{name}"

    def _names_below(self, name: str, prefix: str) -> Iterator[str]:
        """The name itself if it is a file, else the names of all files in that directory."""
        try:
            entries = self._fs.listdir(f"{self._root}/{name}" if name else self._root or "/")
        except NotADirectoryError:
            if name.startswith(prefix):
                yield name
            return
        except FileNotFoundError:
            return
        for entry in entries:
            child = f"{name}/{entry}" if name else entry
            if child.startswith(prefix) and not entry.endswith(TEMPORARY):
                yield from self._names_below(child, prefix)

    def _prune(self, directory: str) -> None:
        # Only for tidiness: a directory that cannot be removed, for example because it is not empty, stays.
        while directory != self._root:
            try:
                self._fs.rmdir(directory)
            except OSError:
                return
            directory = directory.rpartition("/")[0]

    def _discard(self, path: str) -> None:
        # A failed put should not keep space that other writes need. The error of the put is the one to report.
        try:
            self._fs.unlink(path)
        except OSError:
            pass

    def _require_mark(self) -> None:
        try:
            is_gone = self._is_marked and not self._fs.exists(f"{self._root}/{STORE}")
        except OSError as error:
            raise self._unavailable("look for", STORE, error) from error
        if is_gone:
            raise missing_tier(self.address)

    @contextmanager
    def _translated(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._require_mark()
            raise missing_object(self.address, name) from error
        except OSError as error:
            raise self._unavailable(action, name, error) from error

    def _unavailable(self, action: str, name: str, error: OSError) -> ColdUnavailable:
        return ColdUnavailable(f"{self.address}: cannot {action} {name or 'the tier'}: {error}")
