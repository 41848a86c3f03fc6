"""Clients of streams, over HTTP/1.1 and over HTTP/2 cleartext.

They parse server-sent events strictly: one `data` line, the fields in their order, and nothing between them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from http.client import HTTPResponse
from typing import Any, Final, NamedTuple, Self

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.server.clients import H2C, HTTP1, PATIENCE_S, RECEIVE_BYTES, Answer
from tests.server.running import Running
from topics.protocol.sse import decode_cursor


class Event(NamedTuple):
    """A frame. A comment is an event called `:`, with its text as data. `retry` is an event too."""

    name: str
    data: Any
    id: str | None = None

    @property
    def cursors(self) -> dict[str, int]:
        assert self.id is not None
        cursors = decode_cursor(self.id.encode())
        assert cursors is not None
        return cursors

    @property
    def datas(self) -> list[Any]:
        return [record["data"] for record in self.data["records"]]

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]


def parse_block(block: bytes) -> Event:
    lines = block.decode().split("\n")
    assert "\r" not in block.decode()
    if len(lines) == 1 and lines[0].startswith(":"):
        return Event(":", lines[0][1:].strip())
    fields = [line.partition(": ")[::2] for line in lines]
    names = [name for name, _ in fields]
    values = dict(fields)
    if names == ["retry"]:
        return Event("retry", int(values["retry"]))
    assert names in (["id", "event", "data"], ["event", "data"]), block
    return Event(values["event"], json.loads(values["data"]), values.get("id"))


class EventStream(ABC):
    """One request for a stream. `status` and `headers` are known at once; events block until they arrive."""

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        receive_buffer_bytes: int = 0,
        method: str = "GET",
        source_host: str | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source_host is not None:
            self.socket.bind((source_host, 0))
        self.socket.settimeout(PATIENCE_S)
        self.authority = f"{address[0]}:{address[1]}"
        self.status = 0
        self.headers: dict[str, str] = {}
        self._unparsed = b""
        self.last_id: str | None = None
        try:
            self.socket.connect(address)
            self.begin(method, path, dict(headers or {}))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @abstractmethod
    def begin(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Sends the request, and receives the head of the answer."""

    @abstractmethod
    def receive(self) -> bytes:
        """More of the body; empty at its end."""

    @property
    def answer(self) -> Answer:
        """The whole answer, if it is not a stream."""
        return Answer(self.status, self.headers, self._unparsed + b"".join(iter(self.receive, b"")))

    def maybe_next(self) -> Event | None:
        """The next block, or None at the end of the stream."""
        while b"\n\n" not in self._unparsed:
            data = self.receive()
            if not data:
                assert self._unparsed == b"", "the stream ended within a frame"
                return None
            self._unparsed += data
        block, _, self._unparsed = self._unparsed.partition(b"\n\n")
        event = parse_block(block)
        if event.id is not None:
            self.last_id = event.id
        return event

    def next(self) -> Event:
        """The next event, past heartbeats and `retry`."""
        while True:
            event = self.maybe_next()
            assert event is not None, "the stream ended"
            if event.name not in (":", "retry"):
                return event

    def take(self, count: int) -> list[Event]:
        return [self.next() for _ in range(count)]

    def until(self, name: str, **members: Any) -> list[Event]:
        """Events up to and including the first with this name and these members."""
        events: list[Event] = []
        while True:
            events.append(self.next())
            if events[-1].name == name and members.items() <= events[-1].data.items():
                return events

    def rest(self) -> list[Event]:
        """Events up to the end of the stream."""
        return [event for event in iter(self.maybe_next, None) if event.name not in (":", "retry")]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.rest())


class Http1EventStream(EventStream):
    def begin(self, method: str, path: str, headers: dict[str, str]) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.authority}", *(f"{n}: {v}" for n, v in headers.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._response = HTTPResponse(self.socket, method=method)
        try:
            self._response.begin()
        except BaseException:
            self._response.close()
            raise
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def receive(self) -> bytes:
        return self._response.read1(RECEIVE_BYTES)

    def close(self) -> None:
        self._response.close()
        super().close()


class Http2EventStream(EventStream):
    def begin(self, method: str, path: str, headers: dict[str, str]) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        self._h2.initiate_connection()
        fields = [(":method", method), (":scheme", "http"), (":authority", self.authority), (":path", path)]
        self._h2.send_headers(1, [*fields, *headers.items()], end_stream=True)
        self.socket.sendall(self._h2.data_to_send())
        self._is_ended = False
        self._received = b""
        while not self.status:
            if self._is_ended:
                raise ConnectionResetError("the connection ended before the head of the answer")
            self._receive_some()

    def receive(self) -> bytes:
        while not self._received and not self._is_ended:
            self._receive_some()
        received, self._received = self._received, b""
        return received

    def _receive_some(self) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        self._is_ended = self._is_ended or not data
        for event in self._h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived(headers=fields):
                    self.headers = {str(name): str(value) for name, value in fields or ()}
                    self.status = int(self.headers.pop(":status"))
                case h2.events.DataReceived(data=body, flow_controlled_length=size):
                    self._received += body or b""
                    self._h2.acknowledge_received_data(size or 0, 1)
                case h2.events.StreamEnded() | h2.events.StreamReset():
                    self._is_ended = True
                case _:
                    pass
        self.socket.sendall(self._h2.data_to_send())


def wait_for_streams(server: Running, count: int) -> None:
    """Lets the loop turn until this many streams are open: the server notices later that a client is gone."""
    counters = server.server.app.counters

    async def turn() -> None:
        while counters.sse_connections != count:  # noqa: ASYNC110 - nothing is called when a stream ends.
            await asyncio.sleep(0)

    server.call(turn())


EVENT_STREAMS: Final[dict[str, type[EventStream]]] = {HTTP1: Http1EventStream, H2C: Http2EventStream}
