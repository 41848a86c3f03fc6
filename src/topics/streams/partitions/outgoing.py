"""Stored messages on their way to a reader: verified, then turned into wire form."""

from typing import Final

import numpy as np

from topics.formats import kernel
from topics.formats.message import (
    CHECKSUM_AT,
    HEADER_BYTES,
    OFFSET_AT,
    PAYLOAD_BYTES_MAX,
    Buffer,
    Positions,
    checksums,
    read_column,
    read_headers,
    rewrite_bodies,
    swap_bodies,
    write_column,
    write_headers,
)
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import BodyOrder
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.message_view import MessageChunk

# What `kernel.verify_messages` returns for messages of which some have user headers.
_WITH_USER_HEADERS: Final = 2


def verify(buffer: Buffer, starts: Positions, ends: Positions, first_offset: int) -> bool:
    """Raises if these are not the undamaged messages from `first_offset` on. The positions are not trusted: they come
    from an index. Returns whether a message has user headers."""
    found = kernel.verify_messages(buffer, starts, ends, first_offset)
    if not found:
        raise _damage(buffer, starts, ends, first_offset)
    return found == _WITH_USER_HEADERS


def _damage(buffer: Buffer, starts: Positions, ends: Positions, first_offset: int) -> StreamsError:
    if int(starts.min()) < 0 or int((ends - starts).min()) < HEADER_BYTES or int(ends.max()) > len(buffer):
        return StreamsError(
            StreamStatus.CANNOT_READ_INDEX_POSITION,
            f"the index has no place for a message at offset {first_offset} or after",
        )
    good = checksums(buffer, starts, ends) == read_column(buffer, starts, CHECKSUM_AT, 8)
    if not good.all():
        return StreamsError(
            StreamStatus.INVALID_MESSAGE_CHECKSUM,
            f"the message at offset {first_offset + int(good.argmin())} does not match its checksum",
        )
    offsets = read_column(buffer, starts, OFFSET_AT, 8)
    right = offsets == np.arange(first_offset, first_offset + len(starts), dtype=np.uint64)
    wrong = int(right.argmin())
    assert not right[wrong], "messages without damage are not refused"
    return StreamsError(
        StreamStatus.INVALID_OFFSET,
        f"offset {int(offsets[wrong])} is where offset {first_offset + wrong} should be",
    )


def to_wire(
    buffer: Buffer,
    starts: Positions,
    ends: Positions,
    *,
    order: BodyOrder,
    codec: Codec = Codec.NONE,
    cipher: Cipher | None = None,
    has_user_headers: bool = True,
) -> MessageChunk:
    """Messages that lie back to back, in wire form: decrypted, expanded, the payload first, with the right checksum.

    A view of the buffer if nothing has to change. `has_user_headers` may be True if it is unknown.
    """
    view = memoryview(buffer)
    if not len(starts):
        return MessageChunk(view[:0], starts, ends)
    base = int(starts[0])
    window = view[base : int(ends[-1])]
    if base:
        starts, ends = starts - base, ends - base
    is_swapped = has_user_headers and order is BodyOrder.HEADERS_FIRST
    if codec is Codec.NONE and cipher is None:
        if not is_swapped:
            return MessageChunk(window, starts, ends)
        return _swapped(window, starts, ends)

    def wire_payload(data: Buffer) -> Buffer:
        return codec.expand(cipher.decrypt(data) if cipher else data, PAYLOAD_BYTES_MAX)

    headers = read_headers(window, starts)
    rewritten, starts, ends = rewrite_bodies(
        window,
        starts,
        headers,
        source=order,
        target=BodyOrder.PAYLOAD_FIRST,
        payload=wire_payload,
        user_headers=cipher.decrypt if cipher else lambda data: data,
    )
    write_headers(rewritten, starts, headers)
    write_column(rewritten, starts, CHECKSUM_AT, checksums(rewritten, starts, ends))
    return MessageChunk(memoryview(rewritten), starts, ends)


def _swapped(window: memoryview, starts: Positions, ends: Positions) -> MessageChunk:
    headers = read_headers(window, starts)
    changed = np.flatnonzero(headers["user_headers_length"])
    if not len(changed):
        return MessageChunk(window, starts, ends)
    copy = bytearray(window)
    swap_bodies(copy, starts, headers, to=BodyOrder.PAYLOAD_FIRST)
    write_column(copy, starts[changed], CHECKSUM_AT, checksums(copy, starts[changed], ends[changed]))
    return MessageChunk(memoryview(copy), starts, ends)
