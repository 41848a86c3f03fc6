"""Lost ranges against sets of seqs."""

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.topic.lost_ranges import LossReason, LostRange, LostRanges

reasons: st.SearchStrategy[LossReason] = st.sampled_from(("power_loss", "source_trim"))
ranges = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9), reasons), max_size=8)


def lost_by(items: list[tuple[int, int, LossReason]]) -> LostRanges:
    lost = LostRanges()
    for first_seq, width, reason in items:
        lost.add(first_seq, first_seq + width, reason)
    return lost


def seqs_of(lost: LostRanges) -> set[int]:
    return {seq for first_seq, last_seq, _ in lost for seq in range(first_seq, last_seq + 1)}


@given(ranges)
def test_ranges_are_ascending_and_cover_what_was_added(items: list[tuple[int, int, LossReason]]) -> None:
    lost = lost_by(items)
    assert seqs_of(lost) == {seq for first, width, _ in items for seq in range(first, first + width + 1)}
    for before, after in zip(list(lost), list(lost)[1:], strict=False):
        assert before.last_seq < after.first_seq
        assert before.last_seq + 1 < after.first_seq or before.reason != after.reason, "ranges that touch are one"


@given(ranges, st.integers(0, 30), st.integers(1, 80), st.integers(0, 80))
def test_a_cap_keeps_as_many_seqs_that_are_not_lost(
    items: list[tuple[int, int, LossReason]], above: int, cap: int, forgotten_below: int
) -> None:
    """The floor is the highest seq that is not lost and has `cap` seqs above it that are not lost either."""
    lost = lost_by(items)
    head_seq = max(seqs_of(lost), default=0) + above
    lost.forget_below(forgotten_below)
    kept = sorted(set(range(1, head_seq + 1)) - seqs_of(lost))
    evicted = kept[:-cap]
    assert max(lost.floor_by_count(head_seq, cap), 0) == max(evicted, default=0)
    assert lost.copy().floor_by_count(head_seq, cap) == lost.floor_by_count(head_seq, cap)


@given(ranges, st.integers(0, 80))
def test_the_next_range_is_found(items: list[tuple[int, int, LossReason]], seq: int) -> None:
    lost = lost_by(items)
    wanted = [item for item in lost if item.last_seq >= seq]
    assert lost.at_or_after(seq) == (wanted[0] if wanted else None)


def test_a_range_keeps_its_reason_next_to_one_of_another_reason() -> None:
    lost = lost_by([(5, 4, "source_trim"), (10, 5, "power_loss"), (16, 0, "power_loss")])
    assert list(lost) == [LostRange(5, 9, "source_trim"), LostRange(10, 16, "power_loss")]
    assert lost.pairs() == [(5, 9), (10, 16)]
    assert lost.pairs("source_trim") == [(5, 9)]


def test_ranges_below_a_floor_are_forgotten() -> None:
    lost = lost_by([(5, 4, "source_trim"), (20, 5, "power_loss")])
    lost.forget_below(9)
    assert len(lost) == 2
    lost.forget_below(10)
    assert list(lost) == [LostRange(20, 25, "power_loss")]
    lost.forget_below(26)
    assert not lost
