"""Values of options, of reads and of writes: text in, a typed value out.

Each raises `ValueError` with what the value must be, as a sentence without its subject: the caller adds the name.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from topics.limits import KIB, MIB

# The environment variable that names the server where no option does.
ENDPOINT_VARIABLE: Final = "TOPICS_URL"
EXAMPLE_ENDPOINT: Final = "http://localhost:4000"
NO_ENDPOINT: Final = f"no server: give `endpoint`, or set {ENDPOINT_VARIABLE} on the driver, such as {EXAMPLE_ENDPOINT}"


def text_of(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def any_text(value: str) -> str:
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value.lower()

    return parse


def flag(value: str) -> bool:
    return one_of("true", "false")(value) == "true"


def count(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < least:
            raise ValueError(f"must be a whole number, at least {least}")
        return int(value)

    return parse


def with_unit(units: Mapping[str, int], example: str) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in units or not int(match[1]):
            raise ValueError(f"must be a number above 0 with or without a unit, such as {example}")
        return int(match[1]) * units[match[2]]

    return parse


size_bytes: Final = with_unit({"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB, "g": 1024 * MIB}, "64m")
duration_ms: Final = with_unit({"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}, "15m")


def name_list(value: str) -> tuple[str, ...]:
    found = [name.strip() for name in value.split(",")]
    if not all(found):
        raise ValueError("must be a comma-separated list without empty entries")
    return tuple(dict.fromkeys(found))
