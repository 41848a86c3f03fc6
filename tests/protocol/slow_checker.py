"""The rules of a write's body, checked a second time with the standard parser.

This module uses no code of the server. It checks types and syntax, not limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

DEPTH_MAX = 127
U64_MAX = 2**64 - 1


class Refused(Exception):
    """The rule that the body breaks."""


class Whole(str):
    """A number without point and exponent, as its text."""

    __slots__ = ()


class Broken(str):
    """Any other number."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object."""

    __slots__ = ()


def parse(text: bytes) -> Any:
    """The document, with everything refused that is not strict JSON."""
    try:
        letters = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("not UTF-8") from error
    try:
        document = json.loads(
            letters, object_pairs_hook=Members, parse_int=Whole, parse_float=_number, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error
    for depth, value in _walk(document, 0):
        if depth > DEPTH_MAX:
            raise Refused("too deep")
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise Refused("a lone surrogate")
    return document


def _number(text: str) -> Broken:
    if math.isinf(float(text)):
        raise ValueError("overflows")
    return Broken(text)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _walk(value: Any, depth: int) -> Iterator[tuple[int, Any]]:
    """Every value and every name, with the number of brackets around it, its own included."""
    if isinstance(value, Members):
        yield depth + 1, None
        for name, member in value:
            yield depth + 1, name
            yield from _walk(member, depth + 1)
    elif isinstance(value, list):
        yield depth + 1, None
        for item in value:
            yield from _walk(item, depth + 1)
    else:
        yield depth, value


Test = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return type(value) is str


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_within(smallest: int, largest: int) -> Test:
    return lambda value: isinstance(value, Whole) and smallest <= int(value) <= largest


def is_one_of(*choices: str) -> Test:
    return lambda value: is_text(value) and value in choices


def or_null(test: Test) -> Test:
    return lambda value: value is None or test(value)


_is_u64 = is_within(0, U64_MAX)

CONFIG: dict[str, Test] = {
    "type": is_one_of("log", "queue"),
    "ttl_ms": _is_u64,
    "cap_records": _is_u64,
    "cap_bytes": _is_u64,
    "discard": is_one_of("old", "reject"),
    "durable": is_bool,
    "durability": or_null(is_one_of("ephemeral", "memory", "disk", "fsync")),
    "priority": or_null(is_within(-(2**31), 2**31 - 1)),
    "auto_priority": is_bool,
    "auto_create": is_bool,
    "idempotency_window_ms": _is_u64,
    "dedupe_node": is_bool,
    "lease_ms": _is_u64,
    "claim_jitter_ms": _is_u64,
    "max_deliveries": _is_u64,
    "dead_letter": or_null(is_text),
    "leases_durable": is_bool,
}


def is_config(value: Any) -> bool:
    _check_members(value, CONFIG)
    return True


def is_record(value: Any) -> bool:
    given = _check_members(
        value, {"data": lambda _: True, "meta": lambda _: True, "tag": or_null(is_text), "node": or_null(is_text)}
    )
    return "data" in given


def is_records(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, Members) and all(is_record(item) for item in value)


WRITE: dict[str, Test] = {
    "records": is_records,
    "node": or_null(is_text),
    "idempotency_key": or_null(is_text),
    "create": or_null(is_bool),
    "config": or_null(is_config),
    "disable_backpressure": is_bool,
}


def _check_members(value: Any, tests: dict[str, Test]) -> set[str]:
    """The known members that are given, each once and of its type."""
    if not isinstance(value, Members):
        raise Refused("not an object")
    given: set[str] = set()
    for name, member in value:
        if name in tests:
            if name in given:
                raise Refused(f"{name} twice")
            if not tests[name](member):
                raise Refused(f"{name} is of another type")
            given.add(name)
    return given


def check_write(text: bytes) -> None:
    if "records" not in _check_members(parse(text), WRITE):
        raise Refused("no records")


def compact(text: bytes) -> bytes:
    """JSON text without the blanks between its tokens."""
    kept = bytearray()
    in_string = is_escaped = False
    for byte in text:
        if in_string:
            in_string = is_escaped or byte != ord('"')
            is_escaped = not is_escaped and byte == ord("\\")
        elif byte in b" \t\r\n":
            continue
        else:
            in_string = byte == ord('"')
        kept.append(byte)
    return bytes(kept)
