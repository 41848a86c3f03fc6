"""Response bodies of the HTTP contract: what the server sends, as a client decodes it.

Handlers write most of these by hand, because they splice stored bytes. The structs say what comes out: the OpenAPI
document is made from them, and a test decodes the answers of a running server with them and finds every member. A
client ignores members that it does not know, so a newer server may send more.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from topics.protocol.request_body import I32, U64

TopicType = Literal["log", "queue"]
TombstoneReason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "power_loss", "corrupt"]


class Performance(Struct, kw_only=True):
    """How long the server took, and on what."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    records_scanned: U64 | UnsetType = UNSET
    cold_segments_read: U64 | UnsetType = UNSET


# Topics.


class Config(Struct, kw_only=True):
    """All settings of a topic, resolved."""

    type: TopicType
    ttl_ms: U64
    cap_records: U64
    cap_bytes: U64
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    priority: I32 | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: U64
    dedupe_node: bool
    lease_ms: U64
    claim_jitter_ms: U64
    max_deliveries: U64
    dead_letter: str | None
    leases_durable: bool


class PutTopic(Struct, kw_only=True):
    """A topic that was created or reconfigured."""

    topic: str
    created: bool
    config: Config
    performance: Performance


class QueueCounts(Struct, kw_only=True):
    ready: U64
    in_flight: U64
    dead_lettered: U64


class TopicState(Struct, kw_only=True):
    topic: str
    type: TopicType
    head_seq: U64
    earliest_seq: U64
    next_seq: U64
    count: U64
    bytes: U64
    config: Config
    effective_priority: int
    last_write_ts: U64 | None
    last_read_ts: U64 | None
    # Queues only.
    queue: QueueCounts | UnsetType = UNSET
    performance: Performance


class TopicEntry(Struct, kw_only=True):
    topic: str
    head_seq: U64
    earliest_seq: U64
    count: U64
    bytes: U64
    durable: bool
    effective_priority: int


class TopicList(Struct, kw_only=True):
    """A page of topics, names ascending."""

    topics: list[TopicEntry]
    # Only if more follow.
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class TopicDeleted(Struct, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


# Records.


class Appended(Struct, kw_only=True):
    """What a write got."""

    topic: str
    first_seq: U64
    last_seq: U64
    # Absent when the writer did not want them.
    seqs: list[U64] | UnsetType = UNSET
    head_seq: U64
    count: U64
    created: bool
    deduped: bool
    performance: Performance


class DiffRecord(Struct, kw_only=True):
    """A stored record. `$` marks what the server owns."""

    seq: U64 = field(name="$seq")
    ts: U64 = field(name="$ts")
    node: str | UnsetType = field(name="$node", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    data: msgspec.Raw
    meta: msgspec.Raw | UnsetType = UNSET


class Tombstone(Struct, kw_only=True):
    """Records a reader asked for and cannot have: seqs `gap_from` to `gap_to`, both included."""

    gap_from: U64
    gap_to: U64
    reason: TombstoneReason
    missed_estimate: U64
    earliest_seq: U64
    head_seq: U64


class Diff(Struct, kw_only=True):
    """Records behind a cursor, and where to go on."""

    topic: str
    records: list[DiffRecord]
    next_from_seq: U64
    head_seq: U64
    earliest_seq: U64
    caught_up: bool
    tombstone: Tombstone | None
    lag: U64
    performance: Performance


class ManifestSegment(Struct, kw_only=True):
    """A pair of files with records, in the layout of docs/formats.md."""

    first_seq: U64
    last_seq: U64
    tier: Literal["hot", "cold"]
    uri: str
    data_len: U64
    idx_len: U64
    min_ts: U64
    max_ts: U64
    records: U64
    live: U64
    sealed: bool
    digest: str


class PinState(Struct, kw_only=True):
    """Files that stay where they are for a while."""

    id: U64
    until: U64


class Manifest(Struct, kw_only=True):
    """One consistent picture of a topic for readers of its files."""

    topic: str
    store_id: str
    topic_id: U64
    epoch: U64
    head_seq: U64
    durable_seq: U64
    earliest_seq: U64
    evict_floor: U64
    cap_floor: U64
    ttl_floor: U64
    trim_floor: U64
    delete_below: U64
    lost_ranges: list[tuple[U64, U64]]
    checkpointed_seq: U64
    pending_deletes: list[tuple[U64, U64]]
    segments: list[ManifestSegment]
    pin: PinState | None
    performance: Performance


class TopicSealed(Struct, kw_only=True):
    """What of a topic is in files that do not change any more."""

    topic: str
    head_seq: U64
    sealed_seq: U64
    segments: U64
    performance: Performance


class SegmentReplaced(Struct, kw_only=True):
    """A segment whose files were exchanged."""

    topic: str
    first_seq: U64
    last_seq: U64
    removed: U64
    data_len: U64
    digest: str
    performance: Performance


class Deleted(Struct, kw_only=True):
    """How many records were removed, and what is left."""

    topic: str
    deleted: U64
    earliest_seq: U64
    head_seq: U64
    count: U64
    bytes: U64
    performance: Performance


# Queues.


class Job(Struct, kw_only=True):
    """A job and its lease."""

    seq: U64 = field(name="$seq")
    lease_id: str
    deadline: U64
    ts: U64 = field(name="$ts")
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    deliveries: U64
    data: msgspec.Raw
    meta: msgspec.Raw | UnsetType = UNSET


class Claimed(Struct, kw_only=True):
    """Jobs that are leased to the caller, seqs ascending."""

    topic: str
    claimed: list[Job]
    count: U64
    ready: U64
    performance: Performance


class Acked(Struct, kw_only=True):
    """How many jobs are done with."""

    topic: str
    acked: U64
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance


class Nacked(Struct, kw_only=True):
    """How many jobs were given back."""

    topic: str
    nacked: U64
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance


class Extended(Struct, kw_only=True):
    """Which jobs are leased on."""

    topic: str
    extended: U64
    skipped: list[U64]
    deadlines: dict[str, U64]
    performance: Performance


# Consumer groups.


class GroupEntry(Struct, kw_only=True):
    """Where a consumer group stands."""

    group: str
    seq: U64
    lag: U64
    last_commit_ts: U64


class GroupList(Struct, kw_only=True):
    """The consumer groups of a topic, by name."""

    topic: str
    head_seq: U64
    groups: list[GroupEntry]
    performance: Performance


class GroupState(Struct, kw_only=True):
    """Where a consumer group stands."""

    topic: str
    group: str
    seq: U64
    head_seq: U64
    lag: U64
    last_commit_ts: U64
    performance: Performance


class PutGroup(GroupState, kw_only=True):
    """Where a consumer group stands now."""

    created: bool


class Committed(GroupState, kw_only=True):
    """Where a consumer group stands after a commit."""

    moved: bool


class GroupDeleted(Struct, kw_only=True):
    """What became of a consumer group."""

    topic: str
    group: str
    deleted: bool
    performance: Performance


# Staged writes.


class Staged(Struct, kw_only=True):
    """A chunk that is kept until it is committed."""

    topic: str
    writer: str
    epoch: U64
    part: U64
    attempt: U64
    chunk: U64
    records: U64
    deduped: bool
    performance: Performance


class EpochCommitted(Struct, kw_only=True):
    """What a commit of staged records did."""

    topic: str
    writer: str
    epoch: U64
    first_seq: U64 | None
    last_seq: U64 | None
    count: U64 | None
    head_seq: U64
    deduped: bool
    performance: Performance


class WriterTopic(Struct, kw_only=True):
    """What a writer has committed to one topic last."""

    topic: str
    epoch: U64
    first_seq: U64
    last_seq: U64


class WriterEpochs(Struct, kw_only=True):
    """How far a writer is."""

    writer: str
    topics: list[WriterTopic]
    performance: Performance


class EpochAborted(Struct, kw_only=True):
    """What was dropped."""

    writer: str
    epoch: U64
    dropped: U64
    performance: Performance


# Operators.


class RouterEntry(Struct, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Literal["at_least_once", "exactly_once"]
    forwarded_total: U64


class RouterList(Struct, kw_only=True):
    """A page of routers."""

    routers: list[RouterEntry]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class RouterMembers(Struct, kw_only=True):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]


class PutRouter(RouterMembers, kw_only=True):
    """A router that was created or changed."""

    created: bool
    performance: Performance


class Router(RouterMembers, kw_only=True):
    """A router, and what it did."""

    forwarded_total: U64
    performance: Performance


class RouterDeleted(Struct, kw_only=True):
    router: str
    deleted: bool
    performance: Performance


class Health(Struct, kw_only=True):
    status: Literal["ok"]
    version: str
    uptime_ms: U64
    features: list[str]


class Ready(Struct, kw_only=True):
    status: Literal["ready"]
    wal_replay_complete: bool
    topics: U64


class WalMetrics(Struct, kw_only=True):
    fsyncs: U64
    frames: U64
    batches: U64
    bytes_written: U64
    rotations: U64
    queue_depth: U64
    queue_depth_peak: U64
    submit_full_total: U64
    read_only: bool
    fsync_count: U64
    fsync_micros_total: U64


class MetricsJson(Struct, kw_only=True):
    topics: U64
    topics_ephemeral: U64
    topics_memory: U64
    topics_disk: U64
    topics_fsync: U64
    routers: U64
    records_live: U64
    bytes_live: U64
    queue_topics: U64
    queue_leases_in_flight: U64
    sse_connections: U64
    watch_sessions: U64
    ready: bool
    replay_progress: float
    uptime_ms: U64
    wal: WalMetrics


# Watching.


class WatchedTopic(Struct, kw_only=True):
    """Where a watch of one topic begins."""

    from_seq: U64
    head_seq: U64
    earliest_seq: U64


class WatchCreated(Struct, kw_only=True):
    """A watch session, and where its stream is."""

    wid: str
    stream_url: str
    session_ttl_ms: U64
    topics: dict[str, WatchedTopic]
    performance: Performance
    ticket: str | UnsetType = UNSET


# Errors.


class ErrorMembers(Struct, kw_only=True):
    """`code` is stable, `message` is for people, `detail` is what a program may decide by."""

    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class ErrorEnvelope(Struct, kw_only=True):
    """The body of every answer that is no success."""

    error: ErrorMembers
