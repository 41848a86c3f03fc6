"""Bits of slots against sets of places."""

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.topic import slot_bits

COUNT = 70
PLACES = st.sets(st.integers(0, COUNT - 1))


def bits_of(places: set[int]) -> bytearray:
    bits = slot_bits.no_bits(COUNT)
    for place in places:
        slot_bits.set_bit(bits, place)
    return bits


def runs_of(places: set[int]) -> list[tuple[int, int]]:
    firsts = sorted(place for place in places if place - 1 not in places)
    lasts = sorted(place for place in places if place + 1 not in places)
    return list(zip(firsts, lasts, strict=True))


@given(PLACES)
def test_places_and_runs_are_those_of_the_bits(places: set[int]) -> None:
    bits = bits_of(places)
    assert list(slot_bits.places(bits)) == sorted(places)
    assert slot_bits.runs(bits) == runs_of(places)
    assert {place for place in range(COUNT) if slot_bits.has_bit(bits, place)} == places
    marks = bytes(place in places for place in range(COUNT))
    assert slot_bits.runs_of_marks(marks) == runs_of(places)
    assert slot_bits.number_of_marks(marks) == slot_bits.number_of(bits)
    assert slot_bits.number_of_marks(b"") == 0


@given(PLACES, PLACES, st.integers(0, COUNT), st.integers(0, COUNT))
def test_bits_are_merged_cleared_and_cut_out(places: set[int], others: set[int], start: int, end: int) -> None:
    bits, number = bits_of(places), slot_bits.number_of(bits_of(others))
    slot_bits.merge(bits, number)
    assert bits == bits_of(places | others)
    slot_bits.clear(bits, number)
    assert bits == bits_of(places - others)
    start, end = min(start, end), max(start, end)
    inside = {place - start for place in places if start <= place < end}
    assert slot_bits.number_within(bits_of(places), start, end) == slot_bits.number_of(bits_of(inside))
