"""Header lists without a connection. Malformed lists are tested over a socket, in `test_http2.py`."""

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import HeadersTooLarge, UriTooLong
from topics.limits import KIB
from topics.server.http.http2_head import Fields, MalformedHead, StaticEncoder, read_head

HEAD: Fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"h:1"), (b":path", b"/a/b?c=d?e")]


def test_the_target_is_split_and_the_authority_becomes_the_host() -> None:
    head = read_head([*HEAD, (b"x-a", b"1"), (b"x-a", b"2")])
    assert (head.method, head.path, head.query) == (b"GET", b"/a/b", b"c=d?e")
    assert head.headers == {b"host": b"h:1", b"x-a": b"2"}
    assert head.refused is None


def test_too_much_is_refused_but_read() -> None:
    many = read_head([*HEAD, *((b"x-a", b"") for _ in range(101))])
    long = read_head([*HEAD, (b"x-a", b"x" * 64 * KIB)])
    far = read_head([*HEAD[:3], (b":path", b"/" + b"x" * 8 * KIB)])
    assert isinstance(many.refused, HeadersTooLarge)
    assert isinstance(long.refused, HeadersTooLarge)
    assert isinstance(far.refused, UriTooLong)
    assert long.headers[b"host"] == b"h:1"


@given(st.lists(st.tuples(st.sampled_from([name for name, _ in HEAD]) | st.binary(), st.binary()), max_size=8))
def test_any_list_is_read_or_malformed(fields: Fields) -> None:
    try:
        head = read_head(fields)
    except MalformedHead:
        return
    assert head.headers[b"host"]
    text = b"".join([head.method, head.path, head.query, *head.headers, *head.headers.values()])
    assert not set(b"\r\n\0") & set(text)


@pytest.mark.parametrize("table_bytes", [0, 100, 4096, 65_536])
@given(
    blocks=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([b":status", b"content-type", b"content-length", b"vary", b"x-own"]),
                st.sampled_from([b"200", b"503", b"", b"application/json", b"x" * 200, b"x" * 20_000]),
            )
        ),
        max_size=4,
    )
)
def test_any_decoder_reads_the_blocks_of_answers(table_bytes: int, blocks: list[list[tuple[bytes, bytes]]]) -> None:
    encoder, decoder = StaticEncoder(), Decoder(max_header_list_size=2**20)
    decoder.max_allowed_table_size = table_bytes
    # The library does this when the client's settings come.
    encoder.header_table_size = table_bytes
    for fields in blocks:
        assert list(decoder.decode(encoder.encode(fields), raw=True)) == fields
