"""Messages on their way in: every rule of a send, the order of the rules, preparing and stamping."""

import struct
import uuid
from collections.abc import Callable
from itertools import combinations
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.partitions.message_strategies import CIPHER, sends
from topics.formats.message import (
    HEADER_BYTES,
    OFFSET_AT,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_LENGTH_AT,
    RESERVED_AT,
    USER_HEADERS_BYTES_MAX,
    USER_HEADERS_LENGTH_AT,
    BodyOrder,
    decode_header,
    encode_message,
)
from topics.formats.message_cipher import OVERHEAD_BYTES
from topics.formats.message_codec import Codec
from topics.formats.user_headers import HeaderField, HeaderKind, encode_user_headers
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import IncomingBatch, NewMessage, encode_send, prepare

TIMESTAMP: Final = 1_700_000_000_000_000
ORIGIN_TIMESTAMP: Final = 1_699_999_999_000_000


class Request:
    """Three good messages as a client sends them. Tests spoil one field at a time."""

    def __init__(self) -> None:
        sent = [encode_message(payload, checksum=False) for payload in (b"one", b"twice", b"three")]
        self.messages = bytearray(b"".join(sent))
        self.starts = [0, 67, 136]
        self.entries = [[0, end, 0] for end in (67, 136, 205)]

    def set_u32(self, message: int, field_at: int, value: int) -> None:
        struct.pack_into("<I", self.messages, self.starts[message] + field_at, value)

    def set_u64(self, message: int, field_at: int, value: int) -> None:
        struct.pack_into("<Q", self.messages, self.starts[message] + field_at, value)

    def indexes(self) -> bytes:
        return b"".join(struct.pack("<IIQ", *entry) for entry in self.entries)

    def check(self) -> IncomingBatch:
        return IncomingBatch.check(self.indexes(), self.messages)


def refusal(request: Request) -> StreamsError:
    with pytest.raises(StreamsError) as refused:
        request.check()
    return refused.value


def test_a_good_batch_passes() -> None:
    batch = Request().check()
    assert (batch.count, batch.size_bytes, batch.has_user_headers) == (3, 205, False)
    assert batch.starts.tolist() == [0, 67, 136]
    assert batch.ends.tolist() == [67, 136, 205]


def test_a_batch_uses_the_buffer_of_its_caller_when_that_can_be_written() -> None:
    request = Request()
    stored = prepare(request.check(), order=BodyOrder.HEADERS_FIRST).stamp(7, TIMESTAMP)
    assert request.messages == stored.buffer


def test_a_batch_copies_what_cannot_be_written() -> None:
    request = Request()
    received = bytes(request.messages)
    prepare(IncomingBatch.check(request.indexes(), received), order=BodyOrder.HEADERS_FIRST).stamp(7, TIMESTAMP)
    assert received == request.messages


def test_a_batch_may_be_a_window_of_a_larger_request() -> None:
    request = Request()
    frame = bytearray(b"head" + request.indexes() + request.messages)
    batch = IncomingBatch.check(memoryview(frame)[4:52], memoryview(frame)[52:])
    stored = prepare(batch, order=BodyOrder.PAYLOAD_FIRST).stamp(0, TIMESTAMP)
    assert frame[:4] == b"head"
    assert frame[52:] == stored.buffer


def entry_with_offset(request: Request) -> None:
    request.entries[1][0] = 1


def entry_with_timestamp(request: Request) -> None:
    request.entries[2][2] = 1


def end_behind_the_bytes(request: Request) -> None:
    request.entries[2][1] = 206


def message_of_63_bytes(request: Request) -> None:
    request.entries[0][1] = 63


def payload_too_long(request: Request) -> None:
    request.set_u32(1, PAYLOAD_LENGTH_AT, PAYLOAD_BYTES_MAX + 1)


def user_headers_too_long(request: Request) -> None:
    request.set_u32(2, USER_HEADERS_LENGTH_AT, USER_HEADERS_BYTES_MAX + 1)


def reserved_field_used(request: Request) -> None:
    request.set_u64(0, RESERVED_AT, 1)


def offsets_fall(request: Request) -> None:
    request.set_u64(0, OFFSET_AT, 5)
    request.set_u64(1, OFFSET_AT, 4)
    request.set_u64(2, OFFSET_AT, 4)


def positions_fall(request: Request) -> None:
    request.entries.append([0, 66, 0])


def header_disagrees_with_its_index(request: Request) -> None:
    request.set_u32(0, PAYLOAD_LENGTH_AT, 4)


# In the order of the rules.
RULES: Final[list[tuple[Callable[[Request], None], StreamStatus]]] = [
    (entry_with_offset, StreamStatus.NON_ZERO_OFFSET),
    (entry_with_timestamp, StreamStatus.NON_ZERO_TIMESTAMP),
    (end_behind_the_bytes, StreamStatus.MISSING_INDEX),
    (payload_too_long, StreamStatus.TOO_BIG_MESSAGE_PAYLOAD),
    (user_headers_too_long, StreamStatus.TOO_BIG_USER_HEADERS),
    (reserved_field_used, StreamStatus.INVALID_RESERVED_FIELD),
    (offsets_fall, StreamStatus.INVALID_OFFSET),
    (positions_fall, StreamStatus.CANNOT_READ_INDEX_POSITION),
    (header_disagrees_with_its_index, StreamStatus.INVALID_MESSAGES_SIZE),
]


@pytest.mark.parametrize(("spoil", "number"), [*RULES, (message_of_63_bytes, StreamStatus.MISSING_INDEX)])
def test_each_rule_has_its_number(spoil: Callable[[Request], None], number: StreamStatus) -> None:
    request = Request()
    spoil(request)
    assert refusal(request).number is number


@pytest.mark.parametrize(("earlier", "later"), [*combinations(range(len(RULES)), 2)])
def test_of_two_broken_rules_the_earlier_one_is_told(earlier: int, later: int) -> None:
    request = Request()
    RULES[later][0](request)
    RULES[earlier][0](request)
    assert refusal(request).number is RULES[earlier][1]


def test_a_batch_without_messages_is_refused_before_anything_else() -> None:
    for indexes in (b"", bytes(15)):
        with pytest.raises(StreamsError) as refused:
            IncomingBatch.check(indexes, b"bytes")
        assert refused.value.number is StreamStatus.INVALID_MESSAGES_COUNT


def test_a_part_of_an_index_entry_is_refused_before_what_entries_say() -> None:
    request = Request()
    entry_with_offset(request)
    with pytest.raises(StreamsError) as refused:
        IncomingBatch.check(request.indexes() + b"x", request.messages)
    assert refused.value.number is StreamStatus.INVALID_INDEXES_BYTE_SIZE


def test_bytes_behind_the_last_message_are_refused() -> None:
    request = Request()
    request.messages += b"x"
    assert refusal(request).number is StreamStatus.INVALID_MESSAGES_SIZE


def test_sizes_that_only_add_up_are_refused() -> None:
    request = Request()
    request.set_u32(0, PAYLOAD_LENGTH_AT, 4)
    request.set_u32(1, PAYLOAD_LENGTH_AT, 4)
    assert refusal(request).number is StreamStatus.INVALID_MESSAGES_SIZE


def test_a_refusal_names_the_message() -> None:
    request = Request()
    user_headers_too_long(request)
    assert str(refusal(request)) == "message 2 of the batch has user headers of more than 100000 bytes"


@pytest.mark.parametrize(
    ("payload_bytes", "user_headers_bytes"), [(PAYLOAD_BYTES_MAX, 0), (0, USER_HEADERS_BYTES_MAX), (0, 0)]
)
def test_the_limits_themselves_are_allowed(payload_bytes: int, user_headers_bytes: int) -> None:
    batch = encode_send([NewMessage(bytes(payload_bytes), user_headers=bytes(user_headers_bytes))])
    assert batch.size_bytes == HEADER_BYTES + payload_bytes + user_headers_bytes


def test_offsets_of_a_client_may_stay_or_rise() -> None:
    request = Request()
    for message, offset in enumerate((4, 4, 2**64 - 1)):
        request.set_u64(message, OFFSET_AT, offset)
    assert request.check().count == 3


@given(
    indexes=st.lists(st.tuples(st.sampled_from((0, 0, 1)), st.integers(0, 300), st.just(0)), max_size=4),
    messages=st.binary(max_size=300),
)
def test_any_bytes_pass_or_are_refused(indexes: list[tuple[int, int, int]], messages: bytes) -> None:
    data = b"".join(struct.pack("<IIQ", *entry) for entry in indexes)
    try:
        batch = IncomingBatch.check(data, messages)
    except StreamsError:
        return
    assert int(batch.ends[-1]) == len(messages)


@pytest.mark.parametrize(
    "message",
    [NewMessage(b"", id=2**128), NewMessage(b"", id=-1), NewMessage(b"", origin_timestamp=2**64)],
)
def test_numbers_that_no_header_holds_are_refused(message: NewMessage) -> None:
    with pytest.raises(StreamsError) as refused:
        encode_send([message])
    assert refused.value.number is StreamStatus.INVALID_NUMBER_ENCODING


def test_messages_of_a_program_obey_the_rules_of_a_send() -> None:
    for messages, number in (
        ([], StreamStatus.INVALID_MESSAGES_COUNT),
        ([NewMessage(bytes(PAYLOAD_BYTES_MAX + 1))], StreamStatus.TOO_BIG_MESSAGE_PAYLOAD),
        ([NewMessage(b"", user_headers=bytes(USER_HEADERS_BYTES_MAX + 1))], StreamStatus.TOO_BIG_USER_HEADERS),
        ([NewMessage(b"", user_headers={"": 1})], StreamStatus.INVALID_HEADER_KEY),
    ):
        with pytest.raises(StreamsError) as refused:
            encode_send(messages)
        assert refused.value.number is number


# Preparing and stamping.


@pytest.mark.parametrize(
    ("order", "checksum"),
    [(BodyOrder.PAYLOAD_FIRST, "14ac50b1a21bf950"), (BodyOrder.HEADERS_FIRST, "507168b5d49ffeb6")],
)
def test_a_batch_is_stored_with_the_documented_bytes(order: BodyOrder, checksum: str) -> None:
    user_headers = {"key": HeaderField.of(HeaderKind.UINT32, 42)}
    batch = encode_send(
        [
            NewMessage(b"hello", 1, None, ORIGIN_TIMESTAMP),
            NewMessage(b"hello", 2, user_headers, ORIGIN_TIMESTAMP),
        ]
    )
    stored = prepare(batch, order=order).stamp(0, TIMESTAMP)
    assert stored.buffer[:8].hex() == "358bf2b06990df9d"
    assert stored.buffer[69:77].hex() == checksum
    assert stored.ends.tolist() == [0x45, 0x9B]
    assert stored.has_user_headers


@given(
    messages=sends,
    order=st.sampled_from(BodyOrder),
    first_offset=st.integers(0, 2**63),
    timestamp=st.integers(0, 2**63),
)
def test_a_stamped_batch_is_each_message_as_it_would_be_encoded_alone(
    messages: list[NewMessage], order: BodyOrder, first_offset: int, timestamp: int
) -> None:
    prepared = prepare(encode_send(messages), order=order)
    assert [int.from_bytes(bytes(row), "little") for row in prepared.read_ids()] == [m.id for m in messages]
    stored = prepared.stamp(first_offset, timestamp)
    ids = [int.from_bytes(bytes(row), "little") for row in prepared.read_ids()]
    assert [given or made for given, made in zip([m.id for m in messages], ids, strict=True)] == ids
    assert stored.buffer == b"".join(
        encode_message(
            message.payload,
            message.user_headers or b"",  # type: ignore[arg-type]
            message_id=message_id,
            offset=first_offset + place,
            timestamp=timestamp,
            origin_timestamp=message.origin_timestamp,
            order=order,
        )
        for place, (message, message_id) in enumerate(zip(messages, ids, strict=True))
    )
    assert (stored.count, stored.size_bytes) == (len(messages), len(stored.buffer))
    assert (stored.first_offset, stored.count) == (first_offset, len(messages))
    assert stored.has_user_headers == any(message.user_headers for message in messages)


def test_a_stored_batch_cannot_be_changed() -> None:
    stored = prepare(encode_send([NewMessage(b"x")]), order=BodyOrder.HEADERS_FIRST).stamp(0, TIMESTAMP)
    with pytest.raises(TypeError):
        stored.buffer[0] = 0


def test_a_batch_is_taken_once() -> None:
    batch = encode_send([NewMessage(b"x")])
    prepare(batch, order=BodyOrder.HEADERS_FIRST)
    with pytest.raises(AssertionError):
        prepare(batch, order=BodyOrder.HEADERS_FIRST)


def test_a_prepared_batch_can_be_stamped_anew() -> None:
    prepared = prepare(encode_send([NewMessage(b"x", 9)] * 2), order=BodyOrder.HEADERS_FIRST)
    prepared.stamp(5, 1)
    again = prepared.stamp(3, 2)
    assert again.buffer == b"".join(encode_message(b"x", message_id=9, offset=offset, timestamp=2) for offset in (3, 4))


def test_ids_that_are_made_are_random_uuids_with_their_bytes_in_order() -> None:
    messages = [NewMessage(b"x", id=place % 2) for place in range(200)]
    prepared = prepare(encode_send(messages), order=BodyOrder.PAYLOAD_FIRST)
    stored = prepared.stamp(0, TIMESTAMP)
    made = [uuid.UUID(bytes=bytes(stored.buffer[start + 8 : start + 24])) for start in stored.starts[::2].tolist()]
    assert {(made_id.version, made_id.variant) for made_id in made} == {(4, uuid.RFC_4122)}
    assert len(set(made)) == 100
    assert [decode_header(stored.buffer, start).id for start in stored.starts[1::2].tolist()] == [1] * 100


def test_the_parts_of_a_message_are_compressed_and_encrypted_on_their_own() -> None:
    user_headers = encode_user_headers({"key": "value"})
    batch = encode_send([NewMessage(b"a" * 1000, user_headers=user_headers), NewMessage(b"")])
    stored = prepare(batch, order=BodyOrder.HEADERS_FIRST, codec=Codec.ZSTD, cipher=CIPHER).stamp(0, TIMESTAMP)
    header = decode_header(stored.buffer)
    assert header.user_headers_length == len(user_headers) + OVERHEAD_BYTES
    assert header.size == stored.ends[0]
    middle = HEADER_BYTES + header.user_headers_length
    assert CIPHER.decrypt(stored.buffer[HEADER_BYTES:middle]) == user_headers
    payload = CIPHER.decrypt(stored.buffer[middle : header.size])
    assert len(payload) < 100
    assert Codec.ZSTD.expand(payload, 1000) == b"a" * 1000
    # An empty payload is a frame, too, and a message without user headers has none to encrypt.
    second = decode_header(stored.buffer, header.size)
    assert second.user_headers_length == 0
    assert Codec.ZSTD.expand(CIPHER.decrypt(stored.buffer[header.size + HEADER_BYTES :]), 0) == b""


@given(
    messages=sends,
    data=st.data(),
    codec=st.sampled_from((Codec.NONE, Codec.LZ4)),
    order=st.sampled_from(BodyOrder),
)
def test_a_batch_less_some_messages_is_the_batch_of_the_others(
    messages: list[NewMessage], data: st.DataObject, codec: Codec, order: BodyOrder
) -> None:
    duplicates = np.array(data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages))))
    numbered = [NewMessage(message.payload, place + 1, message.user_headers) for place, message in enumerate(messages)]
    rest = prepare(encode_send(numbered), order=order, codec=codec).without(duplicates)
    kept = [message for message, dropped in zip(numbered, duplicates, strict=True) if not dropped]
    assert rest.count == len(kept)
    if kept:
        alone = prepare(encode_send(kept), order=order, codec=codec)
        assert rest.stamp(4, TIMESTAMP).buffer == alone.stamp(4, TIMESTAMP).buffer
        assert rest.ends.tolist() == alone.ends.tolist()
        assert rest.read_ids().tolist() == alone.read_ids().tolist()
        assert rest.has_user_headers == alone.has_user_headers


@given(messages=sends, data=st.data())
def test_a_window_holds_just_its_messages(messages: list[NewMessage], data: st.DataObject) -> None:
    stored = prepare(encode_send(messages), order=BodyOrder.HEADERS_FIRST).stamp(50, TIMESTAMP)
    first = data.draw(st.integers(0, stored.count - 1))
    count = data.draw(st.integers(1, stored.count - first))
    window = stored.window(first, count)
    position = 0
    for place in range(first, first + count):
        header = decode_header(window, position)
        assert header.offset == 50 + place
        position += header.size
    assert position == len(window)
