"""What the OpenAPI document says about each endpoint, by the endpoint's name.

This table has only what the route table and the structs do not say: words, parameters, bodies, and errors beyond those
that follow from the route. Examples are in examples.json. A test fails for an endpoint without an entry.
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
    NoDeadLetter,
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
from topics.limits import IDEMPOTENCY_KEY_BYTES_MAX, MIB, READ_LIMIT_MAX, REDRIVE_KEY_BYTES_MAX
from topics.protocol import request_body, response_body, stream_body
from topics.protocol.request_body import LONG_POLL_MS_MAX
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

_EVENTS: Final = "text/event-stream"

# Errors of every endpoint that commits to the log.
COMMIT_ERRORS: Final = (Throttled, WalFailed, StorageFull)


class Parameter(NamedTuple):
    name: str
    place: str
    description: str
    schema: dict[str, Any]


class Reply(NamedTuple):
    """A success. Its body is a struct, text of another type, or both if the client can choose."""

    description: str
    shape: type[Struct] | None = None
    text_type: str | None = None
    has_body: bool = True


class Operation(NamedTuple):
    tag: str
    summary: str
    replies: dict[int, Reply]
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type[Struct] | None = None
    errors: tuple[type[TopicsError], ...] = ()
    # Whether an ill-formed name is refused. Otherwise it is a name that does not exist.
    checks_name: bool = True


TAGS: Final = {
    "topics": "Named logs: create, configure, show, list, delete.",
    "records": "The records of a topic: append, read after a cursor, delete for good.",
    "files": "Segments, for readers that work on files.",
    "queues": "Jobs that are leased to one worker at a time.",
    "routers": "Records copied from one topic to another.",
    "watching": "New records as they come, in one stream for many topics.",
    "groups": "Named cursors that the server keeps for readers.",
    "streams": "Streams of the partitioned engine, to look at. Clients of Apache Iggy write them, on another port.",
    "writers": "Records that are staged in parts and committed as a whole, once.",
    "operations": "Probes, metrics, rights of a key, and this document.",
}


def _flag(name: str, description: str, *, default: bool) -> Parameter:
    return Parameter(name, "query", description, {"type": "boolean", "default": default})


def _count(name: str, description: str, *, default: int) -> Parameter:
    return Parameter(name, "query", description, {"type": "integer", "minimum": 0, "default": default})


def _whole(name: str, description: str) -> Parameter:
    return Parameter(name, "query", description, {"type": "integer", "minimum": 0})


def _text(name: str, description: str) -> Parameter:
    return Parameter(name, "query", description, {"type": "string"})


_ACTED_ON: Final = (
    "The call acts on a seq if the node has an unexpired lease on it. If the call has a token for the seq, the token "
    "must belong to that lease. Other seqs are listed in `skipped`, and are no error."
)

_BY_NUMBER: Final = (
    "A stream or topic in the path is a name, or the number of the stream or topic if it consists of digits."
)

_TOKEN: Final = _text("token", "A key, for clients that cannot send the header `Authorization`.")
_PREFIX: Final = _text("prefix", "Only names that begin with this.")
_PAGE_SIZE: Final = _count(
    "page_size", f"Entries of one page; raised to 1 or lowered to {PAGE_SIZE_MAX}.", default=PAGE_SIZE_DEFAULT
)
_CURSOR: Final = Parameter(
    "cursor",
    "query",
    "`next_cursor` of the previous page; empty for the first page.",
    {"type": "string", "contentEncoding": "base64"},
)

OPERATIONS: Final[dict[str, Operation]] = {
    # Topics.
    "put_topic": Operation(
        "topics",
        "Create or reconfigure a topic",
        {
            200: Reply("The topic was reconfigured.", response_body.PutTopic),
            201: Reply("The topic was created.", response_body.PutTopic),
        },
        "Replaces the whole config: members left out return to their defaults. Before the answer the change is "
        "durable, and lower caps have taken effect. An empty body is the same as `{}`. `warnings` name members that "
        "are not known, which were ignored, and members that cannot do what they say.",
        body=request_body.ConfigBody,
        errors=(TopicExistsIncompatible, *COMMIT_ERRORS),
    ),
    "get_topic": Operation(
        "topics",
        "State of a topic",
        {200: Reply("The state.", response_body.TopicState)},
        parameters=(_flag("touch", "Whether this counts as a read for recency.", default=True),),
        errors=(TopicNotFound,),
    ),
    "list_topics": Operation(
        "topics",
        "List topics",
        {200: Reply("A page of topics.", response_body.TopicList)},
        "Names ascend by their bytes. A key with prefixes sees only names that begin with one of its prefixes. "
        "With `type` or `has_groups` a page may have few entries, or none, and a cursor nevertheless.",
        parameters=(
            _PREFIX,
            _PAGE_SIZE,
            _CURSOR,
            _flag("touch", "Whether this counts as a read of each topic for recency.", default=False),
            Parameter("type", "query", "Only topics of this type.", {"type": "string", "enum": ["log", "queue"]}),
            _flag("has_groups", "Only topics with consumer groups.", default=False),
        ),
        errors=(InvalidRequest,),
    ),
    "delete_topic": Operation(
        "topics",
        "Delete a topic",
        {200: Reply("The topic is gone. `deleted` is false if it did not exist.", response_body.TopicDeleted)},
        "Removes the topic and its records, durably. A topic that is created later under this name starts again at "
        "seq 1.",
        parameters=(_flag("if_empty", "Refuse when there are live records.", default=False),),
        errors=(TopicNotEmpty, *COMMIT_ERRORS),
        checks_name=False,
    ),
    # Records.
    "append": Operation(
        "records",
        "Append records",
        {
            200: Reply(
                "The records are appended, by this call or by an earlier one (`deduped`).", response_body.Appended
            ),
            201: Reply("The records are appended to a topic that this write created.", response_body.Appended),
        },
        "Appends all records or none, with contiguous seqs in the order of the list and one timestamp. The topic's "
        "durability class says what an answered write survives. A write with a `config` needs the scope `admin` if the "
        "topic does not exist.",
        parameters=(
            _flag("return_seqs", "Whether the answer lists every seq.", default=True),
            Parameter(
                "Idempotency-Key",
                "header",
                "Used when the body has no `idempotency_key`.",
                {"type": "string", "maxLength": IDEMPOTENCY_KEY_BYTES_MAX},
            ),
        ),
        body=request_body.WriteBody,
        errors=(BatchTooLarge, RecordTooLarge, TopicNotFound, TopicFull, *COMMIT_ERRORS),
    ),
    "diff": Operation(
        "records",
        "Read records after a cursor",
        {200: Reply("Records, and the cursor of the next read.", response_body.Diff)},
        "The next read continues with `next_from_seq`. With `wait_ms`, a reader that has everything waits for the "
        "next append. Records that are gone are never an error: `tombstone` says which seqs, and why. An empty body "
        "is the same as `{}`.",
        body=request_body.DiffBody,
        errors=(TopicNotFound, GroupNotFound, CorruptRecord, ColdUnavailable),
    ),
    "records": Operation(
        "records",
        "Read records after a cursor, from a URL",
        {200: Reply("Records, and the cursor of the next read.", response_body.Diff)},
        "The same read as `POST /v0/topics/{topic}/diff`, which has more options.",
        parameters=(
            _count("from_seq", "Cursor: the read begins with the first record that has a higher seq.", default=0),
            _count("limit", f"How many records at most; lowered to {READ_LIMIT_MAX}, 0 = 256.", default=256),
            _text("node", "Leave out the records of this node."),
            _flag("include_tags", "Whether records have their tag.", default=False),
            _count("wait_ms", f"How long to wait for an append; lowered to {LONG_POLL_MS_MAX}.", default=0),
        ),
        errors=(TopicNotFound, CorruptRecord, ColdUnavailable),
    ),
    "delete": Operation(
        "records",
        "Delete records for good",
        {200: Reply("How many records were deleted, and what is left.", response_body.Deleted)},
        "Deletes the records that exist now and meet all conditions of the body. As durable as a write to the topic.",
        body=request_body.DeleteBody,
        errors=(TopicNotFound, *COMMIT_ERRORS),
    ),
    # Files.
    "manifest": Operation(
        "files",
        "Manifest of a topic's segments",
        {200: Reply("One consistent picture of the topic.", response_body.Manifest)},
        "For readers of files. Lists the segments that may hold the wanted records, and the records in them that must "
        "not be shown. Records above `checkpointed_seq` are not in files yet: read them as frames. With `pin_ms` the "
        "files stay where they are for that time. An empty body is the same as `{}`.",
        body=request_body.ManifestBody,
        errors=(TopicNotFound, Throttled),
    ),
    "frames": Operation(
        "files",
        "Read records as frames of segments",
        {200: Reply("Live records, one frame after the other.", text_type="application/vnd.topics.frames")},
        "Frames have the layout of segment files, with checksums. The header `Topics-Next-Seq` is the seq to continue "
        "with. The header `Topics-Gap: from-to;reason` names records that are gone and were not deleted.",
        parameters=(
            _count("from_seq", "First seq.", default=1),
            _count("to_seq", "Last seq, not below `from_seq`; 0 = the head.", default=0),
            _count(
                "max_bytes",
                "Bytes at most, about; the answer may be much shorter. 0 = 8 MiB; lowered to 64 MiB.",
                default=0,
            ),
        ),
        errors=(InvalidRequest, TopicNotFound, CorruptRecord, ColdUnavailable),
    ),
    "seal_topic": Operation(
        "files",
        "Put a topic's records into sealed segments now",
        {200: Reply("All earlier records are in files that never change again.", response_body.TopicSealed)},
        "The server seals a segment when it is full or old. This call seals the last segment as it is, so that "
        "programs that copy sealed segments get all records of an idle topic. Do not call it after every write: many "
        "small segments are slow to read.",
        errors=(TopicNotFound, StorageFull),
    ),
    "capture": Operation(
        "files",
        "Capture the whole log for a backup",
        {200: Reply("All topics and routers at one moment.", response_body.LogCapture)},
        "The state that a checkpoint would write down, taken in one turn: topics with their segments, floors, deletes, "
        "groups, idempotency keys and writers, and routers with their cursors. With `pin_ms` the files of all segments "
        "stay where they are for that long. The key must be for any name.",
        body=request_body.CaptureBody,
        errors=(Throttled,),
    ),
    "get_config": Operation(
        "operations",
        "Settings of the server",
        {200: Reply("Every setting, with its value and where it comes from.", response_body.ServerConfig)},
        "Keys are counted, not shown. The key must be for any name.",
    ),
    "replace_segment": Operation(
        "files",
        "Replace the files of a segment",
        {200: Reply("The new files are in place, durably.", response_body.SegmentReplaced)},
        "For programs that rewrite segments: the new files leave out records that are marked as deleted, or have a "
        "new index. The server compares every frame that stays with the old file. Only a sealed segment in the data "
        "directory can be replaced, and only the one with the given digest. The server removes the files from "
        "`staging`.",
        body=request_body.ReplaceBody,
        errors=(TopicNotFound, NotFound, SegmentChanged, SegmentBusy, CorruptRecord, StorageFull),
    ),
    # Queues.
    "claim": Operation(
        "queues",
        "Lease jobs",
        {200: Reply("Up to `max` jobs, perhaps none.", response_body.Claimed)},
        "Only one worker has a job while its lease runs. A worker that neither acks nor extends in time loses the job "
        "to the next claim. Jobs that came back are given out first. A job that was delivered `max_deliveries` times "
        "goes to the dead-letter topic instead. With `wait_ms` the answer comes as soon as there is a job; claims that "
        "wait are served in the order in which they came.",
        body=request_body.ClaimBody,
        errors=(TopicNotFound, NotAQueue, ColdUnavailable, *COMMIT_ERRORS),
    ),
    "ack": Operation(
        "queues",
        "Acknowledge finished jobs",
        {200: Reply("The jobs are deleted for good, except for `skipped`.", response_body.Acked)},
        _ACTED_ON,
        body=request_body.AckBody,
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "nack": Operation(
        "queues",
        "Give jobs back",
        {200: Reply("The jobs are ready, at once or after the delay, except for `skipped`.", response_body.Nacked)},
        _ACTED_ON + " The `reason` is kept, and is in the `meta` of the job's dead letter.",
        body=request_body.NackBody,
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "extend": Operation(
        "queues",
        "Lease jobs for longer",
        {200: Reply("The new deadlines of the jobs, except for `skipped`.", response_body.Extended)},
        _ACTED_ON,
        body=request_body.ExtendBody,
        errors=(BatchTooLarge, TopicNotFound, NotAQueue, *COMMIT_ERRORS),
    ),
    "get_queue": Operation(
        "queues",
        "State of a queue",
        {200: Reply("How many jobs are in which state, and a page of the leases.", response_body.QueueState)},
        "Cheap enough for a scrape: no job is looked at, only the table of leases.",
        parameters=(_PAGE_SIZE, _CURSOR),
        errors=(TopicNotFound, NotAQueue, InvalidRequest),
    ),
    "redrive": Operation(
        "queues",
        "Move dead letters back, or jobs to another queue",
        {200: Reply("What was moved, and where the next call goes on.", response_body.Redriven)},
        "Without `to`, dead letters of the queue go back into it: only letters that came from this queue, if several "
        "queues share the dead-letter topic. With `to`, ready jobs of the topic in the path go to that queue; leased "
        "and delayed jobs stay. A job is in one of the two topics after any crash, and only in one, so a call that "
        "was cut off is made again. One call takes at most `max_ms`: until `stopped` is `end`, call again with "
        "`from_seq` and `until_seq` from the answer. A client that goes away stops the redrive. Deliveries of a "
        "redriven job are counted anew. Its `meta` keeps its members, loses the `$dead_letter_…` members, and gets "
        "`$redrive_from`, `$redrive_src_seq` and `$redrive_count`. A redrive evicts no job: it stops when the dest is "
        "full. Moved jobs are synced in every durability class but `ephemeral`. Names outside the prefixes of the key "
        "are refused, also the name of the dead-letter topic.",
        parameters=(
            Parameter(
                "Idempotency-Key",
                "header",
                "Like `idempotency_key` of the body, which wins.",
                {"type": "string", "maxLength": REDRIVE_KEY_BYTES_MAX},
            ),
        ),
        body=request_body.RedriveBody,
        errors=(TopicNotFound, NotAQueue, NoDeadLetter, TopicFull, CorruptRecord, ColdUnavailable, *COMMIT_ERRORS),
    ),
    "work": Operation(
        "queues",
        "Stream of jobs",
        {
            200: Reply(
                "Events `job`, each with one job as in a claim. The last event may be `error`.", text_type=_EVENTS
            )
        },
        "A stream of server-sent events that keeps up to `max` unexpired leases of the node: when a lease ends, the "
        "next job comes. Acks, nacks and extends are separate calls. When the connection ends, jobs that were "
        "delivered on it and are not acked are ready again at once.",
        parameters=(
            Parameter("node", "query", "Node that works.", {"type": "string", "minLength": 1}),
            Parameter("max", "query", "Jobs at a time.", {"type": "integer", "minimum": 1, "default": 1}),
            Parameter("lease_ms", "query", "How long jobs are leased.", {"type": "integer", "minimum": 0}),
            _TOKEN,
        ),
        errors=(NotAcceptable, TopicNotFound, NotAQueue, Throttled),
    ),
    # Routers.
    "put_router": Operation(
        "routers",
        "Create or change a router",
        {
            200: Reply("The router was changed, and continues at its place.", response_body.PutRouter),
            201: Reply("The router was created.", response_body.PutRouter),
        },
        "Copies every record that is written to the source from now on, and that passes the filter, to the dest. "
        "Creates missing topics. A call for an existing router replaces everything except source and dest, which must "
        "stay the same. The change is durable before the answer.",
        body=request_body.RouterBody,
        errors=(TopicNotFound, TopicExistsIncompatible, RouterCycle, *COMMIT_ERRORS),
    ),
    "get_router": Operation(
        "routers",
        "State of a router",
        {200: Reply("The router, and how much it has copied.", response_body.Router)},
        "The server copies pending records first, so that the count includes every earlier write.",
        errors=(RouterNotFound,),
    ),
    "list_routers": Operation(
        "routers",
        "List routers",
        {200: Reply("A page of routers.", response_body.RouterList)},
        "Names ascend by their bytes. A key with prefixes sees only routers whose name, source and dest begin with "
        "one of its prefixes.",
        parameters=(
            _PREFIX,
            _text("source", "Only routers from this topic."),
            _text("dest", "Only routers to this topic."),
            _PAGE_SIZE,
            _CURSOR,
        ),
        errors=(InvalidRequest,),
    ),
    "delete_router": Operation(
        "routers",
        "Delete a router",
        {200: Reply("The router is gone. `deleted` is false if it did not exist.", response_body.RouterDeleted)},
        "The copies that the router made stay. The change is durable before the answer.",
        errors=COMMIT_ERRORS,
        checks_name=False,
    ),
    # Watching.
    "watch": Operation(
        "watching",
        "Begin to watch topics",
        {200: Reply("A session. Open its stream with GET.", response_body.WatchCreated)},
        "The session knows how far each topic was sent. It ends with the process, or five minutes after its last "
        "stream ended. A name that ends in `*` is a pattern: `orders.*` stands for every topic that begins with "
        "`orders.`. A topic that is created later joins from its first record on. The limit of topics of a session "
        "counts all of them.",
        parameters=(_flag("lenient", "Leave out topics that do not exist.", default=False),),
        body=request_body.WatchBody,
        errors=(TopicNotFound, Throttled),
    ),
    "watch_stream": Operation(
        "watching",
        "Stream of a watch session",
        {
            200: Reply(
                "Events `record`, `tombstone`, `caught-up`, `topic-deleted` and `error`. An `error` is the last event "
                "(`server_shutting_down`, `slow_consumer`, `unauthorized`), except with the code 429: then the server "
                "has too much to do, and sends new records of `topics` later.",
                text_type=_EVENTS,
            )
        },
        "Server-sent events. The id of an event says how far every topic has been sent. A client that connects again "
        "gets what follows the last event, or what follows the event in `Last-Event-ID`. With keys, only the key that "
        "made the session opens its stream. The session's `ticket` opens it too, once.",
        parameters=(
            Parameter("Last-Event-ID", "header", "Id of the last event that the client has.", {"type": "string"}),
            _TOKEN,
        ),
        errors=(NotFound, NotAcceptable, Unauthorized, Throttled),
    ),
    "ws": Operation(
        "watching",
        "Subscribe and publish over a WebSocket",
        {101: Reply("The connection becomes a WebSocket.", has_body=False)},
        "RFC 6455 over HTTP/1.1, with one JSON object per text message. The client sends the commands `subscribe`, "
        "`unsubscribe`, `publish` and `ping`, and gets one reply to each. The server also pushes records. Subscribing "
        "needs the scope read, publishing write, publishing with a `config` also admin. The server refuses pages of "
        "another site by their `Origin`.",
        errors=(InvalidRequest, Throttled),
    ),
    # Consumer groups.
    "list_groups": Operation(
        "groups",
        "List consumer groups",
        {200: Reply("All groups of the topic, names ascending.", response_body.GroupList)},
        errors=(TopicNotFound,),
    ),
    "put_group": Operation(
        "groups",
        "Create or move a consumer group",
        {
            200: Reply("The group was moved, or stayed at its place.", response_body.PutGroup),
            201: Reply("The group was created.", response_body.PutGroup),
        },
        "A group is a named cursor. Retention does not wait for it, and it is deleted with its topic. Without a place "
        "in the body, a new group begins at the first record, and an existing group does not move. The change is "
        "durable before the answer.",
        body=request_body.GroupBody,
        errors=(TopicNotFound, *COMMIT_ERRORS),
    ),
    "get_group": Operation(
        "groups",
        "Cursor of a consumer group",
        {200: Reply("The cursor.", response_body.GroupState)},
        errors=(TopicNotFound, GroupNotFound),
    ),
    "delete_group": Operation(
        "groups",
        "Delete a consumer group",
        {200: Reply("The group is gone. `deleted` is false if it did not exist.", response_body.GroupDeleted)},
        errors=(TopicNotFound, *COMMIT_ERRORS),
        checks_name=False,
    ),
    "commit_group": Operation(
        "groups",
        "Move the cursor of a consumer group",
        {200: Reply("The cursor, moved or not.", response_body.Committed)},
        "As durable as a write to the topic. A seq that is not above the cursor changes nothing and is no error, so a "
        "commit can be repeated. `rewind` moves the cursor back.",
        body=request_body.CommitBody,
        errors=(TopicNotFound, GroupNotFound, *COMMIT_ERRORS),
    ),
    # Staged writes.
    "stage": Operation(
        "writers",
        "Stage records",
        {200: Reply("The server keeps the records.", response_body.ChunkStaged)},
        "Keeps the records, durably and invisible to readers, until their epoch is committed or aborted, or for a day "
        "after the last call for the epoch. A repeat with the same writer, epoch, part, attempt and chunk changes "
        "nothing. The limits of a write apply.",
        body=request_body.StageBody,
        errors=(TopicNotFound, BatchTooLarge, RecordTooLarge, Throttled, StorageFull),
        checks_name=False,
    ),
    "commit_epoch": Operation(
        "writers",
        "Commit staged records",
        {200: Reply("All staged records of the epoch are in the topic.", response_body.EpochCommitted)},
        "Appends the parts in the order of their numbers as one write of any size: readers see all records at once, "
        "and a crash leaves all or none. The server remembers the highest epoch of a writer in each topic forever. A "
        "commit of that epoch or a lower one adds nothing and is `deduped`; for the highest epoch the answer has its "
        "seqs. Other writes to the topic wait meanwhile. Needs the scope write for the topic.",
        body=request_body.EpochBody,
        errors=(TopicNotFound, StageIncomplete, RecordTooLarge, TopicFull, *COMMIT_ERRORS),
        checks_name=False,
    ),
    "get_writer": Operation(
        "writers",
        "Epochs of a writer",
        {
            200: Reply(
                "The writer's highest epoch in each topic, names ascending. No topics if it has committed nothing.",
                response_body.WriterEpochs,
            )
        },
        errors=(InvalidRequest,),
        checks_name=False,
    ),
    "abort_epoch": Operation(
        "writers",
        "Drop staged records",
        {200: Reply("The staged records of the epoch are gone. Committed records stay.", response_body.EpochAborted)},
        body=request_body.AbortBody,
        checks_name=False,
    ),
    # Streams.
    "list_streams": Operation(
        "streams",
        "List streams",
        {200: Reply("A page of streams, names ascending.", stream_body.StreamList)},
        parameters=(_PREFIX, _PAGE_SIZE, _CURSOR),
        errors=(NotFound,),
    ),
    "get_stream": Operation(
        "streams",
        "State of a stream",
        {200: Reply("The stream and its topics.", stream_body.StreamState)},
        _BY_NUMBER,
        errors=(NotFound,),
        checks_name=False,
    ),
    "get_stream_topic": Operation(
        "streams",
        "State of a topic of a stream",
        {200: Reply("The topic, its partitions and its groups.", stream_body.StreamTopicState)},
        _BY_NUMBER,
        errors=(NotFound,),
        checks_name=False,
    ),
    "get_stream_partition": Operation(
        "streams",
        "State of a partition",
        {200: Reply("The numbers of the partition.", stream_body.StreamPartitionState)},
        _BY_NUMBER,
        errors=(NotFound,),
        checks_name=False,
    ),
    "get_stream_messages": Operation(
        "streams",
        "Messages of a partition",
        {200: Reply("A page of messages.", stream_body.StreamMessages)},
        "Reads as no consumer: no offset is stored. The page begins at `offset`, otherwise at `timestamp`, otherwise "
        "with the `last` messages, otherwise at the oldest message. It ends early at `max_bytes`, after at least one "
        "message. " + _BY_NUMBER,
        parameters=(
            _whole("offset", "Offset of the first message."),
            _whole("timestamp", "Begin with the first message that is not older, in microseconds since 1970."),
            _flag("last", "Begin `count` messages before the end.", default=False),
            _count("count", f"Messages of the page; raised to 1 or lowered to {READ_LIMIT_MAX}.", default=256),
            _count("max_bytes", f"Bytes of these messages; lowered to {MIB}.", default=MIB),
            _flag("include_payload", "Whether payloads are shown.", default=True),
        ),
        errors=(NotFound, CorruptRecord),
        checks_name=False,
    ),
    # Operations.
    "health": Operation(
        "operations",
        "Is the process alive?",
        {200: Reply("The process is alive.", response_body.Health)},
    ),
    "ready": Operation(
        "operations",
        "Can the server take every request?",
        {200: Reply("The server takes every request.", response_body.Ready)},
        errors=(NotReady, Closed, WalFailed),
    ),
    "metrics": Operation(
        "operations",
        "Metrics",
        {200: Reply("Prometheus text, or JSON if `Accept` asks for it.", response_body.MetricsJson, "text/plain")},
    ),
    "access": Operation(
        "operations",
        "Rights of the key",
        {200: Reply("What the key of this call may do.", response_body.AccessRights)},
    ),
    "openapi": Operation(
        "operations",
        "The OpenAPI document",
        {200: Reply("OpenAPI 3.1: every endpoint of this server, with the limits of its settings.")},
    ),
    "asyncapi": Operation(
        "operations",
        "The AsyncAPI document",
        {200: Reply("AsyncAPI 3: the messages of watches, of streams of jobs, and of WebSockets.")},
    ),
}
