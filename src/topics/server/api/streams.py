"""Endpoints for streams of the partitioned engine: what there is, and messages as JSON. They change nothing.

The prefixes of a key limit the names of streams as they limit the names of topics. A stream that is named by its number
is checked by its name; a number without a stream is refused like a stream that the key is not for, so that a key learns
nothing about other streams.

Bodies are made on threads of their own: the engine may wait for a disk, or for a lock that a slow change holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Struct

from topics.errors import Closed, CorruptRecord, Forbidden, NotFound, TopicsError
from topics.limits import MIB, READ_LIMIT_DEFAULT, READ_LIMIT_MAX, U64_MAX
from topics.protocol import stream_body
from topics.protocol.response_body import Performance
from topics.protocol.stream_message import exact, message_members
from topics.server.api.list_cursor import after_of, cursor_after
from topics.server.app import Application
from topics.server.auth import READ, Key
from topics.server.http.exchange import Exchange, Response
from topics.server.http.query import Query
from topics.server.http.routes import Endpoint
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, PAGE_STEP_BYTES
from topics.stream_errors import StreamsError, StreamStatus

if TYPE_CHECKING:
    from topics.streams.consumers.polling import PollingStrategy
    from topics.streams.partitions.message_view import MessageView, PolledMessages
    from topics.streams.running.running_topic import GroupState, PartitionState, StreamState, TopicState
    from topics.streams.system import System

T = TypeVar("T")

# The name or the number of a stream or topic.
Identifier = str | int

# Bytes of messages in a page. One message is always shown.
MESSAGES_BYTES_MAX: Final = MIB
# A longer payload is left out: it is for clients that read messages as they are.
PAYLOAD_BYTES_MAX: Final = MIB

_STREAM: Final = "/v0/streams/{stream}"
_TOPIC: Final = _STREAM + "/topics/{topic}"
_PARTITION: Final = _TOPIC + "/partitions/{partition}"

# A number has at most 32 bits.
_ID_DIGITS_MAX: Final = 10

_NOT_FOUND: Final = frozenset(
    {StreamStatus.STREAM_ID_NOT_FOUND, StreamStatus.TOPIC_ID_NOT_FOUND, StreamStatus.PARTITION_NOT_FOUND}
)
_DAMAGED: Final = frozenset(
    {
        StreamStatus.INVALID_MESSAGE_CHECKSUM,
        StreamStatus.INVALID_OFFSET,
        StreamStatus.CANNOT_READ_MESSAGE,
        StreamStatus.CANNOT_READ_INDEX_POSITION,
        StreamStatus.CANNOT_DECRYPT_DATA,
    }
)
_COMPRESSIONS: Final = {1: "none", 2: "gzip", 3: "lz4", 4: "zstd"}

_encode: Final = msgspec.json.Encoder().encode


class DamagedMessage(CorruptRecord):
    """A stored message cannot be read. The messages around it can."""

    def __init__(self, message: str) -> None:
        TopicsError.__init__(self, message)


class StreamsApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("GET", "/v0/streams", Endpoint("list_streams", self.list_page, READ))
        add("GET", _STREAM, Endpoint("get_stream", self.stream, READ))
        add("GET", _TOPIC, Endpoint("get_stream_topic", self.topic, READ))
        add("GET", _PARTITION, Endpoint("get_stream_partition", self.partition, READ))
        add("GET", f"{_PARTITION}/messages", Endpoint("get_stream_messages", self.messages, READ))

    def _answer(self, exchange: Exchange, make: Callable[[System, Key], Struct | dict[str, object]]) -> None:
        """Makes and encodes the body of the answer on a thread."""
        streams, key = self._app.streams, exchange.key
        system = streams.system
        assert key is not None
        if system is None:
            raise NotFound("this server has no streams: start it with `topics serve --streams`")
        result: list[bytes | Exception] = []

        def work() -> None:
            result.append(_outcome(lambda: _encode(_told(partial(make, system, key)))))

        streams.run(work, lambda: self._app.guarded(exchange, lambda: _reply(exchange, result[0])))

    # What there is.

    def list_page(self, exchange: Exchange) -> None:
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        prefix, after = query.text("prefix") or "", after_of(query.text("cursor"))

        def make(system: System, key: Key) -> stream_body.StreamList:
            return _list(*_page_of(system, key, prefix, after, page_size), exchange.performance())

        self._answer(exchange, make)

    def stream(self, exchange: Exchange) -> None:
        wanted = _identifier(exchange.name)

        def make(system: System, key: Key) -> stream_body.StreamState:
            return _stream(_visible(system, key, wanted), exchange.performance())

        self._answer(exchange, make)

    def topic(self, exchange: Exchange) -> None:
        stream, topic = _identifier(exchange.name), _identifier(exchange.inner_names[0])

        def make(system: System, key: Key) -> stream_body.StreamTopicState:
            return _topic(_topic_of(system, key, stream, topic), exchange.performance())

        self._answer(exchange, make)

    def partition(self, exchange: Exchange) -> None:
        stream, topic = _identifier(exchange.name), _identifier(exchange.inner_names[0])
        partition = _partition_number(exchange.inner_names[1])

        def make(system: System, key: Key) -> stream_body.StreamPartitionState:
            found = _partition_of(_topic_of(system, key, stream, topic), partition)
            return _partition(found, exchange.performance())

        self._answer(exchange, make)

    # Messages.

    def messages(self, exchange: Exchange) -> None:
        stream, topic = _identifier(exchange.name), _identifier(exchange.inner_names[0])
        partition = _partition_number(exchange.inner_names[1])
        query = Query(exchange.query)
        offset, timestamp = query.count("offset", -1), query.count("timestamp", -1)
        is_last = query.flag("last", default=False)
        count = min(max(query.count("count", READ_LIMIT_DEFAULT), 1), READ_LIMIT_MAX)
        bytes_max = min(max(query.count("max_bytes", MESSAGES_BYTES_MAX), 1), MESSAGES_BYTES_MAX)
        with_payload = query.flag("include_payload", default=True)

        def make(system: System, key: Key) -> dict[str, object]:
            found = _partition_of(_topic_of(system, key, stream, topic), partition)
            strategy = _strategy(offset, timestamp, is_last=is_last)
            polled = system.browse(stream, topic, partition, strategy, count, bytes_max=bytes_max)
            return _page(found, polled, offset, exchange.performance(), with_payload=with_payload)

        self._answer(exchange, make)


class _FoundTopic(NamedTuple):
    """A topic with its stream and its groups."""

    stream: StreamState
    state: TopicState
    groups: list[GroupState]


class _FoundPartition(NamedTuple):
    topic: _FoundTopic
    state: PartitionState


# Work on threads.


def _outcome(work: Callable[[], bytes]) -> bytes | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the loop raises it again, at the outer edge of the request.
        return error


def _told(work: Callable[[], T]) -> T:
    """Raises the errors of the engine as the errors of this interface."""
    try:
        return work()
    except StreamsError as error:
        if error.number in _NOT_FOUND:
            raise NotFound(error.message) from error
        if error.number in _DAMAGED:
            raise DamagedMessage(f"{error.message}; read on after it, and run `topics verify`") from error
        if error.number is StreamStatus.DISCONNECTED:
            raise Closed from error
        raise


def _page_of(
    system: System, key: Key, prefix: str, after: str | None, page_size: int
) -> tuple[list[StreamState], str | None]:
    """A page of streams that the caller may see, and the name after which the next page begins."""
    names = [name for name in system.stream_names() if name.startswith(prefix) and key.may_name(name)]
    begin = 0 if after is None else bisect_right(names, after)
    page = names[begin : begin + page_size]
    states = []
    for name in page:
        try:
            states.append(system.stream_state(name))
        except StreamsError as error:
            # It was deleted meanwhile.
            if error.number is not StreamStatus.STREAM_ID_NOT_FOUND:
                raise
    return states, page[-1] if begin + page_size < len(names) else None


def _visible(system: System, key: Key, stream: Identifier) -> StreamState:
    """The stream, if the key is for it."""
    state = None
    if isinstance(stream, int) or key.may_name(stream):
        try:
            state = system.stream_state(stream)
        except StreamsError:
            if isinstance(stream, str) or not key.prefixes:
                raise
    if state is None or not key.may_name(state.info.name):
        raise Forbidden("the key is not for this stream")
    return state


def _topic_of(system: System, key: Key, stream: Identifier, topic: Identifier) -> _FoundTopic:
    state = _visible(system, key, stream)
    found = system.topic_state(state.info.id, topic)
    return _FoundTopic(state, found, system.group_states(state.info.id, found.info.id))


def _partition_of(topic: _FoundTopic, partition: int) -> _FoundPartition:
    if partition >= len(topic.state.partitions):
        raise NotFound(f"topic {topic.state.info.name!r} has no partition {partition}")
    return _FoundPartition(topic, topic.state.partitions[partition])


def _strategy(offset: int, timestamp: int, *, is_last: bool) -> PollingStrategy:
    from topics.streams.consumers.polling import PollingStrategy

    if offset >= 0:
        return PollingStrategy.offset(offset)
    if timestamp >= 0:
        return PollingStrategy.timestamp(timestamp)
    return PollingStrategy.last() if is_last else PollingStrategy.first()


def _identifier(name: str) -> Identifier:
    """A name in a path that is a number is the number of a stream or topic."""
    if not (name.isascii() and name.isdigit()):
        return name
    if len(name) > _ID_DIGITS_MAX:
        raise NotFound("there is nothing with this number")
    return int(name)


def _partition_number(name: str) -> int:
    number = _identifier(name)
    if isinstance(number, str):
        raise NotFound("a partition has a number")
    return number


# Bodies.


def _list(states: list[StreamState], last_name: str | None, performance: Performance) -> stream_body.StreamList:
    entries = [
        stream_body.StreamEntry(
            id=state.info.id,
            name=state.info.name,
            created_at=state.info.created_at,
            topics=len(state.topics),
            messages=state.messages_count,
            bytes=state.size_bytes,
        )
        for state in states
    ]
    next_cursor = UNSET if last_name is None else cursor_after(last_name)
    return stream_body.StreamList(streams=entries, next_cursor=next_cursor, performance=performance)


def _stream(state: StreamState, performance: Performance) -> stream_body.StreamState:
    topics = [
        stream_body.StreamTopicEntry(
            id=topic.info.id,
            name=topic.info.name,
            created_at=topic.info.created_at,
            partitions=len(topic.partitions),
            messages=topic.messages_count,
            bytes=topic.size_bytes,
        )
        for topic in state.topics
    ]
    return stream_body.StreamState(
        id=state.info.id,
        name=state.info.name,
        created_at=state.info.created_at,
        messages=state.messages_count,
        bytes=state.size_bytes,
        topics=topics,
        performance=performance,
    )


def _topic(topic: _FoundTopic, performance: Performance) -> stream_body.StreamTopicState:
    info = topic.state.info
    groups = [
        stream_body.StreamGroupEntry(id=group.info.id, name=group.info.name, members=len(group.members))
        for group in topic.groups
    ]
    return stream_body.StreamTopicState(
        stream_id=info.stream_id,
        stream=topic.stream.info.name,
        id=info.id,
        name=info.name,
        created_at=info.created_at,
        message_expiry_us=None if info.message_expiry == U64_MAX else exact(info.message_expiry),
        max_bytes=None if info.max_size == U64_MAX else exact(info.max_size),
        compression=_COMPRESSIONS.get(info.compression, str(info.compression)),
        replication_factor=info.replication_factor,
        messages=topic.state.messages_count,
        bytes=topic.state.size_bytes,
        partitions=[_partition_entry(state) for state in topic.state.partitions],
        groups=groups,
        performance=performance,
    )


def _partition(found: _FoundPartition, performance: Performance) -> stream_body.StreamPartitionState:
    info = found.topic.state.info
    return stream_body.StreamPartitionState(
        **msgspec.structs.asdict(_partition_entry(found.state)),
        stream_id=info.stream_id,
        stream=found.topic.stream.info.name,
        topic_id=info.id,
        topic=info.name,
        performance=performance,
    )


def _partition_entry(state: PartitionState) -> stream_body.StreamPartitionEntry:
    return stream_body.StreamPartitionEntry(
        id=state.id,
        created_at=state.created_at,
        earliest_offset=exact(state.earliest_offset),
        end_offset=exact(state.end_offset),
        messages=state.messages_count,
        bytes=state.size_bytes,
        segments=state.segments_count,
        unsaved_messages=state.unsaved_messages_count,
        is_writable=state.is_writable,
    )


def _page(
    found: _FoundPartition, polled: PolledMessages, offset: int, performance: Performance, *, with_payload: bool
) -> dict[str, object]:
    """The members of `StreamMessages`. `offset` is where the page was to begin, or -1."""
    last_offset = polled.last_offset
    end_offset = found.state.end_offset if last_offset is None else polled.current_offset + 1
    if last_offset is not None:
        next_offset = last_offset + 1
    else:
        next_offset = offset if offset >= 0 else end_offset
    return {
        "stream": found.topic.stream.info.name,
        "topic": found.topic.state.info.name,
        "partition": found.state.id,
        "messages": [_message(message, with_payload=with_payload) for message in polled],
        "next_offset": exact(next_offset),
        "end_offset": exact(end_offset),
        "performance": performance,
    }


def _message(message: MessageView, *, with_payload: bool) -> dict[str, object]:
    payload = message.payload
    try:
        headers = message.user_headers
    except StreamsError:
        # A sender may put anything there: no server checks it.
        headers = {}
    return message_members(
        offset=message.offset,
        message_id=message.id,
        timestamp=message.timestamp,
        origin_timestamp=message.origin_timestamp,
        headers=headers,
        payload=bytes(payload) if with_payload and len(payload) <= PAYLOAD_BYTES_MAX else None,
        payload_bytes=len(payload),
    )


def _reply(exchange: Exchange, body: bytes | Exception) -> None:
    """Sends the answer; a large one in pieces, because a turn of the loop must be short."""
    if isinstance(body, Exception):
        raise body
    if len(body) <= PAGE_STEP_BYTES:
        exchange.reply_json(200, body)
    else:
        pieces = [body[at : at + PAGE_STEP_BYTES] for at in range(0, len(body), PAGE_STEP_BYTES)]
        exchange.reply(Response(200, pieces[0], rest=tuple(pieces[1:])))
