"""One request and its answer, independent of the protocol.

A connection makes an `Exchange` from a parsed request and hands it to the application. The application calls `reply`,
at once or later. If the client goes away first, `on_gone` is called instead. An answer without a known end is a
`Stream`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import UNSET, Struct
from mypy_extensions import mypyc_attr

from topics.errors import MethodNotAllowed, TopicsError
from topics.protocol.response_body import ErrorEnvelope, ErrorMembers, Performance
from topics.server.auth import Key
from topics.server.limits import GZIP_BYTES_MIN
from topics.server.metrics import Counters
from topics.server.origins import Headers

if TYPE_CHECKING:
    from topics.server.http.known_heads import KnownHead

JSON: Final = b"application/json"
# A status without a body: the client has the file already. A length would have to be the length of that file.
NOT_MODIFIED: Final = 304
RETRY_AFTER: Final = ((b"retry-after", b"1"),)

_encode: Final = msgspec.json.Encoder().encode
# The detail of an error may hold values of any type.
_encode_error: Final = msgspec.json.Encoder(enc_hook=str).encode
# Times below 4 ms as text. Every answer has one, and a look-up takes a third of the time of a format.
_MS_TEXTS: Final = [f"{us / 1000:.3f}" for us in range(4096)]
_MS_TEXTS_END: Final = 4.095


class Response:
    """A complete answer. `rest` are the further pieces of a large body: joining them would hold up the loop, and so
    would sending them in one turn."""

    __slots__ = ("body", "content_type", "headers", "rest", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Headers = (),
        rest: Sequence[bytes] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.rest = rest

    @property
    def body_bytes(self) -> int:
        return len(self.body) + sum(map(len, self.rest))


def ms_text(ms: float) -> str:
    """A time that is not negative, as JSON with three digits after the point."""
    if ms < _MS_TEXTS_END:
        return _MS_TEXTS[int(ms * 1000 + 0.5)]
    return f"{ms:.3f}"


def error_response(error: TopicsError) -> Response:
    """The one place where an error becomes the envelope of the contract."""
    detail = UNSET if error.detail is None else dict(error.detail)
    envelope = ErrorEnvelope(error=ErrorMembers(code=error.code, message=error.message, detail=detail))
    headers: Headers = ()
    if error.status in (429, 503):
        headers = RETRY_AFTER
    elif isinstance(error, MethodNotAllowed):
        headers = ((b"allow", error.allowed.encode()),)
    elif error.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    return Response(error.status, _encode_error(envelope), JSON, headers)


class SharedPiece:
    """Bytes that many streams send. The first stream that needs a chunk of HTTP/1.1 around them makes it for all."""

    __slots__ = ("chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.chunk = b""


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream(ABC):
    """An answer without a known end. Sent bytes stay in memory until the client takes them, so check `is_ready` first.

    The callbacks may only note or schedule something, because the connection is in the middle of its work.
    """

    __slots__ = ("is_over", "on_gone", "on_ready", "on_stalled")

    def __init__(self) -> None:
        # The stream was ended, or the client is gone: nothing is sent any more.
        self.is_over = False
        # Called when the client takes bytes again after congestion.
        self.on_ready: Callable[[], None] | None = None
        # Called when the client took no bytes for too long and the connection ends. A last frame may still be sent.
        self.on_stalled: Callable[[], None] | None = None
        # Called when the client went away, or can get no more bytes.
        self.on_gone: Callable[[], None] | None = None

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the transport has everything that was sent, and is not congested."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends a piece, at once if possible. Does nothing when the stream is over."""

    def send_shared(self, piece: SharedPiece) -> None:
        """Sends a piece that other streams send, too."""
        self.send(piece.data)

    @abstractmethod
    def end(self) -> None:
        """Ends the stream."""

    def ready(self) -> None:
        if self.on_ready is not None and not self.is_over:
            self.on_ready()

    def stalled(self) -> None:
        if self.on_stalled is not None and not self.is_over:
            self.on_stalled()

    def gone(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self.on_gone is not None:
                self.on_gone()


class Parkable(Protocol):
    """A connection that can wait while one of its requests waits."""

    def park(self) -> None:
        """Starts no further request until `unpark`."""
        ...

    def unpark(self) -> None: ...


class Connection(Parkable, Protocol):
    """An HTTP/1.1 or HTTP/2 connection, which carries exchanges."""

    peer_host: str

    @property
    def must_wait(self) -> bool:
        """Whether a large answer should wait, because too many bytes wait for other clients."""
        ...

    def send(self, exchange: Exchange, response: Response) -> None: ...

    def send_json(self, exchange: Exchange, status: int, body: bytes) -> None:
        """Sends a small body of JSON, without further headers."""
        ...

    def begin_stream(self, exchange: Exchange, head: Response) -> Stream:
        """Sends `head`, whose body is empty. For a HEAD request the stream is over after that."""
        ...


class Exchange:
    """A request that was received in full, and its answer. Loop thread only."""

    __slots__ = (
        "answered",
        "app",
        "body",
        "body_bytes_max",
        "connection",
        "delay_s",
        "headers",
        "ignores_body",
        "inner_names",
        "is_head",
        "key",
        "known_head",
        "method",
        "name",
        "on_gone",
        "path",
        "query",
        "route",
        "started",
        "stream_id",
    )

    def __init__(
        self,
        app: App,
        connection: Connection,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: dict[bytes, bytes],
        known_head: KnownHead | None = None,
    ) -> None:
        self.app = app
        self.connection = connection
        # The head, if the same bytes were parsed before.
        self.known_head = known_head
        # HEAD is GET without the body.
        self.is_head = method == b"HEAD"
        self.method = b"GET" if self.is_head else method
        self.path = path
        self.query = query
        # Names in lower case. The last value of a repeated header counts.
        self.headers = headers
        self.body = b""
        # Set by `App.refusal`: the endpoint ignores the body, or takes a smaller one than others.
        self.ignores_body = False
        self.body_bytes_max = app.body_bytes_max
        self.started = perf_counter()
        # How long a refusal waits, to slow down guesses of keys.
        self.delay_s = 0.0
        # The key of the caller, when it is known.
        self.key: Key | None = None
        # Name of the endpoint, for metrics.
        self.route = "other"
        # The name in the path: of a topic, a router, a session, a writer or a stream.
        self.name = ""
        # Further names in the path: of a consumer group, or of a topic and a partition of a stream.
        self.inner_names: tuple[str, ...] = ()
        self.on_gone: Callable[[], None] | None = None
        self.answered = False
        # HTTP/2 only.
        self.stream_id = 0

    @property
    def inner_name(self) -> str:
        """The second name in the path."""
        return self.inner_names[0]

    def elapsed_ms(self) -> float:
        return (perf_counter() - self.started) * 1000

    def reply(self, response: Response) -> None:
        self.app.finish(self, response)

    def reply_json(self, status: int, body: bytes) -> None:
        """Replies with JSON text. A small body, which most answers have, is sent without a `Response`: 6 % of an append
        of one record."""
        if len(body) >= GZIP_BYTES_MIN or b"origin" in self.headers:
            self.app.finish(self, Response(status, body))
        elif not self.answered:
            self.app.note_answer(self, status)
            self.connection.send_json(self, status, body)

    def answer(self, body: Struct, status: int = 200) -> None:
        """Replies with a body of the contract."""
        self.reply_json(status, _encode(body))

    def performance(self) -> Performance:
        """The time until now, as answers show it."""
        return Performance(server_total_ms=round(self.elapsed_ms(), 3))

    def fail(self, error: TopicsError) -> None:
        self.app.refuse(self, error)

    def begin_stream(self, status: int, content_type: bytes, headers: Headers = ()) -> Stream:
        """Answers with a stream, which does not count as a request under way of the key."""
        assert not self.answered
        self.app.note_answer(self, status)
        headers += self.app.origin_headers(self)
        return self.connection.begin_stream(self, Response(status, b"", content_type, headers))

    def gone(self) -> None:
        """The client went away before the answer."""
        if not self.answered:
            self.app.abandon(self)


class App(Protocol):
    """What a connection needs from the application."""

    body_bytes_max: int
    counters: Counters

    def refusal(self, exchange: Exchange) -> TopicsError | None:
        """The error that the head alone decides, before a large body is read."""
        ...

    def handle(self, exchange: Exchange) -> None: ...

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        """Answers with an error."""
        ...

    def hurry(self, exchange: Exchange) -> None:
        """Answers a waiting request early, because its client may be gone."""
        ...

    def finish(self, exchange: Exchange, response: Response) -> None: ...

    def note_answer(self, exchange: Exchange, status: int) -> None:
        """The answer begins, and the request is not under way any more."""
        ...

    def origin_headers(self, exchange: Exchange) -> Headers:
        """Headers of a stream that let the page that sent the request read it."""
        ...

    def abandon(self, exchange: Exchange) -> None: ...
