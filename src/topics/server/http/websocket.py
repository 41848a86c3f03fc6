"""A WebSocket on one connection: bytes become messages, messages become bytes (RFC 6455).

A library reads the frames and refuses frames that are malformed, unmasked or too large. It neither counts fragments and
pings nor checks the text, so this module does. Large frames are cut before the library gets them (`websocket_frames`).
Compression is not offered.

Rules of this file:

1. Bytes are parsed step by step, and a few messages are handled in one turn: the received bytes may hold thousands.
2. Nothing is read from the socket while the session takes no more messages, while a command waits for room, or while
   the client does not take its messages.
3. At most four messages and about 1 MiB wait for the client. A sender checks for room first; only replies are sent
   without room.
4. Messages that arrived before the end are handled, and their replies are sent, before the end is answered.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import Final, NamedTuple, Protocol

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.limits import KIB
from topics.server.http.connections import ConnectionSet, Wire
from topics.server.http.websocket_frames import PIECE_BYTES, FrameCutter
from topics.server.limits import (
    EXCHANGES_PER_TURN,
    WS_FRAGMENTS_MAX,
    WS_MESSAGE_BYTES_MAX,
    WS_PARSED_BYTES_PER_STEP,
    WS_PINGS_MAX,
    WS_PINGS_PER_S,
    WS_QUEUED_BYTES_MAX,
    WS_QUEUED_MESSAGES_MAX,
    WS_SILENT_PINGS_MAX,
)

# The library logs every connection; only warnings are of interest.
_library_logger: Final = logging.getLogger(f"{__name__}.library")
_library_logger.setLevel(logging.WARNING)

_STEP_BYTES_MAX: Final = 256 * KIB
_BYTES_HANDLED_AT_ONCE_MAX: Final = 16 * KIB
_Utf8Decoder: Final = getincrementaldecoder("utf-8")


class Message(NamedTuple):
    is_text: bool
    content: bytes


class Session(Protocol):
    """The user of a connection: handles its messages, and sends its own."""

    @property
    def takes_more(self) -> bool:
        """Whether the next message may be handled now. When that becomes true again, the session calls
        `WebSocketConnection.go_on`.
        """
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a reply is still to come."""
        ...

    def handle(self, message: Message) -> None: ...

    def resume(self) -> None:
        """The connection has room for messages again."""
        ...

    def stop(self) -> None:
        """Sends nothing any more, except replies that are still to come."""
        ...

    def last_words(self) -> bytes:
        """The last message to the client when the server ends the connection."""
        ...

    def words_to_stalled(self) -> bytes:
        """The last message to a client that took no bytes for too long."""
        ...

    def gone(self) -> None:
        """The connection has ended."""
        ...


class WebSocketConnection(Wire):
    """A connection that an HTTP request has upgraded. `answer` is the text that accepts the upgrade."""

    def __init__(
        self,
        connections: ConnectionSet,
        transport: asyncio.Transport,
        answer: bytes,
        make_session: Callable[[WebSocketConnection], Session],
    ) -> None:
        super().__init__(connections, transport)
        # The connection may be silent as long as the client answers pings.
        self.note_message_complete()
        # All bytes that the kernel has not taken count as congestion. So the connection knows how many messages wait.
        transport.set_write_buffer_limits(high=1, low=0)
        self._protocol = ServerProtocol(state=State.OPEN, max_size=WS_MESSAGE_BYTES_MAX, logger=_library_logger)
        self._answer = answer
        self._unparsed = memoryview(b"")
        self._step_bytes = WS_PARSED_BYTES_PER_STEP
        # Messages that were received in full and wait for their turn.
        self._messages: deque[Message] = deque()
        self._cutter = FrameCutter(WS_MESSAGE_BYTES_MAX)
        # The fragments of the message that is arriving. The buffer gives its bytes away without a copy.
        self._is_text = False
        self._fragments = BytesIO()
        self._fragment_count = 0
        self._is_arriving = False
        # Checks a text piece by piece, because a character may be cut by a fragment.
        self._utf8 = _Utf8Decoder()
        # Nothing more of this client counts.
        self._has_failed = False
        self._is_slow = False
        self._turn_is_due = False
        # Messages that were sent since the kernel last had everything.
        self._queued_count = 0
        # The server stops: no more commands are handled, and the connection ends after the replies that are still to
        # come.
        self._is_stopping = False
        # What a stopping connection says when it closes.
        self._close = (CloseCode.GOING_AWAY, "")
        self._pings = 0.0
        self._pings_at_s = self.loop.time()
        self._was_heard = True
        self._silent_count = 0
        self._beat_at_s = connections.now_s + connections.timeouts.ping_s
        self._session = make_session(self)

    def begin(self, received: bytes) -> None:
        self.write(self._answer)
        super().begin(received)

    # Bytes in.

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_received += len(data)
        if self.is_closed or self._is_stopping:
            return
        self._was_heard = True
        self.note_body_bytes(len(data))
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        if len(data) > _BYTES_HANDLED_AT_ONCE_MAX:
            self.go_on()
        if self._turn_is_due:
            # The loop reads a connection up to 32 times in one turn while its client sends enough. So reading pauses.
            self._adjust_reading()
        else:
            self._take_turn()

    def eof_received(self) -> bool:
        """A client that ends the connection without a close frame gets none either."""
        self.close()
        return False

    def go_on(self) -> None:
        """Handles waiting messages in a later turn of the loop."""
        if not self._turn_is_due and not self.is_closed:
            self._turn_is_due = True
            self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        for _ in range(EXCHANGES_PER_TURN):
            if self.is_closed or self.is_congested or self.is_parked or not self._session.takes_more:
                break
            if self._messages:
                self._session.handle(self._messages.popleft())
            elif self._unparsed and not self._is_stopping:
                self._parse_some()
            else:
                break
        else:
            self.go_on()
        if (
            not self._messages
            and not self.is_closed
            and (self._protocol.state is State.OPEN or not self._session.is_busy)
        ):
            self._flush()
        if self._is_stopping:
            self.settle()
        elif not self.is_closed:
            self._adjust_reading()

    def _parse_some(self) -> None:
        step = bytes(self._unparsed[: self._step_bytes])
        self._unparsed = self._unparsed[self._step_bytes :]
        self._protocol.receive_data(self._cutter.cut(step))
        events = self._protocol.events_received()
        # A large message holds no other messages, so a longer step is safe, and takes half the time.
        is_large = not events or self._cutter.is_cutting
        self._step_bytes = min(2 * self._step_bytes, _STEP_BYTES_MAX) if is_large else WS_PARSED_BYTES_PER_STEP
        message_count = len(self._messages)
        for event in events:
            assert isinstance(event, Frame)
            if not self._has_failed:
                self._take(event)
        is_slow = self._is_arriving or bool(self._protocol.reader.buffer) or self._cutter.has_part_of_head
        if is_slow and (not self._is_slow or len(self._messages) > message_count):
            self.note_body_begun()
        elif not is_slow:
            self.note_message_complete()
        self._is_slow = is_slow

    def _take(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.PING or opcode is Opcode.PONG:
            self._note_ping()
        elif opcode is not Opcode.CLOSE:
            self._take_data(frame)

    def _take_data(self, frame: Frame) -> None:
        data = bytes(frame.data)
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if self._is_text and not self._is_good_text(data, is_last=frame.fin):
            return
        if frame.fin and not self._is_arriving:
            self._messages.append(Message(self._is_text, data))
            return
        self._is_arriving = True
        self._fragments.write(data)
        # A full piece may be cut from a larger frame. A message has few of them, so they are not counted.
        if len(data) != PIECE_BYTES:
            self._fragment_count += 1
        if frame.fin:
            self._messages.append(Message(self._is_text, self._fragments.getvalue()))
            self._fragments = BytesIO()
            self._fragment_count = 0
            self._is_arriving = False
        elif self._fragment_count >= WS_FRAGMENTS_MAX:
            self._refuse(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {WS_FRAGMENTS_MAX} fragments")

    def _is_good_text(self, data: bytes, *, is_last: bool) -> bool:
        begun_bytes = len(self._utf8.getstate()[0])
        if data.isascii() and not begun_bytes:
            return True
        try:
            self._utf8.decode(data, is_last)
        except UnicodeDecodeError as error:
            position = self._fragments.tell() - begun_bytes + error.start
            self._refuse(CloseCode.INVALID_DATA, f"{error.reason} at position {position}")
            return False
        return True

    def _refuse(self, code: CloseCode, reason: str) -> None:
        self._has_failed = True
        self._protocol.fail(code, reason)

    def _note_ping(self) -> None:
        now_s = self.loop.time()
        forgiven = (now_s - self._pings_at_s) * WS_PINGS_PER_S
        self._pings_at_s = now_s
        self._pings = max(0.0, self._pings - forgiven) + 1
        if self._pings > WS_PINGS_MAX and self._protocol.state is State.OPEN:
            self._protocol.fail(CloseCode.POLICY_VIOLATION, "too many pings")

    def _adjust_reading(self) -> None:
        is_full = bool(self._unparsed) or bool(self._messages) or self.is_parked
        if is_full and not self.is_reading_paused:
            self.pause_reading()
        elif not is_full and self.is_reading_paused:
            self.resume_reading()

    def note_parked(self) -> None:
        if not self._is_stopping:
            self._adjust_reading()
        self.go_on()

    # Messages out.

    @property
    def has_room(self) -> bool:
        return (
            self._queued_count < WS_QUEUED_MESSAGES_MAX
            and not self.is_closed
            and not self._is_stopping
            and (not self.is_congested or self.transport.get_write_buffer_size() < WS_QUEUED_BYTES_MAX)
        )

    def send(self, frame: bytes, message_count: int = 1) -> None:
        """Sends a whole frame, as `text_frame` makes it, or several at once."""
        if self.is_closed:
            return
        if self.is_congested:
            # A new frame must not look as if the client had taken nothing.
            self._congested_bytes += len(frame)
        self.write(frame)
        if self.is_congested:
            self._queued_count += message_count

    def resume_writing(self) -> None:
        super().resume_writing()
        self._queued_count = 0
        if not self.is_closed:
            self._session.resume()
            self.go_on()

    def _flush(self) -> None:
        """Sends what the library has to send: pongs and close frames."""
        for data in self._protocol.data_to_send():
            if data:
                self.write(data)
            elif not self.is_closed:
                self._end()

    # Ends.

    def fail(self, code: CloseCode, reason: str) -> None:
        if not self.is_closed:
            self._protocol.fail(code, reason)
            self._flush()

    def _end(self) -> None:
        self._session.stop()
        self._messages.clear()
        self._unparsed = memoryview(b"")
        self.close_after_last_words()

    def time_out(self, reason: str) -> None:
        self.fail(CloseCode.POLICY_VIOLATION, reason)

    def say_last_words(self) -> bool:
        self.send(self._session.words_to_stalled())
        self.fail(CloseCode.POLICY_VIOLATION, "the client took no bytes for too long")
        return True

    def check_deadlines(self, now_s: float) -> None:
        super().check_deadlines(now_s)
        if self.is_closed:
            return
        if self.is_congested or self.is_reading_paused:
            # Reading is paused, so an answer of the client could not be seen.
            self._was_heard = True
        elif now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self.connections.timeouts.ping_s
            self._silent_count = 0 if self._was_heard else self._silent_count + 1
            self._was_heard = False
            if self._silent_count >= WS_SILENT_PINGS_MAX:
                self.fail(CloseCode.INTERNAL_ERROR, "no answer to pings")
            else:
                self._protocol.send_ping(b"")
                self._flush()

    def drain(self) -> None:
        self.shut(CloseCode.GOING_AWAY, "the server stops")

    def shut(self, close_code: CloseCode, reason: str) -> None:
        """The server ends the connection: the client gets the last message after the replies that are still to come."""
        if not self.is_closed and not self._is_stopping:
            self._is_stopping = True
            self._close = (close_code, reason)
            self._session.stop()
            self._messages.clear()
            if self.is_reading_paused:
                self.resume_reading()
            self.settle()

    def settle(self) -> None:
        """Ends a stopping connection when no reply is still to come."""
        if self._is_stopping and not self.is_closed and not self._session.is_busy:
            self.send(self._session.last_words())
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(*self._close)
            self._flush()
            if not self.is_closed:
                self._end()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._session.gone()


def text_frame(text: bytes) -> bytes:
    """A message in one frame. A server does not mask frames, so the bytes are the same for every client."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)
