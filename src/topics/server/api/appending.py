"""Writes over HTTP and WebSocket: from the decoded request to the engine, and from there to the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from mypy_extensions import mypyc_attr

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
from topics.server.http.exchange import Parkable, ms_text
from topics.server.pressure import RETRY_AFTER_MS
from topics.server.settings_schema import ServerSettings

logger = logging.getLogger(__name__)

_encode: Final = msgspec.json.Encoder().encode
_BOOLEANS: Final = ("false", "true")


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingWrite:
    """A write from its request to its answer: one object, because callbacks with bound arguments cost more."""

    __slots__ = ("_done", "batch", "caller", "connection", "name", "parked_ms", "request", "since_s")

    def __init__(self, caller: Key, name: str, request: WriteRequest, connection: Parkable, done: WriteDone) -> None:
        self.caller = caller
        self.name = name
        self.request = request
        self.connection = connection
        self._done = done
        # The records, once they are checked.
        self.batch: WriteBatch | None = None
        # Since when the write waits for room, and how long it waited.
        self.since_s = 0.0
        self.parked_ms = 0.0

    @property
    def size_bytes(self) -> int:
        """The accounted bytes of the records."""
        return 0 if self.batch is None else self.batch.size_bytes

    def end(self, result: Appended | TopicsError) -> None:
        """The write is done, or it failed. Called once, unless `Appender.append` raises."""
        self._done(self, result)


WriteDone = Callable[[PendingWrite, Appended | TopicsError], None]
"""Called once with a write and its result."""


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

    def append(self, write: PendingWrite) -> None:
        """Hands the write to the engine, or raises why it is refused. `write.end` gets the result, now or later.

        If the commit queue is full, or other writes wait for room in it, the write waits in line. Meanwhile its
        connection is parked and starts no other request. Only at full pressure a write is refused instead, unless it
        asks to wait.
        """
        request = write.request
        if request.config is not None:
            self._check_caller(write)
        write.batch = request.batch(self.limits)
        if request.config is not None:
            check_dead_letter(write.caller, request.config)
        lines = self._app.waiting_lines
        try:
            if lines and lines.has_line(self._queue_of(write.name)):
                raise Overloaded("other writes wait for room in the commit queue; try again")
            self._stage(write, write.batch)
        except Overloaded as error:
            if self._app.governor.refuses_writes and not request.waits_for_room:
                raise Throttled(error.message, {"retry_after_ms": RETRY_AFTER_MS}) from error
            write.connection.park()
            write.since_s = self._app.loop.time()
            lines.add(self._queue_of(write.name), partial(self._try_again, write, write.batch))

    def _queue_of(self, name: str) -> int:
        """The number of the commit queue that a write to this topic goes to; -1 if the topic is not there yet."""
        topic = self._engine.topics.get(name)
        return -1 if topic is None else topic.shard.index

    def _check_caller(self, write: PendingWrite) -> None:
        """A write with a config must be allowed to create its topic."""
        if not self._engine.has_topic(write.name) and not write.caller.allows(ADMIN):
            raise Forbidden("a write that creates a topic with a config needs the scope admin")

    def _stage(self, write: PendingWrite, batch: WriteBatch) -> None:
        request = write.request
        if request.key is None and request.config is None and request.create is None:
            self._engine.append(write.name, batch, write.end)
            return
        if request.config is not None:
            # The topic may have been deleted while the write waited.
            self._check_caller(write)
        config = self._config_to_create(write.name, request)
        self._engine.append(write.name, batch, write.end, key=request.key, create=request.create, config=config)

    def _try_again(self, write: PendingWrite, batch: WriteBatch) -> bool:
        """Hands the write to the engine, unless there is still no room. A write that fails is answered with its
        error."""
        write.parked_ms = (self._app.loop.time() - write.since_s) * 1000
        try:
            if self._app.is_draining:
                raise Closed
            self._stage(write, batch)
        except Overloaded:
            return False
        except TopicsError as error:
            write.end(error)
        except Exception:
            logger.exception("a write failed")
            write.end(TopicsError("something went wrong in the server; see its log"))
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
    result: Appended, *, elapsed_ms: float, parked_ms: float, seqs: str, warnings: Sequence[str] = ()
) -> str:
    """The members of `response_body.Appended`, rendered. A topic name needs no escapes.

    `seqs` is the text of that member with its comma, or empty to leave the member out. `warnings` are about the config
    of the write.
    """
    times = f'"server_total_ms":{ms_text(elapsed_ms)}'
    if not result.deduped:
        times += f',"wal_append_ms":{ms_text(result.write_ms)},"fsync_ms":{ms_text(result.sync_ms)}'
        if parked_ms:
            times += f',"throttle_wait_ms":{ms_text(parked_ms)}'
    warned = f'"warnings":{_encode(warnings).decode()},' if warnings else ""
    # Numbers that are the same are written once.
    count, head_seq = result.count, result.head_seq
    first = str(result.first_seq)
    last = first if count == 1 else str(result.last_seq)
    head = last if head_seq == result.last_seq else str(head_seq)
    return (
        f'"topic":"{result.topic}","first_seq":{first},"last_seq":{last},{seqs}"head_seq":{head},"count":{count},'
        f'"created":{_BOOLEANS[result.created]},"deduped":{_BOOLEANS[result.deduped]},{warned}'
        f'"performance":{{{times}}}'
    )


def seqs_member(result: Appended) -> str:
    if result.count == 1:
        return f'"seqs":[{result.first_seq}],'
    return f'"seqs":{_encode(list(range(result.first_seq, result.last_seq + 1))).decode()},'


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
