"""Frames of the protocol, cut out of a stream of bytes.

    request   length u32 (4 + payload), code u32, payload
    answer    status u32 (0: OK), length u32, payload; an error has no payload

`FrameReader` is fed with bytes and asked for events, one at a time: whether a frame is accepted depends on the login of
the connection, which an earlier frame may change. So the caller asks for the next event when the last one is answered.

A frame that has not arrived as a whole gets memory of its own size, and its rest is received straight into that memory
(`target`). So the head of a frame decides how much memory a client can take:

| Frame | Fate |
|---|---|
| length < 4 | status 3, then the connection is closed: the next frame cannot be found |
| payload of more than 10 MiB, not send_messages | the same |
| unknown code | its payload is skipped; status 3 |
| before login: a command that needs a login | its payload is skipped, up to 64 MiB; status 40 |
| before login: a ping or login with more than 16 KiB | its payload is skipped; status 3 |
| anything else | the whole frame |
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from topics.formats.buffers import Buffer
from topics.limits import KIB, MIB
from topics.protocol.iggy.codes import CODES, OPEN_CODES, Code
from topics.stream_errors import StreamStatus

HEAD: Final = Struct("<II")
HEAD_BYTES: Final = 8
_CODE_BYTES: Final = 4

CONTROL_BYTES_MAX: Final = 10 * MIB
OPEN_BYTES_MAX: Final = 16 * KIB
SKIPPED_BYTES_MAX: Final = 64 * MIB

_SEND: Final = int(Code.SEND_MESSAGES)

OK_EMPTY: Final = HEAD.pack(0, 0)


class Frame:
    """A whole request. The payload of send_messages is writable, and belongs to the receiver of the event."""

    __slots__ = ("code", "payload")

    def __init__(self, code: int, payload: memoryview) -> None:
        self.code = code
        self.payload = payload


class Refusal(NamedTuple):
    """A frame that is answered with an error. `is_last`: the connection ends with this answer."""

    status: StreamStatus
    is_last: bool = False


def encode_frame(code: int, payload: Buffer = b"") -> bytes:
    """A request."""
    return HEAD.pack(_CODE_BYTES + len(payload), code) + payload


def encode_answer(payload: Buffer = b"") -> bytes:
    """An answer without an error."""
    assert len(payload) != 1, "clients take a payload of one byte for none, and leave the byte unread"
    return HEAD.pack(0, len(payload)) + payload


def encode_error(status: int) -> bytes:
    assert status, "an error is not OK"
    return HEAD.pack(status, 0)


class FrameReader:
    """The requests of one connection. `allocate` makes writable memory of a size, whose bytes may be undefined."""

    __slots__ = ("is_logged_in", "_allocate", "_rest", "_code", "_payload", "_filled", "_skip", "_refusal")

    def __init__(self, allocate: Callable[[int], memoryview]) -> None:
        # The owner of the reader sets it.
        self.is_logged_in = False
        self._allocate = allocate
        # Bytes that are not looked at yet.
        self._rest = memoryview(b"")
        # The frame that is being received, and how many bytes of its payload are there.
        self._code = 0
        self._payload: memoryview | None = None
        self._filled = 0
        # The bytes of a refused frame that are still to come, and what is said after them.
        self._skip = 0
        self._refusal: Refusal | None = None

    @property
    def target(self) -> memoryview | None:
        """Where the next bytes belong. None: anywhere, and then `feed` takes them."""
        return None if self._payload is None else self._payload[self._filled :]

    @property
    def partial_bytes(self) -> int:
        """The bytes that are there of a frame that is being received."""
        return 0 if self._payload is None else self._filled

    def note_filled(self, count: int) -> None:
        """`count` bytes were received into `target`."""
        self._filled += count

    def feed(self, data: Buffer) -> None:
        """More bytes. They must not change until `keep_rest` is called, or `next_event` returns None."""
        view = memoryview(data)
        self._rest = memoryview(bytes(self._rest) + view) if len(self._rest) else view

    def keep_rest(self) -> None:
        """Copies the bytes that are not looked at yet, so that the memory they are in can be used again."""
        if len(self._rest):
            self._rest = memoryview(bytes(self._rest))

    def next_event(self) -> Frame | Refusal | None:
        """The next request, or the error that answers it. None: more bytes are needed."""
        if self._payload is None and self._refusal is None and not self._begin():
            self.keep_rest()
            return None
        if self._refusal is not None:
            return self._skip_refused()
        return self._take_frame()

    def _begin(self) -> bool:
        """Looks at the head of the next frame. False if it is not there yet."""
        rest = self._rest
        if len(rest) < HEAD_BYTES:
            return False
        length, code = HEAD.unpack_from(rest)
        size = length - _CODE_BYTES
        self._rest = rest[HEAD_BYTES:]
        self._refusal = self._judge(code, size)
        if self._refusal is not None:
            self._skip = 0 if self._refusal.is_last else size
            return True
        self._code = code
        payload = self._allocate(size)
        filled = min(size, len(self._rest))
        payload[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        self._payload, self._filled = payload, filled
        return True

    def _judge(self, code: int, size: int) -> Refusal | None:
        """Why the frame is refused."""
        if size < 0 or (size > CONTROL_BYTES_MAX and code != _SEND):
            return Refusal(StreamStatus.INVALID_COMMAND, is_last=True)
        if code not in CODES:
            return Refusal(StreamStatus.INVALID_COMMAND)
        if self.is_logged_in:
            return None
        if code not in OPEN_CODES:
            return Refusal(StreamStatus.UNAUTHENTICATED, is_last=size > SKIPPED_BYTES_MAX)
        return Refusal(StreamStatus.INVALID_COMMAND) if size > OPEN_BYTES_MAX else None

    def _skip_refused(self) -> Refusal | None:
        count = min(self._skip, len(self._rest))
        self._rest = self._rest[count:]
        self._skip -= count
        if self._skip:
            return None
        refusal, self._refusal = self._refusal, None
        return refusal

    def _take_frame(self) -> Frame | None:
        payload = self._payload
        assert payload is not None
        if self._filled < len(payload):
            return None
        self._payload = None
        return Frame(self._code, payload)
