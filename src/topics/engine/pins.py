"""Pins: segment files that another process is about to read. They are neither removed nor moved for a while.

A pin keeps files, not records: retention and deletes still hide records in a pinned file. A pin ends after its time,
with its topic, or with the process. A reader that finds a file gone asks for a new manifest. Owner only.
"""

from typing import Final, NamedTuple

from topics.clock import Clock
from topics.errors import Throttled

PIN_MS_MAX: Final = 3_600_000
PINS_MAX: Final = 1000


class Pin(NamedTuple):
    id: int
    until_ms: int


# (topic id, first seq) of segments.
Segments = frozenset[tuple[int, int]]


class Held(NamedTuple):
    """How many pins hold a segment, and when the last one ends: in how many ms, and as a time."""

    pin_count: int
    left_ms: int
    until_ms: int


class _HeldPin(NamedTuple):
    segments: Segments
    # By the monotonic clock. `Pin.until_ms` is wall time.
    until_ms: int


class Pins:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[int, _HeldPin] = {}
        self._next_id = 1

    def __len__(self) -> int:
        self._forget_expired()
        return len(self._held)

    def pin(self, segments: Segments, pin_ms: int) -> Pin:
        """Keeps these segments for `pin_ms`, at most one hour.

        A pin of exactly the same segments is prolonged: a reader that follows a topic pins its last segment every
        second.
        """
        self._forget_expired()
        pin_ms = min(pin_ms, PIN_MS_MAX)
        until_ms = self._clock.monotonic_ms() + pin_ms
        pin_id = next((pin_id for pin_id, held in self._held.items() if held.segments == segments), None)
        if pin_id is not None:
            until_ms = max(until_ms, self._held[pin_id].until_ms)
        elif len(self._held) >= PINS_MAX:
            raise Throttled(f"{PINS_MAX} pins are held; try again when some have ended", {"pins_max": PINS_MAX})
        else:
            pin_id, self._next_id = self._next_id, self._next_id + 1
        self._held[pin_id] = _HeldPin(segments, until_ms)
        return Pin(pin_id, self._clock.now_ms() + until_ms - self._clock.monotonic_ms())

    def holds(self, topic_id: int, first_seq: int) -> bool:
        return bool(self._held) and bool(self._of(topic_id, first_seq))

    def held(self, topic_id: int, first_seq: int) -> Held:
        """The pins of a segment that is pinned."""
        pins = self._of(topic_id, first_seq)
        left_ms = max(pin.until_ms for pin in pins) - self._clock.monotonic_ms()
        return Held(len(pins), left_ms, self._clock.now_ms() + left_ms)

    def _of(self, topic_id: int, first_seq: int) -> list[_HeldPin]:
        self._forget_expired()
        return [held for held in self._held.values() if (topic_id, first_seq) in held.segments]

    def forget_topic(self, topic_id: int) -> None:
        """The topic was removed, and its files are removed with it."""
        held = {
            pin_id: _HeldPin(frozenset(key for key in pin.segments if key[0] != topic_id), pin.until_ms)
            for pin_id, pin in self._held.items()
        }
        self._held = {pin_id: pin for pin_id, pin in held.items() if pin.segments}

    def _forget_expired(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if any(held.until_ms <= now_ms for held in self._held.values()):
            self._held = {pin_id: held for pin_id, held in self._held.items() if held.until_ms > now_ms}
