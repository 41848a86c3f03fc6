"""Clients for contract tests: the same calls over HTTP/1.1 and over HTTP/2 cleartext.

They send exactly what a test says, also wrong requests. They check that every failure is the error envelope, and that
no success is.
"""

from __future__ import annotations

import contextlib
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, Final, Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions

# Less than a diff may wait, so that a diff that waits by mistake fails the test.
PATIENCE_S: Final = 20
RECEIVE_BYTES: Final = 65_536
HTTP1: Final = "http/1.1"
H2C: Final = "h2c"

Headers = Mapping[str, str | bytes | None]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    # Lower-case names.
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The document of a success. For a failure use `refusal`."""
        assert 200 <= self.status < 300, (self.status, self.body[:300])
        assert self.headers["content-type"] == "application/json"
        document = json.loads(self.body)
        assert "error" not in document
        return document

    @property
    def error(self) -> dict[str, Any]:
        """The error in the envelope of a failure."""
        assert self.status >= 400, (self.status, self.body[:300])
        assert self.headers["content-type"] == "application/json"
        document = json.loads(self.body)
        assert document.keys() == {"error"}
        error: dict[str, Any] = document["error"]
        assert {"code", "message"} <= error.keys() <= {"code", "message", "detail"}
        assert error["message"]
        assert isinstance(error.get("detail", {}), dict)
        assert self.headers.get("retry-after") == ("1" if self.status in (429, 503) else None)
        assert ("allow" in self.headers) == (self.status == 405)
        return error

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.error["code"]

    @property
    def malformed(self) -> bool:
        """Whether the body was refused for its syntax or types. The messages of these failures begin alike."""
        is_malformed: bool = self.error["message"].startswith("malformed JSON body")
        assert not is_malformed or self.refusal == (400, "invalid_request")
        return is_malformed


class Client(ABC):
    """One connection. `start` sends a request, `finish` waits for its answer; `request` is both."""

    def __init__(self, host: str, port: int, source_host: str | None = None) -> None:
        self._address = (host, port)
        # The server delays clients that send bad keys, so tests of keys use several addresses of this machine.
        self._source = None if source_host is None else (source_host, 0)
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        connected = socket.create_connection(self._address, timeout=PATIENCE_S, source_address=self._source)
        # Head and body of a request are written one after the other.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    @property
    def authority(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def start(self, method: str, path: str, body: Any = None, headers: Headers | None = None) -> None:
        """`body`: bytes as they are, anything else as JSON. A header that is None is not sent."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        wanted: dict[str, str | bytes | None] = {} if payload is None else {"content-type": "application/json"}
        wanted |= headers or {}
        given = [(name.encode(), _as_bytes(value)) for name, value in wanted.items() if value is not None]
        self.send(method.encode(), path.encode("latin-1"), given, payload)

    def request(self, method: str, path: str, body: Any = None, headers: Headers | None = None) -> Answer:
        self.start(method, path, body, headers)
        return self.finish()

    @abstractmethod
    def send(self, method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes | None) -> None: ...

    @abstractmethod
    def finish(self) -> Answer: ...

    # Calls that must succeed, for tests that need topics and records.

    def put_topic(self, topic: str, /, **config: Any) -> Any:
        return self.request("PUT", f"/v0/topics/{topic}", config).json

    def write(self, topic: str, /, *datas: Any, query: str = "", **members: Any) -> Any:
        """Writes `datas` as plain records, unless the members have `records`."""
        body = {"records": [{"data": data} for data in datas]} | members
        return self.request("POST", f"/v0/topics/{topic}{query}", body).json

    def diff(self, topic: str, /, **members: Any) -> Any:
        return self.request("POST", f"/v0/topics/{topic}/diff", members).json

    def state(self, topic: str, /) -> Any:
        return self.request("GET", f"/v0/topics/{topic}").json

    def datas(self, topic: str, /, **members: Any) -> list[Any]:
        return [record["data"] for record in self.diff(topic, **members)["records"]]


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


class Http1Client(Client):
    """Connects again after the server has closed the connection."""

    def __init__(self, host: str, port: int, source_host: str | None = None) -> None:
        super().__init__(host, port, source_host)
        self._is_ended = False
        self._method = b""

    def send(self, method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes | None) -> None:
        if self._is_ended:
            self._socket.close()
            self._socket = self._connected()
        self._method = method
        lines = [b"%b %b HTTP/1.1" % (method, path), b"host: " + self.authority.encode()]
        lines += [b"%b: %b" % header for header in headers]
        if body is not None:
            lines.append(b"content-length: %d" % len(body))
        # A server that refuses a large body may end the connection before all of it is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(b"\r\n".join([*lines, b"", b""]) + (body or b""))

    def finish(self) -> Answer:
        with HTTPResponse(self._socket, method=self._method.decode()) as response:
            response.begin()
            body = response.read()
            self._is_ended = response.will_close
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


class Http2Client(Client):
    """One stream at a time. Connects again after the server has closed the connection."""

    def __init__(self, host: str, port: int, source_host: str | None = None) -> None:
        super().__init__(host, port, source_host)
        self._open()

    def _open(self) -> None:
        settings = h2.config.H2Configuration(
            client_side=True,
            header_encoding="latin-1",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = h2.connection.H2Connection(settings)
        self._h2.initiate_connection()
        self._is_ended = False
        self._stream_id = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._is_answered = False
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(self._h2.data_to_send())

    def send(self, method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes | None) -> None:
        if self._is_ended:
            self._socket.close()
            self._socket = self._connected()
            self._open()
        self._stream_id = self._h2.get_next_available_stream_id()
        self._status, self._headers, self._body, self._is_answered = 0, {}, [], False
        fields = [
            (b":method", method),
            (b":scheme", b"http"),
            (b":authority", self.authority.encode()),
            (b":path", path),
        ]
        if body is not None:
            fields.append((b"content-length", b"%d" % len(body)))
        # HTTP/2 allows no blanks around values; HTTP/1.1 ignores them.
        fields += [(name, value.strip()) for name, value in headers]
        self._h2.send_headers(self._stream_id, fields, end_stream=body is None)
        self._flush()
        if body is not None:
            self._send_body(body)

    def _send_body(self, body: bytes) -> None:
        view = memoryview(body)
        while not self._is_answered:
            try:
                room = min(self._h2.local_flow_control_window(self._stream_id), self._h2.max_outbound_frame_size)
                if room or not view:
                    self._h2.send_data(self._stream_id, bytes(view[:room]), end_stream=len(view) <= room)
            except (h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
                # The stream was answered and reset before all of it was sent.
                return
            if room >= len(view):
                self._flush()
                return
            view = view[room:]
            self._flush()
            if not room:
                self._receive()

    def finish(self) -> Answer:
        while not self._is_answered:
            self._receive()
        return Answer(self._status, self._headers, b"".join(self._body))

    def _receive(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the server ended the connection without an answer")
        for event in self._h2.receive_data(data):
            self._take(event)
        self._flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=self._stream_id, headers=fields):
                for name, value in fields or ():
                    self._headers[str(name)] = str(value)
                self._status = int(self._headers.pop(":status"))
            case h2.events.DataReceived(stream_id=stream_id, data=data, flow_controlled_length=size):
                self._h2.acknowledge_received_data(size, stream_id)
                if stream_id == self._stream_id:
                    self._body.append(data or b"")
            case h2.events.StreamEnded(stream_id=self._stream_id):
                self._is_answered = True
            case h2.events.StreamReset(stream_id=self._stream_id, error_code=code):
                if not self._is_answered:
                    raise ConnectionResetError(f"the server reset the stream: {code!r}")
            case h2.events.ConnectionTerminated():
                self._is_ended = True
            case _:
                pass


CLIENTS: Final[dict[str, type[Client]]] = {HTTP1: Http1Client, H2C: Http2Client}
