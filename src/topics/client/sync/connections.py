"""Connections to one server, for threads that block. They are kept and shared: one request at a time on each."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic, sleep
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

PIECE_BYTES: Final = 256 * KIB
IDLE_CONNECTIONS_MAX: Final = 64
BROKEN: Final = (OSError, BadAnswer)
# What a try raises when another one may help.
FAILED: Final = (*BROKEN, Refused)


class Connection:
    """One socket. `reader` has the answer that is under way."""

    def __init__(self, endpoint: Endpoint, limit: Limit, tls: ssl.SSLContext | None) -> None:
        self._socket: socket.socket = _connected_socket(endpoint, limit)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket.settimeout(limit.next_s(monotonic()))
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
        except BaseException:
            self._socket.close()
            raise
        self.reader: AnswerReader = AnswerReader()
        note_open(self)

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork. Here the connection is broken."""
        if self._socket.fileno() >= 0:
            lead_nowhere(self._socket.fileno())

    def send(self, request: bytes, limit: Limit, answer_bytes_max: int) -> None:
        self.reader = AnswerReader(answer_bytes_max)
        sent_bytes = 0
        # Not `sendall`: on TLS it begins its time limit anew with each piece.
        while sent_bytes < len(request):
            self._socket.settimeout(limit.next_s(monotonic()))
            sent_bytes += self._socket.send(memoryview(request)[sent_bytes : sent_bytes + PIECE_BYTES])

    def receive(self, limit: Limit) -> None:
        """Takes the next bytes of the answer."""
        self._socket.settimeout(limit.next_s(monotonic()))
        data = self._socket.recv(PIECE_BYTES)
        if data:
            self.reader.feed(data)
        else:
            self.reader.end()

    def answer(self, limit: Limit) -> Answer:
        reader = self.reader
        while not reader.is_complete:
            self.receive(limit)
        return Answer(reader.status, reader.headers, reader.take_body())

    def close(self) -> None:
        try:
            # Wakes a thread that waits in `recv`; `close` alone does not.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def _connected_socket(endpoint: Endpoint, limit: Limit) -> socket.socket:
    """Tries the addresses of the host in turn. `socket.create_connection` would give the whole time to each."""
    problem = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM):
        try:
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(limit.next_s(monotonic()))
                made.connect(address)
            except BaseException:
                made.close()
                raise
            return made
        except OSError as error:
            problem = error
    raise problem


class Connections:
    """Any thread may call `ask` and `stream`.

    There is no lock, which a thread could hold at a fork that does not exist in the child: one operation of a list or
    a set is atomic.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, pause: Callable[[float], None] = sleep) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self._pause = pause
        self._idle: list[Connection] = []
        self._streams: set[Stream] = set()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._close_idle()
        for stream in self._streams.copy():
            stream.close()

    def _close_idle(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # Tries.

    def ask(self, call: Call[T], patience: Patience, ends_s: float = inf) -> T:
        """Sends the call until it is answered. Raises the error that the server answered, or `Unreachable`.

        `ends_s` is the end of a call of which this one is a part.
        """
        tries = Tries(patience, monotonic(), is_repeatable=call.is_repeatable, wait_ms=call.wait_ms, ends_s=ends_s)
        return self.tried(tries, partial(self.ask_once, call))

    def stream(self, target: str, patience: Patience) -> Stream:
        """Opens a stream of events, as `ask` sends a call."""
        tries = Tries(patience, monotonic(), is_repeatable=True)
        return self.tried(tries, partial(self.stream_once, target))

    def tried(self, tries: Tries, once: Callable[[Limit], T]) -> T:
        """What `once` gives, when it succeeds."""
        while True:
            try:
                return once(tries.limit)
            except FAILED as failure:
                self.pause_after(failure, tries)

    def pause_after(self, failure: Exception, tries: Tries) -> None:
        """Waits for the next try. Raises the error of the call when there is none."""
        now_s = monotonic()
        if isinstance(failure, Refused):
            pause_s = tries.pause_s(failure.error, now_s, retry_after_s=failure.retry_after_s)
        else:
            was_sent = not isinstance(failure, ConnectionRefusedError)
            pause_s = tries.pause_s(self._unreachable(failure), now_s, was_sent=was_sent)
        self._pause(pause_s)

    # One try. Raises what is in `FAILED`, or an error that no other try mends.

    def ask_once(self, call: Call[T], limit: Limit) -> T:
        self._check_open()
        request = request_text(self.endpoint.head, call.method, call.target, call.body)
        answer = self._exchange(request, call, limit)
        if answer.status >= 300:
            raise Refused(answer)
        return call.decode(answer)

    def stream_once(self, target: str, limit: Limit) -> Stream:
        """On a connection of its own."""
        self._check_open()
        request = request_text(self.endpoint.head, "GET", target, None, accept="text/event-stream")
        connection = Connection(self.endpoint, limit, self.tls)
        try:
            connection.send(request, limit, ANSWER_BYTES_MAX)
            reader = connection.reader
            while not reader.has_head:
                connection.receive(limit)
            if reader.status >= 300:
                raise Refused(connection.answer(limit))
            reader.allow_no_end()
        except BaseException:
            connection.close()
            raise
        stream = Stream(self, connection)
        self._streams.add(stream)
        if self._is_closed:
            stream.close()
        return stream

    def forget(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    def _unreachable(self, problem: Exception) -> TopicsError:
        if self._is_closed:
            return ClientClosed()
        error = Unreachable(f"{self.endpoint.url} does not answer: {str(problem) or type(problem).__name__}")
        error.__cause__ = problem
        return error

    def _exchange(self, request: bytes, call: Call[T], limit: Limit) -> Answer:
        idle = self._take_idle()
        if idle is not None and call.is_repeatable:
            # The server may have closed the idle connection: then the request is sent on a new one.
            try:
                return self._send(idle, request, call, limit)
            except TimeoutError:
                raise
            except BROKEN:
                pass
        elif idle is not None:
            idle.close()
        return self._send(Connection(self.endpoint, limit, self.tls), request, call, limit)

    def _take_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _send(self, connection: Connection, request: bytes, call: Call[T], limit: Limit) -> Answer:
        try:
            connection.send(request, limit, call.answer_bytes_max)
            answer = connection.answer(limit)
        except BaseException:
            connection.close()
            raise
        if connection.reader.may_be_kept and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
            if self._is_closed:
                self._close_idle()
        else:
            connection.close()
        return answer


class Stream:
    """An open stream. `close` may be called by any thread, and ends a read of another thread."""

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self._connection = connection
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def read(self, timeout_s: float) -> bytes | None:
        """The next bytes; empty at the end of the stream; None if none came in that time. Raises `Unreachable`."""
        reader = self._connection.reader
        limit = Limit(timeout_s, monotonic() + timeout_s)
        try:
            while not (data := reader.take_body()):
                if reader.is_complete or self._is_closed:
                    return b""
                self._connection.receive(limit)
        except TimeoutError:
            return None
        except BROKEN as problem:
            if self._is_closed:
                return b""
            raise Unreachable(f"a stream of {self._connections.endpoint.url} broke: {problem}") from problem
        return data

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()
        self._connections.forget(self)
