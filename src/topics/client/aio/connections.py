"""Connections to one server, for one event loop. They are kept and shared: one request at a time on each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from topics.client.answers import Answer, error_of, retry_after_s
from topics.client.calls import Call
from topics.client.endpoint import Endpoint
from topics.client.http1 import AnswerReader, BadAnswer, request_text
from topics.client.retrying import ClientClosed, Patience, Tries, Unreachable
from topics.errors import TopicsError
from topics.limits import KIB

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

READ_BYTES: Final = 256 * KIB
IDLE_CONNECTIONS_MAX: Final = 64
BROKEN: Final = (OSError, BadAnswer)


class Connection:
    """One socket. `reader` has the answer that is under way."""

    def __init__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._source = source
        self._sink = sink
        self.reader: AnswerReader = AnswerReader()

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None) -> Self:
        async with asyncio.timeout(timeout_s):
            source, sink = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=READ_BYTES)
        own = sink.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(source, sink)

    async def send(self, request: bytes, timeout_s: float) -> None:
        self.reader = AnswerReader()
        self._sink.write(request)
        async with asyncio.timeout(timeout_s):
            await self._sink.drain()

    async def receive(self, timeout_s: float) -> None:
        """Takes the next bytes of the answer."""
        async with asyncio.timeout(timeout_s):
            data = await self._source.read(READ_BYTES)
        if data:
            self.reader.feed(data)
        else:
            self.reader.end()

    async def answer(self, timeout_s: float) -> Answer:
        reader = self.reader
        while not reader.is_complete:
            await self.receive(timeout_s)
        return Answer(reader.status, reader.headers, reader.take_body())

    def close(self) -> None:
        # Not awaited: nothing is left to be sent, and the peer may not answer the end of TLS.
        self._sink.transport.abort()


class Connections:
    """Tasks of one loop may call `ask` and `stream`."""

    def __init__(
        self,
        endpoint: Endpoint,
        tls: ssl.SSLContext | None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self._pause = pause
        self._idle: list[Connection] = []
        self._streams: set[Stream] = set()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for stream in list(self._streams):
            stream.end()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def ask(self, call: Call[T], patience: Patience) -> T:
        """Sends the call until it is answered. Raises the error that the server answered, or `Unreachable`."""
        tries = Tries(patience, monotonic(), is_repeatable=call.is_repeatable, wait_s=call.wait_ms / 1000)
        while True:
            request = request_text(self.endpoint.head, call.method, call.target, call.body)
            try:
                answer = await self._exchange(request, tries.timeout_s(monotonic()), is_repeatable=call.is_repeatable)
            except BROKEN as problem:
                was_sent = not isinstance(problem, ConnectionRefusedError)
                pause_s = tries.pause_s(self._unreachable(problem), monotonic(), was_sent=was_sent)
            else:
                if answer.status < 300:
                    return call.decode(answer)
                pause_s = tries.pause_s(error_of(answer), monotonic(), retry_after_s=retry_after_s(answer))
            await self._pause(pause_s)

    async def stream(self, target: str, timeout_s: float) -> Stream:
        """Opens a stream of events on a connection of its own. One try."""
        self._check_open()
        request = request_text(self.endpoint.head, "GET", target, None, accept="text/event-stream")
        try:
            connection = await Connection.open(self.endpoint, timeout_s, self.tls)
            try:
                await connection.send(request, timeout_s)
                while not connection.reader.has_head:
                    await connection.receive(timeout_s)
                if connection.reader.status >= 300:
                    raise error_of(await connection.answer(timeout_s))
            except BaseException:
                connection.close()
                raise
        except BROKEN as problem:
            raise self._unreachable(problem) from problem
        stream = Stream(self, connection)
        self._streams.add(stream)
        if self._is_closed:
            stream.end()
        return stream

    def forget(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    def _unreachable(self, problem: Exception) -> TopicsError:
        if self._is_closed:
            return ClientClosed()
        text = "timed out" if isinstance(problem, TimeoutError) else str(problem) or type(problem).__name__
        error = Unreachable(f"{self.endpoint.url} does not answer: {text}")
        error.__cause__ = problem
        return error

    async def _exchange(self, request: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        self._check_open()
        idle = self._idle.pop() if self._idle else None
        if idle is not None and is_repeatable:
            # The server may have closed the idle connection: then the request is sent on a new one.
            try:
                return await self._send(idle, request, timeout_s)
            except TimeoutError:
                raise
            except BROKEN:
                pass
        elif idle is not None:
            idle.close()
        return await self._send(await Connection.open(self.endpoint, timeout_s, self.tls), request, timeout_s)

    async def _send(self, connection: Connection, request: bytes, timeout_s: float) -> Answer:
        try:
            await connection.send(request, timeout_s)
            answer = await connection.answer(timeout_s)
        except BaseException:
            connection.close()
            raise
        if connection.reader.may_be_kept and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return answer


class Stream:
    """An open stream. One task reads."""

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self._connection = connection
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    async def read(self, timeout_s: float) -> bytes | None:
        """The next bytes; empty at the end of the stream; None if none came in that time. Raises `Unreachable`."""
        reader = self._connection.reader
        try:
            while not (data := reader.take_body()):
                if reader.is_complete or self._is_closed:
                    return b""
                await self._connection.receive(timeout_s)
        except TimeoutError:
            return None
        except BROKEN as problem:
            if self._is_closed:
                return b""
            raise Unreachable(f"a stream of {self._connections.endpoint.url} broke: {problem}") from problem
        return data

    def end(self) -> None:
        self._is_closed = True
        self._connection.close()
        self._connections.forget(self)
