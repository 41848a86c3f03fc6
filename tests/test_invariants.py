"""Every numbered invariant of the log's contract has a test that says so.

A test cites an invariant in its docstring ("Invariant 45.", "Invariants 1 to 4 and 28.") or in its name, where the same
words are joined by underscores. Only tests count: a rule of a state machine or the head of a file proves nothing alone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parent

# Log 1-10, floors and tombstones 11-21, deletion 22-26, nodes and idempotency 27-29, routers 30-38, durability 39-44,
# queues 45-53, streams 54-57.
INVARIANTS: Final = range(1, 58)

_CITATION: Final = re.compile(r"\binvariants? (\d+(?:(?:, | and | to )\d+)*)", re.IGNORECASE)
_RANGE: Final = re.compile(r"(\d+)(?: to (\d+))?")


def cited(text: str) -> set[int]:
    """The numbers that a name or a docstring cites."""
    numbers: set[int] = set()
    for citation in _CITATION.findall(text.replace("_", " ")):
        for first, last in _RANGE.findall(citation):
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def citations(source: str) -> Iterator[tuple[str, set[int]]]:
    """Each test of a file, and what it cites."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node.name, cited(node.name) | cited(ast.get_docstring(node) or "")


def citers_by_invariant() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__).resolve():
            continue
        source = path.read_text()
        if "nvariant" not in source:  # Spares most files the parser.
            continue
        for name, numbers in citations(source):
            for number in numbers:
                found.setdefault(number, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


def test_every_invariant_is_cited_by_a_test() -> None:
    found = citers_by_invariant()
    missing = [number for number in INVARIANTS if number not in found]
    assert missing == [], "write a test, and say in its docstring: Invariant N."


def test_nobody_cites_an_invariant_that_there_is_not() -> None:
    unknown = {number: tests for number, tests in citers_by_invariant().items() if number not in INVARIANTS}
    assert unknown == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Invariant 45.", {45}),
        ("H14, and invariants 1 to 3, 7 and 28, under load.", {1, 2, 3, 7, 28}),
        ("test_a_job_is_leased_once_invariant_45", {45}),
        ("test_a_source_trim_counts_invariants_33_and_35", {33, 35}),
        ("Invariant 4, and 5 records.", {4}),
        ("It does not vary: 45.", set()),
        ("test_48_bytes", set()),
    ],
)
def test_a_citation_is_the_word_and_its_numbers(text: str, numbers: set[int]) -> None:
    assert cited(text) == numbers


def test_only_tests_count() -> None:
    source = '''
"""Invariant 1."""

def helper():
    """Invariant 2."""

class Machine:
    def rule(self):
        """Invariant 3."""

def test_something():
    """Invariant 4."""
'''
    assert list(citations(source)) == [("test_something", {4})]
