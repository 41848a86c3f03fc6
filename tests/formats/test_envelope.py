"""The payload envelope: JSON bytes in, the same JSON bytes out."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.formats.strategies import json_texts
from topics.errors import BadFrame
from topics.formats import envelope


def test_an_envelope_has_the_documented_text() -> None:
    assert envelope.encode(b"1") == b'{"d":1}'
    assert envelope.encode(b"1", b"2") == b'{"d":1,"m":2}'


@given(data=json_texts(), meta=st.none() | json_texts())
@example(data=b'{"a":1,"m":2}', meta=None)
@example(data=b'{"a":1,"m":2}', meta=b'{"a":1,"m":2}')
@example(data=b'[1,{"x":0,"m":{"d":1,"m":2}}]', meta=b"null")
@example(data=rb'"a,\"m\":1"', meta=None)
@example(data=rb'"a,\"m\":1"', meta=rb'"b,\"m\":1}"')
@example(data=b'"}"', meta=b'"{"')
@example(data=b"1e999", meta=b"-0.0")
@example(data=b"1" * 400, meta=None)
@example(data='"päckchen \U0001f4e6"'.encode(), meta='{"ü":"ß"}'.encode())
def test_data_and_meta_come_back_byte_for_byte(data: bytes, meta: bytes | None) -> None:
    packed = envelope.encode(data, meta)
    assert envelope.split(packed) == (data, meta)
    size = len(data) + len(meta or b"")
    assert envelope.accounted_bytes(packed) == size
    assert len(packed) == size + envelope.PLAIN_OVERHEAD_BYTES + (0 if meta is None else len(envelope.META))


def test_a_null_meta_is_not_an_absent_one() -> None:
    assert envelope.split(b'{"d":null}') == (b"null", None)
    assert envelope.split(b'{"d":null,"m":null}') == (b"null", b"null")
    assert envelope.accounted_bytes(b'{"d":null,"m":null}') == 8


@pytest.mark.parametrize("space", [b" ", b"\t", b"  \t "])
def test_space_around_data_and_meta_is_kept(space: bytes) -> None:
    data, meta = space + b'{"a":0,"m":1}' + space, space + b"[1]" + space
    assert envelope.split(envelope.encode(data, meta)) == (data, meta)
    assert envelope.split(envelope.encode(data)) == (data, None)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"null",
        b'{"d":}',
        b'{"d":1',
        b'"d":1}',
        b'{"m":1,"d":2}',
        b' {"d":1}',
        b'{"d":1} ',
        b'{"d":,"m":1}',
        b'{"d":1,"m":}',
        b'{"d":1,"m":2,"x":3}',
        b'{"d":1,"m":3,"x":3}',
        b'{"d":1,"x":3,"m":2}',
        b'{"d":1,"d":2,"m":3}',
        b'{"d":1,"m":2,"m":3}',
        b'{"d":0,"m":1,"d":2,"m":1}',
        b'{"d":1,"x":{"a":1,"m":2}}',
        b'{"d":"a,"m":1}',
        b'{"d":[1,"m":1}',
    ],
)
def test_what_is_not_an_envelope_is_refused(payload: bytes) -> None:
    with pytest.raises(BadFrame, match="the payload is not an envelope"):
        envelope.split(payload)
    with pytest.raises(BadFrame, match="the payload is not an envelope"):
        envelope.accounted_bytes(payload)


@given(
    payload=st.binary(max_size=40)
    | st.lists(
        st.sampled_from((b'{"d":', b',"m":', b"}", b"{", b"[", b"]", b'"', b"1", b"\xff", b" ")), max_size=12
    ).map(b"".join)
)
def test_any_bytes_split_into_what_encodes_to_them_or_are_refused(payload: bytes) -> None:
    try:
        data, meta = envelope.split(payload)
    except BadFrame:
        with pytest.raises(BadFrame):
            envelope.accounted_bytes(payload)
    else:
        assert envelope.encode(data, meta) == payload
        assert envelope.accounted_bytes(payload) == len(data) + len(meta or b"")


@pytest.mark.parametrize("depth", [127, 100_000])
def test_depth_is_read_back_or_refused_but_never_kills(depth: int) -> None:
    """The deepest payload that is let in is read; one without end is an error."""
    packed = envelope.encode(b"[" * depth + b"]" * depth, b"1")
    if depth == 127:
        assert envelope.split(packed)[1] == b"1"
    else:
        with pytest.raises(BadFrame):
            envelope.split(packed)
