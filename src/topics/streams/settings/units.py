"""Sizes, durations and other values of settings, as people write them.

A size is a number and a unit (`KB` = 1000, `KiB` = 1024; case and spaces do not matter). A plain number is bytes.

A duration is one or more numbers with units (`1 m`, `2 days 4 hours`); `0`, `none`, `disabled` and `unlimited` are
zero. As the expiry of topics, zero and `never_expire` mean that nothing expires. A number without a unit, other than 0,
is refused as a duration: some readers would take it for seconds and others for milliseconds.

A month has 30.44 days and a year 365.25, as in the tools that users of Apache Iggy 0.8.0 know. Fractions of a
microsecond and of a byte are dropped.

Every function raises `ValueError` with what the value must be, such as `a whole number`.
"""

import re
from fractions import Fraction
from typing import Final

from topics.limits import U64_MAX

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US

# No limit and no expiry, as topics store them.
UNLIMITED: Final = U64_MAX

_SIZE: Final = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)
_SIZE_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
}

_DURATION_PART: Final = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµ]+)")
_DAY_US: Final = 24 * 60 * MINUTE_US
_DURATION_UNITS: Final[dict[str, Fraction]] = {
    unit: Fraction(us)
    for units, us in (
        (("ns", "nsec", "nanos"), Fraction(1, 1000)),
        (("us", "µs", "usec", "micros"), 1),
        (("ms", "msec", "millis"), 1000),
        (("s", "sec", "secs", "second", "seconds"), SECOND_US),
        (("m", "min", "mins", "minute", "minutes"), MINUTE_US),
        (("h", "hr", "hrs", "hour", "hours"), 60 * MINUTE_US),
        (("d", "day", "days"), _DAY_US),
        (("w", "wk", "week", "weeks"), 7 * _DAY_US),
        (("M", "month", "months"), Fraction("30.44") * _DAY_US),
        (("y", "yr", "year", "years"), Fraction("365.25") * _DAY_US),
    )
    for unit in units
}
_ZERO_WORDS: Final = frozenset({"0", "none", "disabled", "unlimited"})
_NEVER_WORDS: Final = _ZERO_WORDS | {"never_expire", "never"}


def parse_size(value: int | str) -> int:
    """Bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError('a size, such as "1 GiB", "500 MB" or a number of bytes')
    return int(Fraction(match[1]) * unit)


def parse_duration_us(value: int | str) -> int:
    """Microseconds."""
    if value == 0 and not isinstance(value, bool):
        return 0
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() in _ZERO_WORDS:
        return 0
    total, at = Fraction(0), 0
    while match := _DURATION_PART.match(text, at):
        unit = _DURATION_UNITS.get(match[2]) or _DURATION_UNITS.get(match[2].lower())
        if unit is None:
            break
        total += Fraction(match[1]) * unit
        at = match.end()
    if at == 0 or text[at:].strip():
        raise ValueError('a duration, such as "30 s", "1 m" or "2 days 4 hours"')
    return int(total)


def parse_expiry_us(value: int | str) -> int:
    """Microseconds, or `UNLIMITED` when nothing expires, as topics store it."""
    if isinstance(value, str) and value.strip().lower() in _NEVER_WORDS:
        return UNLIMITED
    return parse_duration_us(value) or UNLIMITED


def parse_topic_size(value: int | str) -> int:
    """Bytes, or `UNLIMITED`, as topics store it."""
    if isinstance(value, str) and value.strip().lower() in ("unlimited", "none"):
        return UNLIMITED
    return parse_size(value)


def parse_flag(value: object) -> bool:
    """A flag of TOML, or the word that an environment variable has."""
    if isinstance(value, bool):
        return value
    if value in ("true", "1"):
        return True
    if value in ("false", "0"):
        return False
    raise ValueError("true or false")


def parse_count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,20}\s*", value, re.ASCII):
        return int(value)
    raise ValueError("a whole number")


def parse_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("text")


def parse_choice(options: tuple[str, ...], value: object) -> str:
    text = value.lower() if isinstance(value, str) else value
    if text in options:
        return str(text)
    raise ValueError("one of " + ", ".join(f'"{option}"' for option in options))
