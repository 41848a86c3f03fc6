"""The ready set: topics with pending work, and whose turn it is (log-semantics §12).

Each topic is in it at most once, however much it has to tell. Its band follows from its effective priority; inside a
band first come is first served. Bands take turns by deficit weighted round robin, where serving one topic costs one:
a round gives each band as many as its weight, so none starves, and what a band leaves over is not saved up.

Waiting makes a topic more urgent. That is looked at every 50 ms; one that moves stands last in its new band.

Pure: times are passed in. Owner only.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BAND_FLOORS: Final = (750, 500, 250, 0)
"""Lowest effective priority of B4 … B1. Whatever is below all of them is B0."""

BAND_WEIGHTS: Final = (8, 4, 2, 1, 1)
"""How many topics of B4 … B0 one round serves."""

B0: Final = len(BAND_FLOORS)
"""Place of the lowest band: bands are kept with the most urgent one first."""

assert len(BAND_WEIGHTS) == len(BAND_FLOORS) + 1

REVIEW_INTERVAL_MS: Final = 50
# One review looks at no more than these, and the next one goes on behind them: a look takes about 1 µs.
REVIEWED_MAX: Final = 2000

PriorityOf = Callable[[str, int], int]
"""Effective priority of a topic that has waited this many milliseconds."""


def band_of(priority: int) -> int:
    for band, floor in enumerate(BAND_FLOORS):
        if priority >= floor:
            return band
    return B0


class ReadySet:
    def __init__(self, priority_of: PriorityOf) -> None:
        self._priority_of = priority_of
        # Topic -> since when it waits, in the order in which they came into the band.
        self._bands: tuple[OrderedDict[str, int], ...] = tuple(OrderedDict() for _ in BAND_WEIGHTS)
        self._band_by_topic: dict[str, int] = {}
        # The band whose turn it is, and how many more it may have of this round.
        self._turn = 0
        self._credit = BAND_WEIGHTS[0]
        # When the last review began, and whom it has not come to yet.
        self._reviewed_ms: int | None = None
        self._to_review: list[str] = []
        # Under pressure B0 is not served.
        self.is_b0_paused = False

    def __len__(self) -> int:
        return len(self._band_by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._band_by_topic

    def turn_count(self) -> int:
        """How many `pop` would find one after the other: all but those that are paused."""
        return len(self._band_by_topic) - (len(self._bands[B0]) if self.is_b0_paused else 0)

    def paused(self) -> list[str]:
        """Who waits for the pause to end."""
        return list(self._bands[B0]) if self.is_b0_paused else []

    def band(self, topic: str) -> int | None:
        return self._band_by_topic.get(topic)

    def add(self, topic: str, now_ms: int) -> None:
        """One that is in the set already stays where it is."""
        if topic not in self._band_by_topic:
            if not self._band_by_topic:
                self._reviewed_ms = now_ms
            self._enter(topic, band_of(self._priority_of(topic, 0)), now_ms)

    def discard(self, topic: str) -> None:
        band = self._band_by_topic.pop(topic, None)
        if band is not None:
            del self._bands[band][topic]

    def pop(self, now_ms: int) -> str | None:
        """Takes out whose turn it is; None when nobody has one."""
        self.review(now_ms)
        if not self.turn_count():
            return None
        while True:
            waiting = self._bands[self._turn]
            if waiting and self._credit and not (self.is_b0_paused and self._turn == B0):
                self._credit -= 1
                topic, _ = waiting.popitem(last=False)
                del self._band_by_topic[topic]
                return topic
            self._turn = (self._turn + 1) % len(BAND_WEIGHTS)
            self._credit = BAND_WEIGHTS[self._turn]

    def review(self, now_ms: int) -> None:
        """Looks again how urgent those are who wait, if the last look is long enough ago."""
        if self._reviewed_ms is None or now_ms - self._reviewed_ms < REVIEW_INTERVAL_MS:
            return
        self._reviewed_ms = now_ms
        if not self._to_review:
            self._to_review = list(reversed(self._band_by_topic))
        reviewed, self._to_review = self._to_review[-REVIEWED_MAX:], self._to_review[:-REVIEWED_MAX]
        for topic in reversed(reviewed):
            old = self._band_by_topic.get(topic)
            if old is None:
                continue
            since_ms = self._bands[old][topic]
            new = band_of(self._priority_of(topic, max(now_ms - since_ms, 0)))
            if new != old:
                del self._bands[old][topic]
                self._enter(topic, new, since_ms)

    def _enter(self, topic: str, band: int, since_ms: int) -> None:
        self._bands[band][topic] = since_ms
        self._band_by_topic[topic] = band
