"""Predicates over tags."""

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.protocol.body_decoder import DELETE_DECODER
from topics.protocol.tag_match import TagMatch


def parsed(form: str) -> TagMatch:
    """The predicate of a delete body with this `match`."""
    body = DELETE_DECODER.decode(b'{"match":%b}' % form.encode())
    return TagMatch.parse(body.match)


@pytest.mark.parametrize(
    ("form", "text", "is_prefix"),
    [
        ('"v"', "v", False),
        ('""', "", False),
        ('"p*"', "p", True),
        ('"*"', "", True),
        ('"a*b"', "a*b", False),
        ('"a**"', "a*", True),
        ('["tag","Eq","v"]', "v", False),
        ('["tag","Eq","p*"]', "p*", False),
        ('["tag","Eq",""]', "", False),
        ('["tag","Glob","p*"]', "p", True),
        ('["tag","Glob","*"]', "", True),
        ('["tag","Glob","a*b*"]', "a*b", True),
        ('["t\\u0061g","Eq","\\u00e9"]', "é", False),
        ('[ "tag" , "Eq" , "v" ]', "v", False),
    ],
)
def test_the_forms_of_a_predicate(form: str, text: str, is_prefix: bool) -> None:
    assert parsed(form) == TagMatch(text, is_prefix)


@pytest.mark.parametrize(
    "form",
    [
        "[]",
        '["tag"]',
        '["tag","Eq"]',
        '["tag","Eq","v","w"]',
        '["node","Eq","v"]',
        '["Tag","Eq","v"]',
        '["tag","eq","v"]',
        '["tag","Like","v"]',
        '["tag","Glob","v"]',
        '["tag","Glob",""]',
        '["tag","Eq",1]',
        '["tag","Eq",null]',
        '["tag",["Eq"],"v"]',
        '[{"tag":1},"Eq","v"]',
        "[1,2,3]",
    ],
)
def test_anything_else_is_refused(form: str) -> None:
    with pytest.raises(InvalidRequest):
        parsed(form)


def test_raw_parts_may_be_given_directly() -> None:
    assert TagMatch.parse([msgspec.Raw(b'"tag"'), msgspec.Raw(b'"Eq"'), msgspec.Raw(b'"v"')]) == TagMatch("v", False)
