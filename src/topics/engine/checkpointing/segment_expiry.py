"""When the next segment expires as a whole.

Floors follow the clock only when something looks at a topic. On a quiet server nothing does, so a checkpoint must begin
when a segment has expired, or its files would stay. Finding the time costs nothing while nothing expires: each topic
has one entry in a heap. Owner only.
"""

from heapq import heappop, heappush

from topics.engine.topic.topic import Topic


class SegmentExpiry:
    def __init__(self) -> None:
        # (time, topic name), the earliest first. An entry counts if `_due_ms` has the same time.
        self._heap: list[tuple[int, str]] = []
        # Topic name -> time. The real time may be later: a topic whose time has come is looked at, and noted again.
        self._due_ms: dict[str, int] = {}

    def note(self, topic: Topic) -> None:
        """The segments of the topic changed."""
        due_ms = _due_ms(topic)
        known_ms = self._due_ms.get(topic.name)
        if due_ms is not None and (known_ms is None or due_ms < known_ms):
            self._due_ms[topic.name] = due_ms
            heappush(self._heap, (due_ms, topic.name))

    def is_due(self, now_ms: int) -> bool:
        """Whether the time of a topic has come."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def take_due(self, now_ms: int) -> list[str]:
        """Names of the topics whose time has come. The caller notes them again."""
        names: list[str] = []
        while self.is_due(now_ms):
            due_ms, name = heappop(self._heap)
            if self._due_ms.get(name) == due_ms:
                del self._due_ms[name]
                names.append(name)
        return names


def _due_ms(topic: Topic) -> int | None:
    """The first millisecond in which a segment of the topic can be removed; None when time alone removes none."""
    live = topic.live
    if live.segments.dropped:
        return 0
    if not topic.config.ttl_ms or not live.count:
        return None
    oldest = next((state for state in live.segments.segments if state.last_seq >= live.first_live), None)
    # A record expires when it is older than its TTL.
    return None if oldest is None else oldest.last_ts + topic.config.ttl_ms + 1
