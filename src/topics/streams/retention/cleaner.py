"""Retention: which segments are expired or too much, and the cleaner that deletes them.

The decisions are functions over values. Only sealed segments are deleted, never the active one. Two rules keep more of
them: segments that a consumer has not read to the end, and segments that the archiver has not copied yet.

Offsets continue: a partition without sealed segments still knows its next offset.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from topics.errors import TopicsError
from topics.limits import U64_MAX
from topics.streams.consumers.consumer_offsets import ConsumerOffsets

logger = logging.getLogger(__name__)

# The values of topics whose messages never expire, and whose size has no limit.
NEVER_EXPIRES: Final = U64_MAX
UNLIMITED_BYTES: Final = U64_MAX

# A topic loses segments when it reaches this part of its limit: there must be room for messages that are on their way.
FULL_NUMERATOR: Final = 9
FULL_DENOMINATOR: Final = 10


class RetainedSegment(Protocol):
    """A segment, as retention sees it. Both offsets are those of messages in the segment."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def start_timestamp(self) -> int: ...
    @property
    def end_timestamp(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def is_sealed(self) -> bool: ...


class SegmentOwner(Protocol):
    @property
    def segments(self) -> Sequence[RetainedSegment]:
        """Oldest first, the active one last."""
        ...

    @property
    def size_bytes(self) -> int:
        """With buffered messages."""
        ...

    def delete_segment(self, start_offset: int) -> object:
        """Deletes a sealed segment. A poll that is reading it can finish."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedPartition:
    """`key` is the path of its directory below the data directory, such as `streams/0/topics/0/partitions/0`."""

    key: str
    partition: SegmentOwner
    offsets: ConsumerOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedTopic:
    """A topic as the cleaner sees it. Both limits are resolved, so they are never 0."""

    message_expiry_us: int
    max_bytes: int
    partitions: Sequence[RetainedPartition]


S = TypeVar("S", bound=RetainedSegment)
Protection = Callable[[str, RetainedSegment], bool]
"""Whether the segment of the partition with this key must be kept."""


def is_unconsumed(segment: RetainedSegment, barrier: int | None) -> bool:
    """Whether a consumer has not read the whole segment. `barrier` is the smallest stored offset, None without any."""
    return barrier is not None and barrier < segment.end_offset


def expired(segments: Iterable[S], expiry_us: int, now_us: int, barrier: int | None = None) -> list[S]:
    """Sealed segments whose last message has expired."""
    assert expiry_us > 0, "the server default is resolved before it gets here"
    if expiry_us == NEVER_EXPIRES:
        return []
    return [
        segment
        for segment in segments
        if segment.is_sealed and segment.end_timestamp + expiry_us <= now_us and not is_unconsumed(segment, barrier)
    ]


def is_oversized(topic_bytes: int, max_bytes: int) -> bool:
    assert max_bytes > 0, "the server default is resolved before it gets here"
    return max_bytes != UNLIMITED_BYTES and topic_bytes >= max_bytes * FULL_NUMERATOR // FULL_DENOMINATOR


def oversized(
    segments_by_key: Mapping[str, Sequence[S]],
    topic_bytes: int,
    max_bytes: int,
    is_protected: Protection | None = None,
) -> list[tuple[str, S]]:
    """The segments that a topic over its limit loses, in order: always the oldest first segment of all partitions.

    A partition whose first segment is protected loses nothing, because a partition must not get a gap.
    """
    chosen: list[tuple[str, S]] = []
    next_places = dict.fromkeys(segments_by_key, 0)
    while is_oversized(topic_bytes, max_bytes):
        first: dict[str, S] = {
            key: segments_by_key[key][place]
            for key, place in next_places.items()
            if place < len(segments_by_key[key]) and segments_by_key[key][place].is_sealed
        }
        if not first:
            break
        key = min(first, key=lambda key: first[key].start_timestamp)
        if is_protected is not None and is_protected(key, first[key]):
            next_places[key] = len(segments_by_key[key])
            continue
        chosen.append((key, first[key]))
        next_places[key] += 1
        topic_bytes -= first[key].size_bytes
    return chosen


def oldest(segments: Iterable[S], count: int, barrier: int | None = None) -> list[S]:
    """The first segments, at most `count`, up to the first one that must be kept."""
    chosen: list[S] = []
    for segment in segments:
        if len(chosen) >= count or not segment.is_sealed or is_unconsumed(segment, barrier):
            break
        chosen.append(segment)
    return chosen


class Cleaner:
    """Deletes, topic by topic, expired segments and then the oldest segments of topics over their limit.

    `must_stay` may be slow, so it is asked last, and only about segments that would be deleted. An error in one
    partition is logged, and the next pass tries again; the other partitions are still cleaned.
    """

    def __init__(self, *, keep_unconsumed: bool, must_stay: Protection | None = None) -> None:
        self._keep_unconsumed = keep_unconsumed
        self._must_stay = must_stay
        self.deleted_segments_total = 0
        self.deleted_bytes_total = 0

    def run(self, topics: Iterable[RetainedTopic], now_us: int) -> None:
        """One pass. One thread at a time."""
        for topic in topics:
            self._delete_expired(topic, now_us)
            self._delete_oversized(topic)

    def delete_oldest(self, partition: RetainedPartition, count: int) -> int:
        """Deletes up to `count` of the oldest sealed segments that need not be kept. Returns how many."""
        chosen = oldest(partition.partition.segments, count, self._barrier(partition))
        for place, segment in enumerate(chosen):
            if self._is_held_back(partition.key, segment):
                return place
            partition.partition.delete_segment(segment.start_offset)
            self._count(segment)
        return len(chosen)

    def _delete_expired(self, topic: RetainedTopic, now_us: int) -> None:
        for partition in topic.partitions:
            segments = partition.partition.segments
            for segment in expired(segments, topic.message_expiry_us, now_us, self._barrier(partition)):
                # Segments after one that is kept are kept, too, so that the partition gets no gap.
                if self._is_held_back(partition.key, segment) or not self._try_to_delete(partition, segment):
                    break

    def _delete_oversized(self, topic: RetainedTopic) -> None:
        by_key = {partition.key: partition for partition in topic.partitions}
        topic_bytes = sum(partition.partition.size_bytes for partition in topic.partitions)
        if not is_oversized(topic_bytes, topic.max_bytes):
            return
        barriers = {key: self._barrier(partition) for key, partition in by_key.items()}
        chosen = oversized(
            {key: partition.partition.segments for key, partition in by_key.items()},
            topic_bytes,
            topic.max_bytes,
            lambda key, segment: is_unconsumed(segment, barriers[key]) or self._is_held_back(key, segment),
        )
        stuck = set()
        for key, segment in chosen:
            if key not in stuck and not self._try_to_delete(by_key[key], segment):
                stuck.add(key)

    def _barrier(self, partition: RetainedPartition) -> int | None:
        return partition.offsets.minimum() if self._keep_unconsumed else None

    def _is_held_back(self, key: str, segment: RetainedSegment) -> bool:
        return self._must_stay is not None and self._must_stay(key, segment)

    def _try_to_delete(self, partition: RetainedPartition, segment: RetainedSegment) -> bool:
        try:
            partition.partition.delete_segment(segment.start_offset)
        except (OSError, TopicsError) as error:
            logger.warning("%s: segment %d is not deleted yet: %s", partition.key, segment.start_offset, error)
            return False
        self._count(segment)
        return True

    def _count(self, segment: RetainedSegment) -> None:
        self.deleted_segments_total += 1
        self.deleted_bytes_total += segment.size_bytes
