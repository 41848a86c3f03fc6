"""JSON text as bytes: what must hold beyond its syntax, and its one-line form.

The parser (msgspec) checks the syntax. It does not mind nesting until its stack ends, bytes that are not UTF-8
inside raw values, or numbers that no reader could hold. Those rules are here, each with a test that is cheap
enough to run on every request and an exact one behind it.
"""

import math
import re
from itertools import accumulate
from typing import Final

import msgspec

from topics.errors import InvalidRequest
from topics.limits import JSON_DEPTH_MAX

# A number beyond a double has an exponent of three digits, or so many digits that two are enough. Looked for
# with all digits made equal, which is ten times faster than a pattern.
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT: Final = b"e000"
_LONG_NUMBER: Final = b"0" * 200
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# Of those that can overflow: 9e308 is the shortest.
_NUMBER: Final = re.compile(rb"-?[0-9][-+.0-9eE]{4,}")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
# One up, one down.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_LEVELS_PEELED: Final = 8


def check_unicode(text: bytes) -> None:
    """Refuses bytes that are not UTF-8."""
    if text.isascii():
        return
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8 at byte {error.start}") from error


def check_numbers(text: bytes) -> None:
    """Refuses numbers in valid JSON text that overflow a double: no two readers agree on what they are.

    Integers may have any length: readers know those, or say that they do not.
    """
    alike = text.translate(_DIGITS_ALIKE, b"+")
    if _LONG_EXPONENT not in alike and _LONG_NUMBER not in alike:
        return
    for number in _NUMBER.findall(_STRING.sub(b"", text)):
        if math.isinf(float(number)) and not number.lstrip(b"-").isdigit():
            raise InvalidRequest("a number overflows a double")


def check_depth(text: bytes, depth_max: int = JSON_DEPTH_MAX) -> None:
    """Refuses nesting beyond the limit. A text with few brackets cannot be deep, and costs two counts."""
    if text.count(b"[") + text.count(b"{") > depth_max:
        _check_depth_exactly(text, depth_max)


def _check_depth_exactly(text: bytes, depth_max: int) -> None:
    """Text that is no JSON may pass, but not if its brackets open deeper than the limit from its start on."""
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    # The innermost pairs go, one level a turn, until nothing is left: the fastest way for shallow text.
    for _ in range(min(_LEVELS_PEELED, depth_max)):
        # Marked first: a pair that encloses only pairs of this turn belongs to the next one.
        brackets = brackets.replace(b"[]", b"-").replace(b"{}", b"-").replace(b"-", b"")
        depth_max -= 1
        if not brackets:
            return
    # Deep text is added up, one bracket after the other: its levels would be gone through in full each turn.
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    if max(accumulate(steps)) > depth_max:
        raise InvalidRequest(f"JSON is nested deeper than {JSON_DEPTH_MAX} levels")


def one_line(text: bytes) -> bytes:
    """JSON text without line breaks: as it is when it has none, else compact."""
    if b"\n" in text or b"\r" in text:
        return msgspec.json.format(text, indent=-1)
    return text


def fitted(text: bytes, bytes_max: int) -> bytes:
    """JSON text that is over the limit as it was sent, compact: that is what the limit is about."""
    return text if len(text) <= bytes_max else msgspec.json.format(text, indent=-1)
