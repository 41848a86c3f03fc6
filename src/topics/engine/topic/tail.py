"""The tail of a topic: its newest records, in memory. Among them are all records that were written since
the start and are in no segment yet.

Every seq has a slot, without gaps. A slot is the WAL body of the record, or None when the record is dead. A byte of
each slot says the same, so that dead slots are found and counted without a look at every slot. Dead slots at the front
are dropped later, many at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

COMPACT_SLOTS: Final = 1024
# Slots that a delete looks at together.
KILL_SLOTS: Final = 1024
# 0 and 1 exchanged.
_LIVE_MARKS: Final = bytes.maketrans(b"\0\1", b"\1\0")
# About what a slot costs in memory beside its payload.
SLOT_OVERHEAD_BYTES: Final = 120

# The columns of every tail that never had a record, so nothing is ever added to them: 180 bytes less for an idle topic.
_NO_BODIES: Final[list[bytes | None]] = []
_NO_SIZES: Final = array("I")
_NO_TIMES: Final = array("Q")
_NO_MARKS: Final = bytearray()


class Tail:
    """Covers seqs `first_seq` to `end_seq - 1`. Owner only."""

    __slots__ = ("_bodies", "_dead", "_sizes", "_skipped", "_ts", "dead_count", "first_seq")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        # Number of slots at the front of the lists whose seqs are below `first_seq`.
        self._skipped = 0
        self._bodies: list[bytes | None] = _NO_BODIES
        self._sizes = _NO_SIZES
        self._ts = _NO_TIMES
        # One byte per slot: 1 for a dead one.
        self._dead = _NO_MARKS
        self.dead_count = 0

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self._bodies) - self._skipped

    def extend(self, bodies: Sequence[bytes], sizes: Sequence[int], ts: int) -> None:
        if self._bodies is _NO_BODIES:
            self._bodies, self._sizes, self._ts, self._dead = [], array("I"), array("Q"), bytearray()
        self._bodies.extend(bodies)
        self._sizes.extend(sizes)
        if len(bodies) == 1:
            self._ts.append(ts)
            self._dead.append(0)
        else:
            self._ts.extend([ts] * len(bodies))
            self._dead.extend(bytes(len(bodies)))

    def extend_holes(self, count: int, ts: int) -> None:
        """Adds slots that never had a record."""
        self.extend([], [], ts)
        self._bodies.extend([None] * count)
        self._sizes.extend([0] * count)
        self._ts.extend([ts] * count)
        self._dead.extend(b"\1" * count)
        self.dead_count += count

    def _place(self, seq: int) -> int:
        return seq - self.first_seq + self._skipped

    def read(self, first_seq: int, last_seq: int) -> list[bytes | None]:
        start = self._place(first_seq)
        return self._bodies[start : start + last_seq - first_seq + 1]

    def sizes(self, first_seq: int, last_seq: int) -> array[int]:
        start = self._place(first_seq)
        return self._sizes[start : start + last_seq - first_seq + 1]

    def kill(self, seq: int) -> int | None:
        """Releases the record. Returns its accounted size, or None when it was already dead."""
        place = self._place(seq)
        if self._dead[place]:
            return None
        self._bodies[place] = None
        self._dead[place] = 1
        self.dead_count += 1
        return self._sizes[place]

    def kill_many(self, seqs: Sequence[int]) -> tuple[int, int]:
        """Releases the records with these ascending seqs. Returns (count, bytes) of those that were live."""
        count, size, start = 0, 0, 0
        while start < len(seqs):
            end = min(start + KILL_SLOTS, len(seqs))
            first_seq, last_seq = seqs[start], seqs[end - 1]
            if last_seq - first_seq == end - 1 - start:
                # Consecutive seqs, without a look at each of them.
                more_count, more_size = self.live_numbers(first_seq, last_seq)
                place, slots = self._place(first_seq), end - start
                self._bodies[place : place + slots] = [None] * slots
                self._dead[place : place + slots] = b"\1" * slots
                self.dead_count += more_count
                count, size = count + more_count, size + more_size
            else:
                for seq in seqs[start:end]:
                    freed = self.kill(seq)
                    if freed is not None:
                        count += 1
                        size += freed
            start = end
        return count, size

    def next_live(self, seq: int) -> int | None:
        """The lowest live seq at or above `seq`."""
        place = self._dead.find(0, self._place(max(seq, self.first_seq)))
        return None if place < 0 else place - self._skipped + self.first_seq

    def live_numbers(self, first_seq: int, last_seq: int) -> tuple[int, int]:
        """(count, bytes) of the live records of the tail in the inclusive range."""
        first_seq = max(first_seq, self.first_seq)
        last_seq = min(last_seq, self.end_seq - 1)
        if last_seq < first_seq:
            return 0, 0
        start, end = self._place(first_seq), self._place(last_seq) + 1
        dead = self._dead[start:end]
        dead_count = dead.count(1) if self.dead_count else 0
        if not dead_count:
            return end - start, sum(self._sizes[start:end])
        return end - start - dead_count, sum(compress(self._sizes[start:end], dead.translate(_LIVE_MARKS)))

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int]]:
        """(seq, size) of live records at or above `seq`."""
        place = self._dead.find(0, self._place(max(seq, self.first_seq)))
        while place >= 0:
            yield place - self._skipped + self.first_seq, self._sizes[place]
            place = self._dead.find(0, place + 1)

    def ts_of(self, seq: int) -> int:
        return self._ts[self._place(seq)]

    def expired_last_seq(self, cutoff_ts: int) -> int:
        """The last seq whose time is before `cutoff_ts`; `first_seq - 1` when there is none."""
        return bisect_left(self._ts, cutoff_ts, self._skipped) - self._skipped + self.first_seq - 1

    def forget_below(self, seq: int) -> None:
        """Drops every slot below `seq`."""
        seq = min(seq, self.end_seq)
        if seq <= self.first_seq:
            return
        start, end = self._skipped, self._place(seq)
        if self.dead_count:
            self.dead_count -= self._dead[start:end].count(1)
        self._bodies[start:end] = [None] * (end - start)
        self._skipped = end
        self.first_seq = seq
        if self._skipped >= COMPACT_SLOTS and self._skipped * 2 >= len(self._bodies):
            del self._bodies[: self._skipped]
            del self._sizes[: self._skipped]
            del self._ts[: self._skipped]
            del self._dead[: self._skipped]
            self._skipped = 0

    def dead_marks(self, first_seq: int, last_seq: int) -> bytes:
        """One byte per slot of the inclusive range: 1 for a dead one."""
        start = self._place(first_seq)
        return bytes(self._dead[start : start + last_seq - first_seq + 1])

    def cache_from(self, last_seq: int, budget_bytes: int) -> int:
        """The lowest first seq of a run that ends with `last_seq` and fits the budget. That run stays in memory."""
        place = self._place(last_seq)
        total = 0
        while place >= self._skipped:
            total += self._sizes[place] + SLOT_OVERHEAD_BYTES
            if total > budget_bytes:
                break
            place -= 1
        return place - self._skipped + self.first_seq + 1
