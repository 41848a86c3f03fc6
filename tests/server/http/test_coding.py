"""gzip bodies: complete, damaged, and made to fill the memory."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.errors import InvalidRequest, PayloadTooLarge
from topics.limits import MIB
from topics.server.http.coding import MEMBERS_MAX, accepts_gzip, deflate, inflate

ROOM = 10 * MIB


def bomb(size: int) -> bytes:
    """Zeros: about a thousandth of their size."""
    return gzip.compress(bytes(size), 9, mtime=0)


# Inflating.


@given(body=st.binary(max_size=5000), level=st.integers(0, 9))
def test_what_gzip_wrote_comes_back(body: bytes, level: int) -> None:
    assert inflate(gzip.compress(body, level), ROOM) == body


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, MIB - 1, MIB, MIB + 1, 3 * MIB + 7])
def test_any_size_comes_back_whether_it_shrinks_or_not(size: int) -> None:
    zeros = bytes(size)
    noise = zlib.compress(zeros, 0)
    for level in (0, 9):
        assert inflate(gzip.compress(zeros, level), ROOM) == zeros
        assert inflate(gzip.compress(noise, level), ROOM) == noise


@given(parts=st.lists(st.binary(max_size=200), min_size=1, max_size=8))
def test_members_are_joined(parts: list[bytes]) -> None:
    assert inflate(b"".join(gzip.compress(part) for part in parts), ROOM) == b"".join(parts)


def test_a_header_with_a_file_name_and_a_comment_is_skipped() -> None:
    plain = gzip.compress(b"text", mtime=0)
    named = plain[:3] + bytes([0x08 | 0x10]) + plain[4:10] + b"orders.json\0a comment\0" + plain[10:]
    assert inflate(named, ROOM) == b"text"


def test_a_coding_inside_a_coding_is_left_alone() -> None:
    inner = gzip.compress(b"text")
    assert inflate(gzip.compress(inner), ROOM) == inner


@pytest.mark.parametrize("size", [1, 1000, MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_the_bound_is_exact(size: int) -> None:
    body = bomb(size)
    assert len(inflate(body, size)) == size
    with pytest.raises(PayloadTooLarge) as caught:
        inflate(body, size - 1)
    assert caught.value.message == f"the body is larger than {size - 1} bytes when it is inflated"
    assert caught.value.status == 413
    assert caught.value.code == "payload_too_large"


def test_the_bound_is_on_all_members_together() -> None:
    body = bomb(600) + bomb(400)
    assert len(inflate(body, 1000)) == 1000
    with pytest.raises(PayloadTooLarge):
        inflate(body, 999)


@pytest.mark.parametrize("member_count", [1, 50])
def test_a_bomb_is_refused_without_the_memory_it_asks_for(member_count: int) -> None:
    body = bomb(64 * MIB // member_count) * member_count
    assert len(body) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            inflate(body, 4 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


def test_members_are_bounded_even_when_they_are_empty() -> None:
    empty = gzip.compress(b"", mtime=0)
    assert inflate(empty * MEMBERS_MAX, ROOM) == b""
    with pytest.raises(InvalidRequest, match="more than 4096 members"):
        inflate(empty * (MEMBERS_MAX + 1), ROOM)


@given(body=st.binary(max_size=300), data=st.data())
def test_a_body_that_ends_anywhere_too_early_is_refused(body: bytes, data: st.DataObject) -> None:
    whole = gzip.compress(body)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InvalidRequest) as caught:
        inflate(whole[:cut], ROOM)
    assert caught.value.message == "the gzip body ends too early"


def test_a_second_member_that_ends_too_early_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="ends too early"):
        inflate(bomb(10) + bomb(10)[:-1], ROOM)


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 512, b"x", b"{}", b"\x1f\x8b\x00"])
def test_anything_behind_the_last_member_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidRequest):
        inflate(bomb(10) + garbage, ROOM)


@pytest.mark.parametrize("place", [-8, -1])
def test_a_wrong_checksum_or_length_is_refused(place: int) -> None:
    body = bytearray(gzip.compress(b"text"))
    body[place] ^= 1
    with pytest.raises(InvalidRequest, match="damaged near byte"):
        inflate(bytes(body), ROOM)


def test_the_message_says_where_the_damage_is() -> None:
    with pytest.raises(InvalidRequest) as caught:
        inflate(b"plain text", ROOM)
    assert caught.value.message == "the gzip body is damaged near byte 0"


@pytest.mark.parametrize("body", [zlib.compress(b"text"), zlib.compress(b"text", wbits=-15), b"\x28\xb5\x2f\xfd\0\0"])
def test_other_codings_are_no_gzip(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        inflate(body, ROOM)


@given(body=st.binary(max_size=200), bytes_max=st.integers(0, 100))
@example(body=gzip.compress(b""), bytes_max=0)
def test_any_bytes_inflate_within_the_bound_or_are_refused(body: bytes, bytes_max: int) -> None:
    for candidate in (body, b"\x1f\x8b\x08\0\0\0\0\0\0\0" + body):
        try:
            assert len(inflate(candidate, bytes_max)) <= bytes_max
        except (InvalidRequest, PayloadTooLarge):
            pass


@given(body=st.binary(max_size=300), place=st.integers(0, 1000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_what_is_read(body: bytes, place: int, bit: int) -> None:
    damaged = bytearray(gzip.compress(body, mtime=0))
    damaged[place % len(damaged)] ^= 1 << bit
    try:
        assert inflate(bytes(damaged), ROOM) == body
    except InvalidRequest:
        pass


# Deflating.


@given(body=st.binary(max_size=3000))
def test_a_response_is_gzip_of_the_body_and_always_the_same(body: bytes) -> None:
    coded = deflate(body)
    assert gzip.decompress(coded) == body
    assert deflate(body) == coded
    assert coded[4:8] == bytes(4), "no time in the header"


def test_repetitive_json_shrinks() -> None:
    body = b'{"$seq":1,"$ts":1700000000000,"data":{"kind":"order"}},' * 100
    assert len(deflate(body)) < len(body) // 10


# Accepted codings.


@pytest.mark.parametrize(
    "header",
    [
        b"gzip",
        b"GZip",
        b" gzip ",
        b"deflate, gzip, br",
        b"deflate,gzip",
        b"gzip;q=1",
        b"gzip;q=1.000",
        b"gzip;q=0.001",
        b"gzip ; Q = 0.5",
        b"gzip;q=0.5;x=y",
        b"br;q=0,gzip;q=0.1",
        b"*;q=0, gzip",
        b"gzip;q=0, gzip",
        b",,gzip,",
    ],
)
def test_gzip_with_a_weight_above_zero_is_accepted(header: bytes) -> None:
    assert accepts_gzip(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"*",
        b"*;q=1",
        b"identity",
        b"x-gzip",
        b"gzipped",
        b"not gzip",
        b"br;gzip",
        b"gzip;q=0",
        b"gzip;q=0.",
        b"gzip;q=0.000",
        b"gzip; q=0.0 ",
        b"gzip;q=",
        b"gzip;q",
        b"gzip;q=.5",
        b"gzip;q=2",
        b"gzip;q=1.001",
        b"gzip;q=-1",
        b"gzip;q=0.0001",
        b'gzip;q="1"',
        b"gzip;q=1e0",
        b"gzip;q=\xff",
        b"gzip;q=1;q=0",
    ],
)
def test_anything_else_gets_plain_bytes(header: bytes) -> None:
    assert not accepts_gzip(header)


@given(header=st.binary(max_size=60))
def test_any_header_has_an_answer(header: bytes) -> None:
    assert isinstance(accepts_gzip(header), bool)
    if b"gzip" not in header.lower():
        assert not accepts_gzip(header)
