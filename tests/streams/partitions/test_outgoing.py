"""Stored messages on their way out: damage is found, and readers get the messages that were sent."""

from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.partitions.message_strategies import CIPHER, OTHER_KEY_BASE64, sends
from topics.formats.message import encode_message, starts_of
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import decode_entries, make_entries
from topics.formats.stream_layout import BodyOrder
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import NewMessage, StoredBatch, encode_send, prepare
from topics.streams.partitions.outgoing import to_wire, verify

TIMESTAMP: Final = 1_700_000_000_000_000


def stored_batch(
    messages: list[NewMessage],
    *,
    order: BodyOrder = BodyOrder.HEADERS_FIRST,
    codec: Codec = Codec.NONE,
    cipher: Cipher | None = None,
    first_offset: int = 0,
) -> StoredBatch:
    return prepare(encode_send(messages), order=order, codec=codec, cipher=cipher).stamp(first_offset, TIMESTAMP)


@given(
    messages=sends,
    order=st.sampled_from(BodyOrder),
    codec=st.sampled_from(Codec),
    cipher=st.sampled_from((None, CIPHER)),
    skipped=st.integers(0, 3),
)
def test_readers_get_what_was_sent(
    messages: list[NewMessage], order: BodyOrder, codec: Codec, cipher: Cipher | None, skipped: int
) -> None:
    numbered = [
        NewMessage(message.payload, message.id or 5, message.user_headers, message.origin_timestamp)
        for message in messages
    ]
    stored = stored_batch(numbered, order=order, codec=codec, cipher=cipher, first_offset=100)
    skipped = min(skipped, len(numbered))
    starts, ends = stored.starts[skipped:], stored.ends[skipped:]
    verify(stored.buffer, starts, ends, 100 + skipped)
    chunk = to_wire(
        stored.buffer,
        starts,
        ends,
        order=order,
        codec=codec,
        cipher=cipher,
        has_user_headers=stored.has_user_headers,
    )
    wanted = [
        encode_message(
            message.payload,
            message.user_headers or b"",  # type: ignore[arg-type]
            message_id=message.id,
            offset=100 + place,
            timestamp=TIMESTAMP,
            origin_timestamp=message.origin_timestamp,
        )
        for place, message in enumerate(numbered)
    ][skipped:]
    assert chunk.buffer == b"".join(wanted)
    assert [chunk.buffer[start:end] for start, end in zip(chunk.starts, chunk.ends, strict=True)] == wanted


@pytest.mark.parametrize("user_headers", [None, b"headers"])
def test_messages_that_are_stored_as_they_travel_are_not_copied(user_headers: bytes | None) -> None:
    stored = stored_batch([NewMessage(b"x", user_headers=user_headers)] * 3, order=BodyOrder.PAYLOAD_FIRST)
    chunk = to_wire(stored.buffer, stored.starts, stored.ends, order=BodyOrder.PAYLOAD_FIRST)
    assert np.shares_memory(np.frombuffer(chunk.buffer, np.uint8), np.frombuffer(stored.buffer, np.uint8))


@pytest.mark.parametrize("has_user_headers", [True, False])
def test_messages_without_user_headers_are_not_copied(has_user_headers: bool) -> None:
    stored = stored_batch([NewMessage(b"x")] * 3)
    chunk = to_wire(
        stored.buffer,
        stored.starts[1:],
        stored.ends[1:],
        order=BodyOrder.HEADERS_FIRST,
        has_user_headers=has_user_headers,
    )
    assert np.shares_memory(np.frombuffer(chunk.buffer, np.uint8), np.frombuffer(stored.buffer, np.uint8))
    assert chunk.starts.tolist() == [0, 65]


def test_what_is_stored_stays_as_it_is() -> None:
    stored = stored_batch([NewMessage(b"payload", user_headers=b"headers")])
    before = bytes(stored.buffer)
    chunk = to_wire(stored.buffer, stored.starts, stored.ends, order=BodyOrder.HEADERS_FIRST)
    assert bytes(chunk.buffer) != before
    assert bytes(stored.buffer) == before


def test_no_messages_are_an_empty_chunk() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    verify(b"", nothing, nothing, 5)
    assert len(to_wire(b"", nothing, nothing, order=BodyOrder.HEADERS_FIRST, codec=Codec.GZIP)) == 0


def test_segments_of_another_server_are_verified_and_encoded_again_byte_for_byte(shared_fixtures: Path) -> None:
    logs = sorted((shared_fixtures / "iggy-0.8.0" / "streams").rglob("*.log"))
    assert logs
    for path in logs:
        log, index = path.read_bytes(), path.with_suffix(".index").read_bytes()
        entries = decode_entries(index)
        ends = entries["position"].astype(np.int64)
        starts = starts_of(ends)
        verify(log, starts, ends, 0)
        chunk = to_wire(log, starts, ends, order=BodyOrder.PAYLOAD_FIRST)
        assert chunk.buffer == log
        sent = [
            NewMessage(message.payload, message.id, message.user_headers_bytes, message.origin_timestamp)
            for message in chunk
        ]
        position = 0
        for timestamp, group in groupby(range(len(sent)), key=entries["timestamp"].tolist().__getitem__):
            places = list(group)
            batch = encode_send([sent[place] for place in places])
            stored = prepare(batch, order=BodyOrder.PAYLOAD_FIRST).stamp(places[0], timestamp)
            assert stored.buffer == log[position : position + stored.size_bytes]
            made = make_entries(places[0], stored.ends + position, np.full(stored.count, timestamp, dtype=np.uint64))
            assert made.tobytes() == entries[places].tobytes()
            position += stored.size_bytes
        assert position == len(log)


def refusal(buffer: bytes, stored: StoredBatch, first_offset: int = 100) -> StreamsError:
    with pytest.raises(StreamsError) as refused:
        verify(buffer, stored.starts, stored.ends, first_offset)
    return refused.value


@pytest.mark.parametrize("count", [1, 3, 40])
def test_every_flipped_bit_of_a_message_is_found(count: int) -> None:
    """Every bit of the last message. Forty messages of one size take another code path."""
    stored = stored_batch([NewMessage(b"payload", 7, b"headers")] * count, first_offset=100)
    for position in range(int(stored.starts[-1]), int(stored.ends[-1])):
        for bit in range(8):
            damaged = bytearray(stored.buffer)
            damaged[position] ^= 1 << bit
            error = refusal(bytes(damaged), stored)
            assert error.number is StreamStatus.INVALID_MESSAGE_CHECKSUM
            assert str(error) == f"the message at offset {99 + count} does not match its checksum"


def test_a_good_message_in_the_wrong_place_is_found() -> None:
    stored = stored_batch([NewMessage(b"x")] * 3, first_offset=100)
    error = refusal(bytes(stored.buffer), stored, first_offset=99)
    assert error.number is StreamStatus.INVALID_OFFSET
    assert str(error) == "offset 100 is where offset 99 should be"


def test_damage_is_told_before_a_wrong_place() -> None:
    stored = stored_batch([NewMessage(b"x")], first_offset=100)
    assert refusal(bytes(64) + b"x", stored).number is StreamStatus.INVALID_MESSAGE_CHECKSUM


@pytest.mark.parametrize("spans", [[(0, 66)], [(0, 63)], [(-1, 65)], [(65, 0)], [(1, 65)]])
def test_positions_that_cut_no_message_are_found(spans: list[tuple[int, int]]) -> None:
    stored = stored_batch([NewMessage(b"x")])
    starts, ends = np.array(spans, dtype=np.int64).T
    with pytest.raises(StreamsError) as refused:
        verify(stored.buffer, starts, ends, 0)
    wanted = StreamStatus.CANNOT_READ_INDEX_POSITION if spans != [(1, 65)] else StreamStatus.INVALID_MESSAGE_CHECKSUM
    assert refused.value.number is wanted


def test_another_key_fails_the_read() -> None:
    stored = stored_batch([NewMessage(b"secret")], cipher=CIPHER)
    with pytest.raises(StreamsError) as refused:
        to_wire(
            stored.buffer, stored.starts, stored.ends, order=BodyOrder.HEADERS_FIRST, cipher=Cipher(OTHER_KEY_BASE64)
        )
    assert refused.value.number is StreamStatus.CANNOT_DECRYPT_DATA


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_was_not_compressed_fails_the_read(codec: Codec) -> None:
    stored = stored_batch([NewMessage(b"plain")])
    with pytest.raises(StreamsError) as refused:
        to_wire(stored.buffer, stored.starts, stored.ends, order=BodyOrder.HEADERS_FIRST, codec=codec)
    assert refused.value.number is StreamStatus.CANNOT_READ_MESSAGE
