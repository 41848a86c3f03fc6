"""Sets of seqs as ranges: [first, last] pairs, both included, ascending, not overlapping. Pure."""

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Ranges = list[Range]


def runs_of(seqs: Iterable[int]) -> Ranges:
    """The ranges of ascending seqs."""
    found: Ranges = []
    first = last = None
    for seq in seqs:
        if first is None or last is None:
            first = last = seq
        elif seq == last + 1:
            last = seq
        else:
            found.append((first, last))
            first = last = seq
    if first is not None and last is not None:
        found.append((first, last))
    return found


def normal(ranges: Iterable[Range]) -> Ranges:
    """The same set, with ranges that touch or overlap joined."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def clip(ranges: Iterable[Range], first: int, last: int) -> Ranges:
    """The part of the set from `first` to `last`."""
    clipped = ((max(low, first), min(high, last)) for low, high in ranges)
    return [(low, high) for low, high in clipped if low <= high]


def subtract(ranges: Sequence[Range], removed: Sequence[Range]) -> Ranges:
    """The seqs of the first set that are not in the second."""
    found: Ranges = []
    place = 0
    for first, last in ranges:
        # A removed range may reach into the next range too, so it is not passed over for good.
        while place < len(removed) and removed[place][1] < first:
            place += 1
        at = place
        while at < len(removed) and removed[at][0] <= last:
            if removed[at][0] > first:
                found.append((first, removed[at][0] - 1))
            first = removed[at][1] + 1
            at += 1
        if first <= last:
            found.append((first, last))
    return found


def intersect(ranges: Sequence[Range], others: Sequence[Range]) -> Ranges:
    """The seqs that are in both sets."""
    return subtract(ranges, subtract(ranges, others))


def count(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
