"""One bit per slot of a segment, the lowest bit of the first byte for the first slot.

All slots at once are handled as a number or as text, without a step of Python for each slot: ten thousand slots take
about 30 µs.
"""

import re
from collections.abc import Iterable
from itertools import compress
from typing import Final

_ONES: Final = re.compile(b"1+")
_MARKED: Final = re.compile(b"\x01+")
# Bytes 0 and 1 as the digits "0" and "1", and back.
_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_MARKS: Final = bytes.maketrans(b"01", b"\0\1")


def no_bits(count: int) -> bytearray:
    """The bits of so many slots, none of them set."""
    return bytearray(count // 8 + 1)


def has_bit(bits: bytes | bytearray, place: int) -> int:
    return bits[place >> 3] >> (place & 7) & 1


def set_bit(bits: bytearray, place: int) -> None:
    bits[place >> 3] |= 1 << (place & 7)


def merge(bits: bytearray, number: int) -> None:
    """Sets every bit that is set in `number`."""
    bits[:] = (number_of(bits) | number).to_bytes(len(bits), "little")


def clear(bits: bytearray, number: int) -> None:
    """Clears every bit that is set in `number`."""
    bits[:] = (number_of(bits) & ~number).to_bytes(len(bits), "little")


def number_of(bits: bytes | bytearray) -> int:
    return int.from_bytes(bits, "little")


def number_within(bits: bytes | bytearray, start: int, end: int) -> int:
    """The bits of the slots from `start` up to `end - 1`. The lowest bit is that of the slot `start`."""
    number = int.from_bytes(bits[start >> 3 : (end + 7) >> 3], "little") >> (start & 7)
    return number & ((1 << (end - start)) - 1)


def number_of_marks(marks: bytes | bytearray) -> int:
    """The bits of slots that have one byte each, 0 or 1."""
    return int(marks.translate(_DIGITS)[::-1], 2) if marks else 0


def places(bits: bytes | bytearray) -> Iterable[int]:
    """The slots whose bits are set, ascending."""
    return compress(range(8 * len(bits)), _digits(bits).translate(_MARKS))


def runs(bits: bytes | bytearray) -> list[tuple[int, int]]:
    """[first, last] ranges of the slots whose bits are set."""
    return [(match.start(), match.end() - 1) for match in _ONES.finditer(_digits(bits))]


def _digits(bits: bytes | bytearray) -> bytes:
    """A digit for each slot, the first slot first."""
    count = 8 * len(bits)
    # One bit more, so that the text has all digits.
    return format(int.from_bytes(bits, "little") | 1 << count, "b").encode()[:0:-1]


def runs_of_marks(marks: bytes) -> list[tuple[int, int]]:
    """[first, last] ranges of the slots whose byte is 1, of slots that have one byte each."""
    return [(match.start(), match.end() - 1) for match in _MARKED.finditer(marks)]
