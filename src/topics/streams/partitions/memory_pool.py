"""Buffers for reading, kept for the next reader instead of being freed.

There are 32 sizes, each with a shelf of free buffers. The limit of the pool is for buffers in use, not for free ones.
Above the limit, and above the largest size, a reader gets memory outside of the pool, so acquiring a buffer never fails
and never waits.

A buffer with views on it is never handed out again. If it is released while a view lives, it lingers, and goes to its
shelf once the last view is gone. A bytearray shows that it is viewed: it refuses to change its size.
"""

import threading
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from topics.limits import KIB, MIB

BUCKET_BYTES: Final = (
    *(256, 512, 1 * KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB),
    *(768 * KIB, 1 * MIB, 1536 * KIB, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 10 * MIB, 12 * MIB, 16 * MIB, 24 * MIB),
    *(32 * MIB, 48 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 192 * MIB, 256 * MIB, 384 * MIB, 512 * MIB),
)
assert len(BUCKET_BYTES) == 32
assert list(BUCKET_BYTES) == sorted(BUCKET_BYTES)

# How many lingering buffers of a size one call looks at.
_LINGERING_LOOKED_AT: Final = 4


@dataclass(frozen=True, slots=True)
class BucketCounters:
    """Buffers of one size. `allocated` and `returned` count since the start."""

    size_bytes: int
    in_use: int
    free: int
    allocated: int
    returned: int


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The numbers of a pool since its start. `dropped_returns` counts buffers that were freed because their shelf was
    full."""

    buckets: tuple[BucketCounters, ...]
    in_use_bytes: int
    external_allocations: int
    external_frees: int
    dropped_returns: int


class _Shelf:
    """The buffers of one size. The lock of the pool guards it, and only the pool changes it."""

    __slots__ = ("size_bytes", "free", "lingering", "in_use", "allocated", "returned")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.free: list[bytearray] = []
        # Released while views on them were alive; they count as in use until the views are gone.
        self.lingering: deque[bytearray] = deque()
        self.in_use = 0
        self.allocated = 0
        self.returned = 0


class PooledBuffer:
    """Memory of the pool. `view` has exactly the size that was asked for; its bytes are undefined until it is filled.

    Leave the `with` block, or call `release`, when done. Slices of the view may live longer: they keep the memory from
    being used again.
    """

    __slots__ = ("view", "_pool", "_block", "_bucket")

    def __init__(self, pool: "MemoryPool", size: int) -> None:
        self._pool = pool
        self._block: bytearray | None
        self._block, self._bucket = pool._take(size)
        self.view = memoryview(self._block)[:size]

    def release(self) -> None:
        """Returns the memory to the pool. `view` becomes empty; slices of it stay valid. A second call does nothing."""
        block, self._block = self._block, None
        if block is not None:
            view, self.view = self.view, memoryview(b"")
            _release_view(view)
            self._pool._give_back(block, self._bucket)

    def __enter__(self) -> "PooledBuffer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class MemoryPool:
    """Any thread may acquire and release. `size` limits the bytes in use, `bucket_capacity` the buffers on a shelf."""

    __slots__ = (
        *("_enabled", "_size", "_bucket_capacity", "_lock", "_shelves", "_in_use_bytes"),
        *("_external_allocations", "_external_frees", "_dropped_returns"),
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
        self._dropped_returns = 0

    def acquire(self, size: int) -> PooledBuffer:
        """A buffer of `size` bytes. It comes from outside of the pool if the pool is full or disabled."""
        return PooledBuffer(self, size)

    @property
    def counters(self) -> PoolCounters:
        """All numbers at one moment."""
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
                self._dropped_returns,
            )

    def _take(self, size: int) -> tuple[bytearray, int | None]:
        """A block of at least `size` bytes, and its bucket; None for memory outside of the pool."""
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
            # Put in front, so that `_collect` looks at it first: most blocks have no views any more.
            shelf.lingering.appendleft(block)
            self._collect(shelf, _LINGERING_LOOKED_AT)

    def _collect(self, shelf: _Shelf, count: int) -> None:
        """Looks at the first `count` lingering buffers, and puts each one without views on the shelf."""
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


def _is_viewed(block: bytearray) -> bool:
    try:
        # Neither call moves the bytes, because the allocation stays the same.
        block.append(block.pop())
    except BufferError:
        return True
    return False


def _release_view(view: memoryview) -> None:
    """Ends this view at once. If an array still uses it, the view ends when the array is freed."""
    try:
        view.release()
    except BufferError:
        pass
