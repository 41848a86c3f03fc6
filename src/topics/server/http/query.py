"""Query parameters. The last value of a repeated parameter counts, and an invalid value counts as absent."""

from typing import Final
from urllib.parse import parse_qsl

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
        """A whole number of at least 0, in ASCII digits."""
        value = self._values.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else default
