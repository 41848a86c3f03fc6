"""The ready set: which topic is served next. The tests pass the time in."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.config import TopicConfig
from topics.engine.scheduler import B0, REVIEWED_MAX, ReadySet, band_of, effective_priority


def ready_set(**priorities: int) -> ReadySet[str]:
    """A ready set of topics with these priorities. All wait since time 0."""

    def priority_of(name: str, waited_ms: int) -> int:
        return effective_priority(TopicConfig(priority=priorities[name]), None, 0, waited_ms)

    ready: ReadySet[str] = ReadySet(priority_of)
    for name in priorities:
        ready.add(name, 0)
    return ready


def popped(ready: ReadySet[str], now_ms: int = 0, count: int = 10_000) -> list[str]:
    names = []
    while len(names) < count and (name := ready.pop(now_ms)) is not None:
        names.append(name)
    return names


@pytest.mark.parametrize(
    ("priority", "band"),
    [(1000, 0), (750, 0), (749, 1), (500, 1), (499, 2), (250, 2), (249, 3), (0, 3), (-1, B0), (-1000, B0)],
)
def test_a_priority_belongs_to_one_band(priority: int, band: int) -> None:
    assert band_of(priority) == band


def test_a_topic_is_in_the_set_at_most_once() -> None:
    ready = ready_set(a=0, b=0)
    ready.add("a", 5)
    assert len(ready) == 2
    assert popped(ready) == ["a", "b"]
    assert ready.pop(0) is None


def test_inside_a_band_first_come_is_first_served() -> None:
    ready = ready_set(c=10, a=200, b=0)
    assert popped(ready) == ["c", "a", "b"]


def test_one_that_was_served_may_come_again_and_stands_last() -> None:
    ready = ready_set(a=0, b=0)
    assert ready.pop(0) == "a"
    ready.add("a", 0)
    assert popped(ready) == ["b", "a"]


def test_one_that_left_is_not_served() -> None:
    ready = ready_set(a=0, b=0)
    ready.discard("a")
    ready.discard("never there")
    assert "a" not in ready
    assert popped(ready) == ["b"]


def test_a_round_serves_every_band_by_its_weight_the_most_urgent_first() -> None:
    bands = {"b4": 900, "b3": 600, "b2": 300, "b1": 100, "b0": -1}
    ready = ready_set(**{f"{band}_{place}": value for band, value in bands.items() for place in range(20)})
    first_round = [name[:2] for name in popped(ready, count=16)]
    assert first_round == ["b4"] * 8 + ["b3"] * 4 + ["b2"] * 2 + ["b1", "b0"]
    assert Counter(name[:2] for name in popped(ready, count=16)) == {"b4": 8, "b3": 4, "b2": 2, "b1": 1, "b0": 1}


def test_a_band_that_never_runs_dry_starves_no_other_band() -> None:
    ready = ready_set(hot=1000, cold=-1000)
    served = []
    for _ in range(20):
        name = ready.pop(0)
        assert name is not None
        served.append(name)
        ready.add("hot", 0)
    assert served.index("cold") < 9


def test_what_a_band_left_over_is_not_saved_up() -> None:
    ready = ready_set(**{f"hot{place}": 1000 for place in range(20)}, cold=0)
    for place in range(1, 20):
        ready.discard(f"hot{place}")
    assert popped(ready) == ["hot0", "cold"]
    for place in range(20):
        ready.add(f"hot{place}", 0)
    ready.add("cold", 0)
    assert popped(ready).index("cold") <= 8


def test_waiting_makes_a_topic_more_urgent() -> None:
    ready = ready_set(patient=0)
    for waited_ms, band in ((2400, 3), (2500, 2), (5000, 1), (7500, 0), (60_000, 0)):
        ready.review(waited_ms)
        assert ready.band("patient") == band


def test_waiting_adds_no_more_than_a_thousand() -> None:
    ready = ready_set(never=-1000, almost=-999)
    ready.review(3_600_000)
    assert (ready.band("never"), ready.band("almost")) == (3, 3)


def test_how_long_somebody_waited_is_looked_at_every_50_ms() -> None:
    ready = ready_set(a=249)
    ready.review(49)
    assert ready.band("a") == 3
    ready.review(50)
    assert ready.band("a") == 2


def test_one_that_became_urgent_stands_behind_those_in_its_new_band() -> None:
    ready = ready_set(old=745, urgent=800)
    ready.review(50)
    assert ready.band("old") == ready.band("urgent") == 0
    assert popped(ready, 50) == ["urgent", "old"]


def test_a_large_set_is_looked_at_in_parts() -> None:
    names = [f"t{place}" for place in range(REVIEWED_MAX + 1)]
    ready = ready_set(**dict.fromkeys(names, 249))
    ready.review(50)
    assert [ready.band(names[0]), ready.band(names[-1])] == [2, 3]
    ready.review(100)
    assert ready.band(names[-1]) == 2


def test_a_paused_b0_waits_and_everybody_else_goes_on() -> None:
    ready = ready_set(low=-5, high=5)
    ready.is_b0_paused = True
    assert popped(ready) == ["high"]
    assert ready.turn_count() == 0
    assert len(ready) == 1
    ready.is_b0_paused = False
    assert ready.turn_count() == 1
    assert popped(ready) == ["low"]


def test_waiting_lifts_no_topic_out_of_a_paused_b0() -> None:
    ready = ready_set(low=-5, high=5)
    ready.is_b0_paused = True
    assert popped(ready, 60_000) == ["high"]
    assert ready.paused() == ["low"]
    ready.is_b0_paused = False
    assert popped(ready, 60_000) == ["low"]


def test_a_topic_that_left_b0_by_waiting_is_paused_all_the_same() -> None:
    ready = ready_set(low=-5, lower=-900, high=5)
    ready.review(5000)
    assert ready.band("low") != B0
    ready.is_b0_paused = True
    assert popped(ready, 5000) == ["high"]
    assert ready.turn_count() == 0
    ready.is_b0_paused = False
    assert set(popped(ready, 5000)) == {"low", "lower"}


def test_a_topic_whose_own_priority_rises_leaves_the_paused_b0() -> None:
    priorities = {"a": -5}
    ready: ReadySet[str] = ReadySet(lambda name, waited_ms: priorities[name] + waited_ms // 10)
    ready.add("a", 0)
    ready.is_b0_paused = True
    assert ready.pop(50) is None
    priorities["a"] = 5
    assert ready.pop(100) == "a"


def test_a_lowered_set_has_every_topic_one_band_lower() -> None:
    ready = ready_set(b4=900, b1=0, b0=-500)
    ready.lower(is_lowered=True)
    ready.review(50)
    assert [ready.band(name) for name in ("b4", "b1", "b0")] == [1, B0, B0]
    ready.lower(is_lowered=False)
    ready.review(100)
    assert [ready.band(name) for name in ("b4", "b1", "b0")] == [0, 3, B0]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3000), st.booleans()), max_size=60))
def test_whatever_comes_is_served_once_for_each_time_it_came_in(steps: list[tuple[str, int, bool]]) -> None:
    priorities = {name: place * 250 - 750 for place, name in enumerate("abcdefgh")}
    ready: ReadySet[str] = ReadySet(lambda name, waited_ms: priorities[name] + waited_ms // 10)
    now_ms = 0
    waiting: set[str] = set()
    for name, passed_ms, pops in steps:
        now_ms += passed_ms
        if pops:
            served = ready.pop(now_ms)
            assert (served is None) == (not waiting)
            waiting.discard(served or "")
        else:
            ready.add(name, now_ms)
            waiting.add(name)
        assert len(ready) == len(waiting)
    assert set(popped(ready, now_ms)) == waiting


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
