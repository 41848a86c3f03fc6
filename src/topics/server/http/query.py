"""Query parameters. The last value of a repeated parameter counts, and an invalid value counts as absent."""

from typing import Final
from urllib.parse import parse_qsl

from topics.limits import U64_MAX

U64_DIGITS: Final = 20
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


class Query:
    __slots__ = ("_pairs", "_values")

    def __init__(self, text: bytes) -> None:
        self._pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, errors="replace") if text else []
        self._values = dict(self._pairs)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def first(self, name: str) -> str | None:
        """The first value of a parameter: only for `token`."""
        return next((value for given, value in self._pairs if given == name), None)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name)
        return default if value is None else _BOOLEANS.get(value, default)

    def count(self, name: str, default: int) -> int:
        """A whole number from 0 to 2**64 - 1, in ASCII digits."""
        value = self._values.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) <= U64_DIGITS):
            return default
        number = int(value)
        return number if number <= U64_MAX else default
