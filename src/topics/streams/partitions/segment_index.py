"""Looking messages up in a segment: by offset one multiplication, by time a binary search.

The entries of a segment are in memory, all of them, or none is and they are read from the `.index` file. A part of
them is never kept, so that it cannot be taken for the whole.

`SegmentIndex` belongs to the partition's owner and grows. `IndexView` is what readers get: the entries that were
there when they asked, which no later append changes. The owner of a view brings the file.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topics.formats.message import HEADER_BYTES
from topics.formats.message_index import ENTRY, ENTRY_BYTES, Entries, decode_entries
from topics.storage.fs import File

# Entries are checked at a start in pieces of this many: 4 MiB.
CHECK_ENTRIES: Final = 256 * 1024

_ENTRIES_MIN: Final = 256

Positions = NDArray[np.int64]


class Spans(NamedTuple):
    """Where messages lie in the `.log`: the n-th in `[starts[n], ends[n])`. One begins where the one before ends."""

    starts: Positions
    ends: Positions


class IndexView:
    """The first `count` entries of a segment."""

    __slots__ = ("_cached", "count")

    def __init__(self, count: int, cached: Entries | None) -> None:
        self.count = count
        self._cached = cached

    def spans(self, file: File, first: int, count: int) -> Spans:
        """Of the messages from relative offset `first` on. All of them must be there."""
        assert first >= 0
        assert first + count <= self.count
        before = 1 if first else 0
        entries = self._read(file, first - before, count + before)
        bounds = np.zeros(count + 1, dtype=np.int64)
        bounds[1 - before :] = entries["position"]
        return Spans(bounds[:-1], bounds[1:])

    def _read(self, file: File, first: int, count: int) -> Entries:
        if self._cached is not None:
            return self._cached[first : first + count]
        return read_entries(file, first, count)

    def lower_bound(self, file: File, timestamp: int) -> int:
        """The first message that is not older; `count` when all are."""
        return bisect_left(range(self.count), timestamp, key=lambda place: self._timestamp(file, place))

    def _timestamp(self, file: File, place: int) -> int:
        return int(self._read(file, place, 1)["timestamp"][0])


class SegmentIndex:
    """How many entries there are, and the entries if they are cached. Caller holds the partition's lock."""

    __slots__ = ("_entries", "count")

    def __init__(self, count: int = 0, entries: Entries | None = None) -> None:
        """With `entries` all of them are cached and stay so; without, none is."""
        assert entries is None or len(entries) == count, "a part of a segment's entries is not its index"
        self.count = count
        self._entries = entries

    @property
    def is_cached(self) -> bool:
        return self._entries is not None

    def reserve(self, count: int) -> None:
        """Makes room for more entries. `append` of that many then needs no memory, and cannot fail."""
        if self._entries is not None and self.count + count > len(self._entries):
            # Views of the old array live on.
            grown = np.empty(max(self.count + count, len(self._entries) * 3 // 2, _ENTRIES_MIN), dtype=ENTRY)
            grown[: self.count] = self._entries[: self.count]
            self._entries = grown

    def append(self, entries: Entries) -> None:
        self.reserve(len(entries))
        count = self.count + len(entries)
        if self._entries is not None:
            self._entries[self.count : count] = entries
        self.count = count

    def drop_cache(self) -> None:
        self._entries = None

    def view(self) -> IndexView:
        return IndexView(self.count, self._entries)


def no_entries() -> Entries:
    return np.empty(0, dtype=ENTRY)


def read_entries(file: File, first: int, count: int) -> Entries:
    """Entries from a file that must have them."""
    data = file.pread(count * ENTRY_BYTES, first * ENTRY_BYTES)
    if len(data) < count * ENTRY_BYTES:
        raise OSError(f"{file.path}: ends before entry {first + count - 1}")
    return decode_entries(data)


def count_good(file: File, log_bytes: int) -> tuple[int, int]:
    """How many entries of the file, from the first on, can be believed, and how many there are.

    Believed are offsets 0, 1, 2 …, positions with room for a message each that lie within the log, and times that
    never fall.
    """
    total = file.size() // ENTRY_BYTES
    position = timestamp = 0
    for first in range(0, total, CHECK_ENTRIES):
        entries = read_entries(file, first, min(CHECK_ENTRIES, total - first))
        good = _count_in_order(entries, first, position, timestamp, log_bytes)
        if good < len(entries):
            return first + good, total
        position = int(entries["position"][-1])
        timestamp = int(entries["timestamp"][-1])
    return total, total


def _count_in_order(entries: Entries, first: int, position: int, timestamp: int, log_bytes: int) -> int:
    """How many from the first on are right, of a piece that follows an entry with this position and time."""
    positions = entries["position"].astype(np.int64)
    timestamps = entries["timestamp"]
    good = entries["offset"] == np.arange(first, first + len(entries), dtype=np.uint32)
    good &= np.diff(positions, prepend=position) >= HEADER_BYTES
    good[0] &= timestamps[0] >= timestamp
    good[1:] &= timestamps[1:] >= timestamps[:-1]
    good &= positions <= log_bytes
    return len(entries) if bool(good.all()) else int(good.argmin())
