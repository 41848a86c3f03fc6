"""User headers: fixed bytes, values of every kind, and invalid bytes."""

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.user_headers import (
    FIELD_BYTES_MAX,
    HeaderField,
    HeaderKey,
    HeaderKind,
    Scalar,
    decode_user_headers,
    encode_user_headers,
)
from topics.stream_errors import StreamsError, StreamStatus

VECTOR: Final = bytes.fromhex("02030000006b65790b040000002a000000")

fields: Final = st.builds(HeaderField, st.integers(1, 255), st.binary(min_size=1, max_size=FIELD_BYTES_MAX))
texts: Final = st.text(min_size=1, max_size=20)
# A field of the kind string whose bytes are text would come back as that text.
raw_keys: Final = fields.filter(lambda field: field.kind != HeaderKind.STRING)


def test_a_pair_has_the_documented_bytes() -> None:
    assert encode_user_headers({"key": HeaderField.of(HeaderKind.UINT32, 42)}) == VECTOR
    decoded = decode_user_headers(VECTOR)
    assert decoded == {"key": HeaderField(HeaderKind.UINT32, b"\x2a\0\0\0")}
    assert decoded["key"].value == 42


def test_no_headers_are_no_bytes() -> None:
    assert encode_user_headers({}) == b""
    assert decode_user_headers(b"") == {}


@given(headers=st.dictionaries(texts | raw_keys, fields, max_size=5))
def test_fields_of_any_kind_come_back(headers: dict[HeaderKey, HeaderField]) -> None:
    data = encode_user_headers(headers)
    decoded = decode_user_headers(data)
    assert decoded == headers
    assert list(decoded) == list(headers)
    assert encode_user_headers(decoded) == data


scalars: Final = st.one_of(
    st.binary(min_size=1, max_size=20),
    texts,
    st.booleans(),
    st.integers(-(2**127), 2**128 - 1),
    st.floats(allow_nan=False),
)


@given(headers=st.dictionaries(texts, scalars, max_size=5))
def test_plain_values_come_back_with_their_type(headers: dict[str, Scalar]) -> None:
    decoded = decode_user_headers(encode_user_headers(headers))
    assert {key: (type(field.value), field.value) for key, field in decoded.items()} == {
        key: (type(value), value) for key, value in headers.items()
    }


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (HeaderKind.INT8, -(2**7), 2**7 - 1),
        (HeaderKind.INT16, -(2**15), 2**15 - 1),
        (HeaderKind.INT32, -(2**31), 2**31 - 1),
        (HeaderKind.INT64, -(2**63), 2**63 - 1),
        (HeaderKind.INT128, -(2**127), 2**127 - 1),
        (HeaderKind.UINT8, 0, 2**8 - 1),
        (HeaderKind.UINT16, 0, 2**16 - 1),
        (HeaderKind.UINT32, 0, 2**32 - 1),
        (HeaderKind.UINT64, 0, 2**64 - 1),
        (HeaderKind.UINT128, 0, 2**128 - 1),
    ],
)
def test_an_integer_kind_holds_its_range_and_no_more(kind: HeaderKind, low: int, high: int) -> None:
    assert HeaderField.of(kind, low).value == low
    assert HeaderField.of(kind, high).value == high
    for beyond in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"is not a value of the kind {kind.name.lower()}"):
            HeaderField.of(kind, beyond)


def test_floats_have_four_or_eight_bytes() -> None:
    assert HeaderField.of(HeaderKind.FLOAT32, 1.5).data == bytes.fromhex("0000c03f")
    assert HeaderField.of(HeaderKind.FLOAT32, 1.5).value == 1.5
    assert HeaderField.of(HeaderKind.FLOAT64, 1.5).data == bytes.fromhex("000000000000f83f")
    not_a_number = HeaderField.of(HeaderKind.FLOAT64, math.nan).value
    assert isinstance(not_a_number, float)
    assert math.isnan(not_a_number)


def test_a_truth_value_is_one_byte() -> None:
    assert HeaderField.of(HeaderKind.BOOL, True) == HeaderField(3, b"\x01")
    assert HeaderField(3, b"\x00").value is False


@pytest.mark.parametrize(
    ("kind", "value"), [(HeaderKind.RAW, 5), (HeaderKind.STRING, 5), (HeaderKind.INT8, "5"), (HeaderKind.FLOAT32, "x")]
)
def test_a_value_of_another_type_is_refused(kind: HeaderKind, value: Scalar) -> None:
    with pytest.raises(ValueError, match="is no"):
        HeaderField.of(kind, value)


@pytest.mark.parametrize(
    "field", [HeaderField(2, b"\xff"), HeaderField(3, b"\x02"), HeaderField(6, b"\0"), HeaderField(99, b"\0\0")]
)
def test_bytes_that_are_not_what_their_kind_says_stay_bytes(field: HeaderField) -> None:
    assert field.value == field.data
    assert decode_user_headers(encode_user_headers({field: field})) == {field: field}


@pytest.mark.parametrize("data", [b"", b"x" * 256])
def test_keys_and_values_have_1_to_255_bytes(data: bytes) -> None:
    with pytest.raises(StreamsError) as refused:
        encode_user_headers({data.decode(): 1})
    assert refused.value.number is StreamStatus.INVALID_HEADER_KEY
    with pytest.raises(StreamsError) as refused:
        encode_user_headers({"key": data})
    assert refused.value.number is StreamStatus.INVALID_HEADER_VALUE
    assert decode_user_headers(encode_user_headers({"k" * 255: b"v" * 255}))["k" * 255].value == b"v" * 255


@pytest.mark.parametrize("value", [None, [1], 2**128, -(2**127) - 1])
def test_what_no_kind_holds_is_refused(value: object) -> None:
    with pytest.raises(StreamsError) as refused:
        encode_user_headers({"key": value})  # type: ignore[dict-item]
    assert refused.value.number is StreamStatus.INVALID_HEADER_VALUE


@pytest.mark.parametrize("kind", [0, 256])
def test_a_kind_is_a_byte_that_is_not_0(kind: int) -> None:
    with pytest.raises(StreamsError) as refused:
        encode_user_headers({"key": HeaderField(kind, b"x")})
    assert refused.value.number is StreamStatus.INVALID_HEADER_VALUE


@pytest.mark.parametrize("length", range(1, len(VECTOR)))
def test_headers_that_end_too_early_are_refused(length: int) -> None:
    with pytest.raises(StreamsError) as refused:
        decode_user_headers(VECTOR[:length])
    expected = StreamStatus.INVALID_HEADER_KEY if length < 8 else StreamStatus.INVALID_HEADER_VALUE
    assert refused.value.number is expected


@pytest.mark.parametrize(
    ("at", "byte", "number"),
    [
        (0, 0, StreamStatus.INVALID_HEADER_KEY),
        (1, 0, StreamStatus.INVALID_HEADER_KEY),
        (2, 1, StreamStatus.INVALID_HEADER_KEY),
        (8, 0, StreamStatus.INVALID_HEADER_VALUE),
        (9, 0, StreamStatus.INVALID_HEADER_VALUE),
        (10, 1, StreamStatus.INVALID_HEADER_VALUE),
    ],
)
def test_kind_0_and_lengths_beyond_the_limit_are_refused(at: int, byte: int, number: StreamStatus) -> None:
    data = bytearray(VECTOR) + bytes(300)
    data[at] = byte
    with pytest.raises(StreamsError) as refused:
        decode_user_headers(data)
    assert refused.value.number is number


@given(data=st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        headers = decode_user_headers(data)
    except StreamsError:
        return
    assert all(1 <= len(field.data) <= FIELD_BYTES_MAX for field in headers.values())
    # Only earlier pairs with an equal key are lost.
    again = encode_user_headers(headers)
    assert len(again) <= len(data)
    assert decode_user_headers(again) == headers


def test_keys_have_kinds_too() -> None:
    decoded = decode_user_headers(encode_user_headers({5: "five", b"raw": 1}))
    assert [(key.kind, key.value) for key in decoded if isinstance(key, HeaderField)] == [
        (HeaderKind.INT64, 5),
        (HeaderKind.RAW, b"raw"),
    ]


def test_of_equal_keys_the_last_counts() -> None:
    pair = encode_user_headers({"key": 1})
    assert decode_user_headers(pair + encode_user_headers({"key": 2}))["key"].value == 2
