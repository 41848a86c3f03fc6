"""The messages of a topic of a stream, over all its partitions in the order of their times, or of one partition."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from topics.errors import InvalidRequest
from topics.limits import MIB

if TYPE_CHECKING:
    from topics.client.answers import StreamPage, StreamRecord
    from topics.client.calls import Call
    from topics.client.sync.client import Client
    from topics.protocol.stream_body import StreamPartitionEntry

# Each partition has a page in memory. All of them together have at most about so much, until there are very many.
PAGES_BYTES: Final = 16 * MIB
_PAGE_BYTES_MIN: Final = MIB // 16


class Gone(NamedTuple):
    """Messages of a partition that should be there and are not: they expired, were deleted, or a crash took them."""

    partition: int
    first_offset: int
    last_offset: int


class Source(NamedTuple):
    """What is to be read of a partition: from an offset on, or from a time on. `gone` is told before."""

    partition: int
    offset: int | None
    timestamp_us: int | None
    gone: Gone | None = None


class _Place:
    """How far a partition is read: the next offset, and the time of the last message, 0 before the first one."""

    __slots__ = ("created_at", "last_us", "next_offset")

    def __init__(self, created_at: int, next_offset: int) -> None:
        self.created_at = created_at
        self.next_offset = next_offset
        self.last_us = 0


Item: TypeAlias = "StreamRecord | Gone"


class StreamReading:
    """Remembers the place in each partition, so that `news` goes on from there. Loop: sources, then `items` of them."""

    def __init__(self, client: "Client", stream: str, topic: str, partition: int | None) -> None:
        self._client = client
        self._stream = stream
        self._topic = topic
        self._partition = partition
        self._places: dict[int, _Place] = {}
        self._page_bytes = MIB

    def first(self) -> list[Source]:
        """All messages."""
        return [self._begin(entry, int(entry.earliest_offset)) for entry in self._entries() if entry.messages]

    def from_offset(self, offset: int) -> list[Source]:
        entries = self._entries()
        if len(entries) > 1:
            raise InvalidRequest("give --partition with --offset: each partition has its own offsets")
        return [self._begin(entry, offset) for entry in entries]

    def since(self, timestamp_us: int) -> list[Source]:
        found = []
        for entry in self._entries():
            self._begin(entry, int(entry.end_offset))
            if entry.messages:
                found.append(Source(entry.id, None, timestamp_us))
        return found

    def last(self, count: int) -> list[Source]:
        """The last `count` messages of each partition. `newest` chooses among them."""
        found = []
        for entry in self._entries():
            source = self._begin(entry, max(int(entry.earliest_offset), int(entry.end_offset) - count))
            if entry.messages and count:
                found.append(source)
        return found

    def news(self) -> list[Source]:
        """What has come since the last look. A partition that is new, or was created again, is read from its begin."""
        found = []
        for entry in self._entries():
            place = self._places.get(entry.id)
            end = int(entry.end_offset)
            if place is None or place.created_at != entry.created_at:
                found.append(self._begin(entry, 0))
            elif end < place.next_offset:
                # A crash took messages, or the topic was purged: then offsets begin again at 0. What is newer than the
                # last message that was shown is new in both cases.
                gone = Gone(entry.id, end, place.next_offset - 1)
                place.next_offset = end
                found.append(Source(entry.id, end, None, gone) if not place.last_us else self._newer(entry.id, gone))
            elif end > place.next_offset:
                found.append(Source(entry.id, place.next_offset, None))
        return found

    def items(self, sources: list[Source]) -> Iterator[Item]:
        """The messages of the sources by their times. A place moves when an item is given, not when it is fetched:
        after an error `news` begins with the first item that was not given."""
        for source in sources:
            if source.gone is not None:
                yield source.gone
        for entry in heapq.merge(*map(self._timed, sources)):
            place = self._places[entry.partition]
            place.next_offset, place.last_us = entry.offset + 1, entry.timestamp_us
            if entry.skipped_from < entry.offset:
                yield Gone(entry.partition, entry.skipped_from, entry.offset - 1)
            yield entry.record

    def newest(self, sources: list[Source], count: int) -> Iterator[Item]:
        """The last `count` items of the sources."""
        return iter(deque(self.items(sources), maxlen=count)) if len(sources) > 1 else self.items(sources)

    def call(self, source: Source) -> "Call[StreamPage]":
        """The first request for a source."""
        from topics.client import calls

        where = self._stream, self._topic, source.partition
        return calls.read_stream(*where, source.offset, source.timestamp_us, self._page_bytes)

    def _entries(self) -> "list[StreamPartitionEntry]":
        state = self._client.stream_topic(self._stream, self._topic)
        wanted = self._partition
        if wanted is not None and wanted >= len(state.partitions):
            has = f"its partitions are 0 to {len(state.partitions) - 1}" if state.partitions else "it has none"
            raise InvalidRequest(f'topic "{self._stream}/{self._topic}" has no partition {wanted}: {has}')
        found = [entry for entry in state.partitions if wanted is None or entry.id == wanted]
        self._page_bytes = min(MIB, max(_PAGE_BYTES_MIN, PAGES_BYTES // max(1, len(found))))
        return found

    def _begin(self, entry: "StreamPartitionEntry", offset: int) -> Source:
        self._places[entry.id] = _Place(entry.created_at, offset)
        return Source(entry.id, offset, None)

    def _newer(self, partition: int, gone: Gone) -> Source:
        return Source(partition, None, self._places[partition].last_us + 1, gone)

    def _timed(self, source: Source) -> "Iterator[_Timed]":
        expected = source.offset
        found = self._client.read_stream(
            self._stream,
            self._topic,
            source.partition,
            offset=source.offset,
            timestamp_us=source.timestamp_us,
            page_bytes=self._page_bytes,
        )
        for record in found:
            skipped_from = record.offset if expected is None else expected
            yield _Timed(record.timestamp_us, record.partition, record.offset, skipped_from, record)
            expected = record.offset + 1


class _Timed(NamedTuple):
    """A message to be merged. No two have the same time, partition and offset, so that messages are not compared."""

    timestamp_us: int
    partition: int
    offset: int
    skipped_from: int
    record: "StreamRecord"
