"""Writes, whichever protocol brings them: from the decoded request to the engine, and back to the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.engine import Engine
from topics.engine.names import check_topic_name
from topics.engine.staged import Appended
from topics.errors import Closed, Forbidden, Throttled, TopicNotFound, TopicsError
from topics.protocol.request_body import ConfigBody
from topics.protocol.write_body import WriteLimits, WriteRequest
from topics.server.app import Application
from topics.server.auth import ADMIN, Key
from topics.server.limits import ROOM_RETRY_MS
from topics.server.pressure import RETRY_AFTER_MS
from topics.server.topics_api import config_of

logger = logging.getLogger(__name__)

# Told the accounted bytes of the write, and what became of it. Called by the engine, which must not be called back.
WriteDone = Callable[[int, Appended | TopicsError], None]

_encode: Final = msgspec.json.Encoder().encode
_BOOLEANS: Final = (b"false", b"true")


class Appender:
    """Loop thread only."""

    def __init__(self, app: Application) -> None:
        self._app = app
        settings = app.settings
        self._limits = WriteLimits(
            records_max=settings.max_batch_records,
            record_bytes_max=settings.max_record_bytes,
            meta_bytes_max=settings.max_meta_bytes,
            tag_bytes_max=settings.max_tag_bytes,
            node_bytes_max=settings.max_node_bytes,
        )

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def append(self, caller: Key, name: str, write: WriteRequest, done: WriteDone) -> None:
        """Raises what speaks against the write; else `done` is told what became of it, now or later."""
        engine = self._engine
        config = write.config
        if config is not None and not engine.has_topic(name) and not caller.allows(ADMIN):
            raise Forbidden("a write that creates a topic with a config needs the scope admin")
        batch = write.batch(self._limits)
        told = partial(done, batch.size_bytes)
        try:
            if write.key is None and config is None and write.create is None:
                engine.append(name, batch, told)
            else:
                wanted = None if config is None else self._config_to_create(name, config, create=write.create)
                engine.append(name, batch, told, key=write.key, create=write.create, config=wanted)
        except Throttled as error:
            # A cap says which one it is. What is left is a full commit queue, and that may be for want of CPU.
            if error.detail is not None or not self._app.governor.refuses_writes:
                raise
            if not write.waits_for_room:
                raise Throttled(error.message, {"retry_after_ms": RETRY_AFTER_MS}) from error
            self._app.loop.call_later(ROOM_RETRY_MS / 1000, self._append_again, caller, name, write, done)

    def _append_again(self, caller: Key, name: str, write: WriteRequest, done: WriteDone) -> None:
        """There may be room by now. Whoever sent the write was not refused, and is told what goes wrong."""
        try:
            if self._app.is_draining:
                raise Closed
            self.append(caller, name, write, done)
        except TopicsError as error:
            done(0, error)
        except Exception:
            logger.exception("a write failed")
            done(0, TopicsError("something went wrong in the server; see its log"))

    def _config_to_create(self, name: str, config: ConfigBody, *, create: bool | None) -> TopicConfig | None:
        """What the write asks for, if it creates the topic. Its rules are the last thing to be checked."""
        if self._engine.has_topic(name):
            return None
        if not (config.auto_create if create is None else create):
            raise TopicNotFound(name)
        check_topic_name(name)
        return config_of(config)

    def members(self, result: Appended, size_bytes: int, elapsed_ms: float, seqs: bytes) -> bytes:
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


def seqs_member(result: Appended) -> bytes:
    return b'"seqs":%b,' % _encode(list(range(result.first_seq, result.last_seq + 1)))
