"""Streams, topics, partitions and segments: what clients ask for, and what they change.

Handlers run on threads. They raise `StreamsError` for an error, and return the payload of the answer.
"""

from collections.abc import Callable
from typing import Any, Final

from topics.protocol.iggy.answers import PartitionRecord, StreamRecord, TopicRecord, encode_records
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import Codec
from topics.server.streams.session import Handler, Session
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.permissions import Action
from topics.streams.metadata.streams_metadata import TopicInfo
from topics.streams.running.running_topic import StreamState, TopicState

# Clients of 0.8 know these codes of compression algorithms. They are told "none" for others.
_KNOWN_COMPRESSIONS: Final = (1, 2)
_NONE: Final = 1

_NOT_FOUND: Final = (StreamStatus.STREAM_ID_NOT_FOUND, StreamStatus.TOPIC_ID_NOT_FOUND)


def empty_if_unknown(handler: Handler, *unknown: StreamStatus) -> Handler:
    """A *get* command: what does not exist is answered with an empty payload."""

    def get(session: Session, request: Any) -> bytes:
        try:
            return handler(session, request)
        except StreamsError as error:
            if error.number in unknown:
                return b""
            raise

    return get


# Records.


def _stream_record(state: StreamState) -> StreamRecord:
    info = state.info
    return StreamRecord(info.id, info.created_at, len(state.topics), state.size_bytes, state.messages_count, info.name)


def _topic_record(info: TopicInfo, size_bytes: int, messages_count: int) -> TopicRecord:
    return TopicRecord(
        info.id,
        info.created_at,
        len(info.partitions),
        info.message_expiry,
        info.compression if info.compression in _KNOWN_COMPRESSIONS else _NONE,
        info.max_size,
        info.replication_factor,
        size_bytes,
        messages_count,
        info.name,
    )


def _state_record(state: TopicState) -> TopicRecord:
    return _topic_record(state.info, state.size_bytes, state.messages_count)


# Streams.


def _get_stream(session: Session, request: Any) -> bytes:
    info = session.find_stream(request.stream_id, Action.GET_STREAM)
    state = session.system.stream_state(info.id)
    return encode_records(_stream_record(state), *map(_state_record, state.topics))


def _get_streams(session: Session, _request: Any) -> bytes:
    session.allow(Action.GET_STREAMS)
    return encode_records(*map(_stream_record, session.system.stream_states()))


def _create_stream(session: Session, request: Any) -> bytes:
    user = session.allow(Action.CREATE_STREAM)
    info = session.system.create_stream(request.name, user_id=user.id)
    return encode_records(StreamRecord(info.id, info.created_at, 0, 0, 0, info.name))


def _delete_stream(session: Session, request: Any) -> bytes:
    info = session.find_stream(request.stream_id, Action.CHANGE_STREAM)
    session.system.delete_stream(info.id, user_id=session.user.id)
    return b""


def _update_stream(session: Session, request: Any) -> bytes:
    info = session.find_stream(request.stream_id, Action.CHANGE_STREAM)
    session.system.update_stream(info.id, request.name, user_id=session.user.id)
    return b""


def _purge_stream(session: Session, request: Any) -> bytes:
    info = session.find_stream(request.stream_id, Action.CHANGE_STREAM)
    session.system.purge_stream(info.id, user_id=session.user.id)
    return b""


# Topics.


def _get_topic(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.GET_TOPIC)
    state = session.system.topic_state(info.stream_id, info.id)
    partitions = [
        PartitionRecord(
            partition.id,
            partition.created_at,
            partition.segments_count,
            partition.current_offset,
            partition.size_bytes,
            partition.messages_count,
        )
        for partition in state.partitions
    ]
    return encode_records(_state_record(state), *partitions)


def _get_topics(session: Session, request: Any) -> bytes:
    info = session.find_stream(request.stream_id, Action.GET_TOPICS)
    return encode_records(*map(_state_record, session.system.stream_state(info.id).topics))


def _create_topic(session: Session, request: Any) -> bytes:
    stream = session.find_stream(request.stream_id, Action.CREATE_TOPIC)
    info = session.system.create_topic(
        stream.id,
        request.name,
        partitions_count=request.partitions_count,
        compression=Codec.from_code(request.compression_algorithm),
        message_expiry=request.message_expiry,
        max_topic_size=request.max_topic_size,
        replication_factor=request.replication_factor,
        user_id=session.user.id,
    )
    partitions = [PartitionRecord(partition.id, partition.created_at, 0, 0, 0, 0) for partition in info.partitions]
    return encode_records(_topic_record(info, 0, 0), *partitions)


def _update_topic(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.CHANGE_TOPIC)
    session.system.update_topic(
        info.stream_id,
        info.id,
        name=request.name,
        compression=Codec.from_code(request.compression_algorithm),
        message_expiry=request.message_expiry,
        max_topic_size=request.max_topic_size,
        replication_factor=request.replication_factor,
        user_id=session.user.id,
    )
    return b""


def _changes_topic(change: Callable[[Session, TopicInfo, Any], object]) -> Handler:
    """A command on a topic that answers nothing."""

    def handle(session: Session, request: Any) -> bytes:
        change(session, session.find_topic(request.stream_id, request.topic_id, Action.CHANGE_TOPIC), request)
        return b""

    return handle


def _delete_topic(session: Session, info: TopicInfo, _request: Any) -> None:
    session.system.delete_topic(info.stream_id, info.id, user_id=session.user.id)


def _purge_topic(session: Session, info: TopicInfo, _request: Any) -> None:
    session.system.purge_topic(info.stream_id, info.id, user_id=session.user.id)


def _create_partitions(session: Session, info: TopicInfo, request: Any) -> None:
    session.system.create_partitions(info.stream_id, info.id, request.partitions_count, user_id=session.user.id)


def _delete_partitions(session: Session, info: TopicInfo, request: Any) -> None:
    session.system.delete_partitions(info.stream_id, info.id, request.partitions_count, user_id=session.user.id)


def _delete_segments(session: Session, info: TopicInfo, request: Any) -> None:
    session.system.delete_segments(
        info.stream_id, info.id, request.partition_id, request.segments_count, user_id=session.user.id
    )


CATALOG_COMMANDS: Final[dict[int, Handler]] = {
    Code.GET_STREAM: empty_if_unknown(_get_stream, *_NOT_FOUND),
    Code.GET_STREAMS: _get_streams,
    Code.CREATE_STREAM: _create_stream,
    Code.DELETE_STREAM: _delete_stream,
    Code.UPDATE_STREAM: _update_stream,
    Code.PURGE_STREAM: _purge_stream,
    Code.GET_TOPIC: empty_if_unknown(_get_topic, *_NOT_FOUND),
    Code.GET_TOPICS: empty_if_unknown(_get_topics, *_NOT_FOUND),
    Code.CREATE_TOPIC: _create_topic,
    Code.DELETE_TOPIC: _changes_topic(_delete_topic),
    Code.UPDATE_TOPIC: _update_topic,
    Code.PURGE_TOPIC: _changes_topic(_purge_topic),
    Code.CREATE_PARTITIONS: _changes_topic(_create_partitions),
    Code.DELETE_PARTITIONS: _changes_topic(_delete_partitions),
    Code.DELETE_SEGMENTS: _changes_topic(_delete_segments),
}
