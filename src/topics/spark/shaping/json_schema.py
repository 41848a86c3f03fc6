"""A JSON Schema as DDL of Spark. Pure.

Only what says something about types is read: `type`, `properties`, `items`, `additionalProperties`, `format`, `enum`,
`const`, `$ref` inside the document, and `anyOf` or `oneOf` with one type beside null. `required` and bounds are not: a
record that lacks a member or is out of bounds still has its type.
"""

from collections.abc import Mapping
from typing import Any, Final

from topics.spark.errors import BadOption
from topics.spark.shaping.infer import quoted

_DEPTH_MAX: Final = 32
_SCALARS: Final = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
_FORMATS: Final = {"date-time": "timestamp", "date": "date"}


def ddl_of(document: Any, where: str) -> str:
    """Raises `BadOption` with the place in the document that has no type of Spark. `where` names the document."""
    return _Reader(document, where).ddl(document, "#", 0)


class _Reader:
    def __init__(self, document: Any, where: str) -> None:
        self._document = document
        self._where = where

    def ddl(self, node: Any, place: str, depth: int) -> str:
        if depth > _DEPTH_MAX:
            raise BadOption(f"{self._where}: {place} is nested too deeply, or refers to itself")
        if not isinstance(node, Mapping):
            raise self._problem(place, "says nothing about its type")
        if "$ref" in node:
            return self.ddl(self._resolve(str(node["$ref"]), place), str(node["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf"):
            if name in node:
                choices = [choice for choice in node[name] if choice != {"type": "null"}]
                if len(choices) != 1:
                    raise self._problem(place, f"has several types in {name}")
                return self.ddl(choices[0], f"{place}/{name}", depth + 1)
        return self._typed(node, self._type(node, place), place, depth)

    def _type(self, node: Mapping[str, Any], place: str) -> str:
        given = node.get("type")
        if given is None:
            values = node.get("enum", [node["const"]] if "const" in node else [])
            names = {_name_of(value) for value in values} - {"null"}
            if not names and "properties" in node:
                names = {"object"}
        else:
            names = set(given if isinstance(given, list) else [given]) - {"null"}
        if names == {"integer", "number"}:
            names = {"number"}
        if len(names) != 1:
            raise self._problem(place, "has several types" if names else "says nothing about its type")
        return str(names.pop())

    def _typed(self, node: Mapping[str, Any], name: str, place: str, depth: int) -> str:
        if name == "array":
            return f"array<{self.ddl(node.get('items'), f'{place}/items', depth + 1)}>"
        if name == "object":
            members = node.get("properties") or {}
            if members:
                parts = (
                    f"{quoted(str(member))}:{self.ddl(of, f'{place}/properties/{member}', depth + 1)}"
                    for member, of in members.items()
                )
                return f"struct<{','.join(parts)}>"
            rest = node.get("additionalProperties")
            if not isinstance(rest, Mapping):
                raise self._problem(place, "is an object without properties")
            return f"map<string,{self.ddl(rest, f'{place}/additionalProperties', depth + 1)}>"
        if name == "string":
            return _FORMATS.get(str(node.get("format")), "string")
        if name not in _SCALARS:
            raise self._problem(place, f"has the type {name!r}, which JSON Schema does not know")
        return _SCALARS[name]

    def _resolve(self, reference: str, place: str) -> Any:
        if not reference.startswith("#"):
            raise self._problem(place, f"refers to another document, {reference}")
        node = self._document
        for step in filter(None, reference[1:].split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or key not in node:
                raise self._problem(place, f"refers to {reference}, which is not there")
            node = node[key]
        return node

    def _problem(self, place: str, what: str) -> BadOption:
        return BadOption(f"{self._where}: {place} {what}; give the schema as DDL")


def _name_of(value: Any) -> str:
    """The type of a value of `enum` or `const`."""
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
