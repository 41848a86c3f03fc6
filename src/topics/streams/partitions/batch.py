"""Messages on their way in: checked, then prepared for the disk, then numbered by a partition.

    IncomingBatch   checked, with the bytes that the client sent (`check`), or made of Python values (`encode_send`)
    PreparedBatch   compressed, encrypted, bodies in the order of the directory, an id for every message
    StoredBatch     offsets, one timestamp and checksums are set; the bytes that go to disk, never changed again

`prepare` does all work that needs no partition, so it runs without the partition's lock; `stamp` is the short rest
under the lock. The three batches share one buffer, which changes in place, unless compression or encryption makes a new
one.
"""

import os
import struct
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.formats.message import (
    CHECKSUM_AT,
    HEADER,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    USER_HEADERS_BYTES_MAX,
    BodyOrder,
    Buffer,
    Bytes,
    Headers,
    Positions,
    checksums,
    read_headers,
    rewrite_bodies,
    starts_of,
    swap_bodies,
    write_column,
    write_headers,
)
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY, ENTRY_BYTES, POSITION_MAX, decode_entries
from topics.formats.user_headers import UserHeaders, encode_user_headers
from topics.stream_errors import StreamsError, StreamStatus

ID_BYTES: Final = 16

Mask = NDArray[np.bool_]


class NewMessage(msgspec.Struct, frozen=True):
    """A message to send. With id 0 the engine chooses one. User headers may be encoded already."""

    payload: Buffer
    id: int = 0
    user_headers: UserHeaders | Buffer | None = None
    origin_timestamp: int = 0


class IncomingBatch:
    """Messages that passed every check of a send, in wire form: the payload before the user headers.

    `buffer` is a writable view of the caller's buffer, which the caller must not use any more, or of a copy if that
    buffer is read-only. A batch can be appended once: `prepare` takes it.
    """

    __slots__ = ("buffer", "starts", "ends", "headers", "count", "size_bytes", "has_user_headers", "_is_taken")

    def __init__(self, buffer: memoryview, starts: Positions, ends: Positions, headers: Headers) -> None:
        """Checks nothing. `check` makes a batch of bytes from outside."""
        self.buffer: Final = buffer
        self.starts: Final = starts
        self.ends: Final = ends
        self.headers: Final = headers
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)
        self.has_user_headers: Final = bool(np.count_nonzero(headers["user_headers_length"]))
        self._is_taken = False

    @classmethod
    def check(cls, indexes: Buffer, messages: Buffer) -> "IncomingBatch":
        """The batch. Raises the error of the first broken rule; the order of the rules is part of the protocol."""
        count = len(indexes) // ENTRY_BYTES
        if count == 0:
            raise StreamsError(StreamStatus.INVALID_MESSAGES_COUNT, "a batch has at least one message")
        if len(indexes) % ENTRY_BYTES:
            raise StreamsError(
                StreamStatus.INVALID_INDEXES_BYTE_SIZE, f"{len(indexes)} bytes of indexes are no multiple of 16"
            )
        entries = decode_entries(indexes)
        if np.count_nonzero(entries["offset"]):
            raise _refused(StreamStatus.NON_ZERO_OFFSET, entries["offset"] != 0, "has an index with an offset")
        if np.count_nonzero(entries["timestamp"]):
            raise _refused(StreamStatus.NON_ZERO_TIMESTAMP, entries["timestamp"] != 0, "has an index with a time")

        ends = entries["position"].astype(np.int64)
        starts = starts_of(ends)
        sizes = ends - starts
        size_min = int(sizes.min())
        if int(ends.max()) > len(messages):
            raise _refused(StreamStatus.MISSING_INDEX, ends > len(messages), "ends after the bytes received")
        readable = starts
        if size_min < HEADER_BYTES:
            too_short = (sizes >= 0) & (sizes < HEADER_BYTES)
            if too_short.any():
                raise _refused(StreamStatus.MISSING_INDEX, too_short, f"has fewer than {HEADER_BYTES} bytes")
            # The rest have falling positions, which a later rule refuses. The rules before it see the other messages.
            readable = starts[sizes >= 0]

        headers = read_headers(messages, readable)
        _check_headers(headers)
        if size_min < 0:
            raise _refused(StreamStatus.CANNOT_READ_INDEX_POSITION, sizes < 0, "ends before the previous message ends")
        wrong = headers["payload_length"] + headers["user_headers_length"] + HEADER_BYTES != sizes
        if np.count_nonzero(wrong):
            raise _refused(StreamStatus.INVALID_MESSAGES_SIZE, wrong, "has another size than its header says")
        if int(ends[-1]) != len(messages):
            raise StreamsError(
                StreamStatus.INVALID_MESSAGES_SIZE, f"{len(messages)} bytes received, messages of {int(ends[-1])}"
            )
        view = memoryview(messages)
        return cls(memoryview(bytearray(view)) if view.readonly else view, starts, ends, headers)

    def take(self) -> Headers:
        """The headers, for `prepare`: the buffer changes from now on."""
        assert not self._is_taken, "the partition that took the batch first still holds its buffer"
        self._is_taken = True
        return self.headers


def _check_headers(headers: Headers) -> None:
    if int(headers["payload_length"].max()) > PAYLOAD_BYTES_MAX:
        raise _refused(
            StreamStatus.TOO_BIG_MESSAGE_PAYLOAD,
            headers["payload_length"] > PAYLOAD_BYTES_MAX,
            f"has a payload of more than {PAYLOAD_BYTES_MAX} bytes",
        )
    if int(headers["user_headers_length"].max()) > USER_HEADERS_BYTES_MAX:
        raise _refused(
            StreamStatus.TOO_BIG_USER_HEADERS,
            headers["user_headers_length"] > USER_HEADERS_BYTES_MAX,
            f"has user headers of more than {USER_HEADERS_BYTES_MAX} bytes",
        )
    if np.count_nonzero(headers["reserved"]):
        raise _refused(
            StreamStatus.INVALID_RESERVED_FIELD, headers["reserved"] != 0, "has a reserved field that is not 0"
        )
    offsets = headers["offset"]
    falls = offsets[1:] < offsets[:-1]
    if np.count_nonzero(falls):
        falls = np.concatenate(([False], falls))
        raise _refused(StreamStatus.INVALID_OFFSET, falls, "has a smaller offset than the previous message")


def _refused(number: StreamStatus, wrong: Mask, why: str) -> StreamsError:
    return StreamsError(number, f"message {int(wrong.argmax())} of the batch {why}")


def encode_send(messages: Sequence[NewMessage]) -> IncomingBatch:
    """A batch of messages of a program, under the same rules as a batch from the wire."""
    parts: list[Buffer] = []
    sizes: list[int] = []
    try:
        for message in messages:
            payload = message.payload
            user_headers = _encoded_user_headers(message.user_headers)
            raw_id = message.id.to_bytes(ID_BYTES, "little")
            header = HEADER.pack(0, raw_id, 0, 0, message.origin_timestamp, len(user_headers), len(payload), 0)
            parts += (header, payload, user_headers)
            sizes.append(HEADER_BYTES + len(payload) + len(user_headers))
    except (OverflowError, struct.error) as error:
        raise StreamsError(
            StreamStatus.INVALID_NUMBER_ENCODING, "an id has 128 bits, a time 64, a length 32; none is below 0"
        ) from error
    ends = np.cumsum(sizes, dtype=np.int64)
    if len(ends) and int(ends[-1]) > POSITION_MAX:
        raise StreamsError(StreamStatus.INVALID_MESSAGES_SIZE, f"a batch has at most {POSITION_MAX} bytes")
    entries = np.zeros(len(ends), dtype=ENTRY)
    entries["position"] = ends
    return IncomingBatch.check(entries.tobytes(), bytearray().join(parts))


def _encoded_user_headers(user_headers: UserHeaders | Buffer | None) -> Buffer:
    if user_headers is None:
        return b""
    if isinstance(user_headers, bytes | bytearray | memoryview):
        return user_headers
    return encode_user_headers(user_headers)


def prepare(
    batch: IncomingBatch, *, order: BodyOrder, codec: Codec = Codec.NONE, cipher: Cipher | None = None
) -> "PreparedBatch":
    """Takes the batch. Payloads are compressed; then each payload and each message's user headers are encrypted."""
    headers = batch.take()
    is_assigned = _assign_ids(headers)
    if codec is Codec.NONE and cipher is None:
        if batch.has_user_headers and order is BodyOrder.HEADERS_FIRST:
            swap_bodies(batch.buffer, batch.starts, headers, to=order)
        return PreparedBatch(batch.buffer, batch.starts, batch.ends, headers, is_assigned)

    def stored_payload(data: Buffer) -> Buffer:
        compressed = codec.compress(data)
        return cipher.encrypt(compressed) if cipher else compressed

    buffer, starts, ends = rewrite_bodies(
        batch.buffer,
        batch.starts,
        headers,
        source=BodyOrder.PAYLOAD_FIRST,
        target=order,
        payload=stored_payload,
        user_headers=cipher.encrypt if cipher else lambda data: data,
    )
    return PreparedBatch(memoryview(buffer), starts, ends, headers, is_assigned)


def _assign_ids(headers: Headers) -> Mask:
    """Gives each message with the id 0 a random UUID (version 4), in the byte order of a UUID. Returns which ones."""
    halves = headers["id"]
    is_assigned: Mask = (halves[:, 0] | halves[:, 1]) == 0
    count = int(np.count_nonzero(is_assigned))
    if count:
        raw = np.frombuffer(bytearray(os.urandom(ID_BYTES * count)), dtype=np.uint8).reshape(count, ID_BYTES)
        raw[:, 6] = raw[:, 6] & 0x0F | 0x40
        raw[:, 8] = raw[:, 8] & 0x3F | 0x80
        halves[is_assigned] = raw.view("<u8")
    return is_assigned


class PreparedBatch:
    """The partition only adds offsets and a timestamp. `stamp` writes `headers` into the buffer, which has old ones."""

    __slots__ = ("buffer", "starts", "ends", "headers", "is_assigned", "count", "size_bytes", "has_user_headers")

    def __init__(
        self, buffer: memoryview, starts: Positions, ends: Positions, headers: Headers, is_assigned: Mask
    ) -> None:
        self.buffer: Final = buffer
        self.starts: Final = starts
        self.ends: Final = ends
        self.headers: Final = headers
        self.is_assigned: Final = is_assigned
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)
        self.has_user_headers: Final = bool(np.count_nonzero(headers["user_headers_length"]))

    @property
    def ids(self) -> Bytes:
        """The 16 bytes of each id, one row per message, for deduplication."""
        return np.ascontiguousarray(self.headers["id"]).view(np.uint8).reshape(-1, ID_BYTES)

    def without(self, duplicates: Mask) -> "PreparedBatch":
        """The batch without the masked messages, possibly empty. This batch must not be used any more."""
        keep = ~duplicates
        spans = zip(self.starts[keep].tolist(), self.ends[keep].tolist(), strict=True)
        buffer = bytearray().join([self.buffer[start:end] for start, end in spans])
        ends = np.cumsum((self.ends - self.starts)[keep])
        return PreparedBatch(memoryview(buffer), starts_of(ends), ends, self.headers[keep], self.is_assigned[keep])

    def stamp(self, first_offset: int, timestamp: int) -> "StoredBatch":
        """Numbers the messages from `first_offset` on and sets their checksums. It can be called again."""
        assert self.count, "a batch without messages has no offsets"
        headers = self.headers
        headers["offset"] = np.arange(first_offset, first_offset + self.count, dtype=np.uint64)
        headers["timestamp"] = timestamp
        write_headers(self.buffer, self.starts, headers)
        write_column(self.buffer, self.starts, CHECKSUM_AT, checksums(self.buffer, self.starts, self.ends))
        return StoredBatch(
            self.buffer.toreadonly(), self.starts, self.ends, first_offset, timestamp, self.has_user_headers
        )


class StoredBatch:
    """Messages as they are in the `.log`, back to back. Positions are relative to the batch."""

    __slots__ = ("buffer", "starts", "ends", "first_offset", "timestamp", "has_user_headers", "count", "size_bytes")

    def __init__(
        self,
        buffer: memoryview,
        starts: Positions,
        ends: Positions,
        first_offset: int,
        timestamp: int,
        has_user_headers: bool,  # noqa: FBT001
    ) -> None:
        self.buffer: Final = buffer
        self.starts: Final = starts
        self.ends: Final = ends
        self.first_offset: Final = first_offset
        self.timestamp: Final = timestamp
        self.has_user_headers: Final = has_user_headers
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)

    def window(self, first: int, count: int) -> memoryview:
        """The bytes of `count` messages, beginning with message `first` of the batch."""
        assert first >= 0
        assert 0 < count <= self.count - first
        return self.buffer[int(self.starts[first]) : int(self.ends[first + count - 1])]
