"""How often records of a topic were copied from topic to topic before they came here."""

from bisect import bisect_right
from collections.abc import Iterable


class HopRuns:
    """[first seq, last seq, hops] runs, ascending. Seqs in none of them were written directly. Owner only.

    Kept only for topics that are a router's dest and a router's source at once. A router begins at the head of its
    source, so nobody asks about what all of them have done; but a start re-runs them from the checkpoint it finds,
    which may be the last but one.
    """

    __slots__ = ("_runs", "_settled_seq")

    def __init__(self, runs: Iterable[tuple[int, int, int]] = ()) -> None:
        self._runs = [(first, last, hops) for first, last, hops in runs]
        # What all routers had done at the last checkpoint.
        self._settled_seq = 0

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, seq: int, hops: int) -> None:
        """A copy at a seq behind all noted before."""
        if self._runs and self._runs[-1][1] == seq - 1 and self._runs[-1][2] == hops:
            self._runs[-1] = (self._runs[-1][0], seq, hops)
        else:
            self._runs.append((seq, seq, hops))

    def of(self, seq: int) -> int:
        place = bisect_right(self._runs, seq, key=_first_seq) - 1
        if place < 0 or self._runs[place][1] < seq:
            return 0
        return self._runs[place][2]

    def within(self, first_seq: int, last_seq: int) -> list[tuple[int, int, int]]:
        """Runs cut to an inclusive range."""
        return [
            (max(first, first_seq), min(last, last_seq), hops)
            for first, last, hops in self._runs
            if first <= last_seq and last >= first_seq
        ]

    def checkpoint(self, settled_seq: int) -> None:
        """All routers have done everything up to `settled_seq`: what they had done by the checkpoint before can go."""
        self._runs = [run for run in self._runs if run[1] > self._settled_seq]
        self._settled_seq = settled_seq

    def forget_from(self, seq: int) -> None:
        """Copies from here on were never committed."""
        self._runs = self.within(0, seq - 1)


def _first_seq(run: tuple[int, int, int]) -> int:
    return run[0]
