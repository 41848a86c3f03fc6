import pytest

from topics.clock import Clock
from topics.testing.clock import ManualClock


def test_a_manual_clock_stands_still() -> None:
    clock: Clock = ManualClock(now_ms=5)
    assert [clock.now_ms() for _ in range(3)] == [5, 5, 5]
    assert clock.monotonic_ms() == clock.monotonic_ms()


def test_advance_moves_both_hands() -> None:
    clock = ManualClock(now_ms=5, monotonic_ms=100)
    clock.advance(20)
    assert (clock.now_ms(), clock.monotonic_ms()) == (25, 120)


@pytest.mark.parametrize("now_ms", [0, 9])
def test_set_steps_the_wall_clock_alone(now_ms: int) -> None:
    clock = ManualClock(now_ms=5, monotonic_ms=100)
    clock.set(now_ms)
    assert (clock.now_ms(), clock.monotonic_ms()) == (now_ms, 100)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)
