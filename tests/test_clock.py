"""The guard of `SystemClock` against one large step forward (F03), on hands that the test moves."""

import logging
import time

import pytest

from topics.clock import FORWARD_STEP_BELIEVED_AFTER_MS, FORWARD_STEP_MS_MAX, SystemClock

START_MS = 1_700_000_000_000
TEN_YEARS_MS = 10 * 365 * 86_400_000


class Hands:
    """The wall clock, which anybody may set, and the boot clock, which only time moves."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.boot_ms = 50_000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(time, "time_ns", lambda: hands.wall_ms * 1_000_000 + 999_999)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: hands.boot_ms * 1_000_000 + 999_999)
    return hands


def test_time_passes_as_on_the_wall(hands: Hands) -> None:
    clock = SystemClock()
    assert clock.now_ms() == START_MS
    hands.pass_ms(1)
    assert clock.now_ms() == START_MS + 1


def test_a_long_wait_is_not_a_step(hands: Hands) -> None:
    clock = SystemClock()
    hands.pass_ms(TEN_YEARS_MS)
    assert clock.now_ms() == START_MS + TEN_YEARS_MS


def test_a_step_of_an_hour_is_believed_at_once(hands: Hands) -> None:
    clock = SystemClock()
    hands.wall_ms += FORWARD_STEP_MS_MAX
    assert clock.now_ms() == START_MS + FORWARD_STEP_MS_MAX


def test_small_steps_add_up(hands: Hands) -> None:
    clock = SystemClock()
    for _ in range(5):
        hands.wall_ms += FORWARD_STEP_MS_MAX
        assert clock.now_ms() == hands.wall_ms


@pytest.mark.parametrize("step_ms", [1, FORWARD_STEP_MS_MAX, TEN_YEARS_MS])
def test_a_step_back_is_passed_on(hands: Hands, step_ms: int) -> None:
    clock = SystemClock()
    hands.wall_ms -= step_ms
    assert clock.now_ms() == START_MS - step_ms


@pytest.mark.parametrize("step_ms", [FORWARD_STEP_MS_MAX + 1, TEN_YEARS_MS])
def test_a_large_step_is_ignored_while_time_goes_on(hands: Hands, step_ms: int) -> None:
    clock = SystemClock()
    hands.wall_ms += step_ms
    assert clock.now_ms() == START_MS
    hands.pass_ms(FORWARD_STEP_BELIEVED_AFTER_MS - 1)
    assert clock.now_ms() == START_MS + FORWARD_STEP_BELIEVED_AFTER_MS - 1


def test_a_large_step_that_lasted_ten_minutes_is_believed(hands: Hands) -> None:
    clock = SystemClock()
    hands.wall_ms += TEN_YEARS_MS
    clock.now_ms()
    hands.pass_ms(FORWARD_STEP_BELIEVED_AFTER_MS)
    assert clock.now_ms() == START_MS + TEN_YEARS_MS + FORWARD_STEP_BELIEVED_AFTER_MS
    hands.pass_ms(1)
    assert clock.now_ms() == hands.wall_ms


def test_a_spike_that_is_corrected_leaves_no_trace(hands: Hands) -> None:
    clock = SystemClock()
    hands.wall_ms += TEN_YEARS_MS
    clock.now_ms()
    hands.pass_ms(FORWARD_STEP_BELIEVED_AFTER_MS - 1)
    hands.wall_ms -= TEN_YEARS_MS
    assert clock.now_ms() == hands.wall_ms


def test_the_ten_minutes_start_anew_with_each_spike(hands: Hands) -> None:
    clock = SystemClock()
    for _ in range(3):
        hands.wall_ms += TEN_YEARS_MS
        expected_ms = hands.wall_ms - TEN_YEARS_MS
        assert clock.now_ms() == expected_ms
        hands.pass_ms(FORWARD_STEP_BELIEVED_AFTER_MS - 1)
        assert clock.now_ms() == expected_ms + FORWARD_STEP_BELIEVED_AFTER_MS - 1
        hands.wall_ms -= TEN_YEARS_MS
        assert clock.now_ms() == hands.wall_ms


def test_a_large_step_is_reported_once(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    hands.wall_ms += TEN_YEARS_MS
    with caplog.at_level(logging.WARNING):
        clock.now_ms()
        clock.now_ms()
    assert [record.getMessage() for record in caplog.records] == [
        f"the wall clock jumped {TEN_YEARS_MS} ms ahead; ignored for ten minutes"
    ]


def test_the_monotonic_hand_knows_no_steps(hands: Hands) -> None:
    clock = SystemClock()
    assert clock.monotonic_ms() == 50_000
    hands.wall_ms += TEN_YEARS_MS
    assert clock.monotonic_ms() == 50_000
    hands.pass_ms(7)
    assert clock.monotonic_ms() == 50_007
