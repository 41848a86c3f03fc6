"""Hops: how often a record was copied from topic to topic before it came into this topic."""

from bisect import bisect_right
from collections.abc import Iterable


class HopRuns:
    """Ascending runs of (first seq, last seq, hops). A seq in no run was written directly. Owner only.

    Only topics that are both the dest of a router and the source of a router have runs. Records that all routers of the
    topic have copied need no hops any more, except for a start: it repeats the copies from the snapshot that it loads,
    and that may be the snapshot before the last.
    """

    __slots__ = ("_runs", "_settled_seq")

    def __init__(self, runs: Iterable[tuple[int, int, int]] = ()) -> None:
        self._runs = [(first, last, hops) for first, last, hops in runs]
        # All routers of the topic had copied up to this seq at the last checkpoint.
        self._settled_seq = 0

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, seq: int, hops: int) -> None:
        """Notes a copy. Its seq is higher than all noted seqs."""
        self.note_range(seq, seq, hops)

    def note_range(self, first_seq: int, last_seq: int, hops: int) -> None:
        """Notes copies with the same hops. Their seqs are higher than all noted seqs."""
        if self._runs and self._runs[-1][1] == first_seq - 1 and self._runs[-1][2] == hops:
            self._runs[-1] = (self._runs[-1][0], last_seq, hops)
        else:
            self._runs.append((first_seq, last_seq, hops))

    def of(self, seq: int) -> int:
        place = bisect_right(self._runs, seq, key=_first_seq) - 1
        if place < 0 or self._runs[place][1] < seq:
            return 0
        return self._runs[place][2]

    def same_to(self, seq: int, last_seq: int) -> int:
        """The last seq, `last_seq` at most, up to which all records from `seq` on have the same hops."""
        place = bisect_right(self._runs, seq, key=_first_seq) - 1
        if place >= 0 and self._runs[place][1] >= seq:
            return min(self._runs[place][1], last_seq)
        return min(self._runs[place + 1][0] - 1, last_seq) if place + 1 < len(self._runs) else last_seq

    def within(self, first_seq: int, last_seq: int) -> list[tuple[int, int, int]]:
        """The runs in an inclusive range, cut to it."""
        return [
            (max(first, first_seq), min(last, last_seq), hops)
            for first, last, hops in self._runs
            if first <= last_seq and last >= first_seq
        ]

    def checkpoint(self, settled_seq: int) -> None:
        """All routers have copied up to `settled_seq`. Forgets the runs that they had copied by the checkpoint
        before."""
        self._runs = [run for run in self._runs if run[1] > self._settled_seq]
        self._settled_seq = settled_seq

    def forget_from(self, seq: int) -> None:
        """Forgets the copies from `seq` on, because they were never committed."""
        self._runs = self.within(0, seq - 1)


def _first_seq(run: tuple[int, int, int]) -> int:
    return run[0]
