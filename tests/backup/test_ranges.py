"""Ranges of seqs against sets of numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.backup.ranges import Ranges, clip, count, intersect, normal, runs_of, subtract

SEQS = st.frozensets(st.integers(1, 40), max_size=25)


def members(ranges: Ranges) -> set[int]:
    assert all(first <= last for first, last in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    return {seq for first, last in ranges for seq in range(first, last + 1)}


@given(SEQS, SEQS)
def test_ranges_are_the_sets_that_they_stand_for(some: frozenset[int], others: frozenset[int]) -> None:
    left, right = runs_of(sorted(some)), runs_of(sorted(others))
    assert members(left) == some
    assert members(subtract(left, right)) == some - others
    assert members(intersect(left, right)) == some & others
    assert members(normal([*left, *right])) == some | others
    assert count(left) == len(some)


@given(SEQS, st.integers(0, 41), st.integers(0, 41))
def test_a_clipped_set_has_only_seqs_between_the_bounds(some: frozenset[int], first: int, last: int) -> None:
    assert members(clip(runs_of(sorted(some)), first, last)) == {seq for seq in some if first <= seq <= last}
