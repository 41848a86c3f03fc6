"""What clients share that live through all processes of a server. Each is one thread, with one connection at a time."""

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

# How the end of a connection shows, whoever reads from it. Silence is none: a server that hangs is a fault.
ENDS: Final = (ConnectionError, http.client.HTTPException, h2.exceptions.ProtocolError)


class Lost(Exception):
    """The server went away before it answered: whether it did what it was asked for, only the next one can tell."""


def now_ns() -> int:
    """For what happened before what among our clients."""
    return monotonic_ns()


def wall_ms() -> int:
    """For what the server says about time: it runs on the same machine."""
    return time_ns() // 1_000_000


class LiveClient(threading.Thread, ABC):
    """`failure` is what ended its work, None if it came to its end."""

    def __init__(self, name: str, board: Board, seed: int) -> None:
        super().__init__(name=name)
        self.board = board
        self.dice = random.Random(seed)
        self.failure: BaseException | None = None
        # The process that we talk to, and the last one that we have lost.
        self.generation = 0
        self._lost_generation = 0
        # How that showed, for whoever looks into a failure.
        self.lost_by: Exception | None = None
        self.address: Address = ("", 0)
        self._connection: http.client.HTTPConnection | None = None

    @abstractmethod
    def work(self) -> None: ...

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for this one.
            self.failure = error
        finally:
            self.disconnect()

    # Requests.

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Again while the server is starting, stopping, or has too much to do. Raises `Lost`."""
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
        """Until there is an answer, from whichever process; and how often there was none."""
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
        """To the process there is, or the next one if we have lost that."""
        while self._connection is None:
            self.address, self.generation = self.board.wait_server(self._lost_generation)
            connection = http.client.HTTPConnection(*self.address, timeout=ANSWER_S_MAX)
            # It connects again by itself otherwise, also when the server has said that it ends.
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
        """A stream of the process that we are connected to. Raises `Lost`."""
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
        """This process is gone, or about to go."""
        self.lost_by = error
        self._lost_generation = self.generation
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _NeverEnding(EventStream):
    """A stream that ends has lost its server: none of ours ends by itself."""

    def receive(self) -> bytes:
        data = super().receive()  # type: ignore[safe-super]
        if not data:
            raise ConnectionResetError("the stream ended")
        return data


class _Http1Stream(_NeverEnding, Http1EventStream):
    pass


class _Http2Stream(_NeverEnding, Http2EventStream):
    pass
