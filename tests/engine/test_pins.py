"""Pins: pinned files stay until the pin ends."""

import pytest

from topics.engine.pins import PIN_MS_MAX, PINS_MAX, Pins
from topics.errors import Throttled
from topics.testing.clock import ManualClock


def test_a_pin_holds_its_segments_until_its_time_is_over() -> None:
    clock = ManualClock(5000)
    pins = Pins(clock)
    pin = pins.pin(7, frozenset((1, 101)), 1000)
    assert pin.until_ms == 6000
    assert [pins.holds(7, first_seq) for first_seq in (1, 101, 201)] == [True, True, False]
    assert not pins.holds(8, 1)
    clock.advance(999)
    assert pins.holds(7, 1)
    clock.advance(1)
    assert not pins.holds(7, 1)
    assert len(pins) == 0


def test_the_longest_of_two_pins_counts_and_a_topic_takes_its_pins_along() -> None:
    clock = ManualClock()
    pins = Pins(clock)
    pins.pin(7, frozenset((1,)), 10)
    pins.pin(7, frozenset((1,)), 100)
    pins.pin(9, frozenset((1,)), 100)
    clock.advance(50)
    assert pins.holds(7, 1)
    pins.forget_topic(7)
    assert not pins.holds(7, 1)
    assert pins.holds(9, 1)


def test_pins_are_bounded_in_time_and_number() -> None:
    clock = ManualClock(0)
    pins = Pins(clock)
    assert pins.pin(1, frozenset((1,)), 10 * PIN_MS_MAX).until_ms == PIN_MS_MAX
    for topic_id in range(2, PINS_MAX + 1):
        pins.pin(topic_id, frozenset((1,)), 1000)
    with pytest.raises(Throttled):
        pins.pin(1, frozenset((1, 101)), 1000)
    clock.advance(1000)
    pins.pin(1, frozenset((1, 101)), 1000)


def test_a_pin_of_the_same_segments_is_prolonged_and_never_shortened() -> None:
    clock = ManualClock(0)
    pins = Pins(clock)
    first = pins.pin(1, frozenset((1, 101)), 1000)
    clock.advance(400)
    assert pins.pin(1, frozenset((1, 101)), 1000) == (first.id, 1400)
    assert pins.pin(1, frozenset((1, 101)), 10) == (first.id, 1400)
    assert len(pins) == 1
    assert pins.pin(1, frozenset((101,)), 10).id != first.id
