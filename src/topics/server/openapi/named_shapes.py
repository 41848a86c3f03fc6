"""Schemas that several bodies share, with a name of their own, in forms that code generators understand."""

from typing import Any, Final

_REF: Final = "#/components/schemas/"
SEQ_RANGE: Final = "SeqRange"
TAG_MATCH: Final = "TagMatch"

_TEXT: Final = {"type": "string"}
TAG_MATCH_SCHEMA: Final[dict[str, Any]] = {
    "title": TAG_MATCH,
    "description": 'A tag (`"v"`, `["tag","Eq","v"]`) or a prefix of tags (`"p*"`, `["tag","Glob","p*"]`).',
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, _TEXT],
            "items": _TEXT,
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": "\\*$"}],
            "items": _TEXT,
            "minItems": 3,
            "maxItems": 3,
        },
    ],
}


def ref_to(name: str) -> dict[str, str]:
    """A reference to a named schema."""
    return {"$ref": f"{_REF}{name}"}


def name_pairs(components: dict[str, Any]) -> dict[str, Any]:
    """The schemas, with each pair of seqs by its name. Generators do not take `items: false`, which says that a tuple
    has no further items."""
    pairs: list[dict[str, Any]] = []
    named: dict[str, Any] = _without_pairs(components, pairs)
    if pairs:
        named[SEQ_RANGE] = {
            "title": SEQ_RANGE,
            "description": "First and last seq of a range, both included.",
            "type": "array",
            "items": pairs[0],
            "minItems": 2,
            "maxItems": 2,
        }
    return named


def _without_pairs(schema: Any, pairs: list[dict[str, Any]]) -> Any:
    if isinstance(schema, list):
        return [_without_pairs(item, pairs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("items") is False:
        first, second = schema["prefixItems"]
        assert first == second, "the only tuples in bodies are ranges of seqs"
        pairs.append(first)
        return ref_to(SEQ_RANGE)
    return {name: _without_pairs(value, pairs) for name, value in schema.items()}
