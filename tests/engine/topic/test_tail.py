from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.topic.tail import COMPACT_SLOTS, SLOT_OVERHEAD_BYTES, Tail


@pytest.fixture
def tail() -> Tail:
    """Seqs 5 to 9 with sizes 10 to 50, times 100, 100, 200, 300, 300."""
    tail = Tail(5)
    tail.extend([b"5", b"6"], [10, 20], 100)
    tail.extend([b"7"], [30], 200)
    tail.extend([b"8", b"9"], [40, 50], 300)
    return tail


def test_slots_are_found_by_seq(tail: Tail) -> None:
    assert (tail.first_seq, tail.end_seq) == (5, 10)
    assert tail.read(6, 8) == [b"6", b"7", b"8"]
    assert list(tail.sizes(6, 8)) == [20, 30, 40]
    assert list(tail.live_sizes(8)) == [(8, 40), (9, 50)]
    assert list(tail.live_sizes(1)) == [(5, 10), (6, 20), (7, 30), (8, 40), (9, 50)]


def test_an_empty_tail_answers_nothing() -> None:
    tail = Tail(3)
    assert (tail.first_seq, tail.end_seq) == (3, 3)
    assert tail.next_live(3) is None
    assert tail.live_numbers(1, 100) == (0, 0)
    assert tail.expired_last_seq(1000) == 2
    tail.forget_below(100)
    assert tail.end_seq == 3


def test_a_record_dies_once(tail: Tail) -> None:
    assert tail.kill(7) == 30
    assert tail.kill(7) is None
    assert tail.read(6, 8) == [b"6", None, b"8"]
    assert tail.next_live(7) == 8
    assert tail.live_numbers(5, 9) == (4, 120)
    assert tail.dead_marks(5, 9) == b"\0\0\1\0\0"
    assert tail.dead_marks(8, 9) == b"\0\0"


@pytest.mark.parametrize(("cutoff_ts", "last_seq"), [(100, 4), (101, 6), (200, 6), (201, 7), (300, 7), (301, 9)])
def test_a_record_of_exactly_the_cutoff_is_not_expired_invariant_18(tail: Tail, cutoff_ts: int, last_seq: int) -> None:
    assert tail.expired_last_seq(cutoff_ts) == last_seq


def test_what_is_forgotten_leaves_the_rest_as_it_was(tail: Tail) -> None:
    tail.kill(6)
    tail.forget_below(8)
    assert (tail.first_seq, tail.end_seq, tail.dead_count) == (8, 10, 0)
    assert tail.read(8, 9) == [b"8", b"9"]
    assert tail.expired_last_seq(301) == 9
    tail.forget_below(8)
    assert tail.first_seq == 8
    tail.forget_below(100)
    assert (tail.first_seq, tail.end_seq) == (10, 10)
    tail.extend([b"10"], [1], 400)
    assert tail.read(10, 10) == [b"10"]


def test_the_cache_keeps_the_newest_run_that_fits(tail: Tail) -> None:
    both = 40 + 50 + 2 * SLOT_OVERHEAD_BYTES
    assert tail.cache_from(9, both) == 8
    assert tail.cache_from(9, both - 1) == 9
    assert tail.cache_from(9, 0) == 10
    assert tail.cache_from(8, 10**6) == 5


@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_compaction_changes_nothing_that_is_seen(counts: list[int], random: Iterator[int]) -> None:
    """Batches are added and the front is dropped, many times. The other slots keep their seqs."""
    tail, model, next_seq = Tail(1), {}, 1
    for ts, count in enumerate(counts):
        bodies = [b"%d" % seq for seq in range(next_seq, next_seq + count)]
        tail.extend(bodies, range(next_seq, next_seq + count), ts)
        model.update(zip(range(next_seq, next_seq + count), bodies, strict=True))
        next_seq += count
        keep_from = random.randint(min(model), next_seq)  # type: ignore[attr-defined]
        gone = [seq for seq in model if seq < keep_from]
        assert tail.live_numbers(0, keep_from - 1) == (len(gone), sum(gone))
        tail.forget_below(keep_from)
        for seq in gone:
            del model[seq]
        assert (tail.first_seq, tail.end_seq) == (keep_from, next_seq)
        assert tail.read(keep_from, next_seq - 1) == list(model.values())
        assert len(tail._bodies) < 2 * len(model) + COMPACT_SLOTS + 1
        if not model:
            model[next_seq] = b"%d" % next_seq
            tail.extend([b"%d" % next_seq], [next_seq], ts)
            next_seq += 1
