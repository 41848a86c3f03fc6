"""How an option of a job is declared: a member of a dataclass, with what the command line needs beside its type.

    chunk_bytes: Annotated[int, About("Input of one commit.", "SIZE", flag="--chunk", form=SIZE)] = 128 * MIB

The member gives type and default. `About` gives the flag, the help text and the bounds. Its form says how the value is
written as text. A member without an `About` is for callers in Python only.

The command line reads the declarations before it knows which command it will run. So this module imports nothing
heavy, and no library for command lines.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Final, get_args, get_origin

from topics.limits import KIB, MIB
from topics.spark.option_values import size_bytes


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written as text.

    `parse` raises `ValueError` with what the text must be, as a sentence without its subject: the flag is the subject.
    `show` is the opposite of `parse`. An option with `collect` may be repeated; `collect` makes one value of all.
    """

    parse: Callable[[str], Any] = str
    show: Callable[[Any], str] = str
    collect: Callable[[Iterable[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class About:
    """What the type and the default of a member do not say."""

    help: str
    metavar: str | None = None
    _: KW_ONLY
    # By default the name of the member, with dashes.
    flag: str | None = None
    form: Form | None = None
    smallest: float | None = None
    largest: float | None = None
    # The value is given by its place in the command, without a flag.
    is_argument: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """One member that the command line offers. `default` is `MISSING` when the member must be given."""

    name: str
    kind: Any
    about: About
    default: Any

    @property
    def flag(self) -> str:
        return self.about.flag or "--" + self.name.replace("_", "-")

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def parse(self, given: Any) -> Any:
        """The value of the member, from what the command line gave. Raises `ValueError` with a whole sentence."""
        form = self.about.form
        if form is None or given is None:
            return given
        try:
            if form.collect is not None:
                return form.collect([form.parse(text) for text in given])
            return form.parse(given)
        except ValueError as error:
            raise ValueError(f"{self.flag} {error}") from error


def declared_options(kind: type[Any]) -> Iterator[DeclaredOption]:
    """The members of a dataclass that have an `About`, in the order of the declaration."""
    for member in fields(kind):
        if get_origin(member.type) is not Annotated:
            continue
        declared, about = get_args(member.type)
        default = member.default if member.default_factory is MISSING else member.default_factory()
        yield DeclaredOption(member.name, declared, about, default)


def plain_type(kind: Any) -> Any:
    """The type without `None`: `str` of `str | None`."""
    if isinstance(kind, UnionType):
        return next(each for each in get_args(kind) if each is not NoneType)
    return kind


# Forms.


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"takes NAME=VALUE, not {text!r}")
    return name, value


def _option_of_view(text: str) -> tuple[str, str, str]:
    name, value = _name_and_value(text)
    view, dot, option = name.partition(".")
    if not dot:
        raise ValueError(f"takes VIEW.NAME=VALUE, not {text!r}")
    return view, option, value


def _by_view(options: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for view, option, value in options:
        found.setdefault(view, {})[option] = value
    return found


def _with_unit(value: int, units: dict[str, int]) -> str:
    """The shortest text: with the largest unit that divides the value."""
    unit = next((unit for unit in reversed(units) if value and value % units[unit] == 0), "")
    return f"{value // units[unit] if unit else value}{unit}"


_SIZE_UNITS: Final = {"k": KIB, "m": MIB, "g": 1024 * MIB}
_AGE_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _age_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)?", text)
    if match is None:
        raise ValueError("must be a number with or without a unit, such as 12h or 7d")
    return int(match[1]) * _AGE_UNITS[match[2] or "ms"]


def _time_ms(text: str) -> int:
    from datetime import datetime

    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("must be milliseconds or ISO 8601, such as 2026-01-31T08:00:00Z") from error
    if moment.tzinfo is None:
        raise ValueError(f"must have a time zone, such as {text}Z")
    return round(moment.timestamp() * 1000)


def _json_object(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError("must be a JSON object") from error


# Any text; the option may be repeated.
TEXTS: Final = Form(collect=tuple)
# `64m`, `512k`, or a number of bytes.
SIZE: Final = Form(size_bytes, lambda value: _with_unit(value, _SIZE_UNITS))
# `30s`, `12h`, `7d`, or a number of milliseconds.
AGE: Final = Form(_age_ms, lambda value: _with_unit(value, _AGE_UNITS))
# Milliseconds, or ISO 8601 with a time zone.
TIME: Final = Form(_time_ms)
JSON_OBJECT: Final = Form(_json_object)
# `NAME=VALUE`, as a mapping and as pairs.
MAPPING: Final = Form(_name_and_value, collect=dict)
PAIRS: Final = Form(_name_and_value, collect=tuple)
# `VIEW.NAME=VALUE`, as a mapping for each view.
OPTIONS_BY_VIEW: Final = Form(_option_of_view, collect=_by_view)
