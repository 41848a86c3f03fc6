"""An HTTP/2 client for tests of streams and frames: many streams at once, and wrong frames if a test wants them."""

from __future__ import annotations

import contextlib
import json
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import Frame, HeadersFrame

RECEIVE_BYTES: Final = 65_536
FRAME_HEAD_BYTES: Final = 9

Fields = list[tuple[bytes, bytes]]


class Peer:
    """Notes the server's events by stream; `until` receives until a condition holds."""

    def __init__(
        self,
        connected: socket.socket,
        *,
        window_bytes: int | None = None,
        opens_windows: bool = True,
        authority: bytes | None = None,
    ) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        host, port = connected.getpeername()[:2]
        self.authority = authority or f"{host}:{port}".encode()
        self.opens_windows = opens_windows
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        if window_bytes is not None:
            self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window_bytes
            self.h2.local_settings.acknowledge()
        self.statuses: dict[int, int] = {}
        self.informational: dict[int, list[int]] = defaultdict(list)
        self.headers: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.resets: dict[int, ErrorCodes | int] = {}
        self.goaway: ErrorCodes | int | None = None
        self.ping_count = 0
        self.pong_count = 0
        self.is_closed = False
        self.h2.initiate_connection()
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # Out.

    def flush(self) -> None:
        self.send(self.h2.data_to_send())

    def send(self, data: bytes) -> None:
        # The server may close the connection before everything is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def send_frames(self, frames: Iterable[Frame]) -> None:
        self.send(b"".join(frame.serialize() for frame in frames))

    def begin(self, method: str, path: str, headers: Fields | None = None, *, ends: bool = False) -> int:
        """Queues the head of a request. Returns the stream."""
        stream_id = self.h2.get_next_available_stream_id()
        fields = [
            (b":method", method.encode()),
            (b":scheme", b"http"),
            (b":authority", self.authority),
            (b":path", path.encode()),
        ]
        self.h2.send_headers(stream_id, fields + (headers or []), end_stream=ends)
        return stream_id

    def start(self, method: str, path: str, body: Any = None, headers: Fields | None = None) -> int:
        """Queues a whole request with a body that fits the windows. Returns the stream. `flush` sends it."""
        if body is None:
            return self.begin(method, path, headers, ends=True)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        stream_id = self.begin(method, path, [(b"content-type", b"application/json"), *(headers or [])])
        self.send_body(stream_id, payload)
        return stream_id

    def send_body(self, stream_id: int, body: bytes, *, ends: bool = True) -> None:
        """Waits for windows, and stops when the server resets the stream."""
        view = memoryview(body)
        while True:
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room or not view:
                self.h2.send_data(stream_id, view[:room], end_stream=ends and len(view) <= room)
                view = view[room:]
            if not view:
                return
            if not room:
                self.flush()
                self.receive()
                if self.is_closed or stream_id in self.ended or stream_id in self.resets:
                    return

    def reset(self, stream_id: int) -> None:
        self.h2.reset_stream(stream_id, ErrorCodes.CANCEL)

    # In.

    def receive(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        if self.goaway is None:
            self.flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.InformationalResponseReceived():
                self.informational[event.stream_id].append(int(dict(event.headers)[b":status"]))
            case h2.events.ResponseReceived():
                headers = self.headers[event.stream_id] = dict(event.headers)
                self.statuses[event.stream_id] = int(headers.pop(b":status"))
            case h2.events.DataReceived():
                self.bodies[event.stream_id] += event.data
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.ended.add(event.stream_id)
            case h2.events.StreamReset():
                self.resets[event.stream_id] = event.error_code
            case h2.events.PingReceived():
                self.ping_count += 1
            case h2.events.PingAckReceived():
                self.pong_count += 1
            case h2.events.ConnectionTerminated():
                self.goaway = event.error_code
            case _:
                pass

    def until(self, condition: Callable[[], bool]) -> None:
        self.flush()
        while not condition():
            assert not self.is_closed, f"the server closed the connection; goaway: {self.goaway!r}"
            self.receive()

    def until_closed(self) -> None:
        self.flush()
        while not self.is_closed:
            self.receive()

    def json(self, stream_id: int) -> Any:
        """Waits for the answer."""
        self.until(lambda: stream_id in self.ended)
        return json.loads(self.bodies[stream_id])

    def request(self, method: str, path: str, body: Any = None, headers: Fields | None = None) -> tuple[int, Any]:
        stream_id = self.start(method, path, body, headers)
        document = self.json(stream_id)
        return self.statuses[stream_id], document


def received_frames(connected: socket.socket) -> Iterator[Frame]:
    """Every frame until the server closes. Read by hand, because the library reads nothing after a GOAWAY."""
    data = b""
    while True:
        while len(data) >= FRAME_HEAD_BYTES:
            frame, length = Frame.parse_frame_header(memoryview(data[:FRAME_HEAD_BYTES]))
            end = FRAME_HEAD_BYTES + length
            if len(data) < end:
                break
            frame.parse_body(memoryview(data[FRAME_HEAD_BYTES:end]))
            data = data[end:]
            yield frame
        received = connected.recv(RECEIVE_BYTES)
        if not received:
            return
        data += received


def headers_frame(stream_id: int, fields: Fields, *flags: str) -> HeadersFrame:
    """A head without the checks of a library. It uses no dynamic table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return HeadersFrame(stream_id, data=encoder.encode(fields), flags=["END_HEADERS", *flags])
