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
    GroupNotFound,
    InvalidRequest,
    NotAcceptable,
    NotAQueue,
    NotFound,
    NotReady,
    RecordTooLarge,
    RouterCycle,
    RouterNotFound,
    SegmentBusy,
    SegmentChanged,
    StageIncomplete,
    StorageFull,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    Unauthorized,
    WalFailed,
)
from topics.limits import IDEMPOTENCY_KEY_BYTES_MAX
from topics.protocol.request_body import (
    AbortBody,
    AckBody,
    ClaimBody,
    CommitBody,
    ConfigBody,
    DeleteBody,
    DiffBody,
    EpochBody,
    ExtendBody,
    GroupBody,
    ManifestBody,
    NackBody,
    ReplaceBody,
    RouterBody,
    StageBody,
    WatchBody,
    WriteBody,
)
from topics.protocol.response_body import (
    Acked,
    Appended,
    Claimed,
    Committed,
    Deleted,
    Diff,
    EpochAborted,
    EpochCommitted,
    Extended,
    GroupDeleted,
    GroupList,
    GroupState,
    Health,
    Manifest,
    MetricsJson,
    Nacked,
    PutGroup,
    PutRouter,
    PutTopic,
    Ready,
    Router,
    RouterDeleted,
    RouterList,
    SegmentReplaced,
    Staged,
    TopicDeleted,
    TopicList,
    TopicSealed,
    TopicState,
    WatchCreated,
    WriterEpochs,
)
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

_EVENTS: Final = "text/event-stream"

# What every commit can run into.
COMMIT_ERRORS: Final = (Throttled, WalFailed, StorageFull)


class Parameter(NamedTuple):
    name: str
    place: str
    description: str
    schema: dict[str, Any]


class Reply(NamedTuple):
    """A success: its body is a struct, or text of another type, or whichever of the two the client asks for."""

    description: str
    shape: type[Struct] | None = None
    example: dict[str, Any] | None = None
    text_type: str | None = None
    has_body: bool = True


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
    "files": "Segments for readers that work on files.",
    "queues": "Jobs that are leased to one worker at a time.",
    "routers": "Records copied from one topic to another.",
    "watching": "Records as they come, in one stream for many topics.",
    "groups": "Named cursors that the server keeps for readers.",
    "writers": "Work that is staged in parts and committed as a whole, once.",
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
_MANIFEST: Final = {
    "topic": "parcels",
    "store_id": "0f7d2c9a51e84b6d9c3a7e1f5b2d8046",
    "topic_id": 7,
    "epoch": 1,
    "head_seq": 814,
    "durable_seq": 814,
    "earliest_seq": 701,
    "evict_floor": 701,
    "cap_floor": 700,
    "ttl_floor": 0,
    "trim_floor": 0,
    "delete_below": 0,
    "lost_ranges": [],
    "checkpointed_seq": 800,
    "pending_deletes": [[712, 713]],
    "segments": [
        {
            "first_seq": 601,
            "last_seq": 800,
            "tier": "hot",
            "uri": "file:///var/lib/topics/topics/00000007/seg-0000000000000601.data",
            "data_len": 28800,
            "idx_len": 4000,
            "min_ts": 1790000000000,
            "max_ts": 1790000600000,
            "records": 200,
            "live": 98,
            "sealed": True,
            "digest": "5a1f0c7be29d4386a0b1c2d3e4f50617",
        }
    ],
    "pin": {"id": 3, "until": 1790000660000},
    "performance": _PERFORMANCE,
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

_GROUP: Final = {
    "topic": "parcels",
    "group": "billing",
    "seq": 800,
    "head_seq": 814,
    "lag": 14,
    "last_commit_ts": 1790000004000,
    "performance": _PERFORMANCE,
}

_ROUTER: Final = {
    "router": "parcels->ledger",
    "source": "parcels",
    "dest": "ledger",
    "preserve_node": True,
    "preserve_tag": True,
    "filter": ["tag", "Glob", "acme:*"],
    "allow_cycle": False,
    "guarantee": "at_least_once",
    "performance": _PERFORMANCE,
}
_ROUTER_ENTRY: Final = {
    "router": "parcels->ledger",
    "source": "parcels",
    "dest": "ledger",
    "guarantee": "at_least_once",
    "forwarded_total": 37,
}

_ACTED_ON: Final = (
    "A seq is acted on if the node has an unexpired lease on it, and the one that its token names if there is a token. "
    "All others are no error: they are listed in `skipped`."
)

_TOKEN: Final = Parameter(
    "token", "query", "A key, for clients that cannot send the header `Authorization`.", {"type": "string"}
)

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
        errors=(TopicNotFound, GroupNotFound, CorruptRecord, ColdUnavailable),
    ),
    "manifest": Operation(
        "files",
        "What is in which segment",
        {200: Reply("One consistent picture.", Manifest, _MANIFEST)},
        "For readers of files: segments that may hold what is asked for, what in them must not be shown, and from "
        "where on records are not in files yet and are read as frames. With `pin_ms` the files stay where they are "
        "for so long. No body is as good as `{}`.",
        body=ManifestBody,
        body_example={"from_seq": 700, "pin_ms": 60000},
        errors=(TopicNotFound, Throttled),
    ),
    "frames": Operation(
        "files",
        "Read records as frames of segments",
        {200: Reply("Live records, one frame behind the other.", text_type="application/vnd.topics.frames")},
        "The layout of segment files, checksums included. `Topics-Next-Seq` is the first seq that the answer says "
        "nothing about; `Topics-Gap: from-to;reason` names records that are gone involuntarily.",
        parameters=(
            Parameter("from_seq", "query", "First seq.", {"type": "integer", "minimum": 0, "default": 1}),
            Parameter("to_seq", "query", "Last seq; 0: the head.", {"type": "integer", "minimum": 0, "default": 0}),
            Parameter(
                "max_bytes",
                "query",
                "Bytes at most, about; the answer may well be shorter. 0: 8 MiB; pulled down to 64 MiB.",
                {"type": "integer", "minimum": 0, "default": 0},
            ),
        ),
        errors=(TopicNotFound, CorruptRecord, ColdUnavailable),
    ),
    "seal_topic": Operation(
        "files",
        "Put a topic's records into sealed segments now",
        {
            200: Reply(
                "What was written before is in files that do not change any more.",
                TopicSealed,
                {"topic": "parcels", "head_seq": 812, "sealed_seq": 812, "segments": 3, "performance": _PERFORMANCE},
            )
        },
        "A segment is sealed when it is full or old. This seals the last one as it is, so that programs that copy "
        "sealed segments get all of an idle topic. Many small segments cost: it is not for every write.",
        errors=(TopicNotFound, StorageFull),
    ),
    "replace_segment": Operation(
        "files",
        "Exchange the files of a segment",
        {
            200: Reply(
                "The new files are in place, durably.",
                SegmentReplaced,
                {
                    "topic": "parcels",
                    "first_seq": 601,
                    "last_seq": 800,
                    "removed": 102,
                    "data_len": 14100,
                    "digest": "90c3a5e7d1b24f6088e2a4c6f8091b3d",
                    "performance": _PERFORMANCE,
                },
            )
        },
        "For programs that write segments again: the same records without some that are marked as deleted in the file, "
        "or a new index. Every frame that stays is compared with the one that is there. Only a sealed segment in the "
        "data directory can be replaced, and only the one of the given digest. The files in `staging` are taken away.",
        body=ReplaceBody,
        body_example={
            "topic_id": 7,
            "epoch": 1,
            "first_seq": 601,
            "expect_digest": "5a1f0c7be29d4386a0b1c2d3e4f50617",
            "data": "purge-601.data",
            "idx": "purge-601.idx",
        },
        errors=(TopicNotFound, NotFound, SegmentChanged, SegmentBusy, CorruptRecord, StorageFull),
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
    "claim": Operation(
        "queues",
        "Lease jobs",
        {
            200: Reply(
                "Up to `max` jobs, perhaps none.",
                Claimed,
                {
                    "topic": "jobs",
                    "claimed": [
                        {
                            "$seq": 11,
                            "lease_id": "lease_1f",
                            "deadline": 1790000030000,
                            "$ts": 1790000000000,
                            "$tag": "acme:9",
                            "deliveries": 1,
                            "data": {"n": 1},
                            "meta": {"k": "v"},
                        }
                    ],
                    "count": 1,
                    "ready": 0,
                    "performance": _PERFORMANCE,
                },
            )
        },
        "Nobody else gets a job while its lease runs. Who does neither ack nor extend in time loses it to the next one "
        "who claims. Jobs that came back are given out first. A job that was delivered `max_deliveries` times goes to "
        "the dead-letter topic instead.",
        body=ClaimBody,
        body_example={"node": "w-3", "max": 2},
        errors=(TopicNotFound, NotAQueue, ColdUnavailable, *COMMIT_ERRORS),
    ),
    "ack": Operation(
        "queues",
        "Jobs are done",
        {
            200: Reply(
                "They are deleted for good, but for those in `skipped`.",
                Acked,
                {
                    "topic": "jobs",
                    "acked": 1,
                    "skipped": [12],
                    "ready": 0,
                    "in_flight": 3,
                    "performance": {"server_total_ms": 0.8, "fsync_ms": 0.7},
                },
            )
        },
        _ACTED_ON,
        body=AckBody,
        body_example={"node": "w-3", "seqs": [11, 12], "lease_ids": ["lease_1f", ""]},
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "nack": Operation(
        "queues",
        "Give jobs back",
        {
            200: Reply(
                "They are ready, at once or after the delay, but for those in `skipped`.",
                Nacked,
                {
                    "topic": "jobs",
                    "nacked": 1,
                    "skipped": [],
                    "ready": 0,
                    "in_flight": 2,
                    "performance": _PERFORMANCE,
                },
            )
        },
        _ACTED_ON,
        body=NackBody,
        body_example={"node": "w-3", "seqs": [13], "delay_ms": 5000},
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "extend": Operation(
        "queues",
        "Lease jobs for longer",
        {
            200: Reply(
                "Their new deadlines, but for those in `skipped`.",
                Extended,
                {
                    "topic": "jobs",
                    "extended": 1,
                    "skipped": [],
                    "deadlines": {"14": 1790000060000},
                    "performance": _PERFORMANCE,
                },
            )
        },
        _ACTED_ON,
        body=ExtendBody,
        body_example={"node": "w-3", "seqs": [14], "lease_ms": 60000},
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "put_router": Operation(
        "routers",
        "Create or change a router",
        {
            200: Reply("Changed; it goes on from where it was.", PutRouter, _ROUTER | {"created": False}),
            201: Reply("Created.", PutRouter, _ROUTER | {"created": True}),
        },
        "Copies every record that is written to the source from now on, and that passes the filter, to the dest. "
        "Topics that are missing are created. Replaces the whole definition but for source and dest, which stay. The "
        "change is durable before the answer.",
        body=RouterBody,
        body_example={"source": "parcels", "dest": "ledger", "filter": "acme:*"},
        errors=(TopicNotFound, TopicExistsIncompatible, RouterCycle, *COMMIT_ERRORS),
    ),
    "get_router": Operation(
        "routers",
        "A router",
        {200: Reply("The router, and how much it has copied.", Router, _ROUTER | {"forwarded_total": 37})},
        "What is pending is copied first, so that the count includes every earlier write.",
        errors=(RouterNotFound,),
    ),
    "list_routers": Operation(
        "routers",
        "List routers",
        {
            200: Reply(
                "A page of them.",
                RouterList,
                {
                    "routers": [_ROUTER_ENTRY],
                    "next_cursor": "eyJhZnRlciI6InBhcmNlbHMtPmxlZGdlciJ9",
                    "performance": _PERFORMANCE,
                },
            )
        },
        "Names ascend by their bytes. A key with prefixes sees only routers whose name, source and dest begin with one "
        "of them.",
        parameters=(
            Parameter("prefix", "query", "Only names that begin with this.", {"type": "string"}),
            Parameter("source", "query", "Only those from this topic.", {"type": "string"}),
            Parameter("dest", "query", "Only those to this topic.", {"type": "string"}),
            Parameter(
                "page_size",
                "query",
                f"Routers of one page, pulled into 1 to {PAGE_SIZE_MAX}.",
                {"type": "integer", "minimum": 0, "default": PAGE_SIZE_DEFAULT},
            ),
            Parameter(
                "cursor",
                "query",
                "`next_cursor` of the page before; empty for the first.",
                {"type": "string", "contentEncoding": "base64"},
            ),
        ),
        errors=(InvalidRequest,),
    ),
    "delete_router": Operation(
        "routers",
        "Delete a router",
        {
            200: Reply(
                "Stopped, or `deleted` is false because it was not there.",
                RouterDeleted,
                {"router": "parcels->ledger", "deleted": True, "performance": _PERFORMANCE},
            )
        },
        "Copies that it made stay. Durable before the answer.",
        errors=COMMIT_ERRORS,
        checks_name=False,
    ),
    "work": Operation(
        "queues",
        "Jobs, pushed",
        {200: Reply("Events `job`, each with one job as in a claim, and `error` as the last.", text_type=_EVENTS)},
        "A stream of server-sent events that keeps up to `max` unexpired leases of the node, and goes on when one of "
        "them ends. Acks, nacks and extends are calls of their own. When the connection ends, what was delivered on it "
        "and is not acked is ready again at once.",
        parameters=(
            Parameter("node", "query", "Who works.", {"type": "string", "minLength": 1}),
            Parameter("max", "query", "Jobs at a time.", {"type": "integer", "minimum": 1, "default": 1}),
            Parameter("lease_ms", "query", "How long jobs are leased.", {"type": "integer", "minimum": 0}),
            _TOKEN,
        ),
        errors=(NotAcceptable, TopicNotFound, NotAQueue, Throttled),
    ),
    "watch": Operation(
        "watching",
        "Begin to watch topics",
        {
            200: Reply(
                "A session. Its stream is opened by GET.",
                WatchCreated,
                {
                    "wid": "wid_3sN0v9Xk2m1Qe8aTzYbC7w",
                    "stream_url": "/v0/watch/wid_3sN0v9Xk2m1Qe8aTzYbC7w",
                    "session_ttl_ms": 300000,
                    "topics": {"parcels": {"from_seq": 790, "head_seq": 814, "earliest_seq": 790}},
                    "performance": _PERFORMANCE,
                },
            )
        },
        "The session knows how far each topic was sent. It is lost with the process, and five minutes after its last "
        "stream ended. A name that ends in `*` is a pattern: `orders.*` stands for every topic that begins with "
        "`orders.`, also for those that are created later, which are followed from their first record on. Together "
        "that is as many topics as a session may have.",
        parameters=(_flag("lenient", "Leave out topics that do not exist.", default=False),),
        body=WatchBody,
        body_example={"topics": {"parcels": {"from_seq": 790}, "ledger": {"tail": True}}, "include_tags": True},
        errors=(TopicNotFound, Throttled),
    ),
    "watch_stream": Operation(
        "watching",
        "Stream of a watch session",
        {
            200: Reply(
                "Events `record`, `tombstone`, `caught-up`, `topic-deleted` and `error`. An error is the last event "
                "(`server_shutting_down`, `slow_consumer`), or, with the code 429, advice: what is new in its `topics` "
                "is held back because of load, and comes later.",
                text_type=_EVENTS,
            )
        },
        "Server-sent events. The id of an event says how far every topic has been sent; who connects again goes on "
        "behind the last event, or behind the one that `Last-Event-ID` names. With keys, only the key that made the "
        "session opens its stream; the session's `ticket` does so once.",
        parameters=(
            Parameter("Last-Event-ID", "header", "Id of the last event that was seen.", {"type": "string"}),
            _TOKEN,
        ),
        errors=(NotFound, NotAcceptable, Unauthorized, Throttled),
    ),
    "ws": Operation(
        "watching",
        "Subscribe and publish over a WebSocket",
        {101: Reply("The connection is a WebSocket from here on.", has_body=False)},
        "RFC 6455 over HTTP/1.1. One JSON object per text message: commands `subscribe`, `unsubscribe`, `publish` and "
        "`ping`, each with a reply, and what is pushed. Subscribing needs the scope read, publishing write, publishing "
        "with a `config` admin too. A page of another site is refused by its `Origin`.",
        errors=(InvalidRequest, Throttled),
    ),
    "list_groups": Operation(
        "groups",
        "List consumer groups",
        {
            200: Reply(
                "All of the topic, by name.",
                GroupList,
                {
                    "topic": "parcels",
                    "head_seq": 814,
                    "groups": [{"group": "billing", "seq": 800, "lag": 14, "last_commit_ts": 1790000004000}],
                    "performance": _PERFORMANCE,
                },
            )
        },
        errors=(TopicNotFound,),
    ),
    "put_group": Operation(
        "groups",
        "Create or move a consumer group",
        {
            200: Reply("Moved, or left where it was.", PutGroup, _GROUP | {"created": False}),
            201: Reply("Created.", PutGroup, _GROUP | {"created": True}),
        },
        "A group is a cursor with a name. It holds nothing back from retention, and goes with its topic. Without a "
        "place a new group stands before the first record, and one that is there stays. Durable before the answer.",
        body=GroupBody,
        body_example={"from": "start"},
        errors=(TopicNotFound, *COMMIT_ERRORS),
    ),
    "get_group": Operation(
        "groups",
        "Where a consumer group stands",
        {200: Reply("Its cursor.", GroupState, _GROUP)},
        errors=(TopicNotFound, GroupNotFound),
    ),
    "delete_group": Operation(
        "groups",
        "Delete a consumer group",
        {
            200: Reply(
                "Gone, or `deleted` is false because it was not there.",
                GroupDeleted,
                {"topic": "parcels", "group": "billing", "deleted": True, "performance": _PERFORMANCE},
            )
        },
        errors=(TopicNotFound, *COMMIT_ERRORS),
        checks_name=False,
    ),
    "commit_group": Operation(
        "groups",
        "Commit how far a consumer group is done",
        {200: Reply("Its cursor, moved or not.", Committed, _GROUP | {"moved": True})},
        "As durable as a write to the topic. A seq that is not above the cursor changes nothing and is no error, so a "
        "commit can be repeated; `rewind` moves the cursor back.",
        body=CommitBody,
        body_example={"seq": 800},
        errors=(TopicNotFound, GroupNotFound, *COMMIT_ERRORS),
    ),
    "stage": Operation(
        "writers",
        "Stage records",
        {
            200: Reply(
                "They are kept.",
                Staged,
                {
                    "topic": "parcels",
                    "writer": "import:parcels",
                    "epoch": 7,
                    "part": 0,
                    "attempt": 0,
                    "chunk": 0,
                    "records": 2,
                    "deduped": False,
                    "performance": _PERFORMANCE,
                },
            )
        },
        "Keeps the records, durably and unseen, until their epoch is committed or aborted, or nobody has touched them "
        "for a day. The same writer, epoch, part, attempt and chunk again is a repeat and changes nothing. Records "
        "obey the limits of a write.",
        body=StageBody,
        body_example={
            "writer": "import:parcels",
            "epoch": 7,
            "part": 0,
            "attempt": 0,
            "chunk": 0,
            "records": [{"data": {"id": 1}, "tag": "acme:1"}, {"data": 5}],
        },
        errors=(TopicNotFound, BatchTooLarge, RecordTooLarge, Throttled, StorageFull),
        checks_name=False,
    ),
    "commit_epoch": Operation(
        "writers",
        "Commit staged records",
        {
            200: Reply(
                "All of them are in the topic, or were before.",
                EpochCommitted,
                {
                    "topic": "parcels",
                    "writer": "import:parcels",
                    "epoch": 7,
                    "first_seq": 815,
                    "last_seq": 816,
                    "count": 2,
                    "head_seq": 816,
                    "deduped": False,
                    "performance": {"server_total_ms": 1.9, "wal_append_ms": 0.1, "fsync_ms": 1.4},
                },
            )
        },
        "Appends the parts in the order of their numbers as one write of any size: seen at once, and after a crash "
        "whole or not at all. The server remembers the highest epoch of a writer in each topic, without an end: the "
        "same one or a lower one adds nothing and is `deduped`, with its seqs if it is the highest. Other writes to "
        "the topic wait meanwhile. Needs the scope write, for the topic.",
        body=EpochBody,
        body_example={
            "epoch": 7,
            "topic": "parcels",
            "parts": [{"part": 0, "attempt": 0, "chunks": 1, "records": 2}],
        },
        errors=(TopicNotFound, StageIncomplete, RecordTooLarge, TopicFull, *COMMIT_ERRORS),
        checks_name=False,
    ),
    "get_writer": Operation(
        "writers",
        "How far a writer is",
        {
            200: Reply(
                "Its highest epoch in each topic, by name; no topics if it has committed nothing.",
                WriterEpochs,
                {
                    "writer": "import:parcels",
                    "topics": [{"topic": "parcels", "epoch": 7, "first_seq": 815, "last_seq": 816}],
                    "performance": _PERFORMANCE,
                },
            )
        },
        errors=(InvalidRequest,),
        checks_name=False,
    ),
    "abort_epoch": Operation(
        "writers",
        "Drop staged records",
        {
            200: Reply(
                "What was staged of the epoch is gone; what was committed stays.",
                EpochAborted,
                {"writer": "import:parcels", "epoch": 7, "dropped": 1, "performance": _PERFORMANCE},
            )
        },
        body=AbortBody,
        body_example={"epoch": 7},
        checks_name=False,
    ),
    "health": Operation(
        "operations",
        "Is the process alive?",
        {
            200: Reply(
                "It is.", Health, {"status": "ok", "version": "0.1.0", "uptime_ms": 5000, "features": ["manifest"]}
            )
        },
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
