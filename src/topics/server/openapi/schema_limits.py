"""Limits of request bodies that the structs cannot say, because they depend on settings or on several members."""

from typing import Any, Final

from topics.engine.writing.staging import WRITER_NAME_PATTERN
from topics.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    META_MEMBERS_MAX,
    NACK_REASON_BYTES_MAX,
    REDRIVE_KEY_BYTES_MAX,
)
from topics.server.openapi.named_shapes import TAG_MATCH, TAG_MATCH_SCHEMA, ref_to
from topics.server.settings_schema import ServerSettings

_LEASE_ID: Final = "^(lease_[0-9a-fA-F]{1,16})?$"
_OPTIONAL_MATCH: Final = {"anyOf": [ref_to(TAG_MATCH), {"type": "null"}], "default": None}
# A delete without a condition; a null is no condition.
_NO_CONDITION: Final = {"properties": {"before_seq": {"type": "null"}, "match": {"type": "null"}}}
# A group is not placed by `seq` and `from` together; a null counts as absent.
_BOTH_PLACES: Final = {
    "required": ["seq", "from"],
    "properties": {"seq": {"type": "integer"}, "from": {"type": "string"}},
}


def add_limits(components: dict[str, Any], settings: ServerSettings, name_pattern: str) -> None:
    """Adds the limits that handlers check to the schemas, with the settings of this server."""

    def limit_bytes(shape: str, member: str, bytes_max: int) -> None:
        # `maxLength` counts characters, the server counts bytes: the two are equal for ASCII.
        text = _branch(components[shape]["properties"][member], "string")
        text["maxLength"] = bytes_max
        text["x-max-bytes"] = bytes_max

    limit_bytes("RecordBody", "tag", settings.max_tag_bytes)
    limit_bytes("RecordBody", "node", settings.max_node_bytes)
    for shape in ("WriteBody", "StageBody"):
        limit_bytes(shape, "node", settings.max_node_bytes)
        components[shape]["properties"]["records"] |= {"minItems": 1, "maxItems": settings.max_batch_records}
    components["StageBody"]["properties"]["writer"]["pattern"] = f"^{WRITER_NAME_PATTERN}$"
    limit_bytes("WriteBody", "idempotency_key", IDEMPOTENCY_KEY_BYTES_MAX)
    _branch(components["ConfigBody"]["properties"]["dead_letter"], "string")["pattern"] = name_pattern
    record = components["RecordBody"]
    record["x-max-bytes"] = settings.max_record_bytes
    record["properties"]["meta"] |= {"maxProperties": META_MEMBERS_MAX, "x-max-bytes": settings.max_meta_bytes}
    components["DiffBody"]["properties"]["limit"]["x-clamped-to"] = settings.max_limit
    watch = components["WatchBody"]["properties"]
    watch["topics"] |= {"minProperties": 1, "maxProperties": settings.max_watch_topics}
    watch["limit"]["x-clamped-to"] = settings.max_limit
    components["ClaimBody"]["properties"]["max"]["x-clamped-to"] = settings.max_claim
    limit_bytes("ClaimBody", "node", settings.max_node_bytes)
    for shape in ("ClaimBody", "AckBody", "NackBody", "ExtendBody"):
        components[shape]["properties"]["node"]["minLength"] = 1
    for shape in ("AckBody", "NackBody", "ExtendBody"):
        members = components[shape]["properties"]
        members["seqs"]["maxItems"] = settings.max_claim
        members["lease_ids"] |= {"maxItems": settings.max_claim, "items": {"type": "string", "pattern": _LEASE_ID}}
    limit_bytes("NackBody", "reason", NACK_REASON_BYTES_MAX)
    components[TAG_MATCH] = TAG_MATCH_SCHEMA
    components["RedriveBody"]["properties"]["match"] |= _OPTIONAL_MATCH
    limit_bytes("RedriveBody", "idempotency_key", REDRIVE_KEY_BYTES_MAX)
    components["GroupBody"]["not"] = _BOTH_PLACES
    delete = components["DeleteBody"]
    delete["properties"]["match"] |= _OPTIONAL_MATCH
    delete["not"] = _NO_CONDITION


def _branch(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The branch of a schema for values of this type."""
    found: dict[str, Any] = next(
        (branch for branch in schema.get("anyOf", ()) if branch.get("type") == kind),
        schema,
    )
    assert found.get("type") == kind
    return found
