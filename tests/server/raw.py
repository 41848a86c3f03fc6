"""HTTP/1.1 as bytes on a real socket: for requests that no client sends, and for answers that no client shows."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

from tests.server.clients import Answer
from tests.server.running import Running

HOST: Final = b"Host: localhost\r\n"
JSON: Final = b"Content-Type: application/json\r\n"
RECEIVE_BYTES: Final = 65_536

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n")


def get(path: bytes = b"/v0/health", *headers: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    """A POST with a body and its length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + length + lines + b"\r\n" + body


def append(topic: str, data: bytes = b"1", *headers: bytes) -> bytes:
    return post(b"/v0/topics/" + topic.encode(), b'{"records":[{"data":%b}]}' % data, *headers)


class RawConnection:
    """One connection. Reads block until the bytes arrive: no test waits by time."""

    def __init__(self, server: Running, *, receive_buffer_bytes: int = 0) -> None:
        self._open(server.host, server.port, receive_buffer_bytes)

    @classmethod
    def to(cls, host: str, port: int, source_host: str = "") -> Self:
        """A connection to another server, or from another address of this machine."""
        connection = cls.__new__(cls)
        connection._open(host, port, 0, source_host)
        return connection

    def _open(self, host: str, port: int, receive_buffer_bytes: int, source_host: str = "") -> None:
        self.socket = socket.socket()
        if source_host:
            self.socket.bind((source_host, 0))
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(30)
        self.socket.connect((host, port))
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends all of it, or as much as the server takes before it closes the connection."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def drip(self, packets: Iterable[bytes]) -> None:
        """Sends each part in its own packet."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            self.send(packet)

    def end(self) -> None:
        """Ends the sending side of the connection."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except ConnectionResetError:
            return False
        self._received += data
        return bool(data)

    def answer(self, *, is_head: bool = False) -> Answer:
        """The next answer, in full."""
        while b"\r\n\r\n" not in self._received:
            assert self._receive(), f"the connection ended within a head: {self._received!r}"
        head, _, rest = self._received.partition(b"\r\n\r\n")
        status_line, *lines = head.split(b"\r\n")
        status = int(status_line.split(b" ")[1])
        headers = {
            name.decode().lower(): value.decode() for name, _, value in (line.partition(b": ") for line in lines)
        }
        size = 0 if is_head or status < 200 else int(headers["content-length"])
        while len(rest) < size:
            assert self._receive(), "the connection ended within a body"
            rest = self._received.partition(b"\r\n\r\n")[2]
        self._received = rest[size:]
        return Answer(status, headers, rest[:size])

    def answers(self, count: int) -> list[Answer]:
        return [self.answer() for _ in range(count)]

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        while self._receive():
            pass
        rest, self._received = self._received, b""
        return rest

    def is_ended(self) -> bool:
        """Whether the server closes the connection without further bytes. Waits for one or the other."""
        return not self._received and not self._receive()


def ask(server: Running, data: bytes) -> Answer:
    """The first answer to the bytes."""
    with RawConnection(server) as connection:
        connection.send(data)
        return connection.answer()


def last_words(server: Running, data: bytes) -> Answer:
    """The only answer to the bytes, after which the server closes the connection."""
    with RawConnection(server) as connection:
        connection.send(data)
        answer = connection.answer()
        assert answer.headers["connection"] == "close"
        assert connection.rest() == b""
        return answer


def count_of(server: Running, topic: str) -> int:
    """How many records a topic has; 0 if it does not exist."""
    answer = ask(server, get(b"/v0/topics/" + topic.encode()))
    if answer.status == 404:
        return 0
    count: int = answer.json["count"]
    return count


def statuses(data: bytes) -> list[int]:
    """The status of each answer in the bytes."""
    found: list[int] = []
    while data:
        found.append(int(data[9:12]))
        match = _LENGTH.search(data)
        head_bytes = data.index(b"\r\n\r\n") + 4
        assert match is not None
        assert match.end() <= head_bytes
        data = data[head_bytes + int(match[1]) :]
    return found
