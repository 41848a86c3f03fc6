"""The ready set: topics with pending work, and which of them is served next.

A topic is in the set at most once, however much work it has. Its effective priority decides its band. Inside a band,
topics are served in the order in which they came. Bands take turns by weighted round robin: in each round a band may
serve as many topics as its weight. So every band is served, and a band cannot save turns that it did not use.

The effective priority of a topic rises while it waits. The set looks at the priorities again every 50 ms. A topic that
changes its band becomes the last one of the new band.

Pure: times are passed in. Owner only.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BAND_FLOORS: Final = (750, 500, 250, 0)
"""Lowest effective priority of the bands B4, B3, B2 and B1. A lower priority belongs to B0."""

BAND_WEIGHTS: Final = (8, 4, 2, 1, 1)
"""How many topics of the bands B4, B3, B2, B1 and B0 one round serves."""

B0: Final = len(BAND_FLOORS)
"""Index of the lowest band. The most urgent band, B4, has index 0."""

assert len(BAND_WEIGHTS) == len(BAND_FLOORS) + 1

REVIEW_INTERVAL_MS: Final = 50
# Topics that one review looks at, about 1 µs each. The next review goes on with the topics that are left.
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
        # Per band: topic -> time since which it waits, in the order in which the topics came into the band.
        self._bands: tuple[OrderedDict[str, int], ...] = tuple(OrderedDict() for _ in BAND_WEIGHTS)
        self._band_by_topic: dict[str, int] = {}
        # The band whose turn it is, and how many more topics of it this round may serve.
        self._turn = 0
        self._credit = BAND_WEIGHTS[0]
        # When the last review was, and the topics that are left for the next one.
        self._reviewed_ms: int | None = None
        self._to_review: list[str] = []
        # While True, topics of B0 are not served.
        self.is_b0_paused = False

    def __len__(self) -> int:
        return len(self._band_by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._band_by_topic

    def turn_count(self) -> int:
        """How many topics `pop` can take out now: all topics but the paused ones."""
        return len(self._band_by_topic) - (len(self._bands[B0]) if self.is_b0_paused else 0)

    def paused(self) -> list[str]:
        """Topics that are not served before the pause of B0 ends."""
        return list(self._bands[B0]) if self.is_b0_paused else []

    def band(self, topic: str) -> int | None:
        return self._band_by_topic.get(topic)

    def add(self, topic: str, now_ms: int) -> None:
        """A topic that is already in the set keeps its place."""
        if topic not in self._band_by_topic:
            if not self._band_by_topic:
                self._reviewed_ms = now_ms
            self._enter(topic, band_of(self._priority_of(topic, 0)), now_ms)

    def discard(self, topic: str) -> None:
        band = self._band_by_topic.pop(topic, None)
        if band is not None:
            del self._bands[band][topic]

    def pop(self, now_ms: int) -> str | None:
        """Takes out the topic whose turn it is. None when the set has only paused topics or none."""
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
        """Moves waiting topics to the band of their present priority, if the last review was long enough ago."""
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
