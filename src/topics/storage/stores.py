"""Where a tier keeps its segments: a local folder, or an S3-compatible bucket (`s3_store`).

Rules that both keep, and that callers rely on:

1. An object is there whole, old or new, whatever fails, and durable when `put` returns.
2. `FileNotFoundError` is an answer of the tier: it is there, the object is not. A tier that cannot answer (an
   outage, refused credentials, a folder whose disk is not mounted) raises `ColdUnavailable`, never the former.
3. Therefore: once a store has seen the tier's STORE object it takes nothing for missing while STORE is missing
   too. An empty mount point looks like a tier without objects; a put there would land on the wrong disk, and
   a segment whose hot copy then went would be gone with the next mount.
4. A name that `list` leaves out proves nothing, since listings may lag behind. Ask `exists` before acting on it.

Objects are never changed in place. Names are relative, such as `topics/0000000A/seg-0000000000000001.data`.
"""

import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from topics.errors import ColdUnavailable, Damaged, FutureVersion, StartRefused, StorageFull
from topics.storage.fs import Buffer, Fs, write_atomic
from topics.storage.layout import STORE, TEMPORARY

STORE_FORMAT: Final = 1
# A STORE object is far smaller. What is longer is not one, and is not read to its end.
STORE_BYTES_MAX: Final = 4096

_STORE_ID: Final = re.compile(r"[0-9a-f]{32}")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

# Inside the stores `list` is a method.
Names = list[str]


class SegmentStore(Protocol):
    """One tier. Safe to use from several threads; every call may block for as long as a disk or network does."""

    address: str

    def put(self, name: str, data: Buffer) -> None:
        """Stores or replaces the object: the old one or the new one is there at any time, the new one for good on
        return. After an error it may be either. `data` must not change until then."""
        ...

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer only where the object ends."""
        ...

    def delete(self, name: str) -> None:
        """Removes the object for good; an absent one is no error."""
        ...

    def list(self, prefix: str) -> Names:
        """Names that begin with `prefix` (of any length, "" for all), sorted."""
        ...

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int: ...

    def close(self) -> None: ...


class MissingStore:
    """A tier that should be there and is not, such as a disk that is not mounted: nothing is read from what stands
    in its place, and nothing is put there. A restart looks again."""

    def __init__(self, address: str) -> None:
        self.address = address

    def _refuse(self) -> ColdUnavailable:
        return ColdUnavailable(
            f"{self.address} is not the cold tier it was: it has no {STORE}; bring it back (mount it?), then restart"
        )

    def put(self, name: str, data: Buffer) -> None:
        raise self._refuse()

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        raise self._refuse()

    def delete(self, name: str) -> None:
        raise self._refuse()

    def list(self, prefix: str) -> Names:
        raise self._refuse()

    def exists(self, name: str) -> bool:
        raise self._refuse()

    def size(self, name: str) -> int:
        raise self._refuse()

    def close(self) -> None:
        pass


def check_name(name: str) -> None:
    """Names are made by us from numbers; one that could leave the tier, or hide in it, is our bug."""
    assert all(part not in {"", ".", ".."} for part in name.split("/")), f"not the name of an object: {name!r}"
    assert not name.endswith(TEMPORARY), f"kept for unfinished puts: {name!r}"


def check_range(offset: int, size: int) -> None:
    assert offset >= 0, "a negative offset would count from the end"
    assert size >= 0, "a negative size would read to the end"


def missing_object(address: str, name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such object", f"{address}/{name}")


def missing_tier(address: str) -> ColdUnavailable:
    return ColdUnavailable(f"{address}: the cold tier's {STORE} is gone; is its disk mounted, does its bucket exist?")


class FolderStore:
    """A tier in a folder, which the first put makes.

    A put writes and syncs `<name>.tmp`, renames it and syncs the directory. A crash may leave a `.tmp` behind:
    `list` does not show it and the next put of that name replaces it. Directories that a delete leaves empty
    go too, as names are all there is to see of a tier; so puts and deletes take turns.
    """

    def __init__(self, fs: Fs, root: str) -> None:
        assert root.startswith("/"), "paths are absolute"
        self.address = root
        self._fs = fs
        self._root = root.rstrip("/")
        self._turn = threading.Lock()
        # Set once STORE was read or written, and then for good: rule 3.
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
                # Also for an absent one: an earlier delete may have got no further than this.
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
        """The name itself if it is a file's, else those of all files in that directory."""
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
        # Only for tidiness: a directory that is not empty, or for some other reason cannot go, stays.
        while directory != self._root:
            try:
                self._fs.rmdir(directory)
            except OSError:
                return
            directory = directory.rpartition("/")[0]

    def _discard(self, path: str) -> None:
        # A put that failed should not keep the space that others lack. The error to report is the put's.
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


def open_store(address: str, fs: Fs) -> SegmentStore:
    """The tier at a path, a `file:` address or `s3://bucket/prefix`. Touches neither disk nor network."""
    if address.startswith("s3://"):
        return _open_s3(address)
    if address.startswith("file:"):
        return FolderStore(fs, _path_of_file_address(address))
    if not address or "://" in address:
        raise StartRefused(f'"{address}" is no address of a cold tier: give a path, file:///path or s3://bucket/prefix')
    return FolderStore(fs, os.path.abspath(address))


def _open_s3(address: str) -> SegmentStore:
    try:
        from topics.storage.s3_store import S3Store
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise StartRefused("a cold tier on S3 needs the package obstore: pip install 'topics[s3]'") from error
    return S3Store(address)


def path_of_address(address: str) -> str | None:
    """The folder that an address names; None for a bucket."""
    if address.startswith("file:"):
        return _path_of_file_address(address)
    return None if "://" in address else os.path.abspath(address)


def file_address(path: str) -> str:
    """A path as an address that `path_of_address` reads back."""
    return f"file://{path.replace('%', '%25')}"


def _path_of_file_address(address: str) -> str:
    """`file:/path`, `file:///path` or `file://localhost/path`, with %XX for other bytes."""
    rest = address.removeprefix("file:")
    if rest.startswith("//"):
        host, slash, path = rest.removeprefix("//").partition("/")
        rest = slash + path if host in {"", "localhost"} else ""
    if not rest.startswith("/"):
        raise StartRefused(f'"{address}" names no path on this machine: write it as file:///path')
    encoded = rest.encode("utf-8", "surrogateescape")
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), encoded)
    return os.path.normpath(os.fsdecode(decoded))


class _StoreFile(msgspec.Struct, frozen=True):
    """The STORE object: which data directory a tier belongs to. Members may be added without a new format."""

    format: int
    # Optional only so that a later format, whatever it holds, is told from a damaged one.
    store_id: str = ""


def read_store_id(store: SegmentStore) -> str | None:
    """The id in the tier's STORE object, None when there is no such object."""
    try:
        data = store.read_range(STORE, 0, STORE_BYTES_MAX)
    except FileNotFoundError:
        return None
    where = f"{store.address}/{STORE}"
    try:
        content = msgspec.json.decode(data, type=_StoreFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(where, 0, 'JSON with "format" and "store_id"', f"{len(data)} bytes: {error}") from error
    if content.format > STORE_FORMAT:
        raise FutureVersion(f"{where}: format {content.format}, this version knows {STORE_FORMAT}; use a newer topics")
    if not _STORE_ID.fullmatch(content.store_id):
        raise Damaged(where, 0, "a store id of 32 hex digits", repr(content.store_id))
    return content.store_id


def ensure_store_id(store: SegmentStore, store_id: str) -> None:
    """Claims a tier that has no STORE yet; refuses one that belongs to another data directory.

    A caller that knows of segments in this tier asks `read_store_id` first: a tier that should have a STORE and
    has none is not the one it was, and must not be claimed.
    """
    assert _STORE_ID.fullmatch(store_id), "a store id is 32 hex digits"
    found = read_store_id(store)
    if found is None:
        store.put(STORE, msgspec.json.encode(_StoreFile(format=STORE_FORMAT, store_id=store_id)))
        # Read again: another server may have claimed the same empty tier meanwhile.
        found = read_store_id(store)
    if found != store_id:
        raise StartRefused(
            f"{store.address}: this cold tier belongs to another data directory: its {STORE} says {found}, "
            f"this one is {store_id}; give each data directory a cold tier of its own"
        )
