from typing import Any

import pytest

from topics.engine.config import TopicConfig
from topics.engine.priority import effective_priority

NOW_MS = 1_790_000_000_000


def priority(idle_ms: int | None = None, waited_ms: int = 0, **config: Any) -> int:
    last_read_ts = None if idle_ms is None else NOW_MS - idle_ms
    return effective_priority(TopicConfig(**config), last_read_ts, NOW_MS, waited_ms)


@pytest.mark.parametrize(
    ("idle_ms", "expected"),
    [(0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0), (300_000, 0), (10**9, 0)],
)
def test_recency_halves_every_30_seconds_and_ends_after_5_minutes(idle_ms: int, expected: int) -> None:
    assert priority(idle_ms) == expected


def test_a_topic_that_nobody_has_read_has_none() -> None:
    assert priority(None) == 0


@pytest.mark.parametrize(("given", "expected"), [(7, 7), (-7, -7), (99_999, 1000), (-99_999, -1000), (0, 0)])
def test_a_priority_that_is_set_is_clamped_and_leaves_no_room_for_recency(given: int, expected: int) -> None:
    assert priority(0, priority=given) == expected


def test_recency_can_be_switched_off() -> None:
    assert priority(0, auto_priority=False) == 0


@pytest.mark.parametrize(("waited_ms", "expected"), [(0, 0), (100, 10), (10_000, 1000), (99_999, 1000)])
def test_work_that_waits_grows_more_urgent_up_to_a_bound(waited_ms: int, expected: int) -> None:
    assert priority(None, waited_ms) == expected


@pytest.mark.parametrize(("manual", "waited_ms", "expected"), [(0, 5, 1), (2, 5, 3), (-3, 5, -3), (-3, 4, -3)])
def test_a_half_is_rounded_away_from_zero(manual: int, waited_ms: int, expected: int) -> None:
    assert priority(None, waited_ms, priority=manual) == expected


def test_a_clock_that_was_set_back_gives_no_more_than_a_read_right_now() -> None:
    assert priority(-60_000) == 500
