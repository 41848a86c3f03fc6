"""Writes, whichever protocol brings them: from the decoded request to the engine, and back to the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.engine import Engine
from topics.engine.names import check_topic_name
from topics.engine.topic.write import Appended
from topics.errors import Closed, Forbidden, Overloaded, Throttled, TopicNotFound, TopicsError
from topics.protocol.request_body import ConfigBody
from topics.protocol.write_body import WriteLimits, WriteRequest
from topics.server.api.topics import config_of
from topics.server.app import Application
from topics.server.auth import ADMIN, Key
from topics.server.http.exchange import Parkable
from topics.server.limits import ROOM_RETRY_MS
from topics.server.pressure import RETRY_AFTER_MS
from topics.server.settings_schema import ServerSettings

logger = logging.getLogger(__name__)

# Told the accounted bytes of the write, how long it waited for room, and what became of it. Called by the engine, which
# must not be called back.
WriteDone = Callable[[int, float, Appended | TopicsError], None]

_encode: Final = msgspec.json.Encoder().encode
_BOOLEANS: Final = (b"false", b"true")


class _Waiting(NamedTuple):
    """A write that waits for room."""

    # Told how long it waited. Raises what speaks against the write.
    stage: Callable[[float], None]
    done: WriteDone
    connection: Parkable
    since_s: float


class Appender:
    """Loop thread only."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._limits = write_limits(app.settings)

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def append(self, caller: Key, name: str, request: WriteRequest, done: WriteDone, connection: Parkable) -> None:
        """Raises what speaks against the write; else `done` is told what became of it, now or later.

        A write that waits for room takes its connection with it: no other request of it is begun meanwhile.
        """
        config = request.config

        def check_caller() -> None:
            if config is not None and not self._engine.has_topic(name) and not caller.allows(ADMIN):
                raise Forbidden("a write that creates a topic with a config needs the scope admin")

        check_caller()
        batch = request.batch(self._limits)

        def stage(parked_ms: float) -> None:
            told = partial(done, batch.size_bytes, parked_ms)
            if request.key is None and config is None and request.create is None:
                self._engine.append(name, batch, told)
                return
            # A topic that was there may be gone after a wait.
            check_caller()
            wanted = None if config is None else self._config_to_create(name, config, create=request.create)
            self._engine.append(name, batch, told, key=request.key, create=request.create, config=wanted)

        try:
            stage(0.0)
        except Throttled as error:
            if not self._is_for_want_of_room(error):
                raise
            if not request.waits_for_room:
                raise Throttled(error.message, {"retry_after_ms": RETRY_AFTER_MS}) from error
            connection.park()
            self._try_later(_Waiting(stage, done, connection, self._app.loop.time()))

    def _is_for_want_of_room(self, error: Throttled) -> bool:
        """The commit queue is full and the machine is short of CPU."""
        return isinstance(error, Overloaded) and self._app.governor.refuses_writes

    def _try_later(self, write: _Waiting) -> None:
        self._app.loop.call_later(ROOM_RETRY_MS / 1000, self._try_again, write)

    def _try_again(self, write: _Waiting) -> None:
        """There may be room by now. Whoever sent the write was not refused, and is told what goes wrong."""
        parked_ms = (self._app.loop.time() - write.since_s) * 1000
        try:
            if self._app.is_draining:
                raise Closed
            write.stage(parked_ms)
        except TopicsError as error:
            if isinstance(error, Throttled) and self._is_for_want_of_room(error):
                self._try_later(write)
                return
            write.done(0, parked_ms, error)
        except Exception:
            logger.exception("a write failed")
            write.done(0, parked_ms, TopicsError("something went wrong in the server; see its log"))
        write.connection.unpark()

    def _config_to_create(self, name: str, config: ConfigBody, *, create: bool | None) -> TopicConfig | None:
        """What the write asks for, if it creates the topic. Its rules are the last thing to be checked."""
        if self._engine.has_topic(name):
            return None
        if not (config.auto_create if create is None else create):
            raise TopicNotFound(name)
        check_topic_name(name)
        return config_of(config)

    def members(self, result: Appended, size_bytes: int, *, elapsed_ms: float, parked_ms: float, seqs: bytes) -> bytes:
        """The members of the answer, and the write is counted. `seqs` is that member with its comma, if it is there."""
        if result.deduped:
            performance = b'"server_total_ms":%.3f' % elapsed_ms
        else:
            topic = self._engine.topics.get(result.topic)
            if topic is not None:
                self._app.counters.note_append(topic.config.durability, result.count, size_bytes)
            performance = b'"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f' % (
                elapsed_ms,
                result.write_ms,
                result.sync_ms,
            )
            if parked_ms:
                performance += b',"throttle_wait_ms":%.3f' % parked_ms
        return (
            b'"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,'
            b'"deduped":%b,"performance":{%b}'
            % (
                result.topic.encode(),
                result.first_seq,
                result.last_seq,
                seqs,
                result.head_seq,
                result.count,
                _BOOLEANS[result.created],
                _BOOLEANS[result.deduped],
                performance,
            )
        )


def write_limits(settings: ServerSettings) -> WriteLimits:
    """What the settings allow a write to be."""
    return WriteLimits(
        records_max=settings.max_batch_records,
        record_bytes_max=settings.max_record_bytes,
        meta_bytes_max=settings.max_meta_bytes,
        tag_bytes_max=settings.max_tag_bytes,
        node_bytes_max=settings.max_node_bytes,
    )


def seqs_member(result: Appended) -> bytes:
    return b'"seqs":%b,' % _encode(list(range(result.first_seq, result.last_seq + 1)))
