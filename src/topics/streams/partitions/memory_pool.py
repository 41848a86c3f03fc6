"""Buffers for reading, kept for the next reader instead of being freed.

32 sizes, each with its own shelf of free buffers. What is in use, not what lies on the shelves, is held under the
limit of the pool. Beyond it, and beyond the largest size, a reader gets memory of its own, so that acquiring never
fails and never waits.

A buffer with views on it is never handed out again: giving it back while somebody still reads it only notes it, and
it goes to its shelf once the last view is gone. The bytearray tells: it refuses to change its size while it is viewed.
"""

import threading
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

BUCKET_BYTES: Final = (
    *(256, 512, 1 * KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB),
    *(768 * KIB, 1 * MIB, 1536 * KIB, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 10 * MIB, 12 * MIB, 16 * MIB, 24 * MIB),
    *(32 * MIB, 48 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 192 * MIB, 256 * MIB, 384 * MIB, 512 * MIB),
)
assert len(BUCKET_BYTES) == 32
assert list(BUCKET_BYTES) == sorted(BUCKET_BYTES)

# How many of the buffers that were given back with views on them the next call for their size looks at.
_LINGERING_LOOKED_AT: Final = 4


@dataclass(frozen=True, slots=True)
class BucketCounters:
    """One size of buffers. `in_use` are handed out, `allocated` and `returned` count since the start."""

    size_bytes: int
    in_use: int
    free: int
    allocated: int
    returned: int


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """What the pool has done so far. `dropped_returns` found their shelf full."""

    buckets: tuple[BucketCounters, ...]
    in_use_bytes: int
    external_allocations: int
    external_frees: int
    resizes: int
    dropped_returns: int


class _Shelf:
    """The buffers of one size. Under the lock of the pool."""

    __slots__ = ("size_bytes", "free", "lingering", "in_use", "allocated", "returned")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.free: list[bytearray] = []
        # Given back while views were alive; in use until those are gone.
        self.lingering: deque[bytearray] = deque()
        self.in_use = 0
        self.allocated = 0
        self.returned = 0


class PooledBuffer:
    """Memory on loan: `view` has exactly the bytes that were asked for, with whatever was in them before.

    Fill it before anybody reads it. Leave its `with` block, or call `release`, when done; slices of the view may live
    on and keep the memory from being used again.
    """

    __slots__ = ("view", "_pool", "_block", "_bucket")

    def __init__(self, pool: "MemoryPool", size: int) -> None:
        self._pool = pool
        self._block: bytearray | None
        self._block, self._bucket = pool._take(size)
        self.view = memoryview(self._block)[:size]

    def resize(self, size: int) -> None:
        """Makes `view` that long and keeps what is in it; added bytes are 0. Moves to another buffer when it must."""
        block, bucket, old_view = self._block, self._bucket, self.view
        assert block is not None, "a released buffer belongs to somebody else"
        kept = min(size, len(old_view))
        if size > len(block):
            self._block, self._bucket = self._pool._take(size)
            self.view = memoryview(self._block)[:size]
            self.view[:kept] = old_view[:kept]
            _let_go(old_view)
            self._pool._give_back(block, bucket)
            self._pool._count_resize()
        else:
            self.view = memoryview(block)[:size]
        self.view[kept:] = bytes(size - kept)

    def release(self) -> None:
        """Gives the memory back; a second time does nothing. `view` is gone, slices of it stay valid."""
        block, self._block = self._block, None
        if block is not None:
            view, self.view = self.view, memoryview(b"")
            _let_go(view)
            self._pool._give_back(block, self._bucket)

    def __enter__(self) -> "PooledBuffer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class MemoryPool:
    """Any thread may acquire and release. `size` bounds the bytes in use, `bucket_capacity` each shelf."""

    __slots__ = (
        *("_enabled", "_size", "_bucket_capacity", "_lock", "_shelves", "_in_use_bytes"),
        *("_external_allocations", "_external_frees", "_resizes", "_dropped_returns"),
    )

    def __init__(self, *, enabled: bool, size: int, bucket_capacity: int) -> None:
        self._enabled = enabled
        self._size = size
        self._bucket_capacity = bucket_capacity
        self._lock = threading.Lock()
        self._shelves = tuple(map(_Shelf, BUCKET_BYTES))
        self._in_use_bytes = 0
        self._external_allocations = 0
        self._external_frees = 0
        self._resizes = 0
        self._dropped_returns = 0

    def acquire(self, size: int) -> PooledBuffer:
        """A buffer of that many bytes, whatever the pool has left. A disabled pool only allocates."""
        return PooledBuffer(self, size)

    @property
    def counters(self) -> PoolCounters:
        """All numbers of one moment."""
        with self._lock:
            for shelf in self._shelves:
                self._collect(shelf, len(shelf.lingering))
            buckets = tuple(
                BucketCounters(shelf.size_bytes, shelf.in_use, len(shelf.free), shelf.allocated, shelf.returned)
                for shelf in self._shelves
            )
            return PoolCounters(
                buckets,
                self._in_use_bytes,
                self._external_allocations,
                self._external_frees,
                self._resizes,
                self._dropped_returns,
            )

    def _take(self, size: int) -> tuple[bytearray, int | None]:
        """A block of at least that size, and the bucket it belongs to."""
        bucket = bisect_left(BUCKET_BYTES, size)
        if not self._enabled:
            return bytearray(size), None
        with self._lock:
            if bucket == len(BUCKET_BYTES):
                self._external_allocations += 1
                return bytearray(size), None
            shelf = self._shelves[bucket]
            self._collect(shelf, _LINGERING_LOOKED_AT)
            if not shelf.free and not self._has_room(shelf):
                for other in self._shelves:
                    self._collect(other, len(other.lingering))
                if not shelf.free and not self._has_room(shelf):
                    self._external_allocations += 1
                    return bytearray(size), None
            shelf.in_use += 1
            self._in_use_bytes += shelf.size_bytes
            if shelf.free:
                return shelf.free.pop(), bucket
            shelf.allocated += 1
        return bytearray(shelf.size_bytes), bucket

    def _has_room(self, shelf: _Shelf) -> bool:
        return self._in_use_bytes + shelf.size_bytes <= self._size

    def _give_back(self, block: bytearray, bucket: int | None) -> None:
        if not self._enabled:
            return
        with self._lock:
            if bucket is None:
                self._external_frees += 1
                return
            shelf = self._shelves[bucket]
            # Looked at first: most are free at once.
            shelf.lingering.appendleft(block)
            self._collect(shelf, _LINGERING_LOOKED_AT)

    def _collect(self, shelf: _Shelf, count: int) -> None:
        """Puts back those of the first `count` lingering buffers that nobody views any more."""
        for _ in range(min(count, len(shelf.lingering))):
            block = shelf.lingering.popleft()
            if _is_viewed(block):
                shelf.lingering.append(block)
                continue
            shelf.in_use -= 1
            self._in_use_bytes -= shelf.size_bytes
            if len(shelf.free) < self._bucket_capacity:
                shelf.free.append(block)
                shelf.returned += 1
            else:
                self._dropped_returns += 1

    def _count_resize(self) -> None:
        with self._lock:
            self._resizes += 1


def _is_viewed(block: bytearray) -> bool:
    try:
        # Neither moves the bytes: they stay within what is allocated.
        block.append(block.pop())
    except BufferError:
        return True
    return False


def _let_go(view: memoryview) -> None:
    """Ends this view at once, whoever still holds the object; an array on it does so later, when it dies."""
    try:
        view.release()
    except BufferError:
        pass
