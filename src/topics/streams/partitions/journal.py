"""Batches that were accepted and are not in the files yet.

Their messages follow those of the active segment without a gap. A running flush leaves the batches here until its
writes have returned, so that polls find them all the time and a failed write loses nothing.

The caller holds the lock of `PartitionContents`. Windows can be read without the lock: batches never change.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from topics.streams.partitions.batch import StoredBatch


@dataclass(frozen=True, slots=True)
class Window:
    """Messages `first … first + count - 1` of a batch."""

    batch: StoredBatch
    first: int
    count: int

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.count)

    @property
    def bytes(self) -> memoryview:
        return self.batch.window(self.first, self.count)


class Journal:
    __slots__ = ("batches", "messages_count", "size_bytes")

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.messages_count = 0
        self.size_bytes = 0

    def add(self, batch: StoredBatch) -> None:
        if self.batches:
            last = self.batches[-1]
            assert batch.first_offset == last.first_offset + last.count, "a gap here would become a silent loss"
        self.batches.append(batch)
        self.messages_count += batch.count
        self.size_bytes += batch.size_bytes

    def clear(self) -> None:
        # A new list: a flush may be writing the old one.
        self.batches = []
        self.messages_count = 0
        self.size_bytes = 0

    def windows(self, offset: int, count: int) -> list[Window]:
        """Up to `count` messages from an offset on. The offset is not below the first one in the journal."""
        found: list[Window] = []
        place = bisect_right(self.batches, offset, key=_first_offset) - 1
        for batch in self.batches[max(place, 0) :]:
            first = max(offset - batch.first_offset, 0)
            taken = min(batch.count - first, count)
            if taken <= 0:
                break
            found.append(Window(batch, first, taken))
            count -= taken
        return found

    def offset_at(self, timestamp: int) -> int | None:
        """The offset of the first message that is not older than the time; None if all are older."""
        place = bisect_left(self.batches, timestamp, key=_timestamp)
        return self.batches[place].first_offset if place < len(self.batches) else None


def _first_offset(batch: StoredBatch) -> int:
    return batch.first_offset


def _timestamp(batch: StoredBatch) -> int:
    return batch.timestamp
