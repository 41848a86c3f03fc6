"""Where messages are in a segment: by offset with one multiplication, by time with a binary search.

Either all entries of a segment are cached in memory, or none is and they are read from the `.index` file. A part is
never cached, so that it cannot be mistaken for the whole.

`SegmentIndex` belongs to the segment and grows. A reader gets an `IndexView`: the entries at one moment, which no later
append changes. The reader passes the open file to each call.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topics.formats.message import HEADER_BYTES
from topics.formats.message_index import ENTRY, ENTRY_BYTES, Entries, decode_entries
from topics.storage.fs import File
from topics.streams.partitions.must_wait import MustWait

# A start checks so many entries at a time: 4 MiB.
CHECK_ENTRIES: Final = 256 * 1024

_ENTRIES_MIN: Final = 256

Positions = NDArray[np.int64]


class Spans(NamedTuple):
    """Where messages are in the `.log`: the n-th in `[starts[n], ends[n])`. Each begins where the previous one ends."""

    starts: Positions
    ends: Positions


class IndexView:
    """The first `count` entries of a segment."""

    __slots__ = ("_cached", "count")

    def __init__(self, count: int, cached: Entries | None) -> None:
        self.count = count
        self._cached = cached

    def spans(self, file: File, first: int, count: int, *, may_wait: bool = True) -> Spans:
        """The spans of `count` messages from relative offset `first` on. The view must have all of them.

        Without `may_wait` it raises `MustWait` if entries have to be read from the disk.
        """
        assert first >= 0
        assert first + count <= self.count
        before = 1 if first else 0
        entries = self._read(file, first - before, count + before, may_wait)
        bounds = np.zeros(count + 1, dtype=np.int64)
        bounds[1 - before :] = entries["position"]
        return Spans(bounds[:-1], bounds[1:])

    def _read(self, file: File, first: int, count: int, may_wait: bool = True) -> Entries:  # noqa: FBT001, FBT002
        if self._cached is not None:
            return self._cached[first : first + count]
        if may_wait:
            return read_entries(file, first, count)
        data = bytearray(count * ENTRY_BYTES)
        if not file.pread_into_nowait(memoryview(data), first * ENTRY_BYTES):
            raise MustWait
        return decode_entries(data)

    def lower_bound(self, file: File, timestamp: int) -> int:
        """The relative offset of the first message that is not older than the time; `count` if all are older."""
        return bisect_left(range(self.count), timestamp, key=lambda place: self._timestamp(file, place))

    def _timestamp(self, file: File, place: int) -> int:
        return int(self._read(file, place, 1)["timestamp"][0])


class SegmentIndex:
    """The number of entries, and the entries if they are cached. The caller holds the lock of `PartitionContents`."""

    __slots__ = ("_entries", "count")

    def __init__(self, count: int = 0, entries: Entries | None = None) -> None:
        """With `entries` all are cached, later ones too; without, none is."""
        assert entries is None or len(entries) == count, "a part of a segment's entries is not its index"
        self.count = count
        self._entries = entries

    @property
    def is_cached(self) -> bool:
        return self._entries is not None

    def reserve(self, count: int) -> None:
        """Makes room for `count` more entries, so that their `append` needs no memory and cannot fail."""
        if self._entries is not None and self.count + count > len(self._entries):
            # Views keep the old array.
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
    """Reads entries. Raises `OSError` if the file ends before them."""
    data = file.pread(count * ENTRY_BYTES, first * ENTRY_BYTES)
    if len(data) < count * ENTRY_BYTES:
        raise OSError(f"{file.path}: ends before entry {first + count - 1}")
    return decode_entries(data)


def count_good(file: File, log_bytes: int) -> tuple[int, int]:
    """How many entries of the file, from the first on, are good, and how many it has.

    Good entries have offsets 0, 1, 2 …, positions within the log that leave room for a message each, and times that
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
    """How many entries from the first on are good. `position` and `timestamp` are those of the entry before them."""
    positions = entries["position"].astype(np.int64)
    timestamps = entries["timestamp"]
    good = entries["offset"] == np.arange(first, first + len(entries), dtype=np.uint32)
    good &= np.diff(positions, prepend=position) >= HEADER_BYTES
    good[0] &= timestamps[0] >= timestamp
    good[1:] &= timestamps[1:] >= timestamps[:-1]
    good &= positions <= log_bytes
    return len(entries) if bool(good.all()) else int(good.argmin())
