"""A proxy between a client and a server that fails like a network: it loses answers, cuts them, and hangs up."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

PATIENCE_S: Final = 30

# What becomes of a request. The default is `pass`.
PASS: Final = "pass"
DROP: Final = "drop"  # The request never arrives.
LOSE: Final = "lose"  # It arrives, and its answer does not.
CUT: Final = "cut"  # Half of the answer's body arrives.
HANG_UP: Final = "hang up"  # The connection ends after the answer, and the answer does not announce it.


# A function answers by itself; then the connection ends.
Fault = str | bytes | Callable[[socket.socket], None]


class Asked(NamedTuple):
    """A request, and the number of the connection on which it came."""

    method: str
    target: str
    body: bytes
    connection: int


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """An answer that the proxy makes up."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class FaultyProxy:
    """Each request uses up one of the `faults`; bytes among them are the answer, functions send one.

    While `route` is set, it may answer requests instead of the server.
    """

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        assert address.hostname is not None
        self._upstream = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closing = False
        self.faults: list[Fault] = []
        self.route: Callable[[Asked], bytes | None] = lambda _: None
        self.asked: list[Asked] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        # Closing the socket does not wake a thread in `accept`, a connection does.
        self._is_closing = True
        socket.create_connection(self._listener.getsockname()).close()
        self._threads[0].join(PATIENCE_S)
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads[1:]:
            thread.join(PATIENCE_S)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._is_closing:
                connection.close()
                return
            with self._lock:
                self._connections.append(connection)
            self._start(self._serve, connection, len(self._connections))

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as stream:
            while (asked := _read_request(stream, number)) is not None:
                request, headers = asked
                with self._lock:
                    self.asked.append(request)
                    fault = self.faults.pop(0) if self.faults else PASS
                if fault == DROP:
                    return
                try:
                    if not self._answer(connection, request, headers, fault):
                        return
                except OSError:
                    return

    def _answer(self, connection: socket.socket, request: Asked, headers: dict[str, str], fault: Fault) -> bool:
        """Answers one request. Returns whether the connection stays open."""
        if isinstance(fault, bytes):
            connection.sendall(fault)
            return True
        if callable(fault):
            fault(connection)
            return False
        reply = self.route(request) or self._forward(request, headers)
        if fault == LOSE:
            return False
        if fault == CUT:
            head, _, body = reply.partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n" + body[: len(body) // 2])
            return False
        connection.sendall(reply)
        return fault != HANG_UP

    def _forward(self, request: Asked, headers: dict[str, str]) -> bytes:
        upstream = http.client.HTTPConnection(*self._upstream, timeout=PATIENCE_S)
        try:
            upstream.request(request.method, request.target, request.body or None, headers)
            response = upstream.getresponse()
            body = response.read()
        finally:
            upstream.close()
        kept = [
            f"{name}: {value}"
            for name, value in response.getheaders()
            if name.lower() not in {"content-length", "connection"}
        ]
        head = "\r\n".join([f"HTTP/1.1 {response.status} ok", f"Content-Length: {len(body)}", *kept, "", ""])
        return head.encode("latin-1") + body


def _read_request(stream: BinaryIO, connection: int) -> tuple[Asked, dict[str, str]] | None:
    try:
        line = stream.readline().decode()
        if not line:
            return None
        method, target, _ = line.split(" ", 2)
        headers = {name.lower(): value for name, value in http.client.parse_headers(stream).items()}
        length = int(headers.pop("content-length", "0"))
        headers.pop("host", None)
        return Asked(method, target, stream.read(length), connection), headers
    except OSError:
        return None


@contextmanager
def faulty_proxy(server_url: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(server_url)
    try:
        yield proxy
    finally:
        proxy.close()
