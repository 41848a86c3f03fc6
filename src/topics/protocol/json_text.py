"""Rules for JSON text beyond its syntax, and its one-line form.

The parser (msgspec) checks the syntax. It accepts deep nesting until its stack overflows, bytes that are not UTF-8 in
raw values, and numbers that no reader can hold. The rules for these are here. Each has a cheap test for every request,
and an exact test for the requests that fail the cheap one.
"""

import math
import re
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Final

import msgspec

from topics.errors import InvalidRequest
from topics.formats import kernel
from topics.limits import JSON_DEPTH_MAX

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A number that may overflow has at least five characters: 9e308 is the shortest.
_NUMBER: Final = re.compile(rb"-?[0-9][-+.0-9eE]{4,}")
_NO_BRACKETS: Final = bytes([byte for byte in range(256) if byte not in b"[]{}"])
# An opening bracket counts 1, a closing bracket -1.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_LEVELS_PEELED: Final = 8
_NUMBERS_PER_STEP: Final = 4096
_decode_floats: Final = msgspec.json.Decoder(list[float]).decode


def check_unicode(text: bytes) -> None:
    """Refuses bytes that are not UTF-8."""
    if text.isascii():
        return
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8 at byte {error.start}") from error


def check_numbers(text: bytes) -> None:
    """Refuses numbers in valid JSON text that overflow a double, because readers do not agree on their value.

    Integers may have any length: a reader either holds them, or reports that it cannot.
    """
    if kernel.may_overflow(text):
        for _ in _check_all_numbers(text):
            pass


def check_numbers_in_steps(text: bytes) -> Iterator[None]:
    """The same for long text, with a pause after some thousand numbers."""
    if kernel.may_overflow(text):
        yield
        yield from _check_all_numbers(text)


def _check_all_numbers(text: bytes) -> Iterator[None]:
    matches = _NUMBER.finditer(without_strings(text))
    while numbers := [match[0] for match in islice(matches, _NUMBERS_PER_STEP)]:
        if not _are_finite(numbers):
            raise InvalidRequest("a number overflows a double")
        yield


def _are_finite(numbers: list[bytes]) -> bool:
    try:
        # The parser refuses a list with a number that overflows. That is four times faster than one by one.
        _decode_floats(b"[%b]" % b",".join(numbers))
    except msgspec.DecodeError:
        return not any(math.isinf(float(number)) and not number.lstrip(b"-").isdigit() for number in numbers)
    return True


def check_depth(text: bytes, depth_max: int = JSON_DEPTH_MAX) -> None:
    """Refuses nesting beyond the limit. A text with few brackets cannot be deep, so most texts cost two counts."""
    if text.count(b"[") + text.count(b"{") > depth_max:
        _check_depth_exactly(text, depth_max)


def _check_depth_exactly(text: bytes, depth_max: int) -> None:
    """The text may be invalid JSON; it is refused only if its brackets open deeper than the limit."""
    brackets = without_strings(text).translate(None, _NO_BRACKETS)
    # Each turn removes the innermost pairs, until nothing is left: the fastest way for shallow text.
    for _ in range(min(_LEVELS_PEELED, depth_max)):
        # Removed pairs are marked first: a pair around them belongs to the next turn.
        brackets = brackets.replace(b"[]", b"-").replace(b"{}", b"-").replace(b"-", b"")
        depth_max -= 1
        if not brackets:
            return
    # For deep text the brackets are summed up one by one, because each turn above reads the whole text.
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    if max(accumulate(steps)) > depth_max:
        raise InvalidRequest(f"JSON is nested deeper than {JSON_DEPTH_MAX} levels")


def without_strings(text: bytes) -> bytes:
    return _STRING.sub(b"", text)


def one_line(text: bytes) -> bytes:
    """JSON text without line breaks: unchanged if it has none, otherwise compact."""
    if b"\n" in text or b"\r" in text:
        return msgspec.json.format(text, indent=-1)
    return text


def fitted(text: bytes, bytes_max: int) -> bytes:
    """JSON text, made compact if it is over the limit: the limit counts compact text."""
    return text if len(text) <= bytes_max else msgspec.json.format(text, indent=-1)
