"""Connections to one server, for one event loop. They are kept and shared: one request at a time on each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from topics.client.answers import Answer, Refused
from topics.client.calls import Call
from topics.client.endpoint import Endpoint
from topics.client.http1 import ANSWER_BYTES_MAX, AnswerReader, BadAnswer, request_text
from topics.client.retrying import ClientClosed, Limit, Patience, Tries, Unreachable
from topics.errors import TopicsError
from topics.forks import lead_nowhere, note_open
from topics.limits import KIB

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

READ_BYTES: Final = 256 * KIB
IDLE_CONNECTIONS_MAX: Final = 64
BROKEN: Final = (OSError, BadAnswer)
# What a try raises when another one may help.
FAILED: Final = (*BROKEN, Refused)


class Connection:
    """One socket. `reader` has the answer that is under way."""

    def __init__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._source = source
        self._sink = sink
        self.reader: AnswerReader = AnswerReader()
        # Whether this process is a fork of the one that made the connection.
        self.is_inherited = False
        note_open(self)

    @classmethod
    async def open(cls, endpoint: Endpoint, limit: Limit, tls: ssl.SSLContext | None) -> Self:
        async with asyncio.timeout(limit.next_s(monotonic())):
            source, sink = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=READ_BYTES)
        own = sink.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(source, sink)

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork. The loop of the connection does not run here."""
        self.is_inherited = True
        own = self._sink.get_extra_info("socket")
        if own is not None and not self._sink.is_closing():
            lead_nowhere(own.fileno())

    async def send(self, request: bytes, limit: Limit, answer_bytes_max: int) -> None:
        self.reader = AnswerReader(answer_bytes_max)
        async with asyncio.timeout(limit.next_s(monotonic())):
            self._sink.write(request)
            await self._sink.drain()

    async def receive(self, limit: Limit) -> None:
        """Takes the next bytes of the answer."""
        async with asyncio.timeout(limit.next_s(monotonic())):
            data = await self._source.read(READ_BYTES)
        if data:
            self.reader.feed(data)
        else:
            self.reader.end()

    async def answer(self, limit: Limit) -> Answer:
        reader = self.reader
        while not reader.is_complete:
            await self.receive(limit)
        return Answer(reader.status, reader.headers, reader.take_body())

    def close(self) -> None:
        if not self.is_inherited:
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
        while (connection := self._take_idle()) is not None:
            connection.close()
        for stream in self._streams.copy():
            stream.end()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # Tries.

    async def ask(self, call: Call[T], patience: Patience, ends_s: float = inf) -> T:
        """Sends the call until it is answered. Raises the error that the server answered, or `Unreachable`.

        `ends_s` is the end of a call of which this one is a part.
        """
        tries = Tries(patience, monotonic(), is_repeatable=call.is_repeatable, wait_ms=call.wait_ms, ends_s=ends_s)
        return await self.tried(tries, partial(self.ask_once, call))

    async def stream(self, target: str, patience: Patience) -> Stream:
        """Opens a stream of events, as `ask` sends a call."""
        tries = Tries(patience, monotonic(), is_repeatable=True)
        return await self.tried(tries, partial(self.stream_once, target))

    async def tried(self, tries: Tries, once: Callable[[Limit], Awaitable[T]]) -> T:
        """What `once` gives, when it succeeds."""
        while True:
            try:
                return await once(tries.limit)
            except FAILED as failure:
                await self.pause_after(failure, tries)

    async def pause_after(self, failure: Exception, tries: Tries) -> None:
        """Waits for the next try. Raises the error of the call when there is none."""
        now_s = monotonic()
        if isinstance(failure, Refused):
            pause_s = tries.pause_s(failure.error, now_s, retry_after_s=failure.retry_after_s)
        else:
            was_sent = not isinstance(failure, ConnectionRefusedError)
            pause_s = tries.pause_s(self._unreachable(failure), now_s, was_sent=was_sent)
        await self._pause(pause_s)

    # One try. Raises what is in `FAILED`, or an error that no other try mends.

    async def ask_once(self, call: Call[T], limit: Limit) -> T:
        self._check_open()
        request = request_text(self.endpoint.head, call.method, call.target, call.body)
        answer = await self._exchange(request, call, limit)
        if answer.status >= 300:
            raise Refused(answer)
        return call.decode(answer)

    async def stream_once(self, target: str, limit: Limit) -> Stream:
        """On a connection of its own."""
        self._check_open()
        request = request_text(self.endpoint.head, "GET", target, None, accept="text/event-stream")
        connection = await Connection.open(self.endpoint, limit, self.tls)
        try:
            await connection.send(request, limit, ANSWER_BYTES_MAX)
            reader = connection.reader
            while not reader.has_head:
                await connection.receive(limit)
            if reader.status >= 300:
                raise Refused(await connection.answer(limit))
            reader.allow_no_end()
        except BaseException:
            connection.close()
            raise
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

    async def _exchange(self, request: bytes, call: Call[T], limit: Limit) -> Answer:
        idle = self._take_idle()
        if idle is not None and call.is_repeatable:
            # The server may have closed the idle connection: then the request is sent on a new one.
            try:
                return await self._send(idle, request, call, limit)
            except TimeoutError:
                raise
            except BROKEN:
                pass
        elif idle is not None:
            idle.close()
        return await self._send(await Connection.open(self.endpoint, limit, self.tls), request, call, limit)

    def _take_idle(self) -> Connection | None:
        # In a fork all inherited connections are at the beginning of the list.
        return self._idle.pop() if self._idle and not self._idle[-1].is_inherited else None

    async def _send(self, connection: Connection, request: bytes, call: Call[T], limit: Limit) -> Answer:
        try:
            await connection.send(request, limit, call.answer_bytes_max)
            answer = await connection.answer(limit)
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
        limit = Limit(timeout_s, monotonic() + timeout_s)
        try:
            while not (data := reader.take_body()):
                if reader.is_complete or self._is_closed:
                    return b""
                await self._connection.receive(limit)
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
