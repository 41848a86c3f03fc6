"""The messages of the partitioned engine: fixed bytes, columns against a plain decoder, bodies that are swapped."""

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import u64
from topics.formats.message import (
    CHECKSUM_AT,
    HEADER_BYTES,
    OFFSET_AT,
    PAYLOAD_LENGTH_AT,
    TIMESTAMP_AT,
    BodyOrder,
    Positions,
    checksums,
    decode_header,
    encode_message,
    read_column,
    read_headers,
    rewrite_bodies,
    starts_of,
    swap_bodies,
    write_column,
    write_headers,
)

TIMESTAMP: Final = 1_700_000_000_000_000
ORIGIN_TIMESTAMP: Final = 1_699_999_999_000_000
USER_HEADERS: Final = bytes.fromhex("02030000006b65790b040000002a000000")
HELLO: Final = bytes.fromhex(
    "358bf2b06990df9d 01000000000000000000000000000000 0000000000000000 00401e18240a0600 c0fd0e18240a0600"
    "00000000 05000000 0000000000000000 68656c6c6f"
)

bodies: Final = st.tuples(st.binary(max_size=40), st.binary(max_size=12))
orders: Final = st.sampled_from(BodyOrder)


def packed(messages: list[bytes], gap: bytes = b"") -> tuple[bytearray, Positions, Positions]:
    """The messages in one buffer with a gap before each."""
    ends = np.cumsum([len(gap) + len(message) for message in messages], dtype=np.int64)
    starts = ends - np.array([len(message) for message in messages], dtype=np.int64)
    return bytearray(b"".join(gap + message for message in messages)), starts, ends


@pytest.mark.parametrize("order", BodyOrder)
def test_a_message_without_user_headers_is_the_same_in_both_orders(order: BodyOrder) -> None:
    message = encode_message(
        b"hello", message_id=1, timestamp=TIMESTAMP, origin_timestamp=ORIGIN_TIMESTAMP, order=order
    )
    assert message == HELLO


@pytest.mark.parametrize(
    ("order", "checksum", "body"),
    [
        (BodyOrder.PAYLOAD_FIRST, "14ac50b1a21bf950", b"hello" + USER_HEADERS),
        (BodyOrder.HEADERS_FIRST, "507168b5d49ffeb6", USER_HEADERS + b"hello"),
    ],
)
def test_a_message_with_user_headers_has_the_bytes_of_its_order(order: BodyOrder, checksum: str, body: bytes) -> None:
    message = encode_message(
        b"hello",
        USER_HEADERS,
        message_id=2,
        offset=1,
        timestamp=TIMESTAMP,
        origin_timestamp=ORIGIN_TIMESTAMP,
        order=order,
    )
    assert len(message) == 86
    assert message[:8].hex() == checksum
    assert message[HEADER_BYTES:] == body


@given(body=bodies, message_id=st.integers(0, 2**128 - 1), offset=u64, timestamp=u64, origin=u64, order=orders)
def test_a_header_comes_back(
    body: tuple[bytes, bytes], message_id: int, offset: int, timestamp: int, origin: int, order: BodyOrder
) -> None:
    payload, user_headers = body
    message = encode_message(
        payload,
        user_headers,
        message_id=message_id,
        offset=offset,
        timestamp=timestamp,
        origin_timestamp=origin,
        order=order,
    )
    header = decode_header(b"..." + message, 3)
    checksum = xxh3_64_intdigest(message[8:])
    assert header == (checksum, message_id, offset, timestamp, origin, len(user_headers), len(payload), 0)
    assert header.size == len(message)


def test_a_message_of_a_client_has_no_checksum() -> None:
    assert decode_header(encode_message(b"x", checksum=False)).checksum == 0


# Few or many, of one size or not, so that both code paths of cutting and of swapping are used.
batches: Final = st.one_of(
    st.lists(bodies, max_size=6),
    st.builds(lambda body, count: [body] * count, bodies, st.integers(1, 80)),
    st.builds(lambda first, second, count: [first, second] * count, bodies, bodies, st.integers(1, 60)),
)


@given(batch=batches, gap=st.sampled_from((b"", b"...")))
def test_columns_are_the_fields_of_each_message(batch: list[tuple[bytes, bytes]], gap: bytes) -> None:
    messages = [
        encode_message(payload, user_headers, message_id=7 << 100 | place, offset=place, timestamp=2**63 + place)
        for place, (payload, user_headers) in enumerate(batch)
    ]
    buffer, starts, ends = packed(messages, gap)
    expected = [decode_header(message) for message in messages]
    headers = read_headers(buffer, starts)
    for name in ("checksum", "offset", "timestamp", "origin_timestamp", "user_headers_length", "payload_length"):
        assert headers[name].tolist() == [getattr(header, name) for header in expected]
    assert [low | high << 64 for low, high in headers["id"].tolist()] == [header.id for header in expected]
    assert read_column(buffer, starts, TIMESTAMP_AT, 8).tolist() == [header.timestamp for header in expected]
    assert read_column(buffer, starts, PAYLOAD_LENGTH_AT, 4).tolist() == [header.payload_length for header in expected]
    assert checksums(buffer, starts, ends).tolist() == [header.checksum for header in expected]


def test_messages_that_only_have_the_same_size_on_average_are_cut_where_they_are() -> None:
    sizes = [5, *(4, 6) * 40]
    buffer, starts, ends = packed([encode_message(bytes(size)) for size in sizes])
    assert checksums(buffer, starts, ends).tolist() == read_column(buffer, starts, CHECKSUM_AT, 8).tolist()


@given(batch=batches.filter(bool), gap=st.sampled_from((b"", b"...")))
def test_what_is_written_to_columns_changes_these_fields_and_nothing_else(
    batch: list[tuple[bytes, bytes]], gap: bytes
) -> None:
    blank = [encode_message(payload, user_headers, checksum=False) for payload, user_headers in batch]
    wanted = [encode_message(*body, message_id=3, offset=place) for place, body in enumerate(batch)]
    buffer, starts, ends = packed(blank, gap)
    headers = read_headers(buffer, starts)
    headers["id"] = (3, 0)
    headers["offset"] = np.arange(len(batch))
    write_headers(buffer, starts, headers)
    write_column(buffer, starts, CHECKSUM_AT, checksums(buffer, starts, ends))
    assert buffer == packed(wanted, gap)[0]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_columns(make: type[bytes]) -> None:
    buffer, starts, ends = packed([HELLO, HELLO])
    assert read_column(make(buffer), starts, TIMESTAMP_AT, 8).tolist() == [TIMESTAMP, TIMESTAMP]
    assert checksums(make(buffer), starts, ends).tolist() == [decode_header(HELLO).checksum] * 2


def test_no_messages_have_empty_columns() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert len(read_headers(b"", none)) == 0
    assert len(read_column(b"", none, OFFSET_AT, 8)) == 0
    assert len(checksums(b"", none, none)) == 0


def test_a_message_that_does_not_fit_the_buffer_is_never_read() -> None:
    with pytest.raises(IndexError):
        read_headers(HELLO, np.array([6]))


@given(batch=batches, to=orders, gap=st.sampled_from((b"", b"...")))
def test_swapping_bodies_gives_the_other_order(batch: list[tuple[bytes, bytes]], to: BodyOrder, gap: bytes) -> None:
    other = next(order for order in BodyOrder if order is not to)
    buffer, starts, _ = packed([encode_message(*body, order=other, checksum=False) for body in batch], gap)
    swap_bodies(buffer, starts, read_headers(buffer, starts), to=to)
    assert buffer == packed([encode_message(*body, order=to, checksum=False) for body in batch], gap)[0]


@given(batch=batches, source=orders, target=orders)
def test_rewritten_bodies_are_what_the_functions_made_of_them(
    batch: list[tuple[bytes, bytes]], source: BodyOrder, target: BodyOrder
) -> None:
    buffer, starts, _ = packed([encode_message(*body, order=source, checksum=False) for body in batch])
    headers = read_headers(buffer, starts)
    rewritten, new_starts, new_ends = rewrite_bodies(
        buffer,
        starts,
        headers,
        source=source,
        target=target,
        payload=lambda data: b"<" + data + b">",
        user_headers=lambda data: b"[" + data + b"]",
    )
    write_headers(rewritten, new_starts, headers)
    wanted = [
        encode_message(b"<" + payload + b">", user_headers and b"[" + user_headers + b"]", order=target, checksum=False)
        for payload, user_headers in batch
    ]
    assert rewritten == b"".join(wanted)
    assert [rewritten[start:end] for start, end in zip(new_starts, new_ends, strict=True)] == wanted


def test_messages_back_to_back_start_where_the_one_before_ends() -> None:
    assert starts_of(np.array([69, 155, 300])).tolist() == [0, 69, 155]
    assert starts_of(np.zeros(0, dtype=np.int64)).tolist() == []
