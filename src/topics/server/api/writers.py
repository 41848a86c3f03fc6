"""Endpoints of staged writes: stage a chunk, commit or abort an epoch, show the epochs of a writer.

The prefixes of a key limit topics. A commit names its topic in the body; the other two leave out topics that the key
may not see.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from topics.engine.engine import Engine
from topics.engine.writing.commits import Committed
from topics.engine.writing.staging import StagedChunk, StagedPart
from topics.errors import TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import ABORT_DECODER, EPOCH_DECODER
from topics.protocol.large_write import decode_stage_in_steps
from topics.protocol.request_body import AbortBody, EpochBody, StageBody
from topics.protocol.write_body import WriteRequest, decode_stage
from topics.server.api.appending import write_limits
from topics.server.app import Application
from topics.server.auth import READ, WRITE, Key
from topics.server.hidden_names import check_topics
from topics.server.http.exchange import Exchange
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import WHOLE_BODY_BYTES_MAX
from topics.server.settings_schema import ServerSettings

_WRITER: Final = "/v0/writers/{writer}"


class WritersApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._limits = write_limits(app.settings)
        app.follow_settings(self._use_settings)
        add = app.routes.add
        endpoint = Endpoint("stage", self.stage, WRITE, Body.REQUIRED, takes_large_body=True)
        add("POST", "/v0/topics/{topic}/stage", endpoint)
        add("GET", _WRITER, Endpoint("get_writer", self.state, READ))
        add("POST", f"{_WRITER}/commit", Endpoint("commit_epoch", self.commit, WRITE, Body.REQUIRED))
        add("POST", f"{_WRITER}/abort", Endpoint("abort_epoch", self.abort, WRITE, Body.REQUIRED))

    def _use_settings(self, settings: ServerSettings) -> None:
        self._limits = write_limits(settings)

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    # Staging.

    def stage(self, exchange: Exchange) -> None:
        if len(exchange.body) > WHOLE_BODY_BYTES_MAX:
            steps = decode_stage_in_steps(exchange.body, self._limits)
            exchange.body = b""
            self._app.run_in_steps(exchange, steps, lambda decoded: self._stage(exchange, *decoded))
        else:
            self._stage(exchange, *decode_stage(exchange.body))

    def _stage(self, exchange: Exchange, body: StageBody, request: WriteRequest) -> None:
        batch = request.batch(self._limits)
        place = (body.epoch, body.part, body.attempt, body.chunk)
        self._engine.staging.stage(exchange.name, body.writer, place, batch, partial(self._staged, exchange, body))

    def _staged(self, exchange: Exchange, body: StageBody, result: StagedChunk | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        exchange.answer(
            response_body.ChunkStaged(
                topic=exchange.name,
                writer=body.writer,
                epoch=body.epoch,
                part=body.part,
                attempt=body.attempt,
                chunk=body.chunk,
                records=result.records,
                deduped=result.deduped,
                performance=exchange.performance(),
            )
        )

    # Committing.

    def commit(self, exchange: Exchange) -> None:
        if len(exchange.body) <= WHOLE_BODY_BYTES_MAX:
            self._commit(exchange, EPOCH_DECODER.decode(exchange.body))
            return
        bodies: list[EpochBody] = []
        # In the pool: the check for repeated members is Python code for each part, so the loop gets its turns.
        self._app.run_in_pool(
            exchange,
            lambda: bodies.append(EPOCH_DECODER.decode(exchange.body)),
            lambda: self._commit(exchange, bodies[0]),
        )

    def _commit(self, exchange: Exchange, body: EpochBody) -> None:
        check_topics(_key_of(exchange), (body.topic,))
        parts = [StagedPart(part.part, part.attempt, part.chunks, part.records) for part in body.parts]
        done = partial(self._committed, exchange)
        self._engine.commits.commit(body.topic, exchange.name, body.epoch, parts, done)

    def _committed(self, exchange: Exchange, result: Committed | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        performance = exchange.performance()
        topic = self._engine.topics.get(result.topic)
        if not result.deduped and topic is not None:
            durability = topic.config.durability
            self._app.counters.note_append(durability, result.count or 0, result.size_bytes)
            performance.wal_append_ms = round(result.write_ms, 3)
            performance.fsync_ms = round(result.sync_ms, 3) if durability == "fsync" else 0.0
        exchange.answer(
            response_body.EpochCommitted(
                topic=result.topic,
                writer=result.writer,
                epoch=result.epoch,
                first_seq=result.first_seq,
                last_seq=result.last_seq,
                count=result.count,
                head_seq=result.head_seq,
                deduped=result.deduped,
                performance=performance,
            )
        )

    def abort(self, exchange: Exchange) -> None:
        body: AbortBody = ABORT_DECODER.decode(exchange.body)
        dropped = self._engine.staging.abort(exchange.name, body.epoch, _key_of(exchange).may_name)
        exchange.answer(
            response_body.EpochAborted(
                writer=exchange.name, epoch=body.epoch, dropped=dropped, performance=exchange.performance()
            )
        )

    # Epochs.

    def state(self, exchange: Exchange) -> None:
        key = _key_of(exchange)
        entries = [
            response_body.WriterTopic(
                topic=topic.name, epoch=known.epoch, first_seq=known.first_seq, last_seq=known.last_seq
            )
            for topic, known in self._engine.commits.epochs(exchange.name)
            if key.may_name(topic.name)
        ]
        exchange.answer(
            response_body.WriterEpochs(writer=exchange.name, topics=entries, performance=exchange.performance())
        )


def _key_of(exchange: Exchange) -> Key:
    assert exchange.key is not None
    return exchange.key
