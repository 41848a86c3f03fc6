"""Base of the clients of a live run. A client is one thread with one connection at a time, and outlives server
processes."""

from __future__ import annotations

import http.client
import json
import random
import threading
from abc import ABC, abstractmethod
from time import monotonic_ns, time_ns
from typing import Any, Final

import h2.exceptions

from tests.process.http_writer import ANSWER_S_MAX, PAUSE_S, RETRIED, Address, Board
from tests.server.event_streams import EventStream, Http1EventStream, Http2EventStream

# Errors that mean the end of a connection. A timeout is not among them: a server that hangs is a fault.
ENDS: Final = (ConnectionError, http.client.HTTPException, h2.exceptions.ProtocolError)


class Lost(Exception):
    """The server ended before it answered. Only the next process knows whether the request was done."""


def now_ns() -> int:
    """A time for the order of events among the clients."""
    return monotonic_ns()


def wall_ms() -> int:
    """A time to compare with times of the server, which runs on the same machine."""
    return time_ns() // 1_000_000


class LiveClient(threading.Thread, ABC):
    """`failure` is the error that ended the thread; None if it finished."""

    def __init__(self, name: str, board: Board, seed: int) -> None:
        super().__init__(name=name)
        self.board = board
        self.dice = random.Random(seed)
        self.failure: BaseException | None = None
        # Generation of the process that the client is connected to, and of the last process that it lost.
        self.generation = 0
        self._lost_generation = 0
        # The error of that loss, for the analysis of a failed run.
        self.lost_by: Exception | None = None
        self.address: Address = ("", 0)
        self._connection: http.client.HTTPConnection | None = None

    @abstractmethod
    def work(self) -> None: ...

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one.
            self.failure = error
        finally:
            self.disconnect()

    # Requests.

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Repeats the request while the server is starting, stopping or overloaded. Raises `Lost`."""
        payload = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            self.connect()
            assert self._connection is not None
            try:
                self._connection.request(method, path, payload, headers)
                response = self._connection.getresponse()
                status, answer = response.status, json.loads(response.read())
            except ENDS as error:
                self.lose(error)
                raise Lost from None
            if status not in RETRIED:
                return status, answer
            self.pause()

    def insist(self, method: str, path: str, body: Any = None) -> tuple[int, Any, int]:
        """Repeats the request until a process answers. Returns the answer and the number of unanswered tries."""
        unanswered = 0
        while True:
            try:
                return *self.ask(method, path, body), unanswered
            except Lost:
                unanswered += 1

    def pause(self) -> None:
        self.board.is_over.wait(PAUSE_S)

    # Connections.

    def connect(self) -> None:
        """Connects to the present process, or to the next one if the present one is lost."""
        while self._connection is None:
            self.address, self.generation = self.board.wait_server(self._lost_generation)
            connection = http.client.HTTPConnection(*self.address, timeout=ANSWER_S_MAX)
            # Without this the library connects again by itself, also after the server has announced its end.
            connection.auto_open = 0
            try:
                connection.connect()
            except ConnectionError:
                self._lost_generation = self.generation
                continue
            self._connection = connection

    def open_stream(
        self, path: str, headers: dict[str, str] | None = None, *, is_http2: bool = False, receive_buffer_bytes: int = 0
    ) -> EventStream:
        """Opens a stream of the connected process. Raises `Lost`."""
        self.connect()
        kind = _Http2Stream if is_http2 else _Http1Stream
        try:
            stream = kind(self.address, path, headers, receive_buffer_bytes=receive_buffer_bytes)
        except ENDS as error:
            self.lose(error)
            raise Lost from None
        stream.socket.settimeout(ANSWER_S_MAX)
        return stream

    def lose(self, error: Exception | None = None) -> None:
        """The process has ended, or will end soon."""
        self.lost_by = error
        self._lost_generation = self.generation
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _NeverEnding(EventStream):
    """The end of a stream means that its server ended: no stream of these tests ends by itself."""

    def receive(self) -> bytes:
        data = super().receive()  # type: ignore[safe-super]
        if not data:
            raise ConnectionResetError("the stream ended")
        return data


class _Http1Stream(_NeverEnding, Http1EventStream):
    pass


class _Http2Stream(_NeverEnding, Http2EventStream):
    pass
