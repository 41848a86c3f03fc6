"""Connections to one server, for threads that block. They are kept and shared: one request at a time on each."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from time import monotonic, sleep
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

    def __init__(self, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._socket: socket.socket = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
            except BaseException:
                self._socket.close()
                raise
        self.reader: AnswerReader = AnswerReader()

    def send(self, request: bytes, timeout_s: float) -> None:
        self.reader = AnswerReader()
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)

    def receive(self, timeout_s: float) -> None:
        """Takes the next bytes of the answer."""
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(READ_BYTES)
        if data:
            self.reader.feed(data)
        else:
            self.reader.end()

    def answer(self, timeout_s: float) -> Answer:
        reader = self.reader
        while not reader.is_complete:
            self.receive(timeout_s)
        return Answer(reader.status, reader.headers, reader.take_body())

    def close(self) -> None:
        try:
            # Wakes a thread that waits in `recv`; `close` alone does not.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


class Connections:
    """Any thread may call `ask` and `stream`."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, pause: Callable[[float], None] = sleep) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self._pause = pause
        self._idle: list[Connection] = []
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            streams, self._streams = self._streams, set()
        for connection in idle:
            connection.close()
        for stream in streams:
            stream.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def ask(self, call: Call[T], patience: Patience) -> T:
        """Sends the call until it is answered. Raises the error that the server answered, or `Unreachable`."""
        tries = Tries(patience, monotonic(), is_repeatable=call.is_repeatable, wait_s=call.wait_ms / 1000)
        while True:
            request = request_text(self.endpoint.head, call.method, call.target, call.body)
            try:
                answer = self._exchange(request, tries.timeout_s(monotonic()), is_repeatable=call.is_repeatable)
            except BROKEN as problem:
                was_sent = not isinstance(problem, ConnectionRefusedError)
                pause_s = tries.pause_s(self._unreachable(problem), monotonic(), was_sent=was_sent)
            else:
                if answer.status < 300:
                    return call.decode(answer)
                pause_s = tries.pause_s(error_of(answer), monotonic(), retry_after_s=retry_after_s(answer))
            self._pause(pause_s)

    def stream(self, target: str, timeout_s: float) -> Stream:
        """Opens a stream of events on a connection of its own. One try."""
        self._check_open()
        request = request_text(self.endpoint.head, "GET", target, None, accept="text/event-stream")
        try:
            connection = Connection(self.endpoint, timeout_s, self.tls)
            try:
                connection.send(request, timeout_s)
                while not connection.reader.has_head:
                    connection.receive(timeout_s)
                if connection.reader.status >= 300:
                    raise error_of(connection.answer(timeout_s))
            except BaseException:
                connection.close()
                raise
        except BROKEN as problem:
            raise self._unreachable(problem) from problem
        stream = Stream(self, connection)
        with self._lock:
            self._streams.add(stream)
        if self._is_closed:
            stream.close()
        return stream

    def forget(self, stream: Stream) -> None:
        with self._lock:
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

    def _exchange(self, request: bytes, timeout_s: float, *, is_repeatable: bool) -> Answer:
        self._check_open()
        idle = self._take_idle()
        if idle is not None and is_repeatable:
            # The server may have closed the idle connection: then the request is sent on a new one.
            try:
                return self._send(idle, request, timeout_s)
            except TimeoutError:
                raise
            except BROKEN:
                pass
        elif idle is not None:
            idle.close()
        return self._send(Connection(self.endpoint, timeout_s, self.tls), request, timeout_s)

    def _take_idle(self) -> Connection | None:
        with self._lock:
            if self._pid != os.getpid():
                # After a fork the connections belong to the parent.
                self._idle, self._pid = [], os.getpid()
            return self._idle.pop() if self._idle else None

    def _send(self, connection: Connection, request: bytes, timeout_s: float) -> Answer:
        try:
            connection.send(request, timeout_s)
            answer = connection.answer(timeout_s)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            is_kept = connection.reader.may_be_kept and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
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
        try:
            while not (data := reader.take_body()):
                if reader.is_complete or self._is_closed:
                    return b""
                self._connection.receive(timeout_s)
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
