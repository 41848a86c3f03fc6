"""The ready set: topics with pending work, and which of them is served next. Pushes have one, and routers have one.

A topic is in the set at most once, however much work it has. Its effective priority decides its band. Inside a band,
topics are served in the order in which they came. Bands take turns by weighted round robin: in each round a band may
serve as many topics as its weight. So every band is served, and a band cannot save turns that it did not use.

The effective priority starts from the priority in the config, clamped to -1000 and 1000. A topic without one gets up
to 500 when it was read in the last five minutes. Up to 1000 are added for the time that the work has waited, so the set
looks at the priorities again every 50 ms. A topic that changes its band becomes the last one of the new band. The
priority only says which topic is served first. It changes no seq, no retention and no answer to a reader.

Under pressure B0 can be paused. Then a topic that belongs to B0 without the time that it has waited is not served,
however long it waits. Or all topics can be put one band lower.

Pure: times are passed in. Owner only.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from topics.engine.config import TopicConfig

T = TypeVar("T", bound=Hashable)

PRIORITY_CLAMP: Final = 1000
AUTO_PRIORITY: Final = 500
AUTO_HALF_LIFE_MS: Final = 30_000
AUTO_IDLE_MS_MAX: Final = 300_000
AGE_PER_MS: Final = 0.1
AGE_MS_MAX: Final = 10_000

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

PriorityOf = Callable[[T, int], int]
"""Effective priority of a topic that has waited this many milliseconds."""


def band_of(priority: int) -> int:
    for band, floor in enumerate(BAND_FLOORS):
        if priority >= floor:
            return band
    return B0


class ReadySet(Generic[T]):
    """A set of topics: the objects themselves, or their names."""

    def __init__(self, priority_of: PriorityOf[T]) -> None:
        self._priority_of = priority_of
        # Per band: topic -> time since which it waits, in the order in which the topics came into the band.
        self._bands: tuple[OrderedDict[T, int], ...] = tuple(OrderedDict() for _ in BAND_WEIGHTS)
        self._band_by_topic: dict[T, int] = {}
        # The band whose turn it is, and how many more topics of it this round may serve.
        self._turn = 0
        self._credit = BAND_WEIGHTS[0]
        # When the last review was, and the topics that are left for the next one.
        self._reviewed_ms: int | None = None
        self._to_review: list[T] = []
        # While True, topics of B0 are not served. Waiting does not lift them out of B0.
        self.is_b0_paused = False
        # While True, every topic is one band lower.
        self.is_lowered = False

    def __len__(self) -> int:
        return len(self._band_by_topic)

    def __contains__(self, topic: T) -> bool:
        return topic in self._band_by_topic

    def turn_count(self) -> int:
        """How many topics `pop` can take out now: all topics but the paused ones."""
        return len(self._band_by_topic) - (len(self._bands[B0]) if self.is_b0_paused else 0)

    def paused(self) -> list[T]:
        """Topics that are not served before the pause of B0 ends."""
        return list(self._bands[B0]) if self.is_b0_paused else []

    def band(self, topic: T) -> int | None:
        return self._band_by_topic.get(topic)

    def add(self, topic: T, now_ms: int) -> None:
        """A topic that is already in the set keeps its place."""
        if topic not in self._band_by_topic:
            if not self._band_by_topic:
                self._reviewed_ms = now_ms
            self._enter(topic, self._band(topic, 0), now_ms)

    def lower(self, *, is_lowered: bool) -> None:
        """Puts every topic one band lower, or back: new ones now, waiting ones with the next review."""
        self.is_lowered = is_lowered

    def discard(self, topic: T) -> None:
        band = self._band_by_topic.pop(topic, None)
        if band is not None:
            del self._bands[band][topic]

    def pop(self, now_ms: int) -> T | None:
        """Takes out the topic whose turn it is. None when the set has only paused topics or none."""
        self.review(now_ms)
        if not self.turn_count():
            return None
        while True:
            waiting = self._bands[self._turn]
            if waiting and self._credit and not (self.is_b0_paused and self._turn == B0):
                topic, since_ms = waiting.popitem(last=False)
                if self._is_paused(topic):
                    # The time that it waited lifted it out of B0 before the pause began.
                    self._enter(topic, B0, since_ms)
                    if not self.turn_count():
                        return None
                    continue
                self._credit -= 1
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
            new = self._band(topic, max(now_ms - since_ms, 0))
            if new != old:
                del self._bands[old][topic]
                self._enter(topic, new, since_ms)

    def _band(self, topic: T, waited_ms: int) -> int:
        if self._is_paused(topic):
            return B0
        band = band_of(self._priority_of(topic, waited_ms))
        return min(band + 1, B0) if self.is_lowered else band

    def _is_paused(self, topic: T) -> bool:
        """Whether the topic belongs to B0 without the time that it has waited, and B0 is paused."""
        return self.is_b0_paused and band_of(self._priority_of(topic, 0)) == B0

    def _enter(self, topic: T, band: int, since_ms: int) -> None:
        self._bands[band][topic] = since_ms
        self._band_by_topic[topic] = band


def effective_priority(topic_config: TopicConfig, last_read_ts: int | None, now_ms: int, waited_ms: int = 0) -> int:
    """Configured priority, or else a bonus for a recent read; plus a bonus for the time waited."""
    manual = min(max(topic_config.priority or 0, -PRIORITY_CLAMP), PRIORITY_CLAMP)
    age = AGE_PER_MS * min(waited_ms, AGE_MS_MAX)
    return _rounded(manual + _auto(topic_config, last_read_ts, now_ms) + age)


def _auto(config: TopicConfig, last_read_ts: int | None, now_ms: int) -> float:
    if config.priority is not None or not config.auto_priority or last_read_ts is None:
        return 0.0
    # After the clock was set back, the last read may lie in the future. It counts as a read of now.
    idle_ms = max(now_ms - last_read_ts, 0)
    if idle_ms >= AUTO_IDLE_MS_MAX:
        return 0.0
    decayed: float = AUTO_PRIORITY * 2.0 ** (-idle_ms / AUTO_HALF_LIFE_MS)
    return decayed


def _rounded(value: float) -> int:
    """Rounds half away from zero. `round` would round half to the even neighbour."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
