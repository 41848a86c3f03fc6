"""One connection of a client of Apache Iggy: bytes in, requests to its session, answers out, in order.

Requests of a connection are handled one at a time. While one is handled on another thread, while a large one waits for
room, and while the client does not take its answers, nothing more is read, so a connection holds one request and one
answer at most.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from topics.limits import KIB
from topics.protocol.iggy.frames import Announced, Frame, FrameReader, Refusal, encode_error
from topics.server.limits import Timeouts
from topics.server.streams.request_room import Claim
from topics.stream_errors import StreamStatus

if TYPE_CHECKING:
    from topics.server.streams.host import StreamsHost

# The memory into which all connections receive. The rest of a frame that is longer is received into its own memory.
RECEIVED_BYTES_MAX: Final = 64 * KIB
# Requests of one connection that are handled in one turn of the loop.
FRAMES_PER_TURN: Final = 64
# A client with this many unsent bytes gets no further answers until it takes some.
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB

Answer = bytes | Sequence[bytes | memoryview]

# A client gets one of these, and then the connection is closed.
_LAST_STATUSES: Final = frozenset({StreamStatus.STALE_CLIENT, StreamStatus.CLIENT_NOT_FOUND})


class Handler(Protocol):
    """What a connection needs of its session."""

    def admit(self, announced: Announced) -> int | Refusal:
        """The id of the user who may make this request, or why its body is not received."""

    def handle(self, frame: Frame) -> Answer | Refusal | None:
        """The answer, or an error, or None if `Connection.answer` gets it later."""

    def end(self) -> None:
        """The connection is gone."""


class Connection(asyncio.BufferedProtocol):
    """Loop thread only."""

    def __init__(self, host: StreamsHost) -> None:
        self._host = host
        self.reader = FrameReader()
        self.peer = ""
        self._transport: asyncio.Transport
        self._session: Handler | None = None
        # A request is being handled on another thread.
        self._is_busy = False
        # The room of a large request, from its head to its answer, and when its bytes began to arrive.
        self._claim: Claim | None = None
        self._begun_s = 0.0
        # The client does not take its answers.
        self._is_stuck = False
        self._is_reading = True
        self._is_draining = False
        self._is_closed = False
        self._is_lost = False
        # When the client last took some of its answer, or sent some of its request, and what was held then.
        self.moved_s = host.loop.time()
        self._held_before = (0, 0)
        self._target: memoryview | None = None
        # The rest of the bytes is handled in a later turn.
        self._continuing: asyncio.Handle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    # Bytes in.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = transport.get_extra_info("peername")
        self.peer = _address_text(address)
        self._host.note_connected(self)

    def start(self, session: Handler) -> None:
        """The engine is open: requests are handled from now on."""
        self._session = session
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._target = None if self._is_closed else self.reader.target
        return self._host.received if self._target is None else self._target

    def buffer_updated(self, count: int) -> None:
        self._host.counters.bytes_received += count
        if self._is_closed:
            return
        if self._target is not None:
            self._target = None
            self.reader.note_filled(count)
        else:
            self.reader.feed(self._host.received[:count])
        if self._is_waiting:
            self.reader.keep_rest()
            self._pause()
            return
        self._handle_frames()

    @property
    def _is_waiting(self) -> bool:
        return self._is_held_up or self._session is None or self._continuing is not None

    @property
    def _is_held_up(self) -> bool:
        """Whether something else than the client must come before its next request."""
        return self._is_busy or self._is_stuck or (self._claim is not None and self._claim.is_waiting)

    def _handle_frames(self) -> None:
        session = self._session
        assert session is not None
        for _ in range(FRAMES_PER_TURN):
            event = self.reader.next_event()
            if event is None:
                if not self._is_reading:
                    self._is_reading = True
                    self._transport.resume_reading()
                return
            if isinstance(event, Announced):
                self._begin_large(event, session.admit(event))
            else:
                answer = event if isinstance(event, Refusal) else session.handle(event)
                if answer is None:
                    self._is_busy = True
                else:
                    self._end_claim()
                    self._send(answer)
            if self._is_closed:
                return
            if self._is_held_up:
                self.reader.keep_rest()
                return
        self.reader.keep_rest()
        self._pause()
        self._continuing = self._host.loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continuing = None
        self._resume()

    def _resume(self) -> None:
        if not self._is_waiting and not self._is_closed:
            self._handle_frames()

    # Large requests.

    def _begin_large(self, announced: Announced, user_id: int | Refusal) -> None:
        """Receives the rest of a large request, now or when there is room for it, or refuses it."""
        if isinstance(user_id, Refusal):
            self.reader.refuse(user_id)
            return
        self._claim = Claim(self._host.room_for(announced.size), user_id, announced.size, self._note_room)
        if self._claim.ask():
            self._accept()

    def _note_room(self) -> None:
        """The request that waited has room."""
        if self._is_closed:
            return
        self._accept()
        if self._continuing is None:
            self._continuing = self._host.loop.call_soon(self._continue)

    def _accept(self) -> None:
        assert self._claim is not None
        self._begun_s = self._host.loop.time()
        try:
            memory = self._host.allocate(self._claim.size_bytes)
        except MemoryError:
            self.reader.refuse(Refusal(StreamStatus.ERROR, is_last=True))
        else:
            self.reader.accept(memory)

    def _end_claim(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end()

    def _pause(self) -> None:
        if self._is_reading and not self._is_closed:
            self._is_reading = False
            self._transport.pause_reading()

    # Answers out.

    def answer(self, answer: Answer | Refusal) -> None:
        """The answer of the request that is handled on another thread."""
        assert self._is_busy
        self._is_busy = False
        self._end_claim()
        if self._is_closed:
            return
        self._send(answer)
        if self._is_draining:
            self.drain()
        # In a later turn, so that one connection whose requests are answered at once does not hold up the others.
        elif not self._is_closed and self._continuing is None:
            self._continuing = self._host.loop.call_soon(self._continue)

    def _send(self, answer: Answer | Refusal) -> None:
        counters = self._host.counters
        if isinstance(answer, Refusal):
            error = encode_error(answer.status)
            counters.note_error(answer.status)
            counters.bytes_sent += len(error)
            self._transport.write(error)
            if answer.is_last or answer.status in _LAST_STATUSES:
                self._close_after_answer()
        elif isinstance(answer, bytes):
            counters.bytes_sent += len(answer)
            self._transport.write(answer)
        else:
            counters.bytes_sent += sum(map(len, answer))
            self._transport.writelines(answer)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken."""
        return 0 if self._is_lost else self._transport.get_write_buffer_size()

    @property
    def partial_bytes(self) -> int:
        """Bytes of a request whose rest the server waits for, also those that it skipped."""
        return 0 if self._is_waiting else self.reader.partial_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that the server keeps for the client, or keeps free for the large request that it has begun."""
        claim = self._claim
        of_request = claim.size_bytes if claim is not None and claim.is_held else self.reader.held_bytes
        return self.unsent_bytes + of_request

    @property
    def is_in_the_way(self) -> bool:
        """Whether others wait for the room that this client has."""
        claim = self._claim
        return claim is not None and claim.is_held and claim.room.is_wanted_of(claim.user_id)

    def is_late(self, now_s: float, timeouts: Timeouts) -> bool:
        """Whether a large request arrives too slowly."""
        if self._claim is None or not self.partial_bytes:
            return False
        return timeouts.is_body_late(now_s - self._begun_s, self.partial_bytes)

    def check_stalled(self, now_s: float) -> None:
        """Notes whether the client has taken some of its answer, or sent some of its request, since the last check."""
        held = self.unsent_bytes, self.partial_bytes
        if held == (0, 0) or held != self._held_before:
            self._held_before, self.moved_s = held, now_s

    def pause_writing(self) -> None:
        self._is_stuck = True

    def resume_writing(self) -> None:
        self._is_stuck = False
        self._resume()

    # The end.

    def drain(self) -> None:
        """The server stops: the client is told, after the answer to a request that is being handled."""
        self._is_draining = True
        if not self._is_busy and not self._is_closed:
            self._send(Refusal(StreamStatus.DISCONNECTED))
            self._is_closed = True
            self._transport.close()

    def _close_after_answer(self) -> None:
        """Ends the connection. What the client still sends is taken in for a moment: an end with unread bytes could
        reach the client before the answer does."""
        self._is_closed = True
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._lingering = self._host.loop.call_later(self._host.linger_s, self._transport.abort)
        if not self._is_reading:
            self._transport.resume_reading()

    def abort(self) -> None:
        self._is_closed = True
        self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = self._is_lost = True
        for handle in (self._continuing, self._lingering):
            if handle is not None:
                handle.cancel()
        if not self._is_busy:
            # Otherwise a thread still has the request, and `answer` ends the claim.
            self._end_claim()
        session, self._session = self._session, None
        if session is not None:
            session.end()
        self._host.note_lost(self)


def _address_text(address: object) -> str:
    """`ip:port`, as clients see it in lists of clients."""
    if not isinstance(address, tuple):
        return "local"
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
