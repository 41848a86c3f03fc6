"""Pins: pinned files stay until the pin ends."""

import pytest

from topics.engine.pins import PIN_MS_MAX, PINS_MAX, Pins
from topics.errors import Throttled
from topics.testing.clock import ManualClock


def segments(topic_id: int, *first_seqs: int) -> frozenset[tuple[int, int]]:
    return frozenset((topic_id, first_seq) for first_seq in first_seqs)


def test_a_pin_holds_its_segments_until_its_time_is_over() -> None:
    clock = ManualClock(5000)
    pins = Pins(clock)
    pin = pins.pin(segments(7, 1, 101), 1000)
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
    pins.pin(segments(7, 1), 10)
    pins.pin(segments(7, 1), 100)
    pins.pin(segments(9, 1), 100)
    clock.advance(50)
    assert pins.holds(7, 1)
    pins.forget_topic(7)
    assert not pins.holds(7, 1)
    assert pins.holds(9, 1)


def test_pins_are_bounded_in_time_and_number() -> None:
    clock = ManualClock(0)
    pins = Pins(clock)
    assert pins.pin(segments(1, 1), 10 * PIN_MS_MAX).until_ms == PIN_MS_MAX
    for topic_id in range(2, PINS_MAX + 1):
        pins.pin(segments(topic_id, 1), 1000)
    with pytest.raises(Throttled):
        pins.pin(segments(1, 1, 101), 1000)
    clock.advance(1000)
    pins.pin(segments(1, 1, 101), 1000)


def test_a_pin_of_the_same_segments_is_prolonged_and_never_shortened() -> None:
    clock = ManualClock(0)
    pins = Pins(clock)
    first = pins.pin(segments(1, 1, 101), 1000)
    clock.advance(400)
    assert pins.pin(segments(1, 1, 101), 1000) == (first.id, 1400)
    assert pins.pin(segments(1, 1, 101), 10) == (first.id, 1400)
    assert len(pins) == 1
    assert pins.pin(segments(1, 101), 10).id != first.id


def test_a_pin_of_several_topics_loses_only_the_segments_of_a_removed_one() -> None:
    pins = Pins(ManualClock(0))
    pins.pin(segments(1, 1) | segments(2, 1, 101), 1000)
    pins.forget_topic(2)
    assert pins.holds(1, 1)
    assert not pins.holds(2, 101)
    assert len(pins) == 1
