"""Stored offsets, and flushing. Handlers run on threads."""

from typing import Any, Final

from topics.protocol.iggy.answers import OffsetAnswer, encode_records
from topics.protocol.iggy.codes import Code
from topics.server.streams.session import Handler, Session, consumer_of
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_offsets import ConsumerKind
from topics.streams.consumers.polling import Consumer
from topics.streams.metadata.permissions import Action

_ERRORS_OF_USERS: Final = (StreamStatus.UNAUTHENTICATED, StreamStatus.UNAUTHORIZED)


def _get_offset(session: Session, request: Any) -> bytes:
    """Whatever is not found is answered with an empty payload."""
    try:
        info = session.find_topic(request.stream_id, request.topic_id, Action.POLL)
        stored = session.system.get_offset(
            info.stream_id,
            info.id,
            consumer_of(request.consumer_kind, request.consumer_id),
            partition_id=request.partition_id,
        )
    except StreamsError as error:
        if error.number in _ERRORS_OF_USERS:
            raise
        return b""
    if stored is None:
        return b""
    return encode_records(OffsetAnswer(stored.partition_id, stored.current_offset, stored.stored_offset))


def _consumer(session: Session, request: Any) -> Consumer:
    """The consumer whose offset changes. For a group the client must be registered."""
    consumer = consumer_of(request.consumer_kind, request.consumer_id)
    if consumer.kind is ConsumerKind.GROUP:
        session.check_registered()
    return consumer


def _store_offset(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.POLL)
    session.system.store_offset(
        info.stream_id,
        info.id,
        _consumer(session, request),
        request.offset,
        partition_id=request.partition_id,
        client_id=session.client_id,
    )
    return b""


def _delete_offset(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.POLL)
    session.system.delete_offset(
        info.stream_id,
        info.id,
        _consumer(session, request),
        partition_id=request.partition_id,
        client_id=session.client_id,
    )
    return b""


def _flush(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.SEND)
    session.system.flush(info.stream_id, info.id, request.partition_id, fsync=request.fsync)
    return b""


# With the threads for each: a flush takes no lock but that of its partition.
OFFSET_COMMANDS: Final[dict[int, tuple[str, Handler]]] = {
    Code.GET_CONSUMER_OFFSET: ("control", _get_offset),
    Code.STORE_CONSUMER_OFFSET: ("control", _store_offset),
    Code.DELETE_CONSUMER_OFFSET: ("control", _delete_offset),
    Code.FLUSH_UNSAVED_BUFFER: ("data", _flush),
}
