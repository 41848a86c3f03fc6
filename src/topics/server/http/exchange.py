"""One request and its answer, whatever protocol carries them.

A connection makes an `Exchange` from what it parsed and hands it to the application; somebody calls `reply` on it,
at once or later. `on_gone` is called instead when the client went away first. An answer that has no end is a `Stream`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import UNSET, Struct

from topics.errors import MethodNotAllowed, TopicsError
from topics.protocol.response_body import ErrorEnvelope, ErrorMembers, Performance
from topics.server.auth import Key
from topics.server.metrics import Counters

if TYPE_CHECKING:
    from topics.server.http.connections import MakeWire

JSON: Final = b"application/json"
RETRY_AFTER: Final = ((b"retry-after", b"1"),)

Headers = tuple[tuple[bytes, bytes], ...]

_encode: Final = msgspec.json.Encoder().encode
# The detail of an error may hold values of any type.
_encode_error: Final = msgspec.json.Encoder(enc_hook=str).encode


class Response:
    """A whole answer. Streams have their own."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


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


class Stream(ABC):
    """An answer without a known end. Whoever sends looks at `is_ready` first: what is sent is kept until it is taken.

    Neither callback may do more than note or schedule something: the connection is in the middle of its own work.
    """

    __slots__ = ("is_over", "on_gone", "on_ready", "on_stalled")

    def __init__(self) -> None:
        # Nothing is sent any more: it was ended, or the client is gone.
        self.is_over = False
        # The client takes more, and did not before.
        self.on_ready: Callable[[], None] | None = None
        # The client took nothing for too long, and the connection ends: what is sent now stands behind all the rest.
        self.on_stalled: Callable[[], None] | None = None
        # The client went away, or can be told nothing any more.
        self.on_gone: Callable[[], None] | None = None

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether what was sent so far is with the transport, and that one is not congested."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Hands over a piece, which leaves at once if it can. Nothing happens once it is over."""

    @abstractmethod
    def end(self) -> None:
        """That was all."""

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
    """A connection that waits along with a request of it."""

    def park(self) -> None:
        """Until `unpark`, no further request is begun."""
        ...

    def unpark(self) -> None: ...


class Connection(Parkable, Protocol):
    """What carries exchanges: an HTTP/1.1 or HTTP/2 connection."""

    peer_host: str

    def send(self, exchange: Exchange, response: Response) -> None: ...

    def begin_stream(self, exchange: Exchange, head: Response) -> Stream:
        """Sends the head, whose body is empty. To HEAD that is all, and the stream is over."""
        ...

    def upgrade(self, exchange: Exchange, make_wire: MakeWire) -> None:
        """Hands the transport over. Raises a `TopicsError` when this request, or this protocol, cannot ask for it."""
        ...


class Exchange:
    """A request that was received in full, and how to answer it. Loop thread only."""

    __slots__ = (
        "answered",
        "app",
        "body",
        "connection",
        "delay_s",
        "headers",
        "ignores_body",
        "inner_name",
        "is_head",
        "key",
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
        self, app: App, connection: Connection, method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes]
    ) -> None:
        self.app = app
        self.connection = connection
        # HEAD is GET without the body.
        self.is_head = method == b"HEAD"
        self.method = b"GET" if self.is_head else method
        self.path = path
        self.query = query
        # Lower-case names; of a repeated header the last.
        self.headers = headers
        self.body = b""
        # Known once the application was asked for its `refusal`: nobody will look at the body.
        self.ignores_body = False
        self.started = perf_counter()
        # How long a refusal has to wait, so that guessing takes its time.
        self.delay_s = 0.0
        # Who asks, once that is known.
        self.key: Key | None = None
        # Name of the endpoint, for metrics, and of the topic in the path.
        self.route = "other"
        self.name = ""
        # Name of what belongs to the topic, where the path has one.
        self.inner_name = ""
        self.on_gone: Callable[[], None] | None = None
        self.answered = False
        # HTTP/2 only.
        self.stream_id = 0

    def elapsed_ms(self) -> float:
        return (perf_counter() - self.started) * 1000

    def reply(self, response: Response) -> None:
        self.app.finish(self, response)

    def answer(self, body: Struct, status: int = 200) -> None:
        """Replies with a body of the contract."""
        self.app.finish(self, Response(status, _encode(body)))

    def performance(self) -> Performance:
        """The time until now, as answers show it."""
        return Performance(server_total_ms=round(self.elapsed_ms(), 3))

    def fail(self, error: TopicsError) -> None:
        self.app.finish(self, error_response(error))

    def begin_stream(self, status: int, content_type: bytes, headers: Headers = ()) -> Stream:
        """Answers with a stream. It holds no slot of the key's requests."""
        assert not self.answered
        self.app.note_answer(self, status)
        return self.connection.begin_stream(self, Response(status, b"", content_type, headers))

    def upgrade(self, make_wire: MakeWire) -> None:
        """Answers with another protocol, whose first bytes are the answer. Raises what speaks against it."""
        assert not self.answered
        self.connection.upgrade(self, make_wire)
        self.app.note_answer(self, 101)

    def gone(self) -> None:
        """The client went away before it had its answer."""
        if not self.answered:
            self.app.abandon(self)


class App(Protocol):
    """What a connection needs of the application."""

    body_bytes_max: int
    counters: Counters

    def refusal(self, exchange: Exchange) -> TopicsError | None:
        """What the head alone decides, before a large body is read."""
        ...

    def handle(self, exchange: Exchange) -> None: ...

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        """Answers instead of `handle`, with what `refusal` or the connection found."""
        ...

    def hurry(self, exchange: Exchange) -> None:
        """The client may be gone, or may still listen: it does not have to be kept waiting."""
        ...

    def finish(self, exchange: Exchange, response: Response) -> None: ...

    def note_answer(self, exchange: Exchange, status: int) -> None:
        """The answer begins: the request is no longer under way."""
        ...

    def abandon(self, exchange: Exchange) -> None: ...
