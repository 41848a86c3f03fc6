"""Endpoints for readers of files: the manifest of a topic's segments, and records as the frames of segments."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from topics.engine.engine import Engine
from topics.engine.manifest import encode_frames, frames_bounds, take_manifest
from topics.engine.topic.page import Page
from topics.errors import InvalidRequest
from topics.protocol import response_body
from topics.protocol.body_decoder import MANIFEST_DECODER
from topics.protocol.request_body import ManifestBody
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import READ
from topics.server.http.exchange import Exchange, Response
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint

FRAMES_TYPE: Final = b"application/vnd.topics.frames"


class SegmentsApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("POST", "/v0/topics/{topic}/manifest", Endpoint("manifest", self.manifest, READ, Body.OPTIONAL))
        add("GET", "/v0/topics/{topic}/frames", Endpoint("frames", self.frames, READ))

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def manifest(self, exchange: Exchange) -> None:
        body: ManifestBody = MANIFEST_DECODER.decode(exchange.body) if exchange.body else ManifestBody()
        when_up_to_date(self._app, exchange, exchange.name, partial(self._answer_manifest, exchange, body))

    def _answer_manifest(self, exchange: Exchange, body: ManifestBody) -> None:
        members = take_manifest(
            self._engine,
            exchange.name,
            from_seq=body.from_seq,
            to_seq=body.to_seq,
            from_ts=body.from_ts,
            to_ts=body.to_ts,
            pin_ms=body.pin_ms,
        )
        members["performance"] = exchange.performance()
        exchange.answer(msgspec.convert(members, response_body.Manifest))

    # Frames.

    def frames(self, exchange: Exchange) -> None:
        query = Query(exchange.query)
        first_seq = max(query.count("from_seq", 1), 1)
        to_seq = query.count("to_seq", 0) or None
        if to_seq is not None and to_seq < first_seq:
            raise InvalidRequest(f"to_seq is {to_seq}, which is below from_seq {first_seq}: both are in the range")
        fetch = partial(self._fetch_frames, exchange, query, first_seq, to_seq)
        when_up_to_date(self._app, exchange, exchange.name, fetch)

    def _fetch_frames(self, exchange: Exchange, query: Query, first_seq: int, to_seq: int | None) -> None:
        # A cursor is one below the first seq.
        from_seq = first_seq - 1
        limit, bytes_max = frames_bounds(query.count("max_bytes", 0))
        if to_seq is not None:
            limit = min(limit, to_seq - from_seq)
        topic = self._engine.topic(exchange.name)
        read = partial(self._read_frames, exchange, from_seq, to_seq, limit, bytes_max)
        self._app.read_fetched(exchange, partial(topic.fetch_needed, from_seq, limit, bytes_max), read)

    def _read_frames(self, exchange: Exchange, from_seq: int, to_seq: int | None, limit: int, bytes_max: int) -> None:
        engine = self._engine
        topic = engine.topic(exchange.name)
        topic.refresh(engine.now_ms())
        page = topic.read(from_seq, limit, bytes_max, None)
        instance = topic.id, topic.epoch
        results: list[tuple[bytes, int]] = []
        # In the pool, because the frames of thousands of records get checksums.
        self._app.run_in_pool(
            exchange,
            lambda: results.append(encode_frames(page, to_seq)),
            lambda: self._answer_frames(exchange, page, *instance, *results[0]),
        )

    def _answer_frames(
        self, exchange: Exchange, page: Page, topic_id: int, epoch: int, body: bytes, next_seq: int
    ) -> None:
        headers = [
            (b"topics-next-seq", b"%d" % (next_seq + 1)),
            (b"topics-head-seq", b"%d" % page.head_seq),
            (b"topics-id", b"%d" % topic_id),
            (b"topics-epoch", b"%d" % epoch),
        ]
        if page.tombstone is not None:
            gap = page.tombstone
            headers.append((b"topics-gap", b"%d-%d;%b" % (gap.gap_from, gap.gap_to, gap.reason.encode())))
        exchange.reply(Response(200, body, FRAMES_TYPE, tuple(headers)))
