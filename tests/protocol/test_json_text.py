"""JSON text: depth, numbers, letters, lines."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.slow_checker import compact
from topics.errors import InvalidRequest
from topics.protocol.json_text import check_depth, check_numbers, check_unicode, fitted, one_line

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}\\"a\n', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("[]{a", max_size=2), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def is_refused(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except InvalidRequest:
        return True
    return False


@given(json_values, st.integers(1, 8), st.sampled_from([None, 2]))
def test_depth_is_counted_exactly(value: Any, depth_max: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert is_refused(check_depth, text, depth_max) == (depth_of(value) > depth_max)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (b"[" * 127 + b"]" * 127, False),
        (b"[" * 128 + b"]" * 128, True),
        (b'{"a":' * 127 + b"1" + b"}" * 127, False),
        (b'[{"a":' * 64 + b"1" + b"}]" * 64, True),
        (b"[" + b",".join([b"[]"] * 1000) + b"]", False),
        (b'"' + b"[" * 1000 + b'"', False),
        (b'["' + b'\\"[' * 1000 + b'"]', False),
        (b"[" * 128, True),
        (b"[" * 1_000_000, True),
    ],
    ids=["127", "128", "127 objects", "128 of both", "wide", "in a string", "behind quotes", "never closed", "endless"],
)
def test_the_limit_of_depth(text: bytes, refused: bool) -> None:
    assert is_refused(check_depth, text) == refused


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (b"1e308", False),
        (b"1e309", True),
        (b"9e308", True),
        (b"[1,9e308]", True),
        (b"[9e307,12,-9e308]", True),
        (b"-1e309", True),
        (b"1E+309", True),
        (b"1e+0309", True),
        (b"0.0000001e316", True),
        (b"0.0000001e315", False),
        (b"0e999999", False),
        (b"0.000e400", False),
        (b"1e-999", False),
        (b"1" + b"0" * 308, False),
        (b"1" + b"0" * 400, False),
        (b"-1" + b"0" * 400, False),
        (b"1" + b"0" * 309 + b".0", True),
        (b"1" + b"0" * 220 + b"e99", True),
        (b"1" + b"0" * 208 + b"e99", False),
        (b"0." + b"0" * 400 + b"1", False),
        (b"0." + b"0" * 400 + b"1e701", False),
        (b"0." + b"0" * 400 + b"1e800", True),
        (b'"1e400"', False),
        (b'["\\"1e400",2]', False),
        (b'["a",1e400]', True),
        (b'{"1e400":1}', False),
        (b'{"e000":1}', False),
        (b"[1,2e400]", True),
        (b"1.7976931348623157e308", False),
        (b"1.7976931348623159e308", True),
    ],
)
def test_numbers_that_overflow_a_double(text: bytes, refused: bool) -> None:
    assert is_refused(check_numbers, text) == refused


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,320})(\.[0-9]{1,320})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_any_number_is_judged_by_what_a_double_holds(number: str) -> None:
    overflows = not number.lstrip("-").isdigit() and float(number) in (float("inf"), float("-inf"))
    assert is_refused(check_numbers, number.encode()) == overflows
    assert is_refused(check_numbers, b'{"e000":[' + number.encode() + b',"1e999"]}') == overflows


@given(st.binary(max_size=20))
def test_text_is_utf8_or_refused(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        assert is_refused(check_unicode, text)
    else:
        check_unicode(text)


@given(json_values, st.sampled_from([None, 0, 2]), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_line_is_compact_only_when_it_was_broken(value: Any, indent: int | None, line_break: str) -> None:
    text = json.dumps(value, indent=indent).replace("\n", line_break).encode()
    line = one_line(text)
    assert b"\n" not in line
    assert b"\r" not in line
    assert line == (text if line_break.encode()[-1:] not in text else compact(text))


@given(json_values, st.integers(0, 60))
def test_text_over_the_limit_is_compact(value: Any, bytes_max: int) -> None:
    text = json.dumps(value, indent=1).encode()
    assert fitted(text, bytes_max) == (text if len(text) <= bytes_max else compact(text))
