"""DDL that can be meant, and the place of what cannot."""

import pytest

from topics.spark.errors import BadOption
from topics.spark.shaping.ddl import type_of


@pytest.mark.parametrize(
    "members",
    [
        "id bigint",
        "id: bigint, name string",
        "`a b` int, `c``d` double, ü string",
        "a array<struct<b:int,c:map<string,array<date>>>>, d decimal(10, 2) COMMENT 'it''s, <x>', e DECIMAL",
        "type string, struct int, map array<int>",
        " a\n int ,\n b STRING ",
    ],
)
def test_members_make_a_structure(members: str) -> None:
    assert type_of(members) == f"struct<{members.strip()}>"


@pytest.mark.parametrize(
    "text", ["bigint", " decimal(10,2) ", "struct<a:int>", "ARRAY < map<string, int> >", "Variant"]
)
def test_a_type_is_itself(text: str) -> None:
    assert type_of(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id", "at 'id': must be a type"),
        ("id nonsense", "at 'nonsense': must be a type"),
        ("id int, ", "at '': must be the name of a member"),
        ("id int name string", "at 'name string': must be a comma"),
        ("id int not null", "at 'not null': NOT NULL is refused"),
        ("id array", "at '': array needs <…>"),
        ("id array<int", "at '': a > is missing"),
        ("id map<int,int>", "at 'int,int>': the keys of a map are strings"),
        ("id map<string>", "at '>': must be a comma"),
        ("id decimal(10", "at '': a ) is missing"),
        ("id int COMMENT x", "a comment is a text"),
        ("struct<a:binary>", "at 'binary>': must be a type"),
        ("struct<>", "at '>': must be the name of a member"),
        ("struct<a:int>>", "at '>': nothing can follow the type"),
        ("id $", "cannot be read"),
        ("a " + "array<" * 100, "nested too deeply"),
    ],
)
def test_the_place_of_a_mistake_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadOption) as caught:
        type_of(text)
    assert problem in str(caught.value)
