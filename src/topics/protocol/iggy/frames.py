"""Frames of the protocol, cut out of a stream of bytes.

    request   length u32 (4 + payload), code u32, payload
    answer    status u32 (0: OK), length u32, payload; an error has no payload

`FrameReader` is fed with bytes and asked for events, one at a time: whether a frame is accepted depends on the login of
the connection, which an earlier frame may change. So the caller asks for the next event when the last one is answered.

A small frame that has not arrived as a whole is kept until it has. A large frame is `Announced` first, when the bytes
are there that say what it wants. Nothing more of it is kept until the caller gives memory for it (`accept`) or refuses
it (`refuse`). Its rest is received straight into that memory (`target`). So the head of a frame decides how much memory
a client can take:

| Frame | Fate |
|---|---|
| length < 4 | status 3, then the connection is closed: the next frame cannot be found |
| payload of more than 10 MiB, not send_messages | the same |
| unknown code | its payload is skipped; status 3 |
| before login: a command that needs a login | its payload is skipped, up to 64 MiB; status 40 |
| up to 16 KiB | the whole frame |
| send_messages up to 64 MiB, logged in | announced with its metadata |
| send_messages of more than 64 MiB | status 4022, then the connection is closed |
| create_user and update_permissions up to 256 KiB, logged in | announced |
| any other larger frame | its payload is skipped; status 3 |
"""

from struct import Struct
from typing import Final, NamedTuple

from topics.formats.buffers import Buffer
from topics.limits import KIB, MIB
from topics.protocol.iggy.codes import CODES, OPEN_CODES, Code
from topics.stream_errors import StreamStatus

HEAD: Final = Struct("<II")
HEAD_BYTES: Final = 8
_CODE_BYTES: Final = 4

# Payloads of all frames. Larger ones are announced.
SMALL_BYTES_MAX: Final = 16 * KIB
# A batch with one message of the largest size fits.
SEND_BYTES_MAX: Final = 64 * MIB
# The beginning of a send: the length of its metadata, two identifiers, a partitioning with a key, and the count.
METADATA_BYTES_MAX: Final = 4 + 2 * (2 + 255) + (2 + 255) + 4
# Permissions for 20,000 streams, or for 29,000 topics of one stream.
PERMISSIONS_BYTES_MAX: Final = 256 * KIB
LARGE_BYTES_MAX: Final[dict[int, int]] = {
    Code.SEND_MESSAGES: SEND_BYTES_MAX,
    Code.CREATE_USER: PERMISSIONS_BYTES_MAX,
    Code.UPDATE_PERMISSIONS: PERMISSIONS_BYTES_MAX,
}
# A frame that is no send and has more than this ends its connection.
CONTROL_BYTES_MAX: Final = 10 * MIB
# A refused frame with more than this ends its connection.
SKIPPED_BYTES_MAX: Final = 64 * MIB

_SEND: Final = int(Code.SEND_MESSAGES)
_U32: Final = Struct("<I")

assert METADATA_BYTES_MAX <= SMALL_BYTES_MAX, "a large send has all of its metadata"

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


class Announced(NamedTuple):
    """A large frame that has begun. The next event comes after `FrameReader.accept`, or after `FrameReader.refuse`."""

    code: int
    size: int
    # The metadata of send_messages; empty for other commands.
    start: bytes


class FrameReader:
    """The requests of one connection."""

    __slots__ = ("is_logged_in", "_rest", "_announced", "_code", "_payload", "_filled", "_size", "_skip", "_refusal")

    def __init__(self) -> None:
        # The owner of the reader sets it.
        self.is_logged_in = False
        # Bytes that are not looked at yet.
        self._rest = memoryview(b"")
        # The large frame that the owner has neither accepted nor refused.
        self._announced: Announced | None = None
        # The frame that is being received, and how many bytes of its payload are there.
        self._code = 0
        self._payload: memoryview | None = None
        self._filled = 0
        # The size of a refused frame, the bytes of it that are still to come, and what is said after them.
        self._size = 0
        self._skip = 0
        self._refusal: Refusal | None = None

    @property
    def target(self) -> memoryview | None:
        """Where the next bytes belong. None: anywhere, and then `feed` takes them."""
        return None if self._payload is None else self._payload[self._filled :]

    @property
    def held_bytes(self) -> int:
        """The bytes that are kept of frames that have not arrived as a whole."""
        return len(self._rest) + (0 if self._payload is None else self._filled)

    @property
    def partial_bytes(self) -> int:
        """The bytes that have arrived of a frame whose rest is to come, also those that were skipped. 0 between two
        frames."""
        if self._refusal is not None:
            return HEAD_BYTES + self._size - self._skip
        return self.held_bytes if self._payload is None else HEAD_BYTES + self.held_bytes

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

    def next_event(self) -> Frame | Announced | Refusal | None:
        """The next request, the head of a large one, or the error that answers it. None: more bytes are needed."""
        assert self._announced is None, "a large frame is accepted or refused first"
        if self._payload is None and self._refusal is None:
            self._announced = self._begin()
            if self._announced is not None:
                return self._announced
        event = self._skip_refused() if self._refusal is not None else self._take_frame()
        if event is None:
            self.keep_rest()
        return event

    def accept(self, memory: memoryview) -> None:
        """Receives the announced frame into `memory`, which is writable and has its size."""
        announced, self._announced = self._announced, None
        assert announced is not None
        assert len(memory) == announced.size
        self._receive(announced.code, memory)

    def refuse(self, refusal: Refusal) -> None:
        """Skips the announced frame. The refusal is the next event, after the rest of the frame."""
        announced, self._announced = self._announced, None
        assert announced is not None
        self._refuse(announced.size, refusal)

    def _begin(self) -> Announced | None:
        """Looks at the head of the next frame, if it is there. A large frame is for the owner to decide."""
        rest = self._rest
        if len(rest) < HEAD_BYTES:
            return None
        length, code = HEAD.unpack_from(rest)
        size = length - _CODE_BYTES
        refusal = self._judge(code, size)
        is_large = refusal is None and size > SMALL_BYTES_MAX
        start = _metadata_of(rest[HEAD_BYTES:]) if is_large and code == _SEND else b""
        if start is None:
            return None
        self._rest = rest[HEAD_BYTES:]
        if is_large:
            return Announced(code, size, start)
        if refusal is not None:
            self._refuse(size, refusal)
        else:
            self._receive(code, memoryview(bytearray(size)))
        return None

    def _judge(self, code: int, size: int) -> Refusal | None:
        """Why the frame is refused."""
        if size < 0 or (size > CONTROL_BYTES_MAX and code != _SEND):
            return Refusal(StreamStatus.INVALID_COMMAND, is_last=True)
        if code not in CODES:
            return Refusal(StreamStatus.INVALID_COMMAND)
        if not self.is_logged_in and code not in OPEN_CODES:
            return Refusal(StreamStatus.UNAUTHENTICATED, is_last=size > SKIPPED_BYTES_MAX)
        if size <= LARGE_BYTES_MAX.get(code, SMALL_BYTES_MAX):
            return None
        if code == _SEND:
            return Refusal(StreamStatus.TOO_BIG_MESSAGE_PAYLOAD, is_last=size > SKIPPED_BYTES_MAX)
        return Refusal(StreamStatus.INVALID_COMMAND)

    def _receive(self, code: int, payload: memoryview) -> None:
        filled = min(len(payload), len(self._rest))
        payload[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        self._code, self._payload, self._filled = code, payload, filled

    def _refuse(self, size: int, refusal: Refusal) -> None:
        self._refusal, self._size = refusal, size
        self._skip = 0 if refusal.is_last else size

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
        if payload is None or self._filled < len(payload):
            return None
        self._payload = None
        return Frame(self._code, payload)


def _metadata_of(payload: memoryview) -> bytes | None:
    """The metadata at the beginning of a send, with their length; cut off if they are longer than any can be. None:
    they are not all there."""
    if len(payload) < _U32.size:
        return None
    end = min(_U32.size + _U32.unpack_from(payload)[0], METADATA_BYTES_MAX)
    return bytes(payload[:end]) if len(payload) >= end else None
