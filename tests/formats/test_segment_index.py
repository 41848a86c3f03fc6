"""The index of a segment: entries come back, and an index that cannot be right is recognised."""

from struct import pack
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.strategies import flip, flips, u64
from topics.errors import BadFrame
from topics.formats import segment_index
from topics.formats.segment_index import ENTRY_BYTES, IndexEntry

u32: Final = st.sampled_from((0, 1, 2**31, 2**32 - 1)) | st.integers(0, 2**32 - 1)
entries: Final = st.builds(IndexEntry, u32, u32, u64, st.integers(0, 255))

# Three frames with a hole before the last one.
GOOD: Final = [(0, 40, 5, 1), (40, 38, 6, 128), (78, 0, 6, 0), (78, 50, 7, 3)]
GOOD_DATA_BYTES: Final = 128


def check(buffer: bytes) -> None:
    segment_index.check(buffer, entry_count=len(GOOD), data_bytes=GOOD_DATA_BYTES)


def test_an_entry_has_the_documented_layout() -> None:
    assert segment_index.encode([(1, 2, 3, 131)]) == pack("<IIQB", 1, 2, 3, 131) + bytes(3)


@given(written=st.lists(entries, max_size=5))
def test_entries_come_back(written: list[IndexEntry]) -> None:
    buffer = segment_index.encode(written)
    assert len(buffer) == len(written) * ENTRY_BYTES
    assert list(segment_index.decode(buffer)) == written
    assert [segment_index.entry_at(buffer, place) for place in range(len(written))] == written


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_entries(make: type[bytes]) -> None:
    buffer = make(segment_index.encode(GOOD))
    assert list(segment_index.decode(buffer)) == GOOD
    assert segment_index.entry_at(buffer, 3) == GOOD[3]
    check(buffer)


@given(buffer=st.binary(max_size=70), index=st.integers(-3, 2**70))
def test_any_bytes_are_entries_or_a_bad_frame(buffer: bytes, index: int) -> None:
    try:
        decoded = list(segment_index.decode(buffer))
    except BadFrame:
        assert len(buffer) % ENTRY_BYTES
    else:
        assert len(decoded) == len(buffer) // ENTRY_BYTES
    try:
        segment_index.entry_at(buffer, index)
    except BadFrame:
        assert not 0 <= index < len(buffer) // ENTRY_BYTES
    with pytest.raises(BadFrame):
        segment_index.check(buffer, entry_count=3, data_bytes=114)


def test_an_index_with_holes_agrees_with_its_data() -> None:
    check(segment_index.encode(GOOD))
    segment_index.check(b"", entry_count=0, data_bytes=0)
    segment_index.check(bytes(40), entry_count=2, data_bytes=0)


def test_c02_c03_an_index_that_is_longer_or_shorter_than_it_should_be_is_refused() -> None:
    """By whole entries or parts of one, or with entries twice."""
    buffer = segment_index.encode(GOOD)
    for size in range(len(buffer)):
        with pytest.raises(BadFrame):
            check(buffer[:size])
    for longer in (buffer + bytes(20), buffer + buffer[-20:], buffer + buffer):
        with pytest.raises(BadFrame):
            check(longer)
        with pytest.raises(BadFrame):
            segment_index.check(longer, entry_count=len(longer) // 20, data_bytes=GOOD_DATA_BYTES + 1)
    with pytest.raises(BadFrame):
        check(buffer[:20] + buffer[:20] + buffer[40:])


def test_b06_c04_zeros_do_not_pass_for_the_entry_of_a_frame() -> None:
    """An index whose size reached the disk before its content."""
    buffer = segment_index.encode(GOOD)
    for place, entry in enumerate(GOOD):
        if entry[1]:
            at = place * ENTRY_BYTES
            with pytest.raises(BadFrame):
                check(buffer[:at] + bytes(ENTRY_BYTES) + buffer[at + ENTRY_BYTES :])
    for at in range(0, len(buffer), ENTRY_BYTES):
        with pytest.raises(BadFrame):
            check(buffer[:at] + bytes(len(buffer) - at))


@given(data=st.data())
def test_any_flipped_byte_gives_an_error_or_the_same_frames(data: st.DataObject) -> None:
    """Times, the hint and the place of a hole are not under any check: they are derived from the frames."""
    position, bits = data.draw(flips(len(GOOD) * ENTRY_BYTES))
    buffer = flip(segment_index.encode(GOOD), position, bits)
    try:
        check(buffer)
    except BadFrame:
        return
    found = list(segment_index.decode(buffer))
    assert [entry[:2] for entry in found if entry.length] == [entry[:2] for entry in GOOD if entry[1]]


@pytest.mark.parametrize("length", [1, 37])
def test_an_entry_shorter_than_any_frame_is_refused(length: int) -> None:
    buffer = segment_index.encode([(0, length, 1, 0)])
    with pytest.raises(BadFrame, match=f"index entry 0 has a frame of {length} bytes at 0, expected at 0"):
        segment_index.check(buffer, entry_count=1, data_bytes=length)


@pytest.mark.parametrize(("position", "bits"), [(16, 4), (16, 64), (17, 1), (18, 1), (19, 128)])
def test_an_unknown_flag_or_anything_but_zeros_behind_the_flags_is_refused(position: int, bits: int) -> None:
    with pytest.raises(BadFrame, match="index entry 0 has unknown flags"):
        check(flip(segment_index.encode(GOOD), position, bits))
