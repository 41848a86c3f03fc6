"""Brings the columns of cold segments: times and sizes of single records, which retention needs inside a segment.

A topic asks for them where a floor lies in a cold segment, or should move into one (`SegmentSet`). They are read on
another thread, and the topic goes on with them: its numbers become exact, records expire, and a byte cap evicts what it
waited for, with a frame of its own. A bounded number of segments keep their columns. When the tier does not answer, the
next call of the topic asks again. Owner only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import partial

from topics.engine.core import Core
from topics.engine.topic.topic import Topic
from topics.errors import TopicsError
from topics.formats import control, wal_frame
from topics.formats.snapshot import SegmentState
from topics.formats.wal_frame import FrameType
from topics.limits import COLD_COLUMNS_MAX, COLD_COLUMNS_RETRY_MS
from topics.storage.segments.reader import SegmentColumns

logger = logging.getLogger(__name__)

_Key = tuple[int, int]
"""(topic id, first seq)."""


class ColdColumns:
    def __init__(self, core: Core) -> None:
        self._core = core
        # Segments whose columns are wanted, and are not asked for yet.
        self._wanted: dict[_Key, None] = {}
        self._asked: set[_Key] = set()
        # Segments that have their columns, the oldest first.
        self._kept: OrderedDict[_Key, None] = OrderedDict()
        # No columns are asked for before this time: the tier did not answer.
        self._retry_at_ms = 0

    def begin(self) -> None:
        """Called when the start is over: asks for the columns that the start did without."""
        self._core.cache.want_columns = self.want
        for topic in self._core.topics.values():
            for first_seq in topic.live.segments.inexact:
                self.want(topic.id, first_seq)

    def want(self, topic_id: int, first_seq: int) -> None:
        """Called in the middle of a change of the topic, so the read begins later."""
        key = (topic_id, first_seq)
        if key in self._asked or key in self._wanted or self._core.clock.monotonic_ms() < self._retry_at_ms:
            return
        if not self._wanted:
            self._core.call_after_group(self._ask)
        self._wanted[key] = None

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for key in wanted:
            found = self._find(key)
            if found is not None:
                topic, state = found
                self._asked.add(key)
                version = topic.live.segments.version(state.first_seq)
                work = partial(self._core.cache.cold_columns, topic.id, state)
                self._core.cold_pool.run(topic.id, work, partial(self._came, key, version))

    def _find(self, key: _Key) -> tuple[Topic, SegmentState] | None:
        topic_id, first_seq = key
        for topic in self._core.topics.values():
            if topic.id == topic_id:
                state = topic.live.segments.segment_of(first_seq)
                return (topic, state) if state is not None and state.tier == "cold" else None
        return None

    def _came(self, key: _Key, version: int, result: SegmentColumns | BaseException) -> None:
        self._asked.discard(key)
        found = self._find(key)
        if found is None:
            return
        topic, state = found
        if isinstance(result, BaseException):
            logger.warning('numbers of topic "%s" wait for the cold tier: %s', topic.name, result)
            self._retry_at_ms = self._core.clock.monotonic_ms() + COLD_COLUMNS_RETRY_MS
            return
        if topic.live.segments.version(state.first_seq) != version:
            # Delete bytes were set in the file meanwhile.
            self.want(*key)
            return
        topic.use_cold_columns(state, result, self._core.now_ms())
        self._evict(topic)
        self._kept[key] = None
        self._kept.move_to_end(key)
        while len(self._kept) > COLD_COLUMNS_MAX:
            oldest, _ = self._kept.popitem(last=False)
            self._release(oldest)

    def _evict(self, topic: Topic) -> None:
        """Raises the floor of a byte cap that waited for the columns. A start could not find the floor again without
        them, so it is logged first."""
        floor = topic.overdue_cap_floor()
        if not floor:
            return
        if topic.config.durability == "ephemeral":
            topic.evict(floor)
            return
        data = control.encode(control.Evict(floor, topic.live.ttl_floor))
        # The frame is no write: the time of the last write stays.
        frame = wal_frame.encode_control(FrameType.EVICT, topic.id, topic.writes.last_ts, data)
        durable = topic.config.durability == "fsync"
        try:
            self._core.log(topic, frame, partial(self._evicted, topic, floor), durable=durable)
        except TopicsError as error:
            self._evicted(topic, floor, error)

    def _evicted(self, topic: Topic, floor: int, error: TopicsError | None) -> None:
        """While a group completes."""
        if error is None:
            topic.evict(floor)
        else:
            logger.warning('a byte cap of topic "%s" waits for the next write: %s', topic.name, error)

    def _release(self, key: _Key) -> None:
        found = self._find(key)
        if found is not None:
            topic, state = found
            topic.live.segments.release_cold_columns(state.first_seq)
