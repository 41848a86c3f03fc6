"""A relay between a client and a server. It passes bytes on and keeps a copy. A test can make it drop bytes or
connections.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from types import TracebackType
from typing import Final, Protocol, Self

PATIENCE_S: Final = 60
RECEIVE_BYTES: Final = 65_536
# How often a thread checks whether it must end.
LOOK_S: Final = 0.01


class Address(Protocol):
    """A server that may be started again, on another port."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Relay:
    """A port that leads to the server. Each connection has one thread per direction."""

    def __init__(self, server: Address) -> None:
        self._server = server
        # Guards all fields below. Notified after every change.
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._connection_count = 0
        self._sent = b""
        self._answered = b""
        self._is_losing = False
        # Bytes of the server that still pass; None: all.
        self._bytes_left: int | None = None
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                relay._pass_on(self.request)

        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(LOOK_S,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._thread.join()
        self.cut()
        # Waits for the threads of all connections.
        self._listener.server_close()

    @property
    def url(self) -> str:
        host, port = self._listener.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def sent(self) -> bytes:
        """All bytes that browsers sent, on all connections so far."""
        with self._changed:
            return self._sent

    @property
    def connection_count(self) -> int:
        """How many connections were made so far."""
        with self._changed:
            return self._connection_count

    def lose_answers(self) -> None:
        """From now on all bytes of the server are dropped, until the connections are cut. Neither side notices."""
        with self._changed:
            self._is_losing = True

    def cut(self) -> None:
        """Ends every connection. New connections work and lose no bytes."""
        with self._changed:
            ended = set(self._sockets)
            for end in ended:
                _end(end)
            # Before the wait: the client may connect again meanwhile.
            self._is_losing = False
            assert self._changed.wait_for(lambda: not ended & self._sockets, PATIENCE_S)

    def cut_after(self, count: int) -> None:
        """Every connection ends after that many more bytes of the server, in the middle of whatever it says."""
        with self._changed:
            self._bytes_left = count

    def wait_answered(self, text: bytes, count: int = 1) -> None:
        """Waits until the server has sent these bytes `count` times since the start, dropped or not."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._answered.count(text) >= count, PATIENCE_S), self._answered

    # On threads of a connection.

    def _pass_on(self, browser: socket.socket) -> None:
        try:
            server = socket.create_connection((self._server.host, self._server.port), PATIENCE_S)
        except OSError:
            # The server is not there. The browser gets no answer.
            return
        with server:
            server.settimeout(None)
            with self._changed:
                self._sockets |= {browser, server}
                self._connection_count += 1
            upwards = threading.Thread(target=self._pass_upwards, args=(browser, server))
            upwards.start()
            self._pass_downwards(server, browser)
            upwards.join()
            with self._changed:
                self._sockets -= {browser, server}
                self._changed.notify_all()

    def _pass_upwards(self, browser: socket.socket, server: socket.socket) -> None:
        while data := _receive(browser):
            with self._changed:
                self._sent += data
                self._changed.notify_all()
            _send(server, data)
        _end(server)

    def _pass_downwards(self, server: socket.socket, browser: socket.socket) -> None:
        while data := _receive(server):
            with self._changed:
                is_lost = self._is_losing
                self._answered += data
                is_last = self._bytes_left is not None and len(data) >= self._bytes_left
                if self._bytes_left is not None:
                    data = data[: self._bytes_left]
                    self._bytes_left = None if is_last else self._bytes_left - len(data)
                self._changed.notify_all()
            if not is_lost:
                _send(browser, data)
            if is_last:
                _end(server)
        _end(browser)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(RECEIVE_BYTES)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        # The thread of the other direction notices it too, and ends the connection.
        pass


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
