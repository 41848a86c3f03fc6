"""The messages of the partitioned engine: a header of 64 bytes, then the body.

    checksum u64 | id u128 | offset u64 | timestamp u64 | origin_timestamp u64
    | user_headers_length u32 | payload_length u32 | reserved u64, always 0

Little-endian; times in microseconds. The checksum is XXH3-64 over all bytes of the stored message after it. A body is
the user headers and the payload, in the order of its `BodyOrder`; without user headers both orders are the same bytes.

A batch of messages is a buffer and the positions in it. `read_headers` and `read_column` read a field of all messages
at once: they view the buffer as overlapping windows, one per byte, and numpy gathers the windows where a message
begins.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from topics.formats import kernel
from topics.formats.stream_layout import BodyOrder

HEADER_BYTES: Final = 64
PAYLOAD_BYTES_MAX: Final = 64_000_000
USER_HEADERS_BYTES_MAX: Final = 100_000

HEADER: Final = Struct("<Q16sQQQIIQ")
# The same as columns. An id is two halves, the low half first.
HEADERS: Final = np.dtype(
    [
        ("checksum", "<u8"),
        ("id", "<u8", (2,)),
        ("offset", "<u8"),
        ("timestamp", "<u8"),
        ("origin_timestamp", "<u8"),
        ("user_headers_length", "<u4"),
        ("payload_length", "<u4"),
        ("reserved", "<u8"),
    ]
)
assert HEADER.size == HEADERS.itemsize == HEADER_BYTES

# Where each field begins.
CHECKSUM_AT: Final = 0
ID_AT: Final = 8
OFFSET_AT: Final = 24
TIMESTAMP_AT: Final = 32
ORIGIN_TIMESTAMP_AT: Final = 40
USER_HEADERS_LENGTH_AT: Final = 48
PAYLOAD_LENGTH_AT: Final = 52
RESERVED_AT: Final = 56

# Fewer messages than this are processed one by one: to group them would take longer.
_SWAPPED_AT_ONCE_MIN: Final = 32

Buffer = bytes | bytearray | memoryview
Positions = NDArray[np.int64]
Column = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Headers = NDArray[np.void]


class MessageHeader(NamedTuple):
    checksum: int
    id: int
    offset: int
    timestamp: int
    origin_timestamp: int
    user_headers_length: int
    payload_length: int
    reserved: int

    @property
    def size(self) -> int:
        """Bytes of the whole message."""
        return HEADER_BYTES + self.user_headers_length + self.payload_length


def decode_header(buffer: Buffer, position: int = 0) -> MessageHeader:
    """The header at the position. The buffer must have all 64 bytes."""
    checksum, raw_id, *rest = HEADER.unpack_from(buffer, position)
    return MessageHeader(checksum, int.from_bytes(raw_id, "little"), *rest)


def encode_message(
    payload: Buffer,
    user_headers: Buffer = b"",
    *,
    message_id: int = 0,
    offset: int = 0,
    timestamp: int = 0,
    origin_timestamp: int = 0,
    order: BodyOrder = BodyOrder.PAYLOAD_FIRST,
    checksum: bool = True,
) -> bytes:
    """One message. Without `checksum` the field is 0, as clients send it."""
    header = HEADER.pack(
        0, message_id.to_bytes(16, "little"), offset, timestamp, origin_timestamp, len(user_headers), len(payload), 0
    )
    body = (user_headers, payload) if order is BodyOrder.HEADERS_FIRST else (payload, user_headers)
    rest = b"".join((header[ID_AT:], *body))
    return (xxh3_64_intdigest(rest) if checksum else 0).to_bytes(8, "little") + rest


# Columns. `starts` are the positions of messages in a buffer that has the whole header of each.


def read_headers(buffer: Buffer, starts: Positions) -> Headers:
    """A copy of all headers, one row each."""
    rows: Headers = _windows(buffer, 0, HEADER_BYTES)[starts]
    return rows.view(HEADERS)


def write_headers(buffer: Buffer, starts: Positions, headers: Headers) -> None:
    """Sets all headers. The buffer must be writable."""
    _windows(buffer, 0, HEADER_BYTES)[starts] = headers.view(f"V{HEADER_BYTES}")


def read_column(buffer: Buffer, starts: Positions, field_at: int, width: int) -> Column:
    """One little-endian field of 4 or 8 bytes, of all messages."""
    raw = _windows(buffer, field_at, width)[starts]
    return raw.view("<u8" if width == 8 else "<u4").astype(np.uint64)


def write_column(buffer: Buffer, starts: Positions, field_at: int, values: NDArray[np.generic]) -> None:
    """Sets one field of all messages to the bytes of `values`, one each. The buffer must be writable."""
    raw = np.ascontiguousarray(values)
    _windows(buffer, field_at, raw.itemsize)[starts] = raw.view(f"V{raw.itemsize}")


def _windows(buffer: Buffer, field_at: int, width: int) -> Headers:
    """The field of a message that would begin at each byte of the buffer. A view: nothing is copied."""
    count = max(0, len(buffer) - field_at - width + 1)
    return np.ndarray((count,), dtype=f"V{width}", buffer=buffer, offset=field_at if count else 0, strides=(1,))


def checksums(buffer: Buffer, starts: Positions, ends: Positions) -> Column:
    """What the checksum of each message should be."""
    found = np.empty(len(starts), dtype=np.uint64)
    kernel.checksums(buffer, starts, ends, found, ID_AT, 0)
    return found


# Bodies.


def swap_bodies(buffer: bytearray | memoryview, starts: Positions, headers: Headers, *, to: BodyOrder) -> None:
    """Swaps the two parts of each body in place, so that they are in the order `to`.

    The caller sets the checksums.
    """
    swapped = np.flatnonzero(headers["user_headers_length"])
    # `first` is the part that comes first now and moves to the end.
    first, second = "payload_length", "user_headers_length"
    if to is BodyOrder.PAYLOAD_FIRST:
        first, second = second, first
    first_lengths = headers[first][swapped].astype(np.int64)
    second_lengths = headers[second][swapped].astype(np.int64)
    bodies = starts[swapped] + HEADER_BYTES
    shapes, shape_of = np.unique(first_lengths << 32 | second_lengths, return_inverse=True)
    if len(shapes) * _SWAPPED_AT_ONCE_MIN > len(swapped):
        _swap_each(memoryview(buffer), bodies, bodies + first_lengths, bodies + first_lengths + second_lengths)
        return
    for number, shape in enumerate(shapes.tolist()):
        _swap_alike(buffer, bodies[shape_of == number], shape >> 32, shape & 0xFFFF_FFFF)


def _swap_each(view: memoryview, bodies: Positions, middles: Positions, ends: Positions) -> None:
    for start, middle, end in zip(bodies.tolist(), middles.tolist(), ends.tolist(), strict=True):
        view[start:end] = b"".join((view[middle:end], view[start:middle]))


def _swap_alike(buffer: bytearray | memoryview, bodies: Positions, first_length: int, second_length: int) -> None:
    size = first_length + second_length
    windows = _windows(buffer, 0, size)
    rows = windows[bodies].view(np.uint8).reshape(-1, size)
    turned = np.concatenate((rows[:, first_length:], rows[:, :first_length]), axis=1)
    windows[bodies] = turned.view(f"V{size}").reshape(-1)


def rewrite_bodies(
    buffer: Buffer,
    starts: Positions,
    headers: Headers,
    *,
    source: BodyOrder,
    target: BodyOrder,
    payload: Callable[[Buffer], Buffer],
    user_headers: Callable[[Buffer], Buffer],
) -> tuple[bytearray, Positions, Positions]:
    """A new buffer with the bodies that `payload` and `user_headers` return, and where its messages start and end.

    Sets the lengths in `headers`. The headers in the new buffer are blank; the caller writes them.
    """
    view = memoryview(buffer)
    blank = bytes(HEADER_BYTES)
    parts: list[Buffer] = []
    payload_lengths: list[int] = []
    user_headers_lengths: list[int] = []
    fields = (starts + HEADER_BYTES, headers["user_headers_length"], headers["payload_length"])
    for start, first_length, second_length in zip(*(field.tolist() for field in fields), strict=True):
        if source is BodyOrder.PAYLOAD_FIRST:
            middle = start + second_length
            old_payload, old_headers = view[start:middle], view[middle : middle + first_length]
        else:
            middle = start + first_length
            old_headers, old_payload = view[start:middle], view[middle : middle + second_length]
        new_payload = payload(old_payload)
        new_headers = user_headers(old_headers) if first_length else b""
        payload_lengths.append(len(new_payload))
        user_headers_lengths.append(len(new_headers))
        if target is BodyOrder.PAYLOAD_FIRST:
            parts += (blank, new_payload, new_headers)
        else:
            parts += (blank, new_headers, new_payload)
    headers["payload_length"] = payload_lengths
    headers["user_headers_length"] = user_headers_lengths
    sizes = headers["payload_length"].astype(np.int64) + headers["user_headers_length"] + HEADER_BYTES
    ends = np.cumsum(sizes)
    return bytearray().join(parts), starts_of(ends), ends


def starts_of(ends: Positions) -> Positions:
    """Where messages back to back start: the first at 0, each other one at the end of the previous one."""
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1]
    return starts
