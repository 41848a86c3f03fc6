"""A store that caches ranges that were fetched ahead, so that the owner does not wait for a network.

Only `fetch` fills the cache: a checkpoint or a relocation that reads whole segments must not push out the ranges that
readers are about to need. A put or delete of an object drops its cached ranges, and also the ranges that are being
fetched at that moment: an old range would bring back records whose delete bytes the put has set.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from topics.clock import Clock, SystemClock
from topics.errors import ColdUnavailable
from topics.limits import COLD_CACHE_BYTES, COLD_HUNG_MS, COLD_HUNG_PAUSE_MS
from topics.storage.fs import Buffer
from topics.storage.tiers.store import Names, SegmentStore


class _Range(NamedTuple):
    """The answer of a store to `size` bytes from `offset` on: fewer where the object ends."""

    offset: int
    size: int
    data: bytes


class CachedStore:
    """Answers to `SegmentStore`, and is as safe to use from several threads. Least recently used ranges go first."""

    def __init__(self, inner: SegmentStore, *, bytes_max: int = COLD_CACHE_BYTES, clock: Clock | None = None) -> None:
        self.inner = inner
        self.address = inner.address
        self._clock = clock or SystemClock()
        # No read is tried before this time: see `_read`.
        self._hung_until_ms = 0
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._lock = threading.Lock()
        # By object and place in it; the oldest use first.
        self._ranges: OrderedDict[tuple[str, int], _Range] = OrderedDict()
        self._offsets: dict[str, set[int]] = {}
        # Running fetches, by object. The result of a fetch that was removed from here is not cached.
        self._fetches: dict[str, set[object]] = {}

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def has(self, name: str, offset: int, size: int) -> bool:
        """Whether a `read_range` would be answered from memory."""
        with self._lock:
            return size == 0 or self._find(name, offset, size) is not None

    def resident(self, name: str, offset: int, size: int) -> bytes | None:
        """What `read_range` would return, if that is in memory."""
        with self._lock:
            found = self._find(name, offset, size)
        return None if found is None else _part(found, offset, size)

    def fetch(self, name: str, offset: int, size: int) -> bytes:
        """`read_range`, and remembers it."""
        fetch = object()
        with self._lock:
            found = self._find(name, offset, size)
            if found is not None:
                return _part(found, offset, size)
            self._fetches.setdefault(name, set()).add(fetch)
        try:
            data = self._read(name, offset, size)
        except BaseException:
            with self._lock:
                self._ended(name, fetch)
            raise
        with self._lock:
            if self._ended(name, fetch):
                self._keep(name, _Range(offset, size, data))
        return data

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        with self._lock:
            found = self._find(name, offset, size)
        if found is not None:
            return _part(found, offset, size)
        return self._read(name, offset, size)

    def _read(self, name: str, offset: int, size: int) -> bytes:
        """Reads of a tier that hangs fail one after the other, and each one slowly. After the first of them all reads
        fail at once for a while."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._hung_until_ms:
            raise ColdUnavailable(f"{self.address}: did not answer a moment ago")
        try:
            return self.inner.read_range(name, offset, size)
        except ColdUnavailable:
            now_ms = self._clock.monotonic_ms()
            if now_ms - began_ms >= COLD_HUNG_MS:
                self._hung_until_ms = now_ms + COLD_HUNG_PAUSE_MS
            raise

    def put(self, name: str, data: Buffer) -> None:
        try:
            self.inner.put(name, data)
        finally:
            # Also after an error: the object may have been stored nevertheless.
            self._forget(name)

    def delete(self, name: str) -> None:
        try:
            self.inner.delete(name)
        finally:
            self._forget(name)

    def list(self, prefix: str) -> Names:
        return self.inner.list(prefix)

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def close(self) -> None:
        self.inner.close()

    # With the lock held.

    def _find(self, name: str, offset: int, size: int) -> _Range | None:
        for start in self._offsets.get(name, ()):
            found = self._ranges[name, start]
            if start <= offset and offset + size <= start + found.size:
                self._ranges.move_to_end((name, start))
                return found
        return None

    def _ended(self, name: str, fetch: object) -> bool:
        """Whether nothing happened to the object meanwhile."""
        fetches = self._fetches.get(name, set())
        if fetch not in fetches:
            return False
        fetches.remove(fetch)
        if not fetches:
            del self._fetches[name]
        return True

    def _keep(self, name: str, found: _Range) -> None:
        if len(found.data) > self._bytes_max:
            return
        self._drop(name, found.offset)
        self._ranges[name, found.offset] = found
        self._offsets.setdefault(name, set()).add(found.offset)
        self._size_bytes += len(found.data)
        while self._size_bytes > self._bytes_max:
            self._drop(*next(iter(self._ranges)))

    def _drop(self, name: str, offset: int) -> None:
        found = self._ranges.pop((name, offset), None)
        if found is None:
            return
        self._size_bytes -= len(found.data)
        offsets = self._offsets[name]
        offsets.remove(offset)
        if not offsets:
            del self._offsets[name]

    def _forget(self, name: str) -> None:
        with self._lock:
            self._fetches.pop(name, None)
            for offset in list(self._offsets.get(name, ())):
                self._drop(name, offset)


def _part(found: _Range, offset: int, size: int) -> bytes:
    start = offset - found.offset
    return found.data[start : start + size]
