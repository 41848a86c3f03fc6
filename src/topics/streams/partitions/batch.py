"""Messages on their way in: checked, then prepared for the disk, then numbered by a partition.

    IncomingBatch   checked, with the bytes that the client sent (`check`), or made of Python values (`encode_send`)
    PreparedBatch   compressed, encrypted, bodies in the order of the directory
    StoredBatch     offsets, ids, one timestamp and checksums are set; the bytes that go to disk, never changed again

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

from topics.formats import kernel
from topics.formats.message import (
    HEADER,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    USER_HEADERS_BYTES_MAX,
    USER_HEADERS_LENGTH_AT,
    Buffer,
    Bytes,
    Headers,
    Positions,
    read_column,
    read_headers,
    rewrite_bodies,
    starts_of,
    swap_bodies,
    write_headers,
)
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY, ENTRY_BYTES, POSITION_MAX, decode_entries
from topics.formats.stream_layout import BodyOrder
from topics.formats.user_headers import UserHeaders, encode_user_headers
from topics.stream_errors import StreamsError, StreamStatus

ID_BYTES: Final = 16
# What `kernel.check_messages` returns for messages of which some have user headers.
_WITH_USER_HEADERS: Final = 2

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

    __slots__ = ("buffer", "ends", "count", "size_bytes", "has_user_headers", "_is_taken")

    def __init__(self, buffer: memoryview, ends: Positions, has_user_headers: bool) -> None:  # noqa: FBT001
        """Checks nothing. `check` makes a batch of bytes from outside."""
        self.buffer: Final = buffer
        self.ends: Final = ends
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)
        self.has_user_headers: Final = has_user_headers
        self._is_taken = False

    @property
    def starts(self) -> Positions:
        return starts_of(self.ends)

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
        ends = np.empty(count, dtype=np.int64)
        # One pass over all messages. It does not tell which rule is broken.
        found = kernel.check_messages(indexes, messages, ends)
        if not found:
            raise _first_broken_rule(indexes, messages)
        view = memoryview(messages)
        return cls(memoryview(bytearray(view)) if view.readonly else view, ends, found == _WITH_USER_HEADERS)

    def take(self) -> None:
        """For `prepare`: the buffer changes from now on."""
        assert not self._is_taken, "the partition that took the batch first still holds its buffer"
        self._is_taken = True


def _first_broken_rule(indexes: Buffer, messages: Buffer) -> StreamsError:
    entries = decode_entries(indexes)
    if np.count_nonzero(entries["offset"]):
        return _refused(StreamStatus.NON_ZERO_OFFSET, entries["offset"] != 0, "has an index with an offset")
    if np.count_nonzero(entries["timestamp"]):
        return _refused(StreamStatus.NON_ZERO_TIMESTAMP, entries["timestamp"] != 0, "has an index with a time")

    ends = entries["position"].astype(np.int64)
    starts = starts_of(ends)
    sizes = ends - starts
    if int(ends.max()) > len(messages):
        return _refused(StreamStatus.MISSING_INDEX, ends > len(messages), "ends after the bytes received")
    too_short = (sizes >= 0) & (sizes < HEADER_BYTES)
    if too_short.any():
        return _refused(StreamStatus.MISSING_INDEX, too_short, f"has fewer than {HEADER_BYTES} bytes")
    # The rest have falling positions, which a later rule refuses. The rules before it see the other messages.
    headers = read_headers(messages, starts[sizes >= 0])
    broken = _broken_in_headers(headers)
    if broken is not None:
        return broken
    if int(sizes.min()) < 0:
        return _refused(StreamStatus.CANNOT_READ_INDEX_POSITION, sizes < 0, "ends before the previous message ends")
    wrong = headers["payload_length"] + headers["user_headers_length"] + HEADER_BYTES != sizes
    if np.count_nonzero(wrong):
        return _refused(StreamStatus.INVALID_MESSAGES_SIZE, wrong, "has another size than its header says")
    assert int(ends[-1]) != len(messages), "a batch that keeps all rules is not refused"
    return StreamsError(
        StreamStatus.INVALID_MESSAGES_SIZE, f"{len(messages)} bytes received, messages of {int(ends[-1])}"
    )


def _broken_in_headers(headers: Headers) -> StreamsError | None:
    if int(headers["payload_length"].max()) > PAYLOAD_BYTES_MAX:
        return _refused(
            StreamStatus.TOO_BIG_MESSAGE_PAYLOAD,
            headers["payload_length"] > PAYLOAD_BYTES_MAX,
            f"has a payload of more than {PAYLOAD_BYTES_MAX} bytes",
        )
    if int(headers["user_headers_length"].max()) > USER_HEADERS_BYTES_MAX:
        return _refused(
            StreamStatus.TOO_BIG_USER_HEADERS,
            headers["user_headers_length"] > USER_HEADERS_BYTES_MAX,
            f"has user headers of more than {USER_HEADERS_BYTES_MAX} bytes",
        )
    if np.count_nonzero(headers["reserved"]):
        return _refused(
            StreamStatus.INVALID_RESERVED_FIELD, headers["reserved"] != 0, "has a reserved field that is not 0"
        )
    offsets = headers["offset"]
    falls = offsets[1:] < offsets[:-1]
    if np.count_nonzero(falls):
        falls = np.concatenate(([False], falls))
        return _refused(StreamStatus.INVALID_OFFSET, falls, "has a smaller offset than the previous message")
    return None


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
    batch.take()
    if codec is Codec.NONE and cipher is None:
        if batch.has_user_headers and order is BodyOrder.HEADERS_FIRST:
            starts = batch.starts
            swap_bodies(batch.buffer, starts, read_headers(batch.buffer, starts), to=order)
        return PreparedBatch(batch.buffer, batch.ends, batch.has_user_headers)

    def stored_payload(data: Buffer) -> Buffer:
        compressed = codec.compress(data)
        return cipher.encrypt(compressed) if cipher else compressed

    starts = batch.starts
    headers = read_headers(batch.buffer, starts)
    buffer, starts, ends = rewrite_bodies(
        batch.buffer,
        starts,
        headers,
        source=BodyOrder.PAYLOAD_FIRST,
        target=order,
        payload=stored_payload,
        user_headers=cipher.encrypt if cipher else lambda data: data,
    )
    write_headers(buffer, starts, headers)
    return PreparedBatch(memoryview(buffer), ends, batch.has_user_headers)


class PreparedBatch:
    """The partition only adds offsets, a timestamp, and ids where the sender chose none."""

    __slots__ = ("buffer", "ends", "count", "size_bytes", "has_user_headers")

    def __init__(self, buffer: memoryview, ends: Positions, has_user_headers: bool) -> None:  # noqa: FBT001
        self.buffer: Final = buffer
        self.ends: Final = ends
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)
        self.has_user_headers: Final = has_user_headers

    def read_ids(self) -> Bytes:
        """The 16 bytes of each id, one row per message, for deduplication. Before `stamp` an id is 0 if the sender
        chose none."""
        headers = read_headers(self.buffer, starts_of(self.ends))
        return np.ascontiguousarray(headers["id"]).view(np.uint8).reshape(-1, ID_BYTES)

    def without(self, duplicates: Mask) -> "PreparedBatch":
        """The batch without the masked messages, possibly empty. This batch must not be used any more."""
        keep = ~duplicates
        starts = starts_of(self.ends)
        spans = zip(starts[keep].tolist(), self.ends[keep].tolist(), strict=True)
        buffer = bytearray().join([self.buffer[start:end] for start, end in spans])
        ends = np.cumsum((self.ends - starts)[keep])
        user_headers_lengths = read_column(buffer, starts_of(ends), USER_HEADERS_LENGTH_AT, 4)
        return PreparedBatch(memoryview(buffer), ends, bool(np.count_nonzero(user_headers_lengths)))

    def stamp(self, first_offset: int, timestamp: int) -> "StoredBatch":
        """Numbers the messages from `first_offset` on, gives each message with the id 0 a random UUID, and sets the
        checksums. It can be called again."""
        assert self.count > 0, "a batch without messages has no offsets"
        # Ids are not secret, so a fast generator makes them of 16 random bytes: 1000 random ids would take 40 us.
        kernel.stamp_messages(self.buffer, self.ends, first_offset, timestamp, os.urandom(ID_BYTES))
        return StoredBatch(self.buffer.toreadonly(), self.ends, first_offset, timestamp, self.has_user_headers)


class StoredBatch:
    """Messages as they are in the `.log`, back to back. Positions are relative to the batch."""

    __slots__ = ("buffer", "ends", "first_offset", "timestamp", "has_user_headers", "count", "size_bytes")

    def __init__(
        self,
        buffer: memoryview,
        ends: Positions,
        first_offset: int,
        timestamp: int,
        has_user_headers: bool,  # noqa: FBT001
    ) -> None:
        self.buffer: Final = buffer
        self.ends: Final = ends
        self.first_offset: Final = first_offset
        self.timestamp: Final = timestamp
        self.has_user_headers: Final = has_user_headers
        self.count: Final = len(ends)
        self.size_bytes: Final = len(buffer)

    @property
    def starts(self) -> Positions:
        return starts_of(self.ends)

    def window(self, first: int, count: int) -> memoryview:
        """The bytes of `count` messages, beginning with message `first` of the batch."""
        assert first >= 0
        assert 0 < count <= self.count - first
        start = int(self.ends[first - 1]) if first else 0
        return self.buffer[start : int(self.ends[first + count - 1])]
