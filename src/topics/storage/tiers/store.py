"""What a tier is: the protocols that all stores keep, and the checks that they share.

Rules of every store. Callers rely on them:

1. An object is there whole, old or new, whatever fails, and durable when `put` returns.
2. `FileNotFoundError` is an answer of the tier: the tier is there, the object is not. A tier that cannot answer (an
   outage, refused credentials, a folder whose disk is not mounted) raises `ColdUnavailable`, never `FileNotFoundError`.
3. A store that has seen the tier's STORE object once calls no object missing while STORE is missing too. An empty mount
   point looks like a tier without objects; a put there would land on the wrong disk, and a segment whose hot copy
   then went would be gone with the next mount.
4. A name that `list` leaves out proves nothing, because listings may be older than the newest puts. Ask `exists`
   before you act on a missing name.

Rules of a `SharedStore`, which several processes write to at once without knowing of each other:

5. A put works under a temporary name that no other put uses. Two puts of one object so never write to the same file.
6. `put_if_absent` alone decides between writers. An object that it made is durable before the next object is made: a
   chain of them has no holes after a power cut.

Objects are never changed in place. Names are relative, such as `topics/0000000A/seg-0000000000000001.data`.
"""

import errno
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from topics.errors import ColdUnavailable, FormatError
from topics.storage.fs import Buffer
from topics.storage.layout import STORE, TEMPORARY

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


class ListedObject(NamedTuple):
    """An object as a listing shows it; the time is by the clock of the store."""

    name: str
    size_bytes: int
    modified_ms: int


ListedObjects = list[ListedObject]


class SharedStore(SegmentStore, Protocol):
    def put_if_absent(self, name: str, data: Buffer) -> bool:
        """Stores the object if there is none of that name, for good on return; False when there is one.

        After an error the object may be there. When an answer was lost and the call was repeated, the existing object
        may come from this call: a caller that gets False compares.
        """
        ...

    def entries(self, prefix: str) -> ListedObjects:
        """What `list` names, with sizes and times."""
        ...

    def modified_ms(self, name: str) -> int:
        """When the object was put, by the clock of the store."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Makes objects durable that were put by a process that may have died before its put returned."""
        ...

    def remove_unfinished(self, before_ms: int) -> int:
        """Removes the leftovers of puts that broke off before that time; returns how many."""
        ...


class MissingStore:
    """A tier that should be there and is not, such as a disk that is not mounted. Nothing is read from the folder in
    its place, and nothing is put there. A restart looks again."""

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
    """Raises `FormatError` for a name that could leave the tier, or that unfinished puts use. Segments are named by
    numbers; the names of other objects are in files that may come from anywhere, such as a backup."""
    if any(part in {"", ".", ".."} for part in name.split("/")) or name.endswith(TEMPORARY):
        raise FormatError(f"not the name of an object: {name!r}")


def check_range(offset: int, size: int) -> None:
    """Raises `FormatError`: a negative offset would count from the end, and a negative size would read to the end."""
    if offset < 0 or size < 0:
        raise FormatError(f"no range of an object: {size} bytes at {offset}")


def missing_object(address: str, name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such object", f"{address}/{name}")


def missing_tier(address: str) -> ColdUnavailable:
    return ColdUnavailable(f"{address}: the cold tier's {STORE} is gone; is its disk mounted, does its bucket exist?")
