"""docs/guarantees.md: each promise names a test that is there, and has a number of its own."""

import re

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "guarantees.md").read_text("utf-8")


def test_the_tests_that_prove_the_guarantees_are_there() -> None:
    names = re.findall(r"`(tests/[a-z0-9_/]+\.py)(?:::([a-z0-9_]+))?", PAGE)
    assert len(names) > 30
    for path, name in names:
        source = REPOSITORY / path
        assert source.exists(), path
        assert not name or f"def {name}(" in source.read_text("utf-8"), f"{path}::{name}"


def test_every_guarantee_has_a_number_of_its_own_and_each_table_is_in_order() -> None:
    tables = [re.findall(r"^\| ([A-Z])(\d+) \|", section, re.MULTILINE) for section in PAGE.split("\n## ")]
    numbers = [(kind, int(number)) for table in tables for kind, number in table]
    assert len(numbers) == len(set(numbers)) > 60
    for table in tables:
        in_order = [int(number) for _, number in table]
        assert in_order == sorted(in_order)


def test_the_short_version_names_promises_that_are_there() -> None:
    short = PAGE[PAGE.index("## In short") : PAGE.index("## How to read")]
    named = re.findall(r"\b([GQR][0-9]+)\b", short)
    assert len(named) > 10
    assert [number for number in named if f"\n| {number} |" not in PAGE] == []
