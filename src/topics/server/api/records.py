"""Endpoints of records: append, diff, delete. These are the hot paths of the server.

A write is decoded, handed to the engine, and answered from the engine's callback. A diff is answered at once, after a
fetch in the pool if its bytes may not be in memory, or later if it waits for an append.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec

from topics.engine.engine import Engine
from topics.engine.topic.appended import Appended
from topics.engine.topic.reading import Page
from topics.engine.writing.deletion import Deleted
from topics.errors import InvalidRequest, TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import DELETE_DECODER, DIFF_DECODER
from topics.protocol.large_write import decode_write_in_steps
from topics.protocol.record_text import Chunk, joined_texts, pieces_of
from topics.protocol.request_body import LONG_POLL_MS_MAX, DiffBody
from topics.protocol.tag_match import TagMatch
from topics.protocol.write_body import WriteRequest, decode_write
from topics.results import Tombstone
from topics.server.api.appending import Appender, PendingWrite, WriteDone, appended_members, seqs_member
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import DELETE, READ, WRITE
from topics.server.http.exchange import Exchange, Response, ms_text
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import LARGE_PAGE_BYTES, PAGE_STEP_BYTES, ROOM_RETRY_MS, WHOLE_BODY_BYTES_MAX
from topics.server.steps import Steps

_encode: Final = msgspec.json.Encoder().encode
_BOOLEANS: Final = ("false", "true")


class RecordsApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._appender = Appender(app)
        add = app.routes.add
        add(
            "POST",
            "/v0/topics/{topic}",
            Endpoint("append", self.append, WRITE, Body.REQUIRED, takes_large_body=True),
        )
        add("POST", "/v0/topics/{topic}/diff", Endpoint("diff", self.diff, READ, Body.OPTIONAL))
        add("GET", "/v0/topics/{topic}/records", Endpoint("records", self.records, READ))
        add("POST", "/v0/topics/{topic}/delete", Endpoint("delete", self.delete, DELETE, Body.REQUIRED))

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    # Append.

    def append(self, exchange: Exchange) -> None:
        if len(exchange.body) > WHOLE_BODY_BYTES_MAX:
            steps = decode_write_in_steps(exchange.body, self._appender.limits)
            exchange.body = b""
            self._app.run_in_steps(exchange, steps, partial(self._append, exchange))
        else:
            self._append(exchange, decode_write(exchange.body))

    def _append(self, exchange: Exchange, request: WriteRequest) -> None:
        if request.key is None:
            request.key = key_header(exchange)
        self._appender.append(_PendingAppend(exchange, request, self._appended))

    def _appended(self, write: PendingWrite, result: Appended | TopicsError) -> None:
        assert isinstance(write, _PendingAppend)
        exchange = write.exchange
        if exchange.answered:
            return
        try:
            if isinstance(result, TopicsError):
                exchange.fail(result)
                return
            self._appender.count(result, write.size_bytes)
            members = appended_members(
                result,
                elapsed_ms=exchange.elapsed_ms(),
                parked_ms=write.parked_ms,
                seqs=seqs_member(result) if write.returns_seqs else "",
                warnings=write.request.warnings,
            )
            exchange.reply_json(201 if result.created else 200, f"{{{members}}}".encode())
        except Exception:  # noqa: BLE001 - a bug in one answer must not keep the others from their callers.
            self._app.fail_internally(exchange)

    # Diff.

    def diff(self, exchange: Exchange) -> None:
        body: DiffBody = DIFF_DECODER.decode(exchange.body) if exchange.body else DiffBody()
        _PendingDiff(self._app, exchange, body, self._app.settings.max_limit).start()

    def records(self, exchange: Exchange) -> None:
        """`diff` as a GET, for a browser and for `curl` without a body."""
        query = Query(exchange.query)
        body = DiffBody(
            from_seq=query.count("from_seq", 0),
            limit=query.count("limit", 0),
            node=query.text("node"),
            include_tags=query.flag("include_tags", default=False),
            wait_ms=query.count("wait_ms", 0),
        )
        _PendingDiff(self._app, exchange, body, self._app.settings.max_limit).start()

    # Delete.

    def delete(self, exchange: Exchange) -> None:
        body = DELETE_DECODER.decode(exchange.body)
        match = None if body.match is None else TagMatch.parse(body.match)
        if body.before_seq is None and match is None:
            raise InvalidRequest("a delete names what to delete: before_seq, match, or both")
        self._engine.delete_records(
            exchange.name,
            partial(self._deleted, exchange),
            before_seq=body.before_seq,
            tag=None if match is None or match.is_prefix else match.text,
            tag_prefix=match.text if match is not None and match.is_prefix else None,
        )

    def _deleted(self, exchange: Exchange, result: Deleted | TopicsError) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        exchange.answer(
            response_body.Deleted(
                topic=result.topic,
                deleted=result.deleted,
                earliest_seq=result.earliest_seq,
                head_seq=result.head_seq,
                count=result.count,
                bytes=result.size_bytes,
                performance=exchange.performance(),
            )
        )


def key_header(exchange: Exchange) -> str | None:
    value = exchange.headers.get(b"idempotency-key")
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the header Idempotency-Key is not UTF-8") from error


class _PendingAppend(PendingWrite):
    """One append, from the decoded request to its answer."""

    __slots__ = ("exchange", "returns_seqs")

    def __init__(self, exchange: Exchange, request: WriteRequest, done: WriteDone) -> None:
        assert exchange.key is not None
        super().__init__(exchange.key, exchange.name, request, exchange.connection, done)
        self.exchange = exchange
        self.returns_seqs = not exchange.query or Query(exchange.query).flag("return_seqs", default=True)


class _PendingDiff:
    """One diff, from its first read to its answer."""

    __slots__ = (
        "_app",
        "_body",
        "_bytes_max",
        "_engine",
        "_exchange",
        "_first_page",
        "_from_seq",
        "_limit",
        "_nodes",
        "_timer",
    )

    def __init__(self, app: Application, exchange: Exchange, body: DiffBody, limit_max: int) -> None:
        self._app = app
        self._engine = app.open_engine().engine
        self._exchange = exchange
        self._body = body
        self._from_seq = body.from_seq
        if body.group is not None:
            cursor = self._engine.groups.cursor(exchange.name, body.group)
            self._from_seq = body.from_seq or cursor.seq
        self._limit = min(body.limit or 256, limit_max)
        self._bytes_max = body.max_batch_bytes
        node = body.node
        nodes = [node] if isinstance(node, str) else node
        self._nodes = frozenset(text.encode() for text in nodes) if nodes else None
        self._first_page: Page | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """A page that may be large waits while many bytes wait for clients, or other large pages are rendered."""
        app, exchange = self._app, self._exchange
        if self._bytes_max > LARGE_PAGE_BYTES and not app.may_make_large_page(exchange):
            app.loop.call_later(ROOM_RETRY_MS / 1000, app.guarded, exchange, self.start)
        elif self._is_at_hand():
            self._read()
        else:
            when_up_to_date(app, exchange, exchange.name, self._fetch)

    def _is_at_hand(self) -> bool:
        """Whether the page can be read at once, which is the usual case."""
        engine, name = self._engine, self._exchange.name
        return (
            engine.bring_up_to_date(name)
            and engine.fetch_needed(name, self._from_seq, self._limit, self._bytes_max) is None
        )

    def _fetch(self) -> None:
        name = self._exchange.name
        fetch_needed = partial(self._engine.fetch_needed, name, self._from_seq, self._limit, self._bytes_max)
        self._app.read_fetched(self._exchange, fetch_needed, self._read)

    def _read(self) -> None:
        page = self._engine.read(
            self._exchange.name, self._from_seq, limit=self._limit, bytes_max=self._bytes_max, nodes=self._nodes
        )
        wait_ms = min(self._body.wait_ms, LONG_POLL_MS_MAX)
        if self._first_page is None and wait_ms and page.caught_up and not page.chunks and page.tombstone is None:
            self._wait(page, wait_ms)
        else:
            self._answer(page)

    def _wait(self, page: Page, wait_ms: int) -> None:
        if self._app.is_draining:
            self._answer(page)
            return
        self._first_page = page
        self._app.large_pages.discard(self._exchange)
        self._engine.wait_append(self._exchange.name, self._read_after_wait)
        self._timer = self._app.loop.call_later(wait_ms / 1000, self._time_out)
        self._exchange.on_gone = self._stop_waiting
        self._app.waiting[self._exchange] = self._time_out

    def _read_after_wait(self) -> None:
        if not self._exchange.answered:
            self._stop_waiting()
            self._app.guarded(self._exchange, self._fetch)

    def _time_out(self) -> None:
        self._stop_waiting()
        assert self._first_page is not None
        self._answer(self._first_page)

    def _stop_waiting(self) -> None:
        self._engine.cancel_wait(self._exchange.name, self._read_after_wait)
        self._app.waiting.pop(self._exchange, None)
        self._exchange.on_gone = None
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, page: Page) -> None:
        if not page.chunks:
            self._reply(page, b"")
            return
        body = self._body
        pieces = list(pieces_of(page.chunks, PAGE_STEP_BYTES))
        if len(pieces) > 1:
            self._app.run_in_steps(self._exchange, self._rendered(pieces), partial(self._reply_in_pieces, page))
            return
        self._reply(page, joined_texts(page.chunks, include_tags=body.include_tags, include_meta=body.include_meta))

    def _rendered(self, pieces: list[list[Chunk]]) -> Steps[list[bytes]]:
        """The pieces of the text of a large page, some records in each step."""
        body = self._body
        texts: list[bytes] = []
        for chunks in pieces:
            if texts:
                texts.append(b",")
            texts.append(joined_texts(chunks, include_tags=body.include_tags, include_meta=body.include_meta))
            yield
        return texts

    def _reply(self, page: Page, texts: bytes) -> None:
        self._exchange.reply_json(200, diff_text(page, texts, self._exchange.elapsed_ms()))

    def _reply_in_pieces(self, page: Page, texts: list[bytes]) -> None:
        first, last = diff_frame(page, self._exchange.elapsed_ms())
        self._exchange.reply(Response(200, first.encode(), rest=(*texts, last.encode())))


def diff_text(page: Page, records: bytes, elapsed_ms: float) -> bytes:
    """The body `response_body.Diff`, rendered from stored bytes."""
    first, last = diff_frame(page, elapsed_ms)
    if not records:
        return (first + last).encode()
    return b"".join((first.encode(), records, last.encode()))


def diff_frame(page: Page, elapsed_ms: float) -> tuple[str, str]:
    """The body without its records: the text before them, and the text after them. A topic name needs no escapes."""
    cold = f',"cold_segments_read":{page.cold_records}' if page.cold_records else ""
    first = f'{{"topic":"{page.topic}","records":['
    last = (
        f'],"next_from_seq":{page.next_from_seq},"head_seq":{page.head_seq},"earliest_seq":{page.earliest_seq},'
        f'"caught_up":{_BOOLEANS[page.caught_up]},"tombstone":{_tombstone_text(page.tombstone)},"lag":{page.lag},'
        f'"performance":{{"server_total_ms":{ms_text(elapsed_ms)},"records_scanned":{page.records_scanned}{cold}}}}}'
    )
    return first, last


def _tombstone_text(tombstone: Tombstone | None) -> str:
    return "null" if tombstone is None else _encode(tombstone).decode()
