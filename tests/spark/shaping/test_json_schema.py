"""JSON Schemas as DDL."""

from typing import Any

import pytest

from topics.spark.errors import BadOption
from topics.spark.shaping.json_schema import ddl_of


@pytest.mark.parametrize(
    ("document", "ddl"),
    [
        ({"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}},
         "struct<`id`:bigint,`at`:timestamp>"),
        ({"properties": {"a": {"type": ["null", "number"]}}, "required": ["a"]}, "struct<`a`:double>"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "map<string,boolean>"),
        ({"type": "array", "items": {"$ref": "#/$defs/day"}, "$defs": {"day": {"type": "string", "format": "date"}}},
         "array<date>"),
        ({"anyOf": [{"type": "null"}, {"enum": ["a", "b", None]}]}, "string"),
        ({"type": ["integer", "number"]}, "double"),
        ({"const": True}, "boolean"),
    ],
)  # fmt: skip
def test_a_json_schema_is_ddl(document: Any, ddl: str) -> None:
    assert ddl_of(document, "orders.json") == ddl


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "# says nothing about its type"),
        ({"type": "object"}, "# is an object without properties"),
        ({"properties": {"a": {}}}, "#/properties/a says nothing about its type"),
        ({"type": ["string", "integer"]}, "# has several types"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "# has several types in oneOf"),
        ({"type": "text"}, "# has the type 'text'"),
        ({"$ref": "other.json"}, "refers to another document"),
        ({"$ref": "#/$defs/x"}, "which is not there"),
        ({"$ref": "#"}, "refers to itself"),
    ],
)
def test_a_place_without_a_type_is_named(document: Any, problem: str) -> None:
    with pytest.raises(BadOption) as caught:
        ddl_of(document, "orders.json")
    assert str(caught.value).startswith("orders.json: ")
    assert problem in str(caught.value)
