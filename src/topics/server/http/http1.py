"""HTTP/1.1 on one connection: bytes become exchanges, answers go back in order.

The parser (llhttp) refuses requests that could smuggle others: lengths that disagree, unknown codings, bare line
breaks. It counts nothing, so this module keeps every limit: target, headers, body, and the time for each.

Rules of this file:

1. One exchange at a time: pipelined requests wait in a queue until the previous answer is sent.
2. Nothing is read from the socket while the queue is full, while a request waits for room, or while the client does not
   take its answers.
3. The connection closes after a refusal that leaves the end of the message uncertain (bad syntax, too large, too slow).
4. The parser's callbacks call the application only to ask whether a body is wanted.
5. A head says once where its message ends. A head that another parser could read differently is refused.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from io import BytesIO
from typing import Final

import httptools

from topics.errors import (
    HeadersTooLarge,
    InvalidRequest,
    PayloadTooLarge,
    RequestTimeout,
    TopicsError,
    UriTooLong,
)
from topics.limits import KIB
from topics.server.http.connections import ConnectionSet, MakeWire, Wire
from topics.server.http.exchange import JSON, NOT_MODIFIED, Exchange, Response, SharedPiece, Stream
from topics.server.limits import (
    DRAINED_BODY_BYTES_MAX,
    EXCHANGES_PER_TURN,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    PARSED_BYTES_PER_STEP,
    PIPELINED_EXCHANGES_MAX,
    TARGET_BYTES_MAX,
)

_REASONS: Final[dict[int, bytes]] = {
    200: b"OK",
    201: b"Created",
    304: b"Not Modified",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    414: b"URI Too Long",
    415: b"Unsupported Media Type",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in _REASONS.items()}
# The length of a small body, with the end of the head.
_LENGTHS: Final = [b"%d\r\n\r\n" % length for length in range(KIB)]
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_BLANKS: Final = b" \t"
JOINED_BYTES_MAX: Final = 64 * KIB
_BODY_BYTES_PER_STEP: Final = 64 * KIB
# The largest head: headers and target at their limits, plus method and version.
_HIDDEN_BYTES_MAX: Final = HEADER_BYTES_MAX + TARGET_BYTES_MAX + KIB
assert PARSED_BYTES_PER_STEP <= HEADER_BYTES_MAX, "a head that comes in one step is not measured"
# Headers that must not repeat: two values could disagree about the host, or about the end of the body.
_OF_BODIES: Final = frozenset({b"content-length", b"transfer-encoding"})
_ONLY_ONCE: Final = _OF_BODIES | {b"host"}


class Http1Connection(Wire):
    """The parser's callbacks (`on_…`) note what they saw; `data_received` acts on it."""

    def __init__(self, connections: ConnectionSet, transport: asyncio.Transport) -> None:
        super().__init__(connections, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._known_heads = connections.known_heads
        # Received and not parsed yet, because enough requests wait.
        self._unparsed = b""
        # Requests that were received in full and wait for their turn.
        self._queue: deque[Exchange] = deque()
        self._current: Exchange | None = None
        # The answer to the current exchange, if it is a stream.
        self._stream: _Http1Stream | None = None
        # The pieces of the current answer that are not sent yet.
        self._rest: deque[bytes] = deque()
        self._rest_bytes = 0
        self._rest_is_due = False
        self._closes_after_rest = False
        self._is_in_turn = False
        self._turn_is_due = False
        # Bytes that arrive are ignored. After the last answer the connection closes.
        self._ends = False
        # The client sends no more. After the last answer the connection closes.
        self._has_eof = False
        self._wants_continue = False
        # Queued exchanges that are already refused, and their errors.
        self._refused: dict[Exchange, TopicsError] = {}
        # Queued exchanges after whose answer the connection closes.
        self._closes_after: set[Exchange] = set()
        # Queued exchanges of HTTP/1.0 whose answer must say that the connection stays open.
        self._says_keep_alive: set[Exchange] = set()
        # The exchange that asks for a WebSocket. Until its answer, the meaning of the bytes after it is not known.
        self._upgrading: Exchange | None = None
        # Exchanges of a client that speaks HTTP/1.0.
        self._old: set[Exchange] = set()
        self._message_count = 0
        # Number of the message that did not arrive in one piece, and whether its head is still arriving. It has a
        # deadline.
        self._slow: tuple[int, bool] | None = None
        self._body = b""
        self._more_body: BytesIO | None = None
        self.on_message_begin()
        self._in_head = False

    def on_message_begin(self) -> None:
        self._message_count += 1
        self._in_head = True
        self._target = b""
        # Headers and trailers, in the order of arrival.
        self._fields: list[tuple[bytes, bytes]] = []
        # Bytes since the last header or body byte that the parser reported.
        self._hidden_bytes = 0
        # Length of the body, if the head gives it.
        self._length = 0
        # Bytes of the body that have arrived.
        self._body_bytes = 0
        self._arriving: Exchange | None = None
        # A made-up head, which makes a new parser read the body that the current parser skips.
        self._head_of_body = b""
        # The head alone decided the answer. The body is read only to find its end.
        self._early: TopicsError | None = None

    # Bytes in.

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_received += len(data)
        if self._ends:
            return
        if not self._in_head and self._arriving is None and not self._unparsed and self._upgrading is None:
            head = self._known_heads.find(data)
            if head is None:
                self._parse_whole(data)
            else:
                exchange = Exchange(self.app, self, head.method, head.path, head.query, head.headers, head)
                exchange.body = data[head.body_at :]
                if self._is_idle():
                    self._start_alone(exchange)
                    return
                self._queue.append(exchange)
        else:
            self._unparsed += data
            self._parse_some()
        if not self._turn_is_due:
            self._go_on()

    def _parse_whole(self, data: bytes) -> None:
        """Parses bytes that begin a message. If they are exactly one message, its head is remembered."""
        message_count = self._message_count
        if len(data) > PARSED_BYTES_PER_STEP:
            self._unparsed = data
            self._parse_some()
        else:
            self._unparsed = self._parse(data)
        if self._upgrading is not None:
            return
        if self._message_count == message_count + 1 and self._arriving is None and not self._in_head and self._queue:
            exchange = self._queue[-1]
            if not (exchange in self._refused or exchange in self._closes_after or exchange in self._says_keep_alive):
                self._known_heads.learn(data, exchange)

    def _parse_some(self) -> None:
        """Parses step by step until enough requests wait: the received bytes may hold thousands of requests."""
        view = memoryview(self._unparsed)
        offset = 0
        while offset < len(view) and self._may_parse():
            # A body holds no requests, so a longer step is safe, and takes half the time.
            body_bytes = min(self._length - self._body_bytes, _BODY_BYTES_PER_STEP)
            end = offset + max(body_bytes, PARSED_BYTES_PER_STEP)
            left = self._parse(view[offset:end])
            offset = min(end, len(view)) - len(left)
        self._unparsed = b"" if self._ends else bytes(view[offset:])

    def _may_parse(self) -> bool:
        return len(self._queue) < PIPELINED_EXCHANGES_MAX and self._upgrading is None and not self._ends

    def _parse(self, data: bytes | memoryview) -> bytes:
        """Parses the data. Returns the rest after a request for a WebSocket, otherwise nothing."""
        self._hidden_bytes += len(data)
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._go_on_without_upgrade()
                data = data[upgrade.args[0] :]
                if self._upgrading is not None:
                    self._note_slow()
                    return bytes(data)
                if data:
                    continue
            except httptools.HttpParserCallbackError as error:
                self._refuse(_cause(error))
            except httptools.HttpParserError as error:
                self._refuse(InvalidRequest(f"not HTTP: {error}"))
            break
        if self._in_head or self._arriving is not None or self._slow is not None:
            # The parser reports a header only when it is complete, and never reports the bytes between chunks.
            if self._hidden_bytes > _HIDDEN_BYTES_MAX and not self._ends:
                self._refuse(_too_many_header_bytes())
            self._note_slow()
        return b""

    def _note_slow(self) -> None:
        """Starts or ends the deadline of a message. A message that arrives in one piece needs none."""
        slow = None
        if not self._ends and (self._in_head or self._arriving is not None):
            slow = (self._message_count, self._in_head)
        if slow == self._slow:
            return
        self._slow = slow
        if slow is None or self._wants_continue:
            # A body that waits for `100 Continue` has no deadline until that was sent.
            self.note_message_complete()
        elif self._in_head:
            self.note_head_begun()
        else:
            self.note_body_begun()

    def _go_on_without_upgrade(self) -> None:
        """Ignores a request for an upgrade. The parser stops there, and a new parser reads what follows.

        The old parser assumes that no body follows, even if the head has one. Read as the next request, that body would
        be a smuggled request, so the new parser is told about the body.
        """
        if self._head_of_body:
            head, self._head_of_body = self._head_of_body, b""
            self._parser = httptools.HttpRequestParser(_BodyFirst(self))
            self._parser.feed_data(head)
        else:
            self._parser = httptools.HttpRequestParser(self)

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > TARGET_BYTES_MAX:
            raise _Refusal(UriTooLong(f"a request target has at most {TARGET_BYTES_MAX} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        fields.append((name, value))
        if len(fields) > HEADERS_MAX:
            raise _Refusal(HeadersTooLarge(f"a request has at most {HEADERS_MAX} headers"))

    def on_headers_complete(self) -> None:
        # Fields after this are trailers. A trailer must not count as a header that was already checked.
        self._in_head = False
        parser, fields = self._parser, self._fields
        headers = {name.lower(): value.rstrip(_BLANKS) for name, value in fields}
        if len(headers) != len(fields):
            _check_repeats(fields)
        if self._hidden_bytes and sum(len(name) + len(value) + 4 for name, value in fields) > HEADER_BYTES_MAX:
            raise _Refusal(_too_many_header_bytes())
        version = parser.get_http_version()
        is_chunked = b"transfer-encoding" in headers
        if version == "1.1":
            if b"host" not in headers:
                raise _Refusal(InvalidRequest("the request has no Host header, which HTTP/1.1 requires"))
        elif version != "1.0":
            raise _Refusal(InvalidRequest(f"HTTP/{version} is not supported: use HTTP/1.1 or HTTP/2"))
        elif is_chunked:
            raise _Refusal(InvalidRequest("HTTP/1.0 does not allow Transfer-Encoding"))
        if is_chunked and headers[b"transfer-encoding"].lower() != b"chunked":
            raise _Refusal(
                InvalidRequest("a body is sent plain or chunked: other values of Transfer-Encoding are not supported")
            )
        target, method = self._target, parser.get_method()
        if method == b"CONNECT" or (not target.startswith(b"/") and target != b"*"):
            raise _Refusal(InvalidRequest("the request target must be a path"))
        path, _, query = target.partition(b"?")
        exchange = self._arriving = Exchange(self.app, self, method, path, query, headers)
        if version == "1.0":
            self._old.add(exchange)
            if parser.should_keep_alive():
                self._says_keep_alive.add(exchange)
        length = headers.get(b"content-length")
        if is_chunked or length is not None:
            self._length = 0 if length is None else int(length)
            if b"upgrade" in headers and parser.should_upgrade():
                self._head_of_body = _head_of_body(length, keeps_alive=parser.should_keep_alive())
            self._decide_early(
                exchange,
                self._length,
                is_chunked=is_chunked,
                expects=version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue",
            )

    def _decide_early(self, exchange: Exchange, length: int, *, is_chunked: bool, expects: bool) -> None:
        """Decides by the head: a large body is neither read nor asked for if the request is refused anyway."""
        is_small = length <= min(DRAINED_BODY_BYTES_MAX, self.app.body_bytes_max)
        if is_small and not expects and not is_chunked:
            return
        self._early = self.app.refusal(exchange) or self._excess(exchange, length)
        if self._early is None:
            self._wants_continue = expects
        elif expects or length > DRAINED_BODY_BYTES_MAX:
            raise _Refusal(self._early)

    def _excess(self, exchange: Exchange, size: int) -> TopicsError | None:
        """The error for a body that is too large. A body that is ignored may be as large as the drained body of a
        refused request.
        """
        bytes_max = exchange.body_bytes_max
        if size > bytes_max and not (exchange.ignores_body and size <= DRAINED_BODY_BYTES_MAX):
            return PayloadTooLarge(f"a body has at most {bytes_max} bytes")
        return None

    def on_body(self, part: bytes) -> None:
        exchange = self._arriving
        assert exchange is not None
        self._hidden_bytes = 0
        self._body_bytes += len(part)
        self.note_body_bytes(len(part))
        if self._body_bytes > exchange.body_bytes_max and self._early is None:
            self._early = self._excess(exchange, self._body_bytes)
        if self._early is not None:
            if self._body_bytes > DRAINED_BODY_BYTES_MAX:
                raise _Refusal(self._early)
        elif exchange.ignores_body:
            return
        elif not self._body:
            self._body = part
        else:
            if self._more_body is None:
                self._more_body = BytesIO()
                self._more_body.write(self._body)
            self._more_body.write(part)

    def on_message_complete(self) -> None:
        exchange = self._arriving
        assert exchange is not None
        if self._head_of_body:
            return
        self._arriving = None
        self._wants_continue = False
        if self._early is not None:
            self._refused[exchange] = self._early
        else:
            exchange.body = self._body if self._more_body is None else self._more_body.getvalue()
        # An idle connection keeps no body in memory.
        self._body = b""
        self._more_body = None
        if not self._parser.should_keep_alive():
            self._closes_after.add(exchange)
        elif self._may_upgrade(exchange):
            self._upgrading = exchange
        self._queue.append(exchange)

    def _may_upgrade(self, exchange: Exchange) -> bool:
        headers = exchange.headers
        return (
            b"upgrade" in headers
            and headers[b"upgrade"].lower() == b"websocket"
            and exchange.method == b"GET"
            and not exchange.is_head
            and exchange not in self._old
            and not headers.keys() & _OF_BODIES
            and self._parser.should_upgrade()
        )

    def eof_received(self) -> bool:
        """The client sends no more. It gets its answers; waiting requests are answered early."""
        self._has_eof = True
        self._wants_continue = False
        is_done = self._current is None and not self._queue and not self._unparsed
        # A client that ends its side of a stream is gone: no known client half-closes and keeps listening.
        if is_done or self.is_closed or self._stream is not None or not self.transport.can_write_eof():
            self.close()
            if self._stream is not None:
                self._stream.gone()
            return False
        if self._current is not None:
            self.app.hurry(self._current)
        return True

    # Turns.

    def _refuse(self, error: TopicsError) -> None:
        """The end of the message is uncertain: earlier requests are answered, then this error is sent, then the
        connection closes.
        """
        exchange = self._arriving
        if exchange is None:
            method = b"" if self._in_head else self._parser.get_method()
            exchange = Exchange(self.app, self, method, b"", b"", {})
        self._refused[exchange] = self._early or error
        self._closes_after.add(exchange)
        self._queue.append(exchange)
        self._arriving = None
        self._ends = True
        self._wants_continue = False
        if self.is_reading_paused:
            # Further bytes are read and dropped.
            self.resume_reading()

    def _go_on(self) -> None:
        """Starts waiting requests, only a few in one turn, so that other connections get their turn."""
        self._turn_is_due = False
        self._is_in_turn = True
        try:
            for _ in range(EXCHANGES_PER_TURN):
                if self._current is not None or self.is_closed or self.is_congested:
                    break
                if self._queue:
                    self._start(self._queue.popleft())
                elif self._unparsed:
                    self._parse_some()
                else:
                    self._end_of_queue()
                    break
            else:
                self._take_another_turn()
        finally:
            self._is_in_turn = False
        if self._queue or self._unparsed or self.is_congested or self.is_reading_paused:
            self._adjust_reading()

    def _is_idle(self) -> bool:
        """Whether a request that has arrived can start at once."""
        return not (
            self._current is not None or self._queue or self._turn_is_due or self.is_closed or self.is_congested
        )

    def _start_alone(self, exchange: Exchange) -> None:
        """Starts a request that nothing waits for: what `_go_on` does with it."""
        self._current = exchange
        self._is_in_turn = True
        try:
            self.app.handle(exchange)
        finally:
            self._is_in_turn = False
        if self.is_congested or self.is_reading_paused:
            self._adjust_reading()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        error = self._refused.pop(exchange, None) if self._refused else None
        if error is None:
            self.app.handle(exchange)
        else:
            self.app.refuse(exchange, error)
        if self._has_eof and self._is_answering():
            self.app.hurry(exchange)

    def _is_answering(self) -> bool:
        """Asked after calls that may have ended the request: a compiled module trusts its last assignment otherwise."""
        return self._current is not None

    def _end_of_queue(self) -> None:
        if self._wants_continue:
            self._wants_continue = False
            self.note_body_begun()
            self.write(_CONTINUE)
        elif self._has_eof or (self.is_draining and self._slow is None):
            self.close()

    def _take_another_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self.loop.call_soon(self._go_on)

    def _adjust_reading(self) -> None:
        is_held_up = self.is_congested or self.is_parked
        is_full = len(self._queue) >= PIPELINED_EXCHANGES_MAX or bool(self._unparsed) or is_held_up
        if is_full == self.is_reading_paused or self.is_closed or self._has_eof or self._ends:
            return
        if is_full:
            self.pause_reading()
        else:
            self.resume_reading()

    def note_parked(self) -> None:
        self._adjust_reading()

    # Answers out.

    def send(self, exchange: Exchange, response: Response) -> None:
        assert exchange is self._current
        closes = exchange in self._closes_after or self.connections.is_draining
        self._write_response(exchange, response, closes=closes)
        if response.rest and not exchange.is_head:
            self._rest.extend(response.rest)
            self._rest_bytes = sum(map(len, response.rest))
            self._closes_after_rest = closes
            self.connections.note_unsent(self._rest_bytes)
            self._send_rest_later()
        else:
            self._go_on_behind(closes=closes)

    def send_json(self, exchange: Exchange, status: int, body: bytes) -> None:
        if (
            exchange.is_head
            or self._closes_after
            or self._says_keep_alive
            or self.connections.is_draining
            or len(body) >= len(_LENGTHS)
        ):
            self.send(exchange, Response(status, body))
            return
        assert exchange is self._current
        self.write(self._head(status) + _LENGTHS[len(body)] + body)
        self._go_on_behind(closes=False)

    def _send_rest_later(self) -> None:
        if self._rest and not self._rest_is_due and not self.is_congested:
            self._rest_is_due = True
            self.loop.call_soon(self._send_rest)

    def _send_rest(self) -> None:
        """Sends one piece of a large answer in a turn, when the client takes it."""
        self._rest_is_due = False
        if not self._rest or self.is_closed or self.is_congested:
            return
        piece = self._rest.popleft()
        self._rest_bytes -= len(piece)
        self.write(piece)
        if self._rest:
            self._send_rest_later()
        else:
            self._go_on_behind(closes=self._closes_after_rest or self.connections.is_draining)

    @property
    def unsent_bytes(self) -> int:
        return super().unsent_bytes + self._rest_bytes

    def begin_stream(self, exchange: Exchange, head: Response) -> Stream:
        assert exchange is self._current
        # A client of HTTP/1.0 knows no chunks: the answer ends with the connection.
        is_chunked = exchange not in self._old
        closes = exchange in self._closes_after or not is_chunked
        parts = [
            _STATUS_LINES[head.status],
            b"content-type: %b\r\n" % head.content_type,
            self.connections.date_line,
            *[b"%b: %b\r\n" % header for header in head.headers],
            b"transfer-encoding: chunked\r\n" if is_chunked else b"",
            b"connection: close\r\n" if closes else b"",
            b"\r\n",
        ]
        self._says_keep_alive.discard(exchange)
        self.write(b"".join(parts))
        stream = self._stream = _Http1Stream(self, is_chunked=is_chunked, closes=closes)
        if exchange.is_head:
            stream.end()
        return stream

    def upgrade(self, exchange: Exchange, make_wire: MakeWire) -> None:
        assert exchange is self._current
        if exchange is not self._upgrading:
            raise InvalidRequest("this path opens WebSockets: send GET over HTTP/1.1 with the headers of an upgrade")
        wire = make_wire(self.connections, self.transport)
        self._current = None
        received, self._unparsed = self._unparsed, b""
        if self.is_reading_paused:
            self.resume_reading()
        self.step_aside(wire)
        wire.begin(received)
        if self._has_eof and not wire.eof_received():
            self.transport.close()

    def is_answer_to_head(self) -> bool:
        return self._current is not None and self._current.is_head

    def end_stream(self, *, closes: bool) -> None:
        self._stream = None
        self._go_on_behind(closes=closes or self.connections.is_draining)

    def _go_on_behind(self, *, closes: bool) -> None:
        """The answer was sent: ends the connection, or goes on with the next request."""
        if self._old and self._current is not None:
            self._old.discard(self._current)
        if self._current is self._upgrading:
            self._upgrading = None
        self._current = None
        if closes:
            if self._ends:
                self.close_after_last_words()
            else:
                self.close()
        elif self._queue or self._unparsed or self._wants_continue or self._has_eof:
            # Not now, because the engine may be calling, and it must not be called back.
            if not self._is_in_turn:
                self._take_another_turn()
        elif self._slow is None:
            self.note_idle()

    def _write_response(self, exchange: Exchange, response: Response, *, closes: bool) -> None:
        is_usual = not (exchange.is_head or closes or response.headers or self._says_keep_alive)
        if is_usual and response.content_type is JSON:
            if len(response.body) <= JOINED_BYTES_MAX and not response.rest:
                self.write(b"%b%d\r\n\r\n%b" % (self._head(response.status), len(response.body), response.body))
            else:
                # Two writes cost less than a copy.
                self.write(b"%b%d\r\n\r\n" % (self._head(response.status), response.body_bytes))
                self.write(response.body)
            return
        parts = [_STATUS_LINES[response.status]]
        if response.status != NOT_MODIFIED:
            parts.append(b"content-type: %b\r\ncontent-length: %d\r\n" % (response.content_type, response.body_bytes))
        parts.append(self.connections.date_line)
        parts += [b"%b: %b\r\n" % header for header in response.headers]
        if closes:
            parts.append(b"connection: close\r\n")
        elif exchange in self._says_keep_alive:
            parts.append(b"connection: keep-alive\r\n")
        self._says_keep_alive.discard(exchange)
        parts.append(b"\r\n")
        if not exchange.is_head and len(response.body) <= JOINED_BYTES_MAX:
            parts.append(response.body)
        self.write(b"".join(parts))
        if not exchange.is_head and len(response.body) > JOINED_BYTES_MAX:
            self.write(response.body)

    def _head(self, status: int) -> bytes:
        """The first lines of a usual answer, up to the length."""
        heads = self.connections.heads
        head = heads.get(status)
        if head is None:
            parts = (_STATUS_LINES[status], b"content-type: application/json\r\n", self.connections.date_line)
            head = heads[status] = b"".join(parts) + b"content-length: "
        return head

    # Ends.

    def check_deadlines(self, now_s: float) -> None:
        if self._stream is not None and not self.is_closed and self._stream.is_stalled(now_s):
            self.give_up()
            return
        # A connection that waits for its answer is not idle.
        if self._current is None or self._slow is not None or self.is_congested or self.is_closed:
            super().check_deadlines(now_s)

    def say_last_words(self) -> bool:
        if self._stream is None:
            return False
        self._ends = True
        self._stream.stalled()
        return True

    def time_out(self, reason: str) -> None:
        self._refuse(RequestTimeout(reason))
        self._note_slow()
        self._go_on()

    def drain(self) -> None:
        if self.is_closed:
            self.transport.close()
        elif self._current is None and not self._queue and not self._unparsed and self._slow is None:
            self.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stream is not None:
            self._stream.ready()
        self._send_rest_later()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._queue.clear()
        self._unparsed = b""
        self._rest.clear()
        self._rest_bytes = 0
        current, self._current = self._current, None
        if current is not None:
            current.gone()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.gone()


class _Http1Stream(Stream):
    """An answer in chunks, or up to the end of the connection."""

    __slots__ = ("_closes", "_connection", "_is_chunked", "_sent_bytes", "_taken_bytes", "_taken_s")

    def __init__(self, connection: Http1Connection, *, is_chunked: bool, closes: bool) -> None:
        super().__init__()
        self._connection = connection
        self._is_chunked = is_chunked
        self._closes = closes
        # How many of the sent bytes had left for the client at the last check.
        self._sent_bytes = 0
        self._taken_bytes = 0
        self._taken_s = connection.loop.time()

    @property
    def is_ready(self) -> bool:
        return not (self.is_over or self._connection.is_congested or self._connection.is_closed)

    def send(self, data: bytes) -> None:
        if self.is_over or not data:
            return
        self._sent_bytes += len(data)
        self._connection.write(_chunk(data) if self._is_chunked else data)

    def send_shared(self, piece: SharedPiece) -> None:
        if self.is_over:
            return
        data = piece.data
        self._sent_bytes += len(data)
        if self._is_chunked:
            data = piece.chunk
            if not data:
                data = piece.chunk = _chunk(piece.data)
        self._connection.write(data)

    def end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._is_chunked and not self._connection.is_answer_to_head():
            self._connection.write(b"0\r\n\r\n")
        self._connection.end_stream(closes=self._closes)

    def is_stalled(self, now_s: float) -> bool:
        """Whether the client took no bytes for too long. Below the limit of congestion nothing else checks that."""
        left_bytes = self._connection.transport.get_write_buffer_size()
        if not left_bytes or self._sent_bytes - left_bytes > self._taken_bytes:
            self._taken_bytes = self._sent_bytes - left_bytes
            self._taken_s = now_s
            return False
        return now_s - self._taken_s >= self._connection.connections.timeouts.stalled_s


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _BodyFirst:
    """Callbacks of a parser whose first head is made up: only the body of that message counts."""

    def __init__(self, connection: Http1Connection) -> None:
        self._connection = connection
        self._is_made_up = True
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete

    def on_message_begin(self) -> None:
        if not self._is_made_up:
            self._connection.on_message_begin()

    def on_url(self, part: bytes) -> None:
        if not self._is_made_up:
            self._connection.on_url(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_made_up:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_made_up:
            self._is_made_up = False
        else:
            self._connection.on_headers_complete()


def _head_of_body(length: bytes | None, *, keeps_alive: bool) -> bytes:
    """A head with only the length of the body, and whether the connection stays open."""
    framing = b"transfer-encoding: chunked" if length is None else b"content-length: " + length
    return b"POST / HTTP/1.1\r\n%b\r\n%b\r\n" % (framing, b"" if keeps_alive else b"connection: close\r\n")


def _check_repeats(fields: list[tuple[bytes, bytes]]) -> None:
    names = [name.lower() for name, _ in fields]
    for name in _ONLY_ONCE:
        if names.count(name) > 1:
            raise _Refusal(InvalidRequest(f"a request has only one header {name.decode()}"))


def _too_many_header_bytes() -> HeadersTooLarge:
    return HeadersTooLarge(f"a header block has at most {HEADER_BYTES_MAX} bytes")


class _Refusal(Exception):
    """Carries an error of this module through the parser."""

    def __init__(self, error: TopicsError) -> None:
        super().__init__(error.message)
        self.error = error


def _cause(error: httptools.HttpParserCallbackError) -> TopicsError:
    """The error that a callback raised."""
    cause = error.__context__
    if isinstance(cause, _Refusal):
        return cause.error
    raise error
