"""Frames and cursors of server-sent events."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.limits import U64_MAX
from topics.protocol.sse import CURSOR_BYTES_MAX, RETRY, comment, decode_cursor, encode_cursor, event_text, id_line


def encoded(text: bytes) -> bytes:
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def test_a_frame_has_its_fields_in_order_and_a_blank_line_at_the_end() -> None:
    frame = id_line(b"abc") + event_text(b"caught-up", b'{"topic":"t"}')
    assert frame == b'id: abc\nevent: caught-up\ndata: {"topic":"t"}\n\n'


def test_retry_and_comments_are_blocks_of_their_own() -> None:
    assert RETRY == b"retry: 2000\n\n"
    assert comment(b"hb 17") == b": hb 17\n\n"


@pytest.mark.parametrize("line_break", [b"\n", b"\r", b"\r\n"])
def test_h10_a_line_break_between_tokens_cannot_begin_a_field(line_break: bytes) -> None:
    frame = event_text(b"record", b'{"records":[' + line_break + b"id: evil" + line_break + b"]}")
    assert frame.count(b"\n") == 3
    assert b"\r" not in frame


def test_the_cursor_of_the_contract() -> None:
    assert encode_cursor({"parcels": 792, "ledger": 37}) == b"eyJsZWRnZXIiOjM3LCJwYXJjZWxzIjo3OTJ9"
    assert decode_cursor(b"eyJsZWRnZXIiOjM3LCJwYXJjZWxzIjo3OTJ9") == {"ledger": 37, "parcels": 792}


@given(st.dictionaries(st.text("abcXYZ019._:-", min_size=1, max_size=20), st.integers(0, U64_MAX), max_size=20))
def test_a_cursor_comes_back_as_it_was(cursors: dict[str, int]) -> None:
    text = encode_cursor(cursors)
    assert decode_cursor(text) == cursors
    assert b"=" not in text
    assert b"\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"!",
        b"a",
        b"not base64",
        b"eyJ0IjoxfQ==",
        b"eyJ0IjoxfQ\n",
        encoded(b""),
        encoded(b"null"),
        encoded(b"[]"),
        encoded(b"7"),
        encoded(b'{"t":"1"}'),
        encoded(b'{"t":1.5}'),
        encoded(b'{"t":true}'),
        encoded(b'{"t":null}'),
        encoded(b'{"t":-1}'),
        encoded(b'{"t":18446744073709551616}'),
        encoded(b'{"t":{"u":1}}'),
        encoded(b'{"t":1'),
        encoded(b'{"\xff":1}'),
        encoded(b"[" * 10_000),
        encoded(b'{"t":1}' + b" " * CURSOR_BYTES_MAX),
        "é".encode(),
    ],
)
def test_h08_what_is_no_cursor_is_none(text: bytes) -> None:
    assert decode_cursor(text) is None


@given(st.binary(max_size=200))
def test_h08_no_bytes_make_the_decoder_fail(text: bytes) -> None:
    decode_cursor(text)
    decode_cursor(encoded(text))
