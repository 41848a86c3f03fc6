"""WebSocket clients for tests: the library's client with commands as objects, and one that sends frames as bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server.raw import RawConnection
from tests.server.running import PATIENCE_S, Running

KEY: Final = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE: Final = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: " + KEY,
)

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN: Final = 0x80
MASKED: Final = 0x80
# Always the same, because frames are parameters of tests.
MASK: Final = b"\x37\xfa\x21\x3d"


class WsClient:
    """Commands and messages as objects."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, op: str, /, **members: Any) -> None:
        self.connection.send(json.dumps({"op": op} | members))

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.recv(PATIENCE_S))
        return message

    def ask(self, op: str, /, **members: Any) -> dict[str, Any]:
        """The next message is the reply: for clients without pushed messages."""
        self.send(op, **members)
        return self.receive()

    def receive_until(self, op: str, /, **members: Any) -> list[dict[str, Any]]:
        """Messages up to the first with this op and these members."""
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1] | {"op": op} | members != seen[-1]:
            seen.append(self.receive())
        return seen

    def reply(self, op: str, /, **members: Any) -> dict[str, Any]:
        """The reply to a command, after any pushed messages."""
        self.send(op, request_id="reply", **members)
        return self.receive_until_reply("reply")

    def receive_until_reply(self, request_id: Any) -> dict[str, Any]:
        while True:
            message = self.receive()
            if message.get("request_id") == request_id:
                return message

    def closed(self) -> tuple[int, str]:
        """Waits until the server ends the connection. Returns code and reason."""
        with suppress(ConnectionClosed):
            while True:
                self.connection.recv(PATIENCE_S)
        close = self.connection.protocol.close_rcvd
        assert close is not None
        return close.code, close.reason


@contextmanager
def ws_client(server: Running, key: str = "", **options: Any) -> Iterator[WsClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    url = f"ws://{server.host}:{server.port}/v0/ws"
    with connect(url, additional_headers=headers, max_size=None, proxy=None, **options) as connection:
        yield WsClient(connection)


def frame(
    opcode: int, payload: bytes = b"", *, flags: int = FIN, length: int | None = None, mask: bool = True
) -> bytes:
    """A frame of a client, or bytes that look like one."""
    length = len(payload) if length is None else length
    masked = MASKED if mask else 0
    if length < 126:
        head = bytes((flags | opcode, masked | length))
    elif length < 65536:
        head = bytes((flags | opcode, masked | 126)) + struct.pack("!H", length)
    else:
        head = bytes((flags | opcode, masked | 127)) + struct.pack("!Q", length)
    if not mask:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(payload))


class RawWebSocket(RawConnection):
    """A WebSocket as bytes."""

    def __init__(self, server: Running, *headers: bytes, behind: bytes = b"", receive_buffer_bytes: int = 0) -> None:
        super().__init__(server, receive_buffer_bytes=receive_buffer_bytes)
        host = f"Host: {server.host}:{server.port}".encode()
        lines = [b"GET /v0/ws HTTP/1.1", host, *HANDSHAKE, *headers, b"", b""]
        self.send(b"\r\n".join(lines) + behind)
        answer = self.answer()
        assert answer.status == 101, answer.body

    def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        head = self._exactly(2)
        length = head[1]
        if length == 126:
            (length,) = struct.unpack("!H", self._exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._exactly(8))
        assert head[0] & FIN
        return head[0] & 0x0F, self._exactly(length)

    def message(self) -> Any:
        opcode, payload = self.frame()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def close_code(self) -> int:
        """The code of the server's close frame, after which it closes the connection."""
        while True:
            opcode, payload = self.frame()
            if opcode == CLOSE:
                self.end()
                assert self.rest() == b""
                return int.from_bytes(payload[:2], "big")

    def say(self, text: bytes) -> None:
        self.send(frame(TEXT, text))

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            assert self._receive(), f"the connection ended within a frame: {self._received!r}"
        data, self._received = self._received[:size], self._received[size:]
        return data
