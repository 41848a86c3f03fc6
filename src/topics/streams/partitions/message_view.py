"""Messages on their way out, as views: a field is decoded when it is read.

A view keeps its memory alive and its buffer out of the pool. Take `bytes(message.payload)` to keep a payload for long.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from topics.formats.message import (
    CHECKSUM_AT,
    HEADER_BYTES,
    ID_AT,
    OFFSET_AT,
    ORIGIN_TIMESTAMP_AT,
    PAYLOAD_LENGTH_AT,
    TIMESTAMP_AT,
    Buffer,
    Positions,
)
from topics.formats.user_headers import HeaderField, HeaderKey, decode_user_headers

POLLED: Final = Struct("<IQI")

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")


class MessageView:
    """One message in wire form: the payload before the user headers."""

    __slots__ = ("_buffer", "_start", "_end")

    def __init__(self, buffer: memoryview, start: int, end: int) -> None:
        self._buffer = buffer
        self._start = start
        self._end = end

    @property
    def offset(self) -> int:
        return self._u64(OFFSET_AT)

    @property
    def id(self) -> int:
        return int.from_bytes(self._buffer[self._start + ID_AT : self._start + OFFSET_AT], "little")

    @property
    def timestamp(self) -> int:
        """When it was appended, in microseconds since 1970."""
        return self._u64(TIMESTAMP_AT)

    @property
    def origin_timestamp(self) -> int:
        """The time that the sender gave, in microseconds since 1970."""
        return self._u64(ORIGIN_TIMESTAMP_AT)

    @property
    def checksum(self) -> int:
        return self._u64(CHECKSUM_AT)

    @property
    def payload(self) -> memoryview:
        body = self._start + HEADER_BYTES
        return self._buffer[body : body + self._payload_length()]

    @property
    def user_headers_bytes(self) -> memoryview:
        return self._buffer[self._start + HEADER_BYTES + self._payload_length() : self._end]

    @property
    def user_headers(self) -> dict[HeaderKey, HeaderField]:
        """Decoded at each call; empty if the message has none."""
        return decode_user_headers(self.user_headers_bytes)

    def to_bytes(self) -> bytes:
        """The whole message in wire form."""
        return bytes(self._buffer[self._start : self._end])

    def _payload_length(self) -> int:
        length: int = _U32.unpack_from(self._buffer, self._start + PAYLOAD_LENGTH_AT)[0]
        return length

    def _u64(self, field_at: int) -> int:
        value: int = _U64.unpack_from(self._buffer, self._start + field_at)[0]
        return value

    def __repr__(self) -> str:
        return f"MessageView(offset={self.offset}, size={self._end - self._start})"


class MessageChunk:
    """Messages back to back in wire form. `buffer` begins with the first message and ends with the last."""

    __slots__ = ("buffer", "starts", "ends")

    def __init__(self, buffer: memoryview, starts: Positions, ends: Positions) -> None:
        self.buffer: Final = buffer
        self.starts: Final = starts
        self.ends: Final = ends

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[MessageView]:
        buffer = self.buffer
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield MessageView(buffer, start, end)


class PolledMessages:
    """The answer to a poll. `current_offset` is the offset of the last message in the partition, 0 if it is empty."""

    __slots__ = ("partition_id", "current_offset", "count", "chunks")

    def __init__(self, partition_id: int, current_offset: int, count: int, chunks: list[MessageChunk]) -> None:
        assert count == sum(map(len, chunks)), "the count must be that of the chunks"
        self.partition_id: Final = partition_id
        self.current_offset: Final = current_offset
        self.count: Final = count
        self.chunks: Final = chunks

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[MessageView]:
        for chunk in self.chunks:
            yield from chunk

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages."""
        return sum(len(chunk.buffer) for chunk in self.chunks)

    @property
    def last_offset(self) -> int | None:
        """The offset that an auto-commit stores; None without messages."""
        for chunk in reversed(self.chunks):
            if len(chunk):
                return MessageView(chunk.buffer, int(chunk.starts[-1]), int(chunk.ends[-1])).offset
        return None

    def to_buffers(self) -> list[Buffer]:
        """The answer in wire form, in pieces for a vectored write: 16 bytes, then the messages."""
        head = POLLED.pack(self.partition_id, self.current_offset, self.count)
        return [head, *[chunk.buffer for chunk in self.chunks]]

    def to_bytes(self) -> bytes:
        """The same in one piece."""
        return b"".join(self.to_buffers())
