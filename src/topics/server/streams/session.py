"""One client: who is logged in, and what becomes of each of its requests.

A send and a poll are tried on the loop first. They are finished there if they only touch memory (`MustWait`). All other
requests go to threads, because they may wait for a lock, a disk or a slow hash. The connection waits for the answer, so
requests of one client are handled in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.limits import KIB
from topics.protocol.iggy.answers import POLLED_HEAD
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import HEAD, OK_EMPTY, Announced, Frame, Refusal, encode_answer
from topics.protocol.iggy.requests import (
    Identifier,
    PollMessages,
    Request,
    decode_request,
)
from topics.protocol.iggy.send_request import SendMessages, decode_metadata, decode_send
from topics.server.streams.connection import Answer, Connection
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_offsets import ConsumerKind
from topics.streams.consumers.polling import Consumer, PollingStrategy, StrategyKind
from topics.streams.metadata.permissions import Action, authorize
from topics.streams.metadata.streams_metadata import StreamInfo, TopicInfo
from topics.streams.metadata.users_metadata import UserInfo
from topics.streams.partitions.batch import IncomingBatch
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.must_wait import MustWait
from topics.streams.partitions.partitioning import Balanced, MessagesKey, PartitionId, Partitioning
from topics.streams.system import System, Target

if TYPE_CHECKING:
    from topics.server.streams.service import Service

logger = logging.getLogger(__name__)

# A larger send is checked and appended on a thread: on the loop it would hold up other clients.
SENT_ON_LOOP_BYTES_MAX: Final = 256 * KIB
# Smaller polled messages are copied into one answer: a copy is cheaper than a piece of a write.
JOINED_ANSWER_BYTES_MAX: Final = 16 * KIB

Handler = Callable[["Session", Request | None], bytes]


class Ids(NamedTuple):
    """A topic, found and allowed."""

    stream_id: int
    topic_id: int


class Session:
    """Loop thread only, except for methods that say so."""

    def __init__(self, service: Service, connection: Connection, client_id: int) -> None:
        self.service = service
        self.system: System = service.system
        self.client_id = client_id
        self.peer = connection.peer
        # False once the client has missed its heartbeats.
        self.is_registered = True
        # Whether the client may be a member of a group.
        self.has_joined = False
        self.pinged_s = service.loop.time()
        self._connection = connection
        self._user: UserInfo | None = None
        self._is_ended = False

    # Who it is. Any thread, one request at a time.

    def login(self, user: UserInfo) -> None:
        self._user = user
        self._connection.reader.is_logged_in = True

    def logout(self) -> None:
        self._user = None
        self._connection.reader.is_logged_in = False

    @property
    def user_id(self) -> int | None:
        """The user who is logged in; None before a login, and after the user was deleted."""
        user = self._user
        return user.id if user is not None and self.system.metadata.users.get(user.id) is user else None

    @property
    def user(self) -> UserInfo:
        return self.check_logged_in()

    def check_logged_in(self) -> UserInfo:
        """Raises `UNAUTHENTICATED` if nobody is logged in. A deleted user is not logged in any more."""
        user = self._user
        if user is None or self.system.metadata.users.get(user.id) is not user:
            self.logout()
            raise StreamsError(StreamStatus.UNAUTHENTICATED, "log in first")
        return user

    def allow(self, action: Action, stream_id: int | None = None, topic_id: int | None = None) -> UserInfo:
        """The user. Raises `UNAUTHORIZED` if the user may not do this."""
        user = self.user
        authorize(user, action, stream_id, topic_id)
        return user

    def find_stream(self, stream: Identifier, action: Action) -> StreamInfo:
        """The stream, if it exists and the user may do this with it, checked in this order."""
        info = self.system.metadata.resolve_stream(stream)
        self.allow(action, info.id)
        return info

    def find_topic(self, stream: Identifier, topic: Identifier, action: Action) -> TopicInfo:
        info = self.system.metadata.resolve_topic(stream, topic)
        self.allow(action, info.stream_id, info.id)
        return info

    def check_registered(self) -> None:
        if not self.is_registered:
            raise StreamsError(StreamStatus.STALE_CLIENT, "the client has missed its heartbeats")

    # Requests.

    def admit(self, announced: Announced) -> int | Refusal:
        """The user who makes a large request, if what it names exists and the user may do this. It is checked again
        when the request is there."""
        try:
            if announced.code == Code.SEND_MESSAGES:
                metadata = decode_metadata(announced.start)
                self.find_topic(metadata.stream_id, metadata.topic_id, Action.SEND)
            else:
                self.allow(Action.MANAGE_USERS)
            return self.user.id
        except StreamsError as error:
            self.service.counters.note_request(announced.code)
            return Refusal(error.number)

    def handle(self, frame: Frame) -> Answer | Refusal | None:
        code = frame.code
        self.service.counters.note_request(code)
        if code == Code.PING:
            self.pinged_s = self.service.loop.time()
            return OK_EMPTY
        try:
            if code == Code.SEND_MESSAGES:
                return self._send(decode_send(frame.payload))
            if code == Code.POLL_MESSAGES:
                request = decode_request(code, frame.payload)
                assert isinstance(request, PollMessages)
                return self._poll(request)
        except StreamsError as error:
            return Refusal(error.number)
        except Exception:
            logger.exception("a request of a client of the streams failed")
            return Refusal(StreamStatus.ERROR)
        pool, handler = self.service.commands[code]
        self._later(pool, partial(self._run, handler, code, frame.payload))
        return None

    def _run(self, handler: Handler, code: int, payload: memoryview) -> Answer:
        """On a thread."""
        return encode_answer(handler(self, decode_request(code, payload)))

    def _later(self, pool: str, work: Callable[[], Answer]) -> None:
        self.service.run(pool, work, self._finish)

    def _finish(self, result: Answer | StreamsError) -> None:
        if self.has_joined and (self._is_ended or not self.is_registered):
            # The connection ended while the client joined a group.
            self.service.forget(self)
        self._connection.answer(Refusal(result.number) if isinstance(result, StreamsError) else result)

    # Sending.

    def _send(self, send: SendMessages) -> Answer | None:
        if len(send.messages) > SENT_ON_LOOP_BYTES_MAX:
            self._later("data", partial(self._send_large, send))
            return None
        batch = IncomingBatch.check(send.indexes, send.messages)
        target = self._choose(send)
        try:
            self.system.append_nowait(target, batch)
        except MustWait:
            self._later("data", partial(self._append, target, batch))
            return None
        return OK_EMPTY

    def _choose(self, send: SendMessages) -> Target:
        """The topic and the partition, if the user may send to it."""
        info = self.find_topic(send.stream_id, send.topic_id, Action.SEND)
        return self.system.target(info.stream_id, info.id, _partitioning(send.partitioning))

    def _send_large(self, send: SendMessages) -> Answer:
        batch = IncomingBatch.check(send.indexes, send.messages)
        return self._append(self._choose(send), batch)

    def _append(self, target: Target, batch: IncomingBatch) -> Answer:
        self.system.append(target, batch)
        return OK_EMPTY

    # Polling.

    def _poll(self, request: PollMessages) -> Answer | None:
        info = self.find_topic(request.stream_id, request.topic_id, Action.POLL)
        where = Ids(info.stream_id, info.id)
        consumer = consumer_of(request.consumer_kind, request.consumer_id)
        strategy = PollingStrategy(StrategyKind(request.strategy_kind), request.strategy_value)
        if consumer.kind is ConsumerKind.GROUP:
            self.check_registered()
            # Groups share a lock with commands that may take long.
            self._later("control", partial(self._poll_waiting, where, consumer, strategy, request))
            return None
        if not request.auto_commit:
            try:
                return polled_answer(
                    self.system.poll_nowait(
                        *where, consumer, strategy, request.count, partition_id=request.partition_id
                    )
                )
            except MustWait:
                pass
        self._later("data", partial(self._poll_waiting, where, consumer, strategy, request))
        return None

    def _poll_waiting(self, where: Ids, consumer: Consumer, strategy: PollingStrategy, request: PollMessages) -> Answer:
        return polled_answer(
            self.system.poll(
                *where,
                consumer,
                strategy,
                request.count,
                partition_id=request.partition_id,
                auto_commit=request.auto_commit,
                client_id=self.client_id,
            )
        )

    # The end.

    def end(self) -> None:
        self._is_ended = True
        self.service.note_ended(self)


def consumer_of(kind: int, identifier: Identifier) -> Consumer:
    return Consumer(identifier, ConsumerKind(kind))


def _partitioning(value: int | bytes | None) -> Partitioning:
    if value is None:
        return Balanced()
    return PartitionId(value) if isinstance(value, int) else MessagesKey(value)


def polled_answer(polled: PolledMessages) -> Answer:
    """The answer as views of the messages, which are not decoded."""
    size = polled.size_bytes
    head = HEAD.pack(0, POLLED_HEAD.size + size) + POLLED_HEAD.pack(
        polled.partition_id, polled.current_offset, polled.count
    )
    pieces: list[bytes | memoryview] = [head, *[chunk.buffer for chunk in polled.chunks]]
    return b"".join(pieces) if size <= JOINED_ANSWER_BYTES_MAX else pieces
