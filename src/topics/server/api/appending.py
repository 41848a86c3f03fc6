"""Writes over HTTP and WebSocket: from the decoded request to the engine, and from there to the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.engine import Engine
from topics.engine.names import check_topic_name
from topics.engine.topic.appended import Appended
from topics.errors import Closed, Forbidden, Overloaded, Throttled, TopicNotFound, TopicsError
from topics.protocol.request_body import ConfigBody
from topics.protocol.write_body import WriteBatch, WriteLimits, WriteRequest
from topics.server.api.topics import check_dead_letter, config_of
from topics.server.app import Application
from topics.server.auth import ADMIN, Key
from topics.server.http.exchange import Parkable
from topics.server.pressure import RETRY_AFTER_MS
from topics.server.settings_schema import ServerSettings

logger = logging.getLogger(__name__)

# Called with the accounted bytes of the write, how long the write waited for room, and its result.
WriteDone = Callable[[int, float, Appended | TopicsError], None]

_encode: Final = msgspec.json.Encoder().encode
_BOOLEANS: Final = (b"false", b"true")


class _WaitingWrite(NamedTuple):
    """A write that waits for room in the commit queue."""

    caller: Key
    name: str
    request: WriteRequest
    batch: WriteBatch
    done: WriteDone
    connection: Parkable
    since_s: float


class Appender:
    """Loop thread only."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self.limits = write_limits(app.settings)
        app.follow_settings(self._use_settings)

    def _use_settings(self, settings: ServerSettings) -> None:
        self.limits = write_limits(settings)

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def append(self, caller: Key, name: str, request: WriteRequest, done: WriteDone, connection: Parkable) -> None:
        """Hands the write to the engine, or raises why it is refused. `done` gets the result, now or later.

        If the commit queue is full, or other writes wait for room in it, the write waits in line. Meanwhile its
        connection is parked and starts no other request. Only at full pressure a write is refused instead, unless it
        asks to wait.
        """
        self._check_caller(caller, name, request)
        batch = request.batch(self.limits)
        if request.config is not None:
            check_dead_letter(caller, request.config)
        lines = self._app.waiting_lines
        try:
            if lines and lines.has_line(self._queue_of(name)):
                raise Overloaded("other writes wait for room in the commit queue; try again")
            self._stage(caller, name, request, batch, partial(done, batch.size_bytes, 0.0))
        except Overloaded as error:
            if self._app.governor.refuses_writes and not request.waits_for_room:
                raise Throttled(error.message, {"retry_after_ms": RETRY_AFTER_MS}) from error
            connection.park()
            write = _WaitingWrite(caller, name, request, batch, done, connection, self._app.loop.time())
            lines.add(self._queue_of(name), partial(self._try_again, write))

    def _queue_of(self, name: str) -> int:
        """The number of the commit queue that a write to this topic goes to; -1 if the topic is not there yet."""
        topic = self._engine.topics.get(name)
        return -1 if topic is None else topic.shard.index

    def _check_caller(self, caller: Key, name: str, request: WriteRequest) -> None:
        if request.config is not None and not self._engine.has_topic(name) and not caller.allows(ADMIN):
            raise Forbidden("a write that creates a topic with a config needs the scope admin")

    def _stage(
        self,
        caller: Key,
        name: str,
        request: WriteRequest,
        batch: WriteBatch,
        done: Callable[[Appended | TopicsError], None],
    ) -> None:
        if request.key is None and request.config is None and request.create is None:
            self._engine.append(name, batch, done)
            return
        # The topic may have been deleted while the write waited.
        self._check_caller(caller, name, request)
        config = self._config_to_create(name, request)
        self._engine.append(name, batch, done, key=request.key, create=request.create, config=config)

    def _try_again(self, write: _WaitingWrite) -> bool:
        """Hands the write to the engine, unless there is still no room. A write that fails is answered with its
        error."""
        parked_ms = (self._app.loop.time() - write.since_s) * 1000
        try:
            if self._app.is_draining:
                raise Closed
            done = partial(write.done, write.batch.size_bytes, parked_ms)
            self._stage(write.caller, write.name, write.request, write.batch, done)
        except Overloaded:
            return False
        except TopicsError as error:
            write.done(0, parked_ms, error)
        except Exception:
            logger.exception("a write failed")
            write.done(0, parked_ms, TopicsError("something went wrong in the server; see its log"))
        write.connection.unpark()
        return True

    def _config_to_create(self, name: str, request: WriteRequest) -> TopicConfig | None:
        """The config of the topic that the write creates; None if the write has no config or the topic exists.

        The rules of the config are checked last.
        """
        body = request.config
        if body is None or self._engine.has_topic(name):
            return None
        if not _creates_topic(body, create=request.create):
            raise TopicNotFound(name)
        check_topic_name(name)
        return config_of(body)

    def count(self, result: Appended, size_bytes: int) -> None:
        """Counts a write in the metrics, unless it was a repeat."""
        topic = None if result.deduped else self._engine.topics.get(result.topic)
        if topic is not None:
            self._app.counters.note_append(topic.config.durability, result.count, size_bytes)


def appended_members(
    result: Appended, *, elapsed_ms: float, parked_ms: float, seqs: bytes, warnings: Sequence[str] = ()
) -> bytes:
    """The members of `response_body.Appended`, rendered.

    `seqs` is the text of that member with its comma, or empty to leave the member out. `warnings` are about the config
    of the write.
    """
    if result.deduped:
        performance = b'"server_total_ms":%.3f' % elapsed_ms
    else:
        performance = b'"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f' % (
            elapsed_ms,
            result.write_ms,
            result.sync_ms,
        )
        if parked_ms:
            performance += b',"throttle_wait_ms":%.3f' % parked_ms
    return (
        b'"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,'
        b'"deduped":%b,%b"performance":{%b}'
        % (
            result.topic.encode(),
            result.first_seq,
            result.last_seq,
            seqs,
            result.head_seq,
            result.count,
            _BOOLEANS[result.created],
            _BOOLEANS[result.deduped],
            b'"warnings":%b,' % _encode(warnings) if warnings else b"",
            performance,
        )
    )


def _creates_topic(config: ConfigBody, *, create: bool | None) -> bool:
    return config.auto_create if create is None else create


def write_limits(settings: ServerSettings) -> WriteLimits:
    """The limits of a write, from the settings."""
    return WriteLimits(
        records_max=settings.max_batch_records,
        record_bytes_max=settings.max_record_bytes,
        meta_bytes_max=settings.max_meta_bytes,
        tag_bytes_max=settings.max_tag_bytes,
        node_bytes_max=settings.max_node_bytes,
    )


def seqs_member(result: Appended) -> bytes:
    return b'"seqs":%b,' % _encode(list(range(result.first_seq, result.last_seq + 1)))
