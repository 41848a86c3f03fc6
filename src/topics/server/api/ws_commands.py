"""The commands of a WebSocket client: subscribe, unsubscribe, publish, ping.

Every command gets one reply. A wrong command does not end the connection. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct
from websockets.frames import CloseCode

from topics.engine.topic.appended import Appended
from topics.errors import (
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    Throttled,
    TopicNotFound,
    TopicsError,
)
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT
from topics.protocol.large_write import decode_publish_in_steps, may_have_records
from topics.protocol.response_body import WatchedTopic
from topics.protocol.write_body import WriteRequest, checked_publish
from topics.protocol.ws_command import (
    NO_REQUEST_ID,
    Command,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
    decode_command,
    decode_long_command,
)
from topics.protocol.ws_message import EndMessage, ErrorReply, PongReply, SubscribedReply, UnsubscribedReply
from topics.server.api.appending import Appender, PendingWrite, appended_members, seqs_member
from topics.server.app import Application
from topics.server.auth import ADMIN, READ, WRITE, Key
from topics.server.hidden_names import check_topics
from topics.server.http.websocket import Message, WebSocketConnection, text_frame
from topics.server.limits import (
    SMALL_BODY_BYTES_MAX,
    STREAM_FRAME_BYTES_MAX,
    WHOLE_BODY_BYTES_MAX,
    WS_SUBSCRIPTIONS_MAX,
    WS_WRITES_MAX,
)
from topics.server.live.delivery import SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE, Subscription
from topics.server.live.open_streams import STOPPING, StreamEnd
from topics.server.live.reading import ReadOptions
from topics.server.live.ws_feed import WsFeed
from topics.server.steps import while_wanted

logger = logging.getLogger(__name__)


_encode: Final = msgspec.json.Encoder().encode


class WsSession:
    """One client: its key, its subscriptions, and the number of its writes under way."""

    def __init__(self, app: Application, appender: Appender, key: Key, connection: WebSocketConnection) -> None:
        assert app.hub is not None
        self._app = app
        self._hub = app.hub
        self._engine = app.hub.engine
        self._appender = appender
        self.key = key
        self.connection = connection
        self._feed = WsFeed(app.hub, connection)
        self._writes = 0
        self._end = STOPPING
        self._leave = app.open_streams.add(key, self._shut_down)

    # Calls of the connection.

    @property
    def takes_more(self) -> bool:
        return self._writes < WS_WRITES_MAX

    @property
    def is_busy(self) -> bool:
        return self._writes > 0

    def resume(self) -> None:
        self._hub.resume(self._feed)

    def stop(self) -> None:
        self._hub.remove(self._feed)

    def _shut_down(self, end: StreamEnd) -> None:
        """The server ends the connection."""
        self._end = end
        if end is STOPPING:
            self.connection.drain()
        else:
            self.connection.shut(CloseCode.POLICY_VIOLATION, end.code)

    def last_words(self) -> bytes:
        return _end_frame(*self._end)

    def words_to_stalled(self) -> bytes:
        return _end_frame(SLOW_CONSUMER, SLOW_CONSUMER_MESSAGE)

    def gone(self) -> None:
        self.stop()
        self._leave()

    def handle(self, message: Message) -> None:
        started = perf_counter()
        self._app.note_activity()
        if not message.is_text:
            self.connection.send(_end_frame("unsupported_message", "messages are text, one object each"))
            return
        text = message.content
        if len(text) > WHOLE_BODY_BYTES_MAX and may_have_records(text):
            self._check_in_steps(text, started)
            return
        try:
            if len(text) > SMALL_BODY_BYTES_MAX:
                raise PayloadTooLarge(f"a command has at most {SMALL_BODY_BYTES_MAX} bytes, except publish")
            command = decode_command(text) if len(text) <= WHOLE_BODY_BYTES_MAX else decode_long_command(text)
            write = checked_publish(text, command) if isinstance(command, Publish) else None
        except InvalidRequest as error:
            self._refuse(NO_REQUEST_ID, "invalid_json", error.message)
            return
        except TopicsError as error:
            self._refuse(NO_REQUEST_ID, error.code, error.message)
            return
        self._handle(command, write, started)

    def _check_in_steps(self, text: bytes, started: float) -> None:
        """Checks a large `publish` in later turns of the loop. Commands after it wait, so the order stays."""
        connection = self.connection
        connection.park()
        self._writes += 1

        def end(result: Callable[[], tuple[Publish, WriteRequest]]) -> None:
            self._writes -= 1
            try:
                self._handle(*result(), started)
            except InvalidRequest as error:
                self._refuse(NO_REQUEST_ID, "invalid_json", error.message)
            except TopicsError as error:
                self._refuse(NO_REQUEST_ID, error.code, error.message)
            except Exception:  # noqa: BLE001 - the outer edge of a command.
                self._fail_internally(NO_REQUEST_ID)
            connection.unpark()

        steps = decode_publish_in_steps(text, self._appender.limits)
        self._app.steps.run(while_wanted(steps, lambda: not connection.is_closed), end)

    def _handle(self, command: Command, write: WriteRequest | None, started: float) -> None:
        request_id = command.request_id
        try:
            match command:
                case Subscribe():
                    self._subscribe(request_id, command)
                case Unsubscribe():
                    self._unsubscribe(request_id, command)
                case Publish():
                    assert write is not None
                    self._publish(request_id, command, write, started)
                case Ping():
                    self._reply(PongReply(request_id=request_id))
                case _:
                    assert_never(command)
        except TopicsError as error:
            self._refuse(request_id, error.code, self._app.told(error, self.key).message)
        except Exception:  # noqa: BLE001 - the outer edge of a command.
            self._fail_internally(request_id)

    # Commands.

    def _subscribe(self, request_id: Raw, command: Subscribe) -> None:
        """Subscribes to all topics of the command or to none: every check comes before the first change."""
        self._check_scopes(READ)
        starts = command.starts()
        topics_max = self._app.settings.max_watch_topics
        if not 1 <= len(starts) <= topics_max:
            raise InvalidRequest(f"a subscribe names 1 to {topics_max} topics, in topic or topics")
        check_topics(self.key, starts)
        options = self._options(command)
        subscriptions: list[Subscription] = []
        begun: dict[str, WatchedTopic] = {}
        for name, start in starts.items():
            topic = self._engine.topics.get(name)
            if topic is None:
                if command.lenient:
                    continue
                raise TopicNotFound(name)
            topic.refresh(self._engine.now_ms())
            cursor = topic.head_seq if start.tail else start.from_seq
            begun[name] = WatchedTopic(from_seq=cursor, head_seq=topic.head_seq, earliest_seq=topic.earliest_seq)
            subscriptions.append(Subscription(name, topic.id, cursor, options))
        if len(self._feed.subscriptions.keys() | begun.keys()) > WS_SUBSCRIPTIONS_MAX:
            raise Throttled(f"a connection has at most {WS_SUBSCRIPTIONS_MAX} subscriptions")
        self._reply(SubscribedReply(request_id=request_id, topics=begun))
        for subscription in subscriptions:
            self._hub.subscribe(self._feed, subscription)

    def _options(self, command: Subscribe) -> ReadOptions:
        nodes = [command.node] if isinstance(command.node, str) else command.node
        return ReadOptions(
            limit=min(command.limit or READ_LIMIT_DEFAULT, self._app.settings.max_limit),
            bytes_max=min(command.max_batch_bytes or READ_BYTES_DEFAULT, STREAM_FRAME_BYTES_MAX),
            nodes=frozenset(node.encode() for node in nodes) if nodes else None,
            include_tags=command.include_tags,
            include_meta=command.include_meta,
            include_data=command.include_data,
        )

    def _unsubscribe(self, request_id: Raw, command: Unsubscribe) -> None:
        names = command.names()
        if not names:
            raise InvalidRequest("an unsubscribe names its topics, in topic or topics")
        check_topics(self.key, names)
        for name in names:
            self._hub.unsubscribe(self._feed, name)
        self._reply(UnsubscribedReply(request_id=request_id, topics=names))

    def _publish(self, request_id: Raw, command: Publish, write: WriteRequest, started: float) -> None:
        self._check_scopes(WRITE if write.config is None else WRITE | ADMIN)
        check_topics(self.key, (command.topic,))
        self._writes += 1
        try:
            self._appender.append(_PendingPublish(self, write, request_id, command, started))
        except BaseException:
            self._writes -= 1
            raise

    def published(self, write: PendingWrite, result: Appended | TopicsError) -> None:
        """A write is done, or it failed."""
        assert isinstance(write, _PendingPublish)
        self._writes -= 1
        request_id = write.request_id
        try:
            if isinstance(result, TopicsError):
                self._refuse(request_id, result.code, self._app.told(result, self.key).message)
            else:
                self._appender.count(result, write.size_bytes)
                members = appended_members(
                    result,
                    elapsed_ms=(perf_counter() - write.started) * 1000,
                    parked_ms=write.parked_ms,
                    seqs=seqs_member(result) if write.returns_seqs else '"seqs":null,',
                    warnings=write.request.warnings,
                )
                self.connection.send(text_frame(ack_text(request_id, members)))
        except Exception:  # noqa: BLE001 - a bug in one answer must not keep the others from their callers.
            self._fail_internally(request_id)
        self.connection.go_on()

    def _check_scopes(self, scopes: int) -> None:
        if not self.key.allows(scopes):
            raise Forbidden("the key lacks the scope for this")

    # Replies.

    def _reply(self, reply: Struct) -> None:
        self.connection.send(text_frame(_encode(reply)))

    def _refuse(self, request_id: Raw, code: str, message: str) -> None:
        self._reply(ErrorReply(request_id=request_id, code=code, message=message))

    def _fail_internally(self, request_id: Raw) -> None:
        logger.exception("a command failed")  # noqa: LOG004 - called by handlers.
        self._refuse(request_id, TopicsError.code, "something went wrong in the server; see its log")


class _PendingPublish(PendingWrite):
    """One publish, from its command to its reply."""

    __slots__ = ("request_id", "returns_seqs", "started")

    def __init__(
        self, session: WsSession, request: WriteRequest, request_id: Raw, command: Publish, started: float
    ) -> None:
        super().__init__(session.key, command.topic, request, session.connection, session.published)
        self.request_id = request_id
        self.returns_seqs = command.return_seqs
        self.started = started


def ack_text(request_id: Raw, members: str) -> bytes:
    """The reply `ws_message.AckReply`, with the members of an append rendered already."""
    return b'{"op":"ack","request_id":%b,%b}' % (bytes(request_id), members.encode())


def _end_frame(code: str, message: str) -> bytes:
    return text_frame(_encode(EndMessage(code=code, message=message)))
