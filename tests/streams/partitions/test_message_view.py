"""Polled messages: fields of each, in order over all chunks, and the answer in wire form."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.partitions.message_strategies import sends
from topics.formats.message import decode_header
from topics.formats.stream_layout import BodyOrder
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import NewMessage, encode_send, prepare
from topics.streams.partitions.message_view import MessageChunk, MessageView, PolledMessages
from topics.streams.partitions.outgoing import to_wire

TIMESTAMP: Final = 1_700_000_000_000_000


def chunk_of(messages: list[NewMessage], first_offset: int) -> MessageChunk:
    stored = prepare(encode_send(messages), order=BodyOrder.HEADERS_FIRST).stamp(first_offset, TIMESTAMP)
    return to_wire(stored.buffer, stored.starts, stored.ends, order=BodyOrder.HEADERS_FIRST)


@given(first=sends, second=sends)
def test_messages_come_out_in_order_with_all_their_fields(first: list[NewMessage], second: list[NewMessage]) -> None:
    chunks = [chunk_of(first, 40), chunk_of(second, 40 + len(first))]
    sent = first + second
    polled = PolledMessages(3, 1000, len(sent), chunks)
    assert len(polled) == len(sent)
    assert polled.last_offset == 39 + len(sent)
    assert polled.size_bytes == sum(map(len, (message.to_bytes() for message in polled)))
    for place, (view, message) in enumerate(zip(polled, sent, strict=True)):
        assert view.offset == 40 + place
        assert view.timestamp == TIMESTAMP
        assert view.origin_timestamp == message.origin_timestamp
        assert view.id == message.id or message.id == 0
        assert view.payload == message.payload
        assert view.user_headers_bytes == (message.user_headers or b"")
        assert view.checksum == decode_header(view.to_bytes()).checksum != 0


def test_user_headers_are_decoded_when_asked_for() -> None:
    (message,) = chunk_of([NewMessage(b"x", user_headers={"key": 42, "name": "value"})], 0)
    assert {key: field.value for key, field in message.user_headers.items()} == {"key": 42, "name": "value"}
    (message,) = chunk_of([NewMessage(b"x")], 0)
    assert message.user_headers == {}


def test_user_headers_of_another_encoding_do_not_stand_in_the_way_of_the_rest() -> None:
    (message,) = chunk_of([NewMessage(b"x", user_headers=b"of an old client")], 0)
    assert bytes(message.payload) == b"x"
    with pytest.raises(StreamsError) as refused:
        _ = message.user_headers
    assert refused.value.number is StreamStatus.INVALID_HEADER_KEY


def test_an_answer_travels_as_its_numbers_and_its_messages() -> None:
    chunks = [chunk_of([NewMessage(b"a", 1)], 7), chunk_of([NewMessage(b"b", 2), NewMessage(b"c", 3)], 8)]
    polled = PolledMessages(5, 9, 3, chunks)
    assert polled.to_bytes() == struct.pack("<IQI", 5, 9, 3) + b"".join(message.to_bytes() for message in polled)
    assert b"".join(polled.to_buffers()) == polled.to_bytes()


def test_an_answer_without_messages_still_has_its_numbers() -> None:
    polled = PolledMessages(0, 0, 0, [])
    assert polled.to_bytes() == bytes(16)
    assert polled.last_offset is None
    assert list(polled) == []
    assert len(polled) == 0


def test_the_last_offset_is_that_of_the_last_chunk_with_messages() -> None:
    empty = MessageChunk(memoryview(b""), *(chunk_of([NewMessage(b"x")], 0).starts[:0],) * 2)
    assert PolledMessages(0, 9, 1, [chunk_of([NewMessage(b"x")], 4), empty]).last_offset == 4


def test_an_answer_cannot_promise_other_messages_than_it_holds() -> None:
    with pytest.raises(AssertionError):
        PolledMessages(0, 0, 2, [chunk_of([NewMessage(b"x")], 0)])


def test_a_message_shows_its_place_and_not_its_payload() -> None:
    (message,) = chunk_of([NewMessage(b"secret")], 12)
    assert repr(message) == "MessageView(offset=12, size=70)"


@given(count=st.integers(1, 5))
def test_views_read_from_the_buffer_of_their_chunk(count: int) -> None:
    chunk = chunk_of([NewMessage(b"payload")] * count, 0)
    for message in chunk:
        assert isinstance(message, MessageView)
        assert message.payload.obj is chunk.buffer.obj
