"""Endpoints for readers of files: the manifest of a topic's segments, and records as the frames of segments."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from topics.engine.engine import Engine
from topics.engine.manifest import encode_frames, frames_bounds, take_manifest
from topics.engine.topic.reading import Page
from topics.engine.topic.topic import Topic
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
from topics.server.limits import LARGE_PAGE_BYTES, PAGE_STEP_BYTES, ROOM_RETRY_MS
from topics.server.steps import Steps

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
        app = self._app
        if bytes_max > LARGE_PAGE_BYTES and not app.may_make_large_page(exchange):
            again = partial(self._fetch_frames, exchange, query, first_seq, to_seq)
            app.loop.call_later(ROOM_RETRY_MS / 1000, app.guarded, exchange, again)
            return
        if to_seq is not None:
            limit = min(limit, to_seq - from_seq)
        topic = self._engine.topic(exchange.name)
        read = partial(self._read_frames, exchange, from_seq, to_seq, limit, bytes_max)
        app.read_fetched(exchange, partial(topic.fetch_needed, from_seq, limit, bytes_max), read)

    def _read_frames(self, exchange: Exchange, from_seq: int, to_seq: int | None, limit: int, bytes_max: int) -> None:
        engine = self._engine
        topic = engine.topic(exchange.name)
        topic.refresh(engine.now_ms())
        page = topic.read(from_seq, limit, min(bytes_max, PAGE_STEP_BYTES), None)
        answer = _Frames(page, topic.id, topic.epoch)
        if page.caught_up or bytes_max <= PAGE_STEP_BYTES:
            answer.add(page, to_seq)
            self._answer_frames(exchange, answer)
        else:
            steps = self._frames_in_steps(topic, answer, page, to_seq, limit, bytes_max)
            self._app.run_in_steps(exchange, steps, partial(self._answer_frames, exchange))

    def _frames_in_steps(
        self, topic: Topic, answer: _Frames, page: Page, to_seq: int | None, limit: int, bytes_max: int
    ) -> Steps[_Frames]:
        """Some records in each step. The answer ends early where a page would end: before a lost range, and before
        bytes that are not at hand."""
        engine = self._engine
        while True:
            answer.add(page, to_seq)
            limit -= len(page)
            bytes_max -= len(answer.pieces[-1])
            if limit <= 0 or bytes_max < PAGE_STEP_BYTES or page.caught_up or answer.next_seq == to_seq:
                return answer
            yield
            from_seq = page.next_from_seq
            if not engine.core.is_current(topic) or topic.fetch_needed(from_seq, limit, PAGE_STEP_BYTES) is not None:
                return answer
            topic.refresh(engine.now_ms())
            page = topic.read(from_seq, limit, PAGE_STEP_BYTES, None)
            if page.tombstone is not None or page.next_from_seq == from_seq:
                return answer

    def _answer_frames(self, exchange: Exchange, answer: _Frames) -> None:
        headers = [
            (b"topics-next-seq", b"%d" % (answer.next_seq + 1)),
            (b"topics-head-seq", b"%d" % answer.first_page.head_seq),
            (b"topics-id", b"%d" % answer.topic_id),
            (b"topics-epoch", b"%d" % answer.epoch),
        ]
        gap = answer.first_page.tombstone
        if gap is not None:
            headers.append((b"topics-gap", b"%d-%d;%b" % (gap.gap_from, gap.gap_to, gap.reason.encode())))
        first, *rest = answer.pieces
        exchange.reply(Response(200, first, FRAMES_TYPE, tuple(headers), rest=tuple(rest)))


class _Frames:
    """An answer with frames, in pieces."""

    __slots__ = ("epoch", "first_page", "next_seq", "pieces", "topic_id")

    def __init__(self, first_page: Page, topic_id: int, epoch: int) -> None:
        self.first_page = first_page
        self.topic_id = topic_id
        self.epoch = epoch
        self.pieces: list[bytes] = []
        # The last seq that the answer covers.
        self.next_seq = first_page.next_from_seq

    def add(self, page: Page, to_seq: int | None) -> None:
        piece, self.next_seq = encode_frames(page, to_seq)
        self.pieces.append(piece)
