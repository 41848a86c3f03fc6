"""What the OpenAPI document says about each endpoint, by the endpoint's name.

Only what the route table and the structs do not know stands here: words, parameters, answers, examples, and which
errors an endpoint has beyond those that follow from its route. An endpoint without an entry fails a test.
"""

from typing import Any, Final, NamedTuple

from msgspec import Struct

from topics.errors import (
    BatchTooLarge,
    Closed,
    ColdUnavailable,
    CorruptRecord,
    InvalidRequest,
    NotReady,
    RecordTooLarge,
    StorageFull,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    WalFailed,
)
from topics.limits import IDEMPOTENCY_KEY_BYTES_MAX
from topics.protocol.request_body import ConfigBody, DeleteBody, DiffBody, WriteBody
from topics.protocol.response_body import (
    Appended,
    Deleted,
    Diff,
    Health,
    MetricsJson,
    PutTopic,
    Ready,
    TopicDeleted,
    TopicList,
    TopicState,
)
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

# What every commit can run into.
COMMIT_ERRORS: Final = (Throttled, WalFailed, StorageFull)


class Parameter(NamedTuple):
    name: str
    place: str
    description: str
    schema: dict[str, Any]


class Reply(NamedTuple):
    """A success: its body is a struct, and may come as text of another type as well."""

    description: str
    shape: type[Struct] | None = None
    example: dict[str, Any] | None = None
    text_type: str | None = None


class Operation(NamedTuple):
    tag: str
    summary: str
    replies: dict[int, Reply]
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type[Struct] | None = None
    body_example: dict[str, Any] | None = None
    errors: tuple[type[TopicsError], ...] = ()
    # An ill-formed name is refused, or at least does not exist.
    checks_name: bool = True


TAGS: Final = {
    "topics": "Named logs: what there is, what it keeps, and for how long.",
    "records": "What is in them: append, read behind a cursor, delete for good.",
    "operations": "Probes, metrics, and this document.",
}


def _flag(name: str, description: str, *, default: bool) -> Parameter:
    return Parameter(name, "query", description, {"type": "boolean", "default": default})


_PERFORMANCE: Final = {"server_total_ms": 0.1}
_CONFIG: Final = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 5000,
    "cap_bytes": 0,
    "discard": "old",
    "durable": True,
    "durability": "fsync",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}
_STATE: Final = {
    "topic": "parcels",
    "type": "log",
    "head_seq": 812,
    "earliest_seq": 790,
    "next_seq": 813,
    "count": 21,
    "bytes": 1840,
    "config": _CONFIG,
    "effective_priority": 500,
    "last_write_ts": 1790000000123,
    "last_read_ts": 1790000004000,
    "performance": _PERFORMANCE,
}
_ENTRY: Final = {
    "topic": "parcels",
    "head_seq": 812,
    "earliest_seq": 790,
    "count": 21,
    "bytes": 1840,
    "durable": True,
    "effective_priority": 497,
}
_APPENDED: Final = {
    "topic": "parcels",
    "first_seq": 813,
    "last_seq": 814,
    "seqs": [813, 814],
    "head_seq": 814,
    "count": 2,
    "created": False,
    "deduped": False,
    "performance": {"server_total_ms": 1.9, "wal_append_ms": 0.1, "fsync_ms": 1.4},
}
_DIFF: Final = {
    "topic": "parcels",
    "records": [
        {"$seq": 790, "$ts": 1790000000001, "$tag": "acme:1", "data": {"id": 1}},
        {"$seq": 792, "$ts": 1790000000040, "$node": "edge-9", "data": 5, "meta": {"src": "csv"}},
    ],
    "next_from_seq": 792,
    "head_seq": 814,
    "earliest_seq": 790,
    "caught_up": False,
    "tombstone": {
        "gap_from": 701,
        "gap_to": 789,
        "reason": "cap",
        "missed_estimate": 89,
        "earliest_seq": 790,
        "head_seq": 814,
    },
    "lag": 22,
    "performance": {"server_total_ms": 0.2, "records_scanned": 3},
}

OPERATIONS: Final[dict[str, Operation]] = {
    "put_topic": Operation(
        "topics",
        "Create or reconfigure a topic",
        {
            200: Reply(
                "Reconfigured.",
                PutTopic,
                {"topic": "parcels", "created": False, "config": _CONFIG, "performance": _PERFORMANCE},
            ),
            201: Reply(
                "Created.",
                PutTopic,
                {"topic": "parcels", "created": True, "config": _CONFIG, "performance": _PERFORMANCE},
            ),
        },
        "Replaces the whole config: members left out return to their defaults. The change is durable, and tighter "
        "limits have taken effect, before the answer. No body is as good as `{}`.",
        body=ConfigBody,
        body_example={"cap_records": 5000, "durability": "fsync"},
        errors=(TopicExistsIncompatible, *COMMIT_ERRORS),
    ),
    "get_topic": Operation(
        "topics",
        "State of a topic",
        {200: Reply("The state.", TopicState, _STATE)},
        parameters=(_flag("touch", "Whether this counts as a read for recency.", default=True),),
        errors=(TopicNotFound,),
    ),
    "list_topics": Operation(
        "topics",
        "List topics",
        {
            200: Reply(
                "A page of them.",
                TopicList,
                {"topics": [_ENTRY], "next_cursor": "eyJhZnRlciI6InBhcmNlbHMifQ==", "performance": _PERFORMANCE},
            )
        },
        "Names ascend by their bytes. A key with prefixes sees only names that begin with one of them.",
        parameters=(
            Parameter("prefix", "query", "Only names that begin with this.", {"type": "string"}),
            Parameter(
                "page_size",
                "query",
                f"Topics of one page, pulled into 1 to {PAGE_SIZE_MAX}.",
                {"type": "integer", "minimum": 0, "default": PAGE_SIZE_DEFAULT},
            ),
            Parameter(
                "cursor",
                "query",
                "`next_cursor` of the page before; empty for the first.",
                {"type": "string", "contentEncoding": "base64"},
            ),
            _flag("touch", "Whether this counts as a read of each topic for recency.", default=False),
        ),
        errors=(InvalidRequest,),
    ),
    "delete_topic": Operation(
        "topics",
        "Delete a topic",
        {
            200: Reply(
                "Gone, or `deleted` is false because it was not there.",
                TopicDeleted,
                {"topic": "parcels", "deleted": True, "routers_removed": [], "performance": _PERFORMANCE},
            )
        },
        "Removes its records and everything that is known about it, durably. A topic that is created later under "
        "this name starts again at seq 1.",
        parameters=(_flag("if_empty", "Refuse when there are live records.", default=False),),
        errors=(TopicNotEmpty, *COMMIT_ERRORS),
        checks_name=False,
    ),
    "append": Operation(
        "records",
        "Append records",
        {
            200: Reply("Appended, or found to be appended already (`deduped`).", Appended, _APPENDED),
            201: Reply("Appended to a topic that this write created.", Appended),
        },
        "All records or none, with contiguous seqs in the order of the list and one timestamp. What an answer promises "
        "depends on the topic's durability class. A write that carries `config` needs the scope `admin` when the topic "
        "is not there yet.",
        parameters=(
            _flag("return_seqs", "Whether the answer lists every seq.", default=True),
            Parameter(
                "Idempotency-Key",
                "header",
                "Used when the body has no `idempotency_key`.",
                {"type": "string", "maxLength": IDEMPOTENCY_KEY_BYTES_MAX},
            ),
        ),
        body=WriteBody,
        body_example={
            "records": [{"data": {"id": 7}, "tag": "acme:7", "meta": {"src": "api"}}, {"data": None}],
            "node": "edge-2",
        },
        errors=(BatchTooLarge, RecordTooLarge, TopicNotFound, TopicFull, *COMMIT_ERRORS),
    ),
    "diff": Operation(
        "records",
        "Read records behind a cursor",
        {200: Reply("Records, and where to go on.", Diff, _DIFF)},
        "Go on with `next_from_seq`. With `wait_ms`, a reader that has everything waits for the next append. Records "
        "that are gone are never an error: `tombstone` says which ones, and why. No body is as good as `{}`.",
        body=DiffBody,
        body_example={"from_seq": 700, "limit": 2, "include_tags": True, "node": "edge-2"},
        errors=(TopicNotFound, CorruptRecord, ColdUnavailable),
    ),
    "delete": Operation(
        "records",
        "Delete records for good",
        {
            200: Reply(
                "What was deleted, and what is left.",
                Deleted,
                {
                    "topic": "parcels",
                    "deleted": 4,
                    "earliest_seq": 791,
                    "head_seq": 814,
                    "count": 19,
                    "bytes": 1602,
                    "performance": _PERFORMANCE,
                },
            )
        },
        "Records that exist at the call and fulfil all conditions given. As durable as a write to the topic.",
        body=DeleteBody,
        body_example={"match": "acme:*", "before_seq": 800},
        errors=(TopicNotFound, *COMMIT_ERRORS),
    ),
    "health": Operation(
        "operations",
        "Is the process alive?",
        {200: Reply("It is.", Health, {"status": "ok", "version": "0.1.0", "uptime_ms": 5000, "features": []})},
    ),
    "ready": Operation(
        "operations",
        "Can it take every request?",
        {200: Reply("It can.", Ready, {"status": "ready", "wal_replay_complete": True, "topics": 3})},
        errors=(NotReady, Closed, WalFailed),
    ),
    "metrics": Operation(
        "operations",
        "Metrics",
        {200: Reply("Prometheus text, or JSON if `Accept` asks for it.", MetricsJson, text_type="text/plain")},
    ),
    "openapi": Operation(
        "operations",
        "The OpenAPI document",
        {200: Reply("OpenAPI 3.1: everything that this server answers, with the limits that it was started with.")},
    ),
}
