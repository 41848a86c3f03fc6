"""The tag sidecar: lookups agree with a plain dictionary, and no bytes break them."""

from struct import pack
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import U64_MAX, flip, flips
from topics.errors import BadFrame, FormatError, Torn
from topics.formats import tag_sidecar
from topics.formats.tag_sidecar import TagSidecar

tags: Final = st.lists(st.sampled_from((b"a", b"b", b":", b"\0", b"\xff", "ä".encode())), max_size=3).map(b"".join)
first_seqs: Final = st.sampled_from((0, 1, 2**32, 2**63, U64_MAX - 2**32)) | st.integers(0, U64_MAX - 2**32)
offsets: Final = st.lists(
    st.sampled_from((0, 1, 2**31, 2**32 - 1)) | st.integers(0, 20), min_size=1, max_size=4, unique=True
).map(sorted)
tables: Final = st.dictionaries(tags, offsets, max_size=5)

GOOD: Final = tag_sidecar.encode(10, {b"acme:1": [10, 12], b"acme:2": [11], b"": [15], b"zeta": [13, 14]})


def sealed(body: bytes, *, tag_count: int, first_seq: int = 1, version: int = 1) -> bytes:
    """A sidecar with a right length and checksum around any body."""
    head = b"TTAG" + pack("<IQII", version, first_seq, tag_count, len(body))
    return head + pack("<Q", xxh3_64_intdigest(head + body)) + body


def entry(tag: bytes, *values: int) -> bytes:
    return pack("<HI", len(tag), len(values)) + tag + pack(f"<{len(values)}I", *values)


def use(sidecar: TagSidecar) -> None:
    """Everything that can be asked of it."""
    list(sidecar)
    for tag in (b"", b"a", b"acme:1", b"\xff" * 9):
        sidecar.seqs(tag)
        sidecar.seqs_by_prefix(tag)


def test_a_sidecar_has_the_documented_layout() -> None:
    first, second = entry(b"a", 0, 2), entry(b"b", 1)
    body = pack("<II", 8, 8 + len(first)) + first + second
    assert tag_sidecar.encode(5, {b"b": [6], b"a": [5, 7]}) == sealed(body, tag_count=2, first_seq=5)


@given(first_seq=first_seqs, table=tables, probe=tags)
def test_lookups_agree_with_a_dictionary(first_seq: int, table: dict[bytes, list[int]], probe: bytes) -> None:
    seqs = {tag: [first_seq + value for value in values] for tag, values in table.items()}
    sidecar = TagSidecar(tag_sidecar.encode(first_seq, seqs))
    assert sidecar.first_seq == first_seq
    assert len(sidecar) == len(seqs)
    assert list(sidecar) == sorted(seqs.items())
    for tag in (probe, *seqs):
        assert sidecar.seqs(tag) == seqs.get(tag, [])
        expected = sorted(seq for other in seqs for seq in seqs[other] if other.startswith(tag))
        assert sidecar.seqs_by_prefix(tag) == expected


def test_a_sidecar_without_tags_finds_nothing() -> None:
    sidecar = TagSidecar(tag_sidecar.encode(1, {}))
    assert len(sidecar) == 0
    assert list(sidecar) == []
    assert sidecar.seqs(b"") == sidecar.seqs_by_prefix(b"") == []


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_sidecar(make: type[bytes]) -> None:
    assert TagSidecar(make(GOOD)).seqs(b"acme:1") == [10, 12]


def test_a_sidecar_cut_at_any_byte_is_torn() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(Torn):
            TagSidecar(GOOD[:size])
    with pytest.raises(Torn):
        TagSidecar(GOOD + b"\0")


@given(data=st.data())
def test_any_flipped_byte_is_an_error(data: st.DataObject) -> None:
    with pytest.raises(FormatError):
        TagSidecar(flip(GOOD, *data.draw(flips(len(GOOD)))))


def test_another_version_is_a_bad_sidecar_because_it_can_be_built_again() -> None:
    for version in (0, 2):
        with pytest.raises(BadFrame, match=rf"tag sidecar version {version} is unknown \(this is 1\)"):
            TagSidecar(sealed(b"", tag_count=0, version=version))


@pytest.mark.parametrize(
    ("tag_count", "body"),
    [
        (1, b""),
        (2**32 - 1, bytes(8)),
        (0, b"behind"),
        (1, pack("<I", 0)),
        (1, pack("<I", 8) + bytes(4) + entry(b"a", 1)),
        (1, pack("<I", 2**32 - 1) + entry(b"a", 1)),
        (1, pack("<I", 4) + b"short"),
        (1, pack("<I", 4) + entry(b"a", 1)[:-1]),
        (1, pack("<I", 4) + entry(b"a", 1) + b"\0"),
        (1, pack("<I", 4) + pack("<HI", 0xFFFF, 0) + b"a"),
        (1, pack("<I", 4) + pack("<HI", 0, 2**32 - 1)),
        (1, pack("<I", 4) + entry(b"a", 2, 1)),
        (1, pack("<I", 4) + entry(b"a", 1, 1)),
        (2, pack("<II", 8, 8) + entry(b"a", 1)),
        (2, pack("<II", 8, 4) + entry(b"a", 1)),
        (2, pack("<II", 8, 2**32 - 1) + entry(b"a", 1) + entry(b"b", 2)),
        (2, pack("<II", 8, 8 + 6 + 4 * 100) + pack("<HI", 0, 100)),
        (3, pack("<III", 12, 23, 2000) + entry(b"a", 1) + pack("<HI", 1977 - 6, 0)),
        (3, pack("<III", 12, 1000, 2000) + entry(b"a", 1)),
        (2, pack("<II", 8, 19) + entry(b"b", 1) + entry(b"a", 2)),
        (2, pack("<II", 8, 19) + entry(b"a", 1) + entry(b"a", 2)),
    ],
)
def test_a_body_that_points_anywhere_is_a_bad_frame(tag_count: int, body: bytes) -> None:
    """The checksum is right: a writer's fault, or malice."""
    with pytest.raises(BadFrame):
        use(TagSidecar(sealed(body, tag_count=tag_count)))


@given(
    tag_count=st.integers(0, 4),
    starts=st.lists(st.integers(0, 60), max_size=4),
    rest=st.binary(max_size=40),
)
def test_any_body_under_a_right_checksum_gives_lookups_or_a_bad_frame(
    tag_count: int, starts: list[int], rest: bytes
) -> None:
    try:
        sidecar = TagSidecar(sealed(pack(f"<{len(starts)}I", *starts) + rest, tag_count=tag_count))
        use(sidecar)
    except BadFrame:
        pass


@given(garbage=st.binary(max_size=60))
def test_any_bytes_are_a_sidecar_or_a_documented_error(garbage: bytes) -> None:
    for buffer in (garbage, b"TTAG" + garbage, b"TTAG" + pack("<I", 1) + garbage):
        with pytest.raises(FormatError):
            TagSidecar(buffer)


def test_seqs_that_do_not_ascend_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        tag_sidecar.encode(1, {b"a": [2, 1]})
