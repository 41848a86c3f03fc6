"""The index of a segment of messages: fixed bytes, round trips, and how many entries are in order."""

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.message_index import (
    ENTRY,
    ENTRY_BYTES,
    OFFSET_MAX,
    POSITION_MAX,
    decode_entries,
    make_entries,
)

TIMESTAMP: Final = 1_700_000_000_000_000
rows: Final = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


def entries_of(rows: list[tuple[int, int, int]]) -> bytes:
    return np.array(rows, dtype=ENTRY).tobytes()


def test_entries_have_the_documented_bytes() -> None:
    entries = make_entries(0, np.array([69, 155]), np.full(2, TIMESTAMP, dtype=np.uint64))
    assert entries[:1].tobytes().hex(" ", -4) == "00000000 45000000 00401e18 240a0600"
    assert entries[1:].tobytes().hex(" ", -4) == "01000000 9b000000 00401e18 240a0600"
    assert ENTRY_BYTES == ENTRY.itemsize == 16


@given(written=st.lists(rows, max_size=6), rest=st.integers(0, 15))
def test_entries_come_back_and_a_part_of_one_does_not(written: list[tuple[int, int, int]], rest: int) -> None:
    assert decode_entries(entries_of(written) + bytes(rest)).tolist() == written


def test_entries_reach_the_last_position_and_offset() -> None:
    entries = make_entries(OFFSET_MAX, np.array([POSITION_MAX]), np.array([2**64 - 1], dtype=np.uint64))
    assert entries.tolist() == [(2**32 - 1, 2**32 - 1, 2**64 - 1)]


@pytest.mark.parametrize(("first_offset", "position"), [(OFFSET_MAX + 1, 64), (-1, 64), (0, POSITION_MAX + 1)])
def test_numbers_that_would_wrap_are_a_bug_of_the_caller(first_offset: int, position: int) -> None:
    with pytest.raises(AssertionError):
        make_entries(first_offset, np.array([position]), np.zeros(1, dtype=np.uint64))
