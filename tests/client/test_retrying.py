"""When a call is tried again: decisions without a clock."""

from __future__ import annotations

from math import inf

import pytest

from topics.client.retrying import PAUSE_S_MAX, LongWait, Patience, Tries, Unreachable, backoff_s
from topics.errors import InvalidRequest, Throttled


def longest(_low: float, high: float) -> float:
    return high


def shortest(low: float, _high: float) -> float:
    return low


def test_the_bound_of_the_pause_doubles_up_to_a_limit_and_the_pause_may_be_none() -> None:
    assert [round(backoff_s(failures, longest), 1) for failures in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert backoff_s(1000, longest) == PAUSE_S_MAX
    assert backoff_s(3, shortest) == 0


def test_retry_after_is_the_least_pause() -> None:
    tries = Tries(Patience(), 0.0, is_repeatable=True, uniform=shortest)
    assert tries.pause_s(Throttled("later"), 0.0, retry_after_s=3.0) == 3.0
    tries = Tries(Patience(), 0.0, is_repeatable=True, uniform=lambda low, high: 7.0)
    assert tries.pause_s(Throttled("later"), 0.0, retry_after_s=3.0) == 7.0


def test_tries_end_with_their_number_and_with_the_deadline() -> None:
    tries = Tries(Patience(retries=2), 0.0, is_repeatable=True, uniform=shortest)
    error = Unreachable("gone")
    assert tries.pause_s(error, 0.0) == tries.pause_s(error, 1.0) == 0.0
    with pytest.raises(Unreachable):
        tries.pause_s(error, 2.0)
    tries = Tries(Patience(deadline_s=10.0, retries=99), 100.0, is_repeatable=True, uniform=shortest)
    assert tries.pause_s(error, 110.0) == 0.0
    with pytest.raises(Unreachable):
        tries.pause_s(error, 110.1)
    with pytest.raises(Unreachable):
        tries.pause_s(error, 105.0, retry_after_s=6.0)


def test_a_wait_for_the_connection_takes_no_longer_than_the_deadline_leaves() -> None:
    limit = Tries(Patience(timeout_s=30.0, deadline_s=60.0), 0.0, is_repeatable=True, wait_ms=20_000).limit
    assert limit.next_s(0.0) == limit.next_s(30.0) == 50.0
    assert limit.next_s(70.0) == 10.0
    for now_s in (80.0, 99.0):
        with pytest.raises(TimeoutError):
            limit.next_s(now_s)
    assert Tries(Patience(30.0, None), 0.0, is_repeatable=True).limit.next_s(1e9) == 30.0


def test_the_deadline_is_that_of_the_whole_call_of_which_a_request_is_a_part() -> None:
    patience = Patience(timeout_s=30.0, deadline_s=60.0)
    assert patience.ends_s(100.0, 5_000) == 165.0
    assert patience.ends_s(100.0, None) == Patience(deadline_s=None).ends_s(100.0) == inf
    assert Tries(patience, 150.0, is_repeatable=True, ends_s=165.0).limit.next_s(150.0) == 15.0
    assert Tries(patience, 150.0, is_repeatable=True, ends_s=inf).limit.ends_s == 210.0


def test_a_throttled_call_ends_at_its_deadline_too() -> None:
    patience = Patience(deadline_s=10.0, retries=0, throttle_wait_s=60.0)
    tries = Tries(patience, 0.0, is_repeatable=True, uniform=shortest)
    assert tries.pause_s(Throttled("later"), 1.0, retry_after_s=9.0) == 9.0
    with pytest.raises(Throttled):
        tries.pause_s(Throttled("later"), 2.0, retry_after_s=9.0)


def test_a_call_that_is_not_safe_is_repeated_only_when_nothing_was_done() -> None:
    tries = Tries(Patience(), 0.0, is_repeatable=False, uniform=shortest)
    assert tries.pause_s(Unreachable("refused"), 0.0, was_sent=False) == 0.0
    assert tries.pause_s(Throttled("later"), 0.0) == 0.0
    with pytest.raises(Unreachable):
        tries.pause_s(Unreachable("lost"), 0.0)
    with pytest.raises(InvalidRequest):
        Tries(Patience(), 0.0, is_repeatable=True).pause_s(InvalidRequest("no"), 0.0)


def test_a_long_wait_is_asked_for_in_pieces() -> None:
    wait = LongWait(70_000, 100.0, 30_000)
    assert [wait.next_ms(now_s) for now_s in (100.0, 130.0, 160.0, 170.0, 171.0)] == [30_000, 30_000, 10_000, 0, 0]
    assert LongWait(None, 0.0, 30_000).next_ms(1e9) == 30_000
    assert LongWait(0, 5.0, 30_000).next_ms(5.0) == 0
