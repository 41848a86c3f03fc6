"""The lost ranges of one topic: seqs inside the log that have no records, because something other than retention or a
delete took them.

| Reason | What took the records |
|---|---|
| `power_loss` | a power loss, the end of the process of an `ephemeral` topic, or damage that a repair gave up |
| `source_trim` | the source of a router lost them before they were copied, by retention or otherwise |

A reader that comes to a lost range gets a tombstone for it. A lost range takes no room under `cap_records`: the cap
counts only seqs that are not lost. So a head that jumps over a reservation, or holes that a router's source left, evict
nothing. Ranges are ascending and do not overlap. Ranges of one reason that touch are one range.

Owner only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, NamedTuple

LossReason = Literal["power_loss", "source_trim"]


class LostRange(NamedTuple):
    first_seq: int
    last_seq: int
    reason: LossReason


class LostRanges:
    __slots__ = ("_kept_before", "_lasts", "_lost_before", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[LostRange] = []
        # Columns of `_ranges`, so that a search needs no loop: the last seq of each range; how many seqs before the
        # range are lost, and how many are not. Ranges that were forgotten since are among the lost ones.
        self._lasts: list[int] = []
        self._lost_before: list[int] = []
        self._kept_before: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[LostRange]:
        return iter(self._ranges)

    def pairs(self, reason: LossReason | None = None) -> list[tuple[int, int]]:
        """[first, last] of all ranges, or of those with one reason."""
        return [(first, last) for first, last, why in self._ranges if reason is None or why == reason]

    def copy(self) -> LostRanges:
        other = LostRanges()
        other._set(self._ranges)
        return other

    # Changing.

    def add(self, first_seq: int, last_seq: int, reason: LossReason) -> None:
        """Adds a range. Seqs that another range has already keep the reason of that range if it begins earlier."""
        added = LostRange(first_seq, last_seq, reason)
        newest = self._ranges[-1] if self._ranges else None
        if newest is None or newest.last_seq < first_seq:
            if newest is not None and newest.last_seq == first_seq - 1 and newest.reason == reason:
                self._ranges[-1] = newest._replace(last_seq=last_seq)
                self._lasts[-1] = last_seq
            else:
                self._append(added)
            return
        ranges: list[LostRange] = []
        for item in sorted([*self._ranges, added], key=lambda item: item.first_seq):
            before = ranges[-1] if ranges else None
            if before is None or before.last_seq + 1 < item.first_seq:
                ranges.append(item)
            elif before.reason == item.reason:
                ranges[-1] = before._replace(last_seq=max(before.last_seq, item.last_seq))
            elif before.last_seq < item.last_seq:
                ranges.append(item._replace(first_seq=before.last_seq + 1))
        self._set(ranges)

    def forget_below(self, seq: int) -> None:
        """Drops the ranges that end below `seq`."""
        if self._ranges and self._lasts[0] < seq:
            count = bisect_left(self._lasts, seq)
            for column in (self._ranges, self._lasts, self._lost_before, self._kept_before):
                del column[:count]

    def _set(self, ranges: list[LostRange]) -> None:
        self._ranges, self._lasts, self._lost_before, self._kept_before = [], [], [], []
        for item in ranges:
            self._append(item)

    def _append(self, item: LostRange) -> None:
        lost = self._lost_count
        self._ranges.append(item)
        self._lasts.append(item.last_seq)
        self._lost_before.append(lost)
        self._kept_before.append(item.first_seq - 1 - lost)

    @property
    def _lost_count(self) -> int:
        if not self._ranges:
            return 0
        first, last, _ = self._ranges[-1]
        return self._lost_before[-1] + last - first + 1

    # Asking.

    def at_or_after(self, seq: int) -> LostRange | None:
        """The first range that has `seq` or a higher seq."""
        place = bisect_left(self._lasts, seq)
        return self._ranges[place] if place < len(self._ranges) else None

    def floor_by_count(self, head_seq: int, cap_records: int) -> int:
        """The highest seq that a cap of so many records evicts: `cap_records` seqs above it, up to `head_seq`, are not
        lost. 0 or less when the cap evicts nothing. Every lost seq must be at or below `head_seq`."""
        # A forgotten range is below the floors, and its seqs count like any other.
        forgotten = self._lost_before[0] if self._ranges else 0
        # Seqs that are not lost are numbered from 1. The floor is the seq with this number.
        number = head_seq - (self._lost_count - forgotten) - cap_records
        if number <= 0:
            return number
        # The ranges before that seq are those with fewer seqs before them.
        place = bisect_left(self._kept_before, number - forgotten)
        lost = self._lost_before[place] if place < len(self._ranges) else self._lost_count
        return number + lost - forgotten
