"""Messages on their way in: what a client sent, what is prepared for the disk, what a partition has numbered.

    IncomingBatch   checked, as it came          (`check`, or `encode_send` for messages that were never bytes)
    PreparedBatch   compressed, encrypted, in the order of the directory, every message with an id
    StoredBatch     offsets, one timestamp and checksums are set; as it goes to disk, never changed again

`prepare` does all that needs no partition, so it runs outside its lock; `stamp` is the short rest inside. The three
share one buffer, which is changed in place, unless compression or encryption make a new one.
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
from topics.formats.message_index import ENTRY, ENTRY_BYTES, POSITION_MAX, Entries, decode_entries, make_entries
from topics.formats.user_headers import UserHeaders, encode_user_headers
from topics.stream_errors import StreamsError, StreamStatus

ID_BYTES: Final = 16

Mask = NDArray[np.bool_]


class NewMessage(msgspec.Struct, frozen=True):
    """A message to send. Id 0 lets the engine choose one; user headers may come encoded."""

    payload: Buffer
    id: int = 0
    user_headers: UserHeaders | Buffer | None = None
    origin_timestamp: int = 0


class IncomingBatch:
    """Messages that passed every check of a send, with the payload first, as they travel.

    `buffer` is a writable view of the caller's buffer, which is given away with the call, or of a copy when that one
    cannot be written. A batch is appended once: `prepare` takes it.
    """

    __slots__ = ("buffer", "starts", "ends", "headers", "count", "size_bytes", "has_user_headers", "_is_taken")

    def __init__(self, buffer: memoryview, starts: Positions, ends: Positions, headers: Headers) -> None:
        """Trusts its arguments; `check` is what makes a batch of bytes from outside."""
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
        """The batch, or the error of the first rule that some message breaks: their order is part of the rules."""
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
            raise _refused(StreamStatus.MISSING_INDEX, ends > len(messages), "ends behind the bytes received")
        readable = starts
        if size_min < HEADER_BYTES:
            too_short = (sizes >= 0) & (sizes < HEADER_BYTES)
            if too_short.any():
                raise _refused(StreamStatus.MISSING_INDEX, too_short, f"has fewer than {HEADER_BYTES} bytes")
            # The rest are positions that fall, which is a later rule; what can be cut out goes before it.
            readable = starts[sizes >= 0]

        headers = read_headers(messages, readable)
        _check_headers(headers)
        if size_min < 0:
            raise _refused(StreamStatus.CANNOT_READ_INDEX_POSITION, sizes < 0, "ends before the one in front of it")
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
        """The headers, for the one that turns the batch into another form: from here on its buffer changes."""
        assert not self._is_taken, "the partition that took the batch before still holds its buffer"
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
        raise _refused(StreamStatus.INVALID_OFFSET, falls, "has a smaller offset than the one in front of it")


def _refused(number: StreamStatus, wrong: Mask, why: str) -> StreamsError:
    return StreamsError(number, f"message {int(wrong.argmax())} of the batch {why}")


def encode_send(messages: Sequence[NewMessage]) -> IncomingBatch:
    """The batch of messages that a program hands over, under the same rules as one from the wire."""
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
    """Takes the batch. Payloads are compressed, then payloads and user headers encrypted, each on its own."""
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
    """Gives each message with the id 0 a random UUID (version 4), its bytes in their order. Says which ones."""
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
    """All that a partition has to add are its numbers. `headers` are ahead of the buffer until `stamp` writes them."""

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
        """The 16 bytes of each id, a row each: what deduplication goes by, together with `is_assigned`."""
        return np.ascontiguousarray(self.headers["id"]).view(np.uint8).reshape(-1, ID_BYTES)

    def without(self, duplicates: Mask) -> "PreparedBatch":
        """The batch less the messages whose mask is set; it may have none left. This one is given up."""
        keep = ~duplicates
        spans = zip(self.starts[keep].tolist(), self.ends[keep].tolist(), strict=True)
        buffer = bytearray().join([self.buffer[start:end] for start, end in spans])
        ends = np.cumsum((self.ends - self.starts)[keep])
        return PreparedBatch(memoryview(buffer), starts_of(ends), ends, self.headers[keep], self.is_assigned[keep])

    def stamp(self, first_offset: int, timestamp: int) -> "StoredBatch":
        """Numbers the messages from `first_offset` on and seals each with its checksum. May be done again."""
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
    """Messages as they stand in the `.log`, back to back. Positions are relative to the batch."""

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

    @property
    def last_offset(self) -> int:
        return self.first_offset + self.count - 1

    def entries(self, segment_start_offset: int, log_position: int) -> Entries:
        """Index entries for a segment that starts at that offset and gets the batch at that position of its `.log`."""
        return make_entries(
            self.first_offset - segment_start_offset,
            self.ends + log_position,
            np.full(self.count, self.timestamp, dtype=np.uint64),
        )

    def window(self, first: int, count: int) -> memoryview:
        """The bytes of `count` messages from the one with that index in the batch on."""
        assert first >= 0
        assert 0 < count <= self.count - first
        return self.buffer[int(self.starts[first]) : int(self.ends[first + count - 1])]
