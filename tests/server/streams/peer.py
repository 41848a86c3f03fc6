"""A client of the Iggy protocol that speaks in frames, and a server with streams for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.server.running import PATIENCE_S, Running, running
from topics.formats.message import HEADER
from topics.formats.stream_command import Identifier, UserStatus
from topics.formats.stream_permissions import Permissions
from topics.protocol.iggy.answers import POLLED_HEAD, decode_records
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import HEAD, encode_frame
from topics.protocol.iggy.requests import (
    CreateStreamRequest,
    CreateTopicRequest,
    CreateUserRequest,
    LoginUser,
    PollMessages,
    Request,
    encode_request,
    request_code,
)
from topics.protocol.iggy.send_request import Partitioning, encode_send_head

FIRST, LAST, NEXT = (3, 0), (4, 0), (5, 0)


def at_offset(offset: int) -> tuple[int, int]:
    return 1, offset


def at_time(time_us: int) -> tuple[int, int]:
    return 2, time_us


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Gone(Exception):
    """The server closed the connection."""


class Polled:
    def __init__(self, payload: bytes) -> None:
        self.partition_id, self.current_offset, self.count = POLLED_HEAD.unpack_from(payload)
        self.messages: list[tuple[int, bytes]] = []
        self.headers: list[tuple[Any, ...]] = []
        at = POLLED_HEAD.size
        for _ in range(self.count):
            header = HEADER.unpack_from(payload, at)
            self.headers.append(header)
            size = header[6]
            at += HEADER.size
            self.messages.append((header[2], payload[at : at + size]))
            at += size + header[5]
        assert at == len(payload)

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.messages]

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages]


def message(payload: bytes, message_id: int = 0, user_headers: bytes = b"") -> bytes:
    head = HEADER.pack(0, message_id.to_bytes(16, "little"), 0, 0, 1, len(user_headers), len(payload), 0)
    return head + payload + user_headers


def send_payload(
    stream: Identifier, topic: Identifier, messages: Sequence[bytes], partitioning: Partitioning = None
) -> bytes:
    """The payload of send_messages. `messages` are encoded already."""
    end = 0
    indexes = []
    for each in messages:
        end += len(each)
        indexes.append(struct.pack("<IIQ", 0, end, 0))
    return b"".join([encode_send_head(stream, topic, partitioning, len(messages)), *indexes, *messages])


class Peer:
    """One connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def end(self) -> None:
        """Ends the sending side. The server may have closed the connection already."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self.socket.recv_into(view)
            except ConnectionResetError:
                count = 0
            if not count:
                raise Gone
            view = view[count:]
        return bytes(data)

    def answer(self) -> tuple[int, bytes]:
        status, size = HEAD.unpack(self.read(HEAD.size))
        return status, self.read(size)

    def is_closed(self) -> bool:
        """Waits for the next byte, or the end."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def ask(self, code: int, payload: bytes = b"") -> bytes:
        """The payload of the answer. Raises `Refused`."""
        self.write(encode_frame(code, payload))
        status, answer = self.answer()
        if status:
            assert answer == b"", "an error has no payload"
            raise Refused(status)
        return answer

    def do(self, request: Request) -> bytes:
        return self.ask(request_code(request), encode_request(request))

    def get(self, request: Request | Code, *kinds: Any) -> list[Any]:
        """The records of the answer."""
        payload = self.ask(request) if isinstance(request, Code) else self.do(request)
        return decode_records(payload, *kinds)

    def status(self, request: Request | Code) -> int:
        """0, or the error."""
        try:
            if isinstance(request, Code):
                self.ask(request)
            else:
                self.do(request)
        except Refused as refused:
            return refused.status
        return 0

    # What most tests need.

    def login(self, username: str = "iggy", password: str = "iggy") -> Self:
        self.do(LoginUser(username, password))
        return self

    def send(
        self,
        stream: Identifier,
        topic: Identifier,
        payloads: Sequence[bytes],
        partitioning: Partitioning = None,
    ) -> None:
        self.ask(Code.SEND_MESSAGES, send_payload(stream, topic, [message(each) for each in payloads], partitioning))

    def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        strategy: tuple[int, int] = FIRST,
        *,
        count: int = 100,
        partition: int | None = 0,
        consumer: Identifier = 0,
        group: Identifier | None = None,
        auto_commit: bool = False,
    ) -> Polled:
        who = (1, consumer) if group is None else (2, group)
        return Polled(self.do(PollMessages(*who, stream, topic, partition, *strategy, count, auto_commit)))

    def create(self, stream: str, *topics: str, partitions: int = 1) -> None:
        """A stream with topics."""
        self.do(CreateStreamRequest(stream))
        for topic in topics:
            self.do(CreateTopicRequest(stream, partitions, 1, 0, 0, 0, topic))

    def create_user(self, name: str, permissions: Permissions | None = None) -> None:
        """The password is the name."""
        self.do(CreateUserRequest(name, name, UserStatus.ACTIVE, permissions))


class StreamsServer:
    """A server on a thread, with streams."""

    def __init__(self, server: Running) -> None:
        self.server = server
        address = server.server.streams.address
        assert address is not None
        self.address = address
        self._peers: list[Peer] = []

    def connect(self) -> Peer:
        peer = Peer(self.address)
        self._peers.append(peer)
        return peer

    def login(self, username: str = "iggy", password: str = "iggy") -> Peer:
        return self.connect().login(username, password)

    def close_peers(self) -> None:
        for peer in self._peers:
            peer.close()
        self._peers.clear()


@contextmanager
def streams_server(
    data_dir: Path, table: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[StreamsServer]:
    """`table` has settings of the engine."""
    with running(
        data_dir,
        streams_port=0,
        streams_table=table,
        streams_environ=environ,
        **settings,
    ) as server:
        served = StreamsServer(server)
        try:
            yield served
        finally:
            served.close_peers()
