"""Response bodies of the HTTP contract, declared once.

The server encodes these structs, the client decodes them, and the OpenAPI document is made from them. The members
stand in the order in which they go over the wire; a member that is `UNSET` is left out. A few hot answers (append,
diff, claim) are rendered as text from stored bytes: tests/server/api/test_rendered_answers.py holds them to their
struct. A client ignores members that it does not know, so a newer server may send more.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from topics.protocol.member_types import (
    I32,
    U64,
    EarliestSeq,
    EpochNumber,
    GroupLag,
    GroupName,
    GroupSeq,
    HeadSeq,
    LiveBytes,
    LiveCount,
    PartNumber,
    RouterDest,
    RouterName,
    RouterSource,
    TopicName,
    WriterName,
)

TopicType = Literal["log", "queue"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]
TombstoneReason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "power_loss", "corrupt"]
Guarantee = Literal["at_least_once", "exactly_once"]
SeqRange = tuple[U64, U64]


class Performance(Struct, kw_only=True, gc=False):
    """How long the server took, and for what."""

    server_total_ms: Annotated[float, Meta(description="From the request to its answer.")]
    wal_append_ms: Annotated[float | UnsetType, Meta(description="Until the write was in the write-ahead log.")] = UNSET
    fsync_ms: Annotated[
        float | UnsetType, Meta(description="Until the write-ahead log was synced; 0 unless the class is `fsync`.")
    ] = UNSET
    throttle_wait_ms: Annotated[
        float | UnsetType,
        Meta(description="How long the write waited for room in the commit queue; absent if it did not wait."),
    ] = UNSET
    records_scanned: Annotated[U64 | UnsetType, Meta(description="Seqs that were examined, delivered or skipped.")] = (
        UNSET
    )
    cold_segments_read: Annotated[
        U64 | UnsetType, Meta(description="Records that came from the cold tier; absent if none did.")
    ] = UNSET


TimeSpent = Annotated[Performance, Meta(description="Where the time went.")]


# Topics.


NamesHidden = Annotated[
    int | UnsetType,
    Meta(description="How many names are left out because the key may not name them; absent if there are none."),
]


ConfigWarnings = Annotated[
    list[str] | UnsetType,
    Meta(
        description="A sentence for each member of the config that is not known, or cannot do what it says; absent if "
        "there are none."
    ),
]


class ResolvedConfig(Struct, kw_only=True):
    """All settings of a topic, with their defaults filled in."""

    type: Annotated[TopicType, Meta(description="Fixed when the topic is created.")]
    ttl_ms: Annotated[U64, Meta(description="Age at which records expire; 0 = never.")]
    cap_records: Annotated[U64, Meta(description="Records kept; 0 = unlimited.")]
    cap_bytes: Annotated[U64, Meta(description="Bytes kept; 0 = unlimited.")]
    discard: Annotated[
        Literal["old", "reject"],
        Meta(description="What happens at a cap: the oldest records go, or the write is refused."),
    ]
    durability: Annotated[Durability, Meta(description="What an acknowledged write survives.")]
    priority: Annotated[I32 | None, Meta(description="Acts within -1000 to 1000; null = by recency.")]
    auto_priority: Annotated[bool, Meta(description="Whether recency counts while `priority` is null.")]
    auto_create: Annotated[
        bool, Meta(description="Whether a write with this config creates a missing topic if its `create` is not set.")
    ]
    idempotency_window_ms: Annotated[U64, Meta(description="How long an idempotency key is remembered.")]
    dedupe_node: Annotated[bool, Meta(description="Whether readers can leave out records of their own node.")]
    lease_ms: Annotated[U64, Meta(description="How long a claimed job is leased, from 100 to 86400000.")]
    claim_jitter_ms: Annotated[U64, Meta(description="Window in which claims are served together; at most 5000.")]
    max_deliveries: Annotated[
        U64, Meta(description="Deliveries before a job is moved to `dead_letter`; 0 = unlimited.")
    ]
    dead_letter: Annotated[str | None, Meta(description="Topic for jobs that were delivered too often.")]
    leases_durable: Annotated[bool, Meta(description="Whether leases survive a restart.")]
    durable: Annotated[bool, Meta(description="Whether `durability` is `fsync`.")]


class PutTopic(Struct, kw_only=True):
    """A topic that was created or reconfigured."""

    topic: TopicName
    created: Annotated[bool, Meta(description="Whether this call created the topic.")]
    config: Annotated[ResolvedConfig, Meta(description="The topic's config.")]
    warnings: ConfigWarnings = UNSET
    performance: TimeSpent


ReadyJobs = Annotated[U64, Meta(description="Jobs that can be claimed.")]
LeasedJobs = Annotated[U64, Meta(description="Jobs under an unexpired lease.")]
DelayedJobs = Annotated[U64, Meta(description="Jobs that were given back with a delay that is not over.")]
DeadLetteredJobs = Annotated[U64, Meta(description="Jobs moved to the dead-letter topic since the server started.")]
OldestReadyAge = Annotated[
    U64 | None, Meta(description="How long ago the oldest ready job was written; null if no job is ready.")
]


DeadLetters = Annotated[
    U64 | None,
    Meta(
        description="Live records of the whole dead-letter topic, also if several queues share it; null if the "
        "queue has none, or the key may not name it."
    ),
]


class QueueCounts(Struct, kw_only=True):
    """How many jobs of a queue are in which state."""

    ready: ReadyJobs
    in_flight: LeasedJobs
    dead_lettered: DeadLetteredJobs
    delayed: DelayedJobs
    oldest_ready_age_ms: OldestReadyAge
    dead: DeadLetters


class GroupsSummary(Struct, kw_only=True):
    """The consumer groups of a topic, in short."""

    count: Annotated[U64, Meta(description="Number of consumer groups.")]
    lag_max: Annotated[U64, Meta(description="The largest lag: `head_seq` without the cursor of the last group.")]


class TopicState(Struct, kw_only=True):
    topic: TopicName
    type: Annotated[TopicType, Meta(description="Fixed when the topic is created.")]
    head_seq: HeadSeq
    earliest_seq: EarliestSeq
    next_seq: Annotated[U64, Meta(description="`head_seq + 1`.")]
    count: LiveCount
    bytes: LiveBytes
    epoch: Annotated[U64, Meta(description="Tells topics of the same name apart.")]
    evict_floor: Annotated[U64, Meta(description="Records below this seq are gone by caps or age.")]
    lost_ranges: Annotated[
        list[SeqRange],
        Meta(
            description="First and last seqs, from `evict_floor` on, that a power loss took or that a router's source "
            "lost. Readers get a tombstone for each range; claims pass over it."
        ),
    ]
    config: Annotated[ResolvedConfig, Meta(description="The topic's config.")]
    names_hidden: NamesHidden = UNSET
    effective_priority: Annotated[int, Meta(description="The priority in effect, set or by recency.")]
    last_write_ts: Annotated[
        U64 | None,
        Meta(description="Milliseconds since the Unix epoch; null if the topic had no write since the server started."),
    ]
    last_read_ts: Annotated[
        U64 | None,
        Meta(description="Milliseconds since the Unix epoch; null if the topic had no read since the server started."),
    ]
    queue: Annotated[QueueCounts | UnsetType, Meta(description="Queues only.")] = UNSET
    performance: TimeSpent


class TopicEntry(Struct, kw_only=True):
    topic: TopicName
    head_seq: HeadSeq
    earliest_seq: EarliestSeq
    count: LiveCount
    bytes: LiveBytes
    durable: Annotated[bool, Meta(description="Whether the durability class is `fsync`.")]
    durability: Annotated[Durability, Meta(description="What an acknowledged write survives.")]
    effective_priority: Annotated[int, Meta(description="The priority in effect, set or by recency.")]
    type: Annotated[TopicType, Meta(description="Fixed when the topic is created.")]
    queue: Annotated[QueueCounts | UnsetType, Meta(description="Queues only.")] = UNSET
    groups: Annotated[GroupsSummary | UnsetType, Meta(description="Only topics with consumer groups.")] = UNSET


class TopicList(Struct, kw_only=True):
    """A page of topics, names ascending."""

    topics: Annotated[list[TopicEntry], Meta(description="The topics, names ascending.")]
    next_cursor: Annotated[str | UnsetType, Meta(description="Cursor of the next page; absent on the last page.")] = (
        UNSET
    )
    performance: TimeSpent


class TopicDeleted(Struct, kw_only=True):
    topic: TopicName
    deleted: Annotated[bool, Meta(description="False if there was no such topic.")]
    routers_removed: Annotated[
        list[str], Meta(description="Routers from or to the topic, which went with it. Sorted by name.")
    ]
    names_hidden: NamesHidden = UNSET
    performance: TimeSpent


# Records.


class Appended(Struct, kw_only=True):
    """The seqs that a write got."""

    topic: TopicName
    first_seq: Annotated[U64, Meta(description="Seq of the first record of this write.")]
    last_seq: Annotated[U64, Meta(description="Seq of the last record of this write.")]
    seqs: Annotated[
        list[U64] | UnsetType, Meta(description="Seqs of all records of this write; absent with `return_seqs=false`.")
    ] = UNSET
    head_seq: Annotated[U64, Meta(description="Head right after this write.")]
    count: Annotated[U64, Meta(description="Records of this write.")]
    created: Annotated[bool, Meta(description="Whether this call created the topic.")]
    deduped: Annotated[bool, Meta(description="Whether these records had been appended before, under the same key.")]
    warnings: ConfigWarnings = UNSET
    performance: TimeSpent


class DiffRecord(Struct, kw_only=True):
    """A stored record. The server sets the members that begin with `$`."""

    seq: Annotated[U64, Meta(description="Number of the record in its topic.")] = field(name="$seq")
    ts: Annotated[U64, Meta(description="When the record was appended, in milliseconds since the Unix epoch.")] = field(
        name="$ts"
    )
    node: Annotated[str | UnsetType, Meta(description="Node that wrote the record.")] = field(
        name="$node", default=UNSET
    )
    tag: Annotated[str | UnsetType, Meta(description="Tag of the record, if the reader asked for tags.")] = field(
        name="$tag", default=UNSET
    )
    data: Annotated[Raw, Meta(description="The payload: any JSON, given back byte for byte.")]
    meta: Annotated[Raw | UnsetType, Meta(description="More about the payload: any JSON, usually an object.")] = UNSET


class Tombstone(Struct, kw_only=True):
    """Records that a reader asked for and that are gone: seqs `gap_from` to `gap_to`, both included."""

    gap_from: Annotated[U64, Meta(description="First seq that is gone.")]
    gap_to: Annotated[U64, Meta(description="Last seq that is gone.")]
    reason: Annotated[TombstoneReason, Meta(description="Why the records are gone.")]
    missed_estimate: Annotated[U64, Meta(description="How many records may be gone.")]
    earliest_seq: Annotated[U64, Meta(description="First seq after the gap.")]
    head_seq: HeadSeq


class Diff(Struct, kw_only=True):
    """Records after a cursor, and the cursor of the next read."""

    topic: TopicName
    records: Annotated[list[DiffRecord], Meta(description="The records, seqs ascending.")]
    next_from_seq: Annotated[U64, Meta(description="Cursor of the next read: the last seq that was examined.")]
    head_seq: HeadSeq
    earliest_seq: EarliestSeq
    caught_up: Annotated[bool, Meta(description="Whether the reader has every record up to the head.")]
    tombstone: Annotated[Tombstone | None, Meta(description="Records that are gone and were not deleted, or null.")]
    lag: Annotated[U64, Meta(description="`head_seq - next_from_seq`.")]
    performance: TimeSpent


class Deleted(Struct, kw_only=True):
    """How many records were removed, and what is left."""

    topic: TopicName
    deleted: Annotated[U64, Meta(description="Records deleted by this call.")]
    earliest_seq: EarliestSeq
    head_seq: HeadSeq
    count: Annotated[U64, Meta(description="Live records left.")]
    bytes: LiveBytes
    performance: TimeSpent


# Files.


class ManifestSegment(Struct, kw_only=True):
    """A pair of files with records, in the layout of docs/formats.md."""

    first_seq: Annotated[U64, Meta(description="First seq that the segment covers.")]
    last_seq: Annotated[U64, Meta(description="Last seq that the segment covers.")]
    tier: Annotated[Literal["hot", "cold"], Meta(description="Where the files are.")]
    uri: Annotated[str, Meta(description="Address of the `.data` file. The `.idx` file is in the same folder.")]
    data_len: Annotated[U64, Meta(description="Bytes of the `.data` file that count; the file may have grown since.")]
    idx_len: Annotated[U64, Meta(description="Bytes of the `.idx` file that count.")]
    min_ts: Annotated[U64, Meta(description="Time of the first record.")]
    max_ts: Annotated[U64, Meta(description="Time of the last record.")]
    records: Annotated[U64, Meta(description="Seqs that the segment covers, with or without a record.")]
    live: Annotated[U64, Meta(description="Live records in the segment.")]
    sealed: Annotated[bool, Meta(description="Whether the files never change again, except for their delete bytes.")]
    digest: Annotated[
        str,
        Meta(
            description="XXH3-128 over the checksums of the frames, in hexadecimal: the identity of the segment. "
            "Empty while the segment is not sealed."
        ),
    ]
    proof: Annotated[
        str,
        Meta(
            description="Tells the file from a file of another topic (docs/formats.md, proof of a segment), in "
            "hexadecimal. Empty when an older version wrote the segment."
        ),
    ]


class PinState(Struct, kw_only=True):
    """Until when the server keeps the files of a manifest."""

    id: Annotated[U64, Meta(description="Number of the pin.")]
    until: Annotated[U64, Meta(description="When the pin ends, in milliseconds since the Unix epoch.")]


class Manifest(Struct, kw_only=True):
    """One consistent picture of a topic for readers of its files."""

    topic: TopicName
    store_id: Annotated[
        str,
        Meta(
            description="Random number of the data directory, as in the file STORE of every tier: tells the directory "
            "from an equal path on another machine."
        ),
    ]
    topic_id: Annotated[U64, Meta(description="Number of the topic. A new topic of the same name gets another number.")]
    epoch: Annotated[U64, Meta(description="Tells topics of the same name apart.")]
    head_seq: HeadSeq
    durable_seq: Annotated[
        U64,
        Meta(description="A power loss takes no record up to this seq. More records may be safe than this one says."),
    ]
    earliest_seq: EarliestSeq
    evict_floor: Annotated[
        U64, Meta(description="Records below this seq are gone by caps or age, even where a file still has them.")
    ]
    cap_floor: Annotated[U64, Meta(description="Last seq that a cap removed; 0 = none.")]
    ttl_floor: Annotated[U64, Meta(description="Last seq that was removed because of its age; 0 = none.")]
    delete_below: Annotated[U64, Meta(description="Records below this seq were deleted.")]
    lost_ranges: Annotated[
        list[SeqRange],
        Meta(description="First and last seqs that a power loss took, or that a router's source lost."),
    ]
    source_trims: Annotated[
        list[SeqRange],
        Meta(description="The ranges of `lost_ranges` that a router's source lost before the router copied them."),
    ]
    checkpointed_seq: Annotated[U64, Meta(description="Records up to this seq are in segments.")]
    pending_deletes: Annotated[
        list[SeqRange],
        Meta(description="First and last seqs of records that are deleted, but not yet marked so in their files."),
    ]
    segments: Annotated[list[ManifestSegment], Meta(description="The segments, seqs ascending, without overlap.")]
    pin: Annotated[PinState | None, Meta(description="The pin that keeps the files; null without a pin.")]
    performance: TimeSpent


class LogCapture(Struct, kw_only=True):
    """The whole log at one moment, for a backup."""

    store_id: Annotated[str, Meta(description="Random number of the data directory, as in the file STORE.")]
    ts: Annotated[U64, Meta(description="When the capture was taken, in milliseconds since the Unix epoch.")]
    data_uri: Annotated[str, Meta(description="Address of the data directory on the machine of the server.")]
    cold_uri: Annotated[str | None, Meta(description="Address of the cold tier; null without one.")]
    snapshot: Annotated[
        bytes,
        Meta(
            description="All topics and routers, as a snapshot file of docs/formats.md, in base64. Records above the "
            "last segment of a topic, up to its `checkpointed_seq`, are read as frames."
        ),
    ]
    pin: Annotated[PinState | None, Meta(description="The pin that keeps the files; null without a pin.")]
    performance: TimeSpent


class TopicSealed(Struct, kw_only=True):
    """Which records of a topic are in files that never change again."""

    topic: TopicName
    head_seq: HeadSeq
    sealed_seq: Annotated[U64, Meta(description="Last seq in a sealed segment; 0 if there is none.")]
    segments: Annotated[U64, Meta(description="Number of sealed segments.")]
    performance: TimeSpent


class SegmentReplaced(Struct, kw_only=True):
    """A segment whose files were replaced."""

    topic: TopicName
    first_seq: Annotated[U64, Meta(description="First seq that the segment covers, as before.")]
    last_seq: Annotated[U64, Meta(description="Last seq that the segment covers, as before.")]
    removed: Annotated[U64, Meta(description="Deleted records that the new file does not have.")]
    data_len: Annotated[U64, Meta(description="Bytes of the `.data` file that count; the file may have grown since.")]
    digest: Annotated[
        str, Meta(description="XXH3-128 over the checksums of the frames, in hexadecimal: the new identity.")
    ]
    performance: TimeSpent


# Queues.


class Job(Struct, kw_only=True):
    """A job and its lease."""

    seq: Annotated[U64, Meta(description="Number of the job in its queue.")] = field(name="$seq")
    lease_id: Annotated[str, Meta(description="Names this delivery: only the node that holds it can ack with it.")]
    deadline: Annotated[U64, Meta(description="When the lease ends, in milliseconds since the Unix epoch.")]
    ts: Annotated[U64, Meta(description="When the job was appended, in milliseconds since the Unix epoch.")] = field(
        name="$ts"
    )
    tag: Annotated[str | UnsetType, Meta(description="Tag of the job.")] = field(name="$tag", default=UNSET)
    deliveries: Annotated[U64, Meta(description="How often the job was delivered, this time included.")]
    data: Annotated[Raw, Meta(description="The payload: any JSON, given back byte for byte.")]
    meta: Annotated[Raw | UnsetType, Meta(description="More about the payload: any JSON, usually an object.")] = UNSET


SkippedSeqs = Annotated[list[U64], Meta(description="Seqs that the call did not act on, in the order of the call.")]


class Claimed(Struct, kw_only=True):
    """Jobs that are leased to the caller, seqs ascending."""

    topic: TopicName
    claimed: Annotated[list[Job], Meta(description="The jobs, seqs ascending.")]
    count: Annotated[U64, Meta(description="Jobs of this answer.")]
    ready: ReadyJobs
    performance: TimeSpent


class Acked(Struct, kw_only=True):
    """How many jobs are done."""

    topic: TopicName
    acked: Annotated[U64, Meta(description="Jobs deleted by this call.")]
    skipped: SkippedSeqs
    ready: ReadyJobs
    in_flight: LeasedJobs
    performance: TimeSpent


class Nacked(Struct, kw_only=True):
    """How many jobs were given back."""

    topic: TopicName
    nacked: Annotated[U64, Meta(description="Jobs given back by this call.")]
    skipped: SkippedSeqs
    ready: ReadyJobs
    in_flight: LeasedJobs
    performance: TimeSpent


class Extended(Struct, kw_only=True):
    """Which jobs are leased for longer."""

    topic: TopicName
    extended: Annotated[U64, Meta(description="Jobs whose lease this call extended.")]
    skipped: SkippedSeqs
    deadlines: Annotated[dict[int, U64], Meta(description="New deadline of each job, by seq.")]
    performance: TimeSpent


class QueueLease(Struct, kw_only=True):
    """A job that is leased."""

    seq: Annotated[U64, Meta(description="Number of the job in its queue.")] = field(name="$seq")
    node: Annotated[str, Meta(description="Node that holds the lease.")]
    lease_id: Annotated[str, Meta(description="Names this delivery.")]
    deadline: Annotated[U64, Meta(description="When the lease ends, in milliseconds since the Unix epoch.")]
    deliveries: Annotated[U64, Meta(description="How often the job was delivered, this time included.")]


class QueueState(Struct, kw_only=True):
    """A queue: how many jobs are in which state, and which jobs are leased."""

    topic: TopicName
    ready: ReadyJobs
    in_flight: LeasedJobs
    delayed: DelayedJobs
    oldest_ready_age_ms: OldestReadyAge
    dead_lettered: DeadLetteredJobs
    dead: DeadLetters
    dead_letter: Annotated[str | None, Meta(description="Topic for jobs that were delivered too often.")]
    names_hidden: NamesHidden = UNSET
    leases: Annotated[list[QueueLease], Meta(description="The leases, seqs ascending.")]
    next_cursor: Annotated[str | UnsetType, Meta(description="Cursor of the next page; absent on the last page.")] = (
        UNSET
    )
    performance: TimeSpent


class Redriven(Struct, kw_only=True):
    """What a redrive moved, and where the next call goes on."""

    topic: TopicName
    source: Annotated[str, Meta(description="Topic that the jobs come from.")]
    dest: Annotated[str, Meta(description="Queue that the jobs go to.")]
    moved: Annotated[
        U64, Meta(description="Jobs that were moved, with the jobs of earlier calls under the same idempotency key.")
    ]
    matched: Annotated[U64, Meta(description="Jobs that match, moved or, in a dry run, not.")]
    skipped: Annotated[U64, Meta(description="Jobs that match and stay, because they are leased or delayed.")]
    next_from_seq: Annotated[
        U64, Meta(description="The last seq of the source that was looked at: `from_seq` of the next call.")
    ]
    until_seq: Annotated[
        U64,
        Meta(
            description="The last seq of the source that is meant. Send it with the next call: jobs that die again "
            "meanwhile have higher seqs."
        ),
    ]
    remaining: Annotated[U64, Meta(description="Records up to `until_seq` that were not looked at, at most.")]
    stopped: Annotated[
        Literal["end", "limit", "time", "full"],
        Meta(
            description="Why the call ended: it has looked at everything, has moved `limit` jobs, its time is over, or "
            "the dest has no room."
        ),
    ]
    dry_run: Annotated[bool, Meta(description="Whether no job was moved because the call asked for that.")]
    jobs: Annotated[list[DiffRecord], Meta(description="The first jobs that match, of a dry run.")]
    warnings: Annotated[
        list[str] | UnsetType,
        Meta(description="A sentence for each member of the body that is not known; absent if there are none."),
    ] = UNSET
    performance: TimeSpent


# Consumer groups.


class GroupEntry(Struct, kw_only=True):
    """The cursor of a consumer group."""

    group: GroupName
    seq: GroupSeq
    lag: GroupLag
    last_commit_ts: Annotated[
        U64, Meta(description="When the cursor was last moved, in milliseconds since the Unix epoch.")
    ]


class GroupList(Struct, kw_only=True):
    """The consumer groups of a topic, names ascending."""

    topic: TopicName
    head_seq: HeadSeq
    groups: Annotated[list[GroupEntry], Meta(description="The consumer groups of the topic, names ascending.")]
    performance: TimeSpent


class GroupMembers(Struct, kw_only=True):
    """What every answer about one consumer group has."""

    topic: TopicName
    group: GroupName
    seq: GroupSeq
    head_seq: HeadSeq
    lag: GroupLag
    last_commit_ts: Annotated[
        U64, Meta(description="When the cursor was last moved, in milliseconds since the Unix epoch.")
    ]


class GroupState(GroupMembers, kw_only=True):
    """The cursor of a consumer group."""

    performance: TimeSpent


class PutGroup(GroupMembers, kw_only=True):
    """The cursor of a consumer group that was created or moved."""

    created: Annotated[bool, Meta(description="Whether this call created the group.")]
    performance: TimeSpent


class Committed(GroupMembers, kw_only=True):
    """The cursor of a consumer group after a commit."""

    moved: Annotated[bool, Meta(description="Whether this call moved the cursor.")]
    performance: TimeSpent


class GroupDeleted(Struct, kw_only=True):
    """Whether a consumer group was deleted."""

    topic: TopicName
    group: GroupName
    deleted: Annotated[bool, Meta(description="False if there was no such group.")]
    performance: TimeSpent


# Staged writes.


class ChunkStaged(Struct, kw_only=True):
    """A chunk that is kept until it is committed."""

    topic: TopicName
    writer: WriterName
    epoch: EpochNumber
    part: PartNumber
    attempt: Annotated[U64, Meta(description="Number of the attempt at the part.")]
    chunk: Annotated[U64, Meta(description="Number of the chunk in its attempt, from 0.")]
    records: Annotated[U64, Meta(description="Records of the chunk.")]
    deduped: Annotated[
        bool, Meta(description="Whether the chunk had been staged before, or the epoch is already committed.")
    ]
    performance: TimeSpent


class EpochCommitted(Struct, kw_only=True):
    """What a commit of staged records did."""

    topic: TopicName
    writer: WriterName
    epoch: EpochNumber
    first_seq: Annotated[U64 | None, Meta(description="Seq of the first record; null for an epoch below the highest.")]
    last_seq: Annotated[
        U64 | None, Meta(description="Seq of the last record; one less than `first_seq` if there is none.")
    ]
    count: Annotated[U64 | None, Meta(description="Records that the epoch has appended, by this call or before.")]
    head_seq: HeadSeq
    deduped: Annotated[
        bool, Meta(description="Whether the epoch was committed before, so that this call appended nothing.")
    ]
    performance: TimeSpent


class WriterTopic(Struct, kw_only=True):
    """The last epoch that a writer has committed to one topic."""

    topic: TopicName
    epoch: Annotated[U64, Meta(description="The highest epoch that was committed.")]
    first_seq: Annotated[U64, Meta(description="Seq of the first record of that epoch.")]
    last_seq: Annotated[
        U64, Meta(description="Seq of the last record of that epoch; one less than `first_seq` if there is none.")
    ]


class WriterEpochs(Struct, kw_only=True):
    """The epochs that a writer has committed."""

    writer: WriterName
    topics: Annotated[
        list[WriterTopic], Meta(description="The topics that the writer has committed to, names ascending.")
    ]
    performance: TimeSpent


class EpochAborted(Struct, kw_only=True):
    """How many staged chunks were dropped."""

    writer: WriterName
    epoch: EpochNumber
    dropped: Annotated[U64, Meta(description="Chunks that were dropped.")]
    performance: TimeSpent


# Routers.


RouterLag = Annotated[
    U64 | None,
    Meta(
        description="Seqs or messages of the source that the router has not looked at yet; null if it is not known, "
        "because streams are off or the router has just begun."
    ),
]


class RouterEntry(Struct, kw_only=True):
    router: RouterName
    source: RouterSource
    dest: RouterDest
    guarantee: Annotated[
        Guarantee,
        Meta(
            description="`exactly_once` gives each copy a key, and skips a record whose key a live record of the dest "
            "already has."
        ),
    ]
    forwarded_total: Annotated[
        U64, Meta(description="Records copied, trimmed, or skipped because the dest already had them.")
    ]
    lag: RouterLag


class RouterList(Struct, kw_only=True):
    """A page of routers, names ascending."""

    routers: Annotated[list[RouterEntry], Meta(description="The routers, names ascending.")]
    next_cursor: Annotated[str | UnsetType, Meta(description="Cursor of the next page; absent on the last page.")] = (
        UNSET
    )
    performance: TimeSpent


class RouterMembers(Struct, kw_only=True):
    """What every answer about one router has."""

    router: RouterName
    source: RouterSource
    dest: RouterDest
    preserve_node: Annotated[bool, Meta(description="Whether copies keep the node.")]
    preserve_tag: Annotated[bool, Meta(description="Whether copies keep the tag.")]
    filter: Annotated[
        list[str] | None, Meta(description="Only records whose tag matches are copied; null = all records.")
    ]
    allow_cycle: Annotated[bool, Meta(description="Whether the router may close a cycle.")]
    guarantee: Annotated[
        Guarantee,
        Meta(
            description="`exactly_once` gives each copy a key, and skips a record whose key a live record of the dest "
            "already has."
        ),
    ]


class PutRouter(RouterMembers, kw_only=True):
    """A router that was created or changed."""

    created: Annotated[bool, Meta(description="Whether this call created the router.")]
    warnings: ConfigWarnings = UNSET
    performance: TimeSpent


class RouterRetry(Struct, kw_only=True):
    """The source of a router cannot be read now. The time to the next try doubles with each failure, up to 10 s."""

    failures: Annotated[U64, Meta(description="Failures in a row.")]
    retry_in_ms: Annotated[U64, Meta(description="Milliseconds to the next try; 0 if it runs.")]


class Router(RouterMembers, kw_only=True):
    """A router, and how much it has copied."""

    forwarded_total: Annotated[
        U64, Meta(description="Records copied, trimmed, or skipped because the dest already had them.")
    ]
    lag: RouterLag
    lost_total: Annotated[
        U64 | UnsetType,
        Meta(
            description="Only for a router to or from a stream: records or messages that retention removed before they "
            "were copied."
        ),
    ] = UNSET
    retry: Annotated[
        RouterRetry | UnsetType, Meta(description="Only while the source of the router cannot be read.")
    ] = UNSET
    performance: TimeSpent


class RouterDeleted(Struct, kw_only=True):
    router: RouterName
    deleted: Annotated[bool, Meta(description="False if there was no such router.")]
    performance: TimeSpent


# Operations.


class Health(Struct, kw_only=True):
    status: Annotated[Literal["ok"], Meta(description="Always `ok`.")]
    version: Annotated[str, Meta(description="Version of the server.")]
    uptime_ms: Annotated[U64, Meta(description="Milliseconds since the start.")]
    features: Annotated[list[str], Meta(description="What this server can do beyond the first contract.")]


class Ready(Struct, kw_only=True):
    status: Annotated[Literal["ready"], Meta(description="Always `ready`.")]
    wal_replay_complete: Annotated[bool, Meta(description="Always true in this answer.")]
    topics: Annotated[U64, Meta(description="Number of topics.")]


class AccessRights(Struct, kw_only=True):
    """What the key of the call may do."""

    needs_key: Annotated[
        bool, Meta(description="Whether the server has keys. Without keys every caller has all rights.")
    ]
    scopes: Annotated[
        list[str], Meta(description="What the key may do with its names: `read`, `write`, `delete`, `admin`.")
    ]
    prefixes: Annotated[list[str], Meta(description="How the names begin that the key is for; empty = any name.")]


class WalMetrics(Struct, kw_only=True):
    """Numbers of the write-ahead log."""

    fsyncs: Annotated[U64, Meta(description="Syncs.")]
    frames: Annotated[U64, Meta(description="Frames written.")]
    batches: Annotated[U64, Meta(description="Groups of writes, each written at once.")]
    bytes_written: Annotated[U64, Meta(description="Bytes written.")]
    rotations: Annotated[U64, Meta(description="Log files begun after the first.")]
    queue_depth: Annotated[U64, Meta(description="Writes that wait for their commit.")]
    queue_depth_peak: Annotated[
        U64, Meta(description="The highest number of writes that waited at once since the start.")
    ]
    submit_full_total: Annotated[U64, Meta(description="Writes refused by a full commit queue.")]
    read_only: Annotated[bool, Meta(description="Whether a shard takes no writes until a restart.")]
    fsync_count: Annotated[U64, Meta(description="Syncs.")]
    fsync_micros_total: Annotated[U64, Meta(description="Microseconds spent in syncs.")]
    fsync_bounds_us: Annotated[list[U64], Meta(description="Upper bounds of the groups of syncs, in microseconds.")]
    fsync_buckets: Annotated[
        list[U64],
        Meta(
            description="Syncs that took no longer than the bound at the same place, and longer than the previous "
            "bound. The last number counts longer syncs."
        ),
    ]
    unsynced_bytes: Annotated[U64, Meta(description="Bytes that a power loss would take now.")]
    unsynced_ms: Annotated[U64, Meta(description="Age of the oldest byte that a power loss would take now.")]
    backlog_bytes: Annotated[
        U64, Meta(description="Bytes whose records are in no segment yet: the next start would read them.")
    ]


class DiskMetrics(Struct, kw_only=True):
    """The disk of the data directory."""

    free_bytes: Annotated[U64, Meta(description="Bytes that the server can still write.")]
    total_bytes: Annotated[U64, Meta(description="Size of the disk.")]


class TrafficMetrics(Struct, kw_only=True):
    """Counts since the start. The difference of two scrapes gives a rate."""

    appends: Annotated[U64, Meta(description="Writes that were acked.")]
    append_records: Annotated[U64, Meta(description="Records in acked writes.")]
    append_bytes: Annotated[U64, Meta(description="Accounted bytes of these records.")]
    received_bytes: Annotated[U64, Meta(description="Bytes from clients.")]
    sent_bytes: Annotated[U64, Meta(description="Bytes to clients.")]
    requests: Annotated[dict[str, U64], Meta(description="Requests that were answered, by endpoint.")]
    errors: Annotated[U64, Meta(description="Requests that were answered with a status of 500 or more.")]
    refusals: Annotated[U64, Meta(description="Requests that were answered with a status from 400 to 499.")]
    connections_open: Annotated[U64, Meta(description="Open connections.")]


class StreamsMetrics(Struct, kw_only=True):
    """Numbers of the streams."""

    streams: Annotated[U64, Meta(description="Number of streams.")]
    topics: Annotated[U64, Meta(description="Topics of all streams.")]
    partitions: Annotated[U64, Meta(description="Partitions of these topics.")]
    messages: Annotated[U64, Meta(description="Messages that can be read.")]
    bytes: Annotated[U64, Meta(description="Bytes of these messages.")]
    unsaved_messages: Annotated[U64, Meta(description="Messages that a kill of the process would lose.")]
    stopped_partitions: Annotated[U64, Meta(description="Partitions that take no messages until a restart.")]
    connections: Annotated[U64, Meta(description="Open connections of clients of Apache Iggy.")]
    requests: Annotated[dict[str, U64], Meta(description="Their requests, by command.")]
    errors: Annotated[dict[str, U64], Meta(description="Requests that were refused, by status.")]
    recovery_progress: Annotated[float, Meta(description="How much of the streams is recovered, from 0 to 1.")]


ClassTopics = Annotated[U64, Meta(description="Topics of this durability class.")]


class SettingState(Struct, kw_only=True):
    """One setting of the server."""

    name: Annotated[str, Meta(description="Name of the setting, as in `topics.toml`.")]
    value: Annotated[str, Meta(description="The value for people. Keys are counted, not shown.")]
    origin: Annotated[
        str,
        Meta(description="Where it comes from: a flag, a variable, the path of `topics.toml`, or `default`."),
    ]
    default: Annotated[str, Meta(description="The default, for people.")]
    group: Annotated[str, Meta(description="What kind of setting it is.")]
    meaning: Annotated[str, Meta(description="What the setting does.")]
    reloaded: Annotated[bool, Meta(description="Whether a running server takes a new value at SIGHUP.")]


class ServerConfig(Struct, kw_only=True):
    """The settings of the server, and where each value comes from."""

    version: Annotated[str, Meta(description="Version of the server.")]
    settings: Annotated[list[SettingState], Meta(description="Every setting, in the order of the reference.")]
    performance: TimeSpent


class MetricsJson(Struct, kw_only=True):
    topics: Annotated[U64, Meta(description="Number of topics.")]
    topics_ephemeral: ClassTopics
    topics_memory: ClassTopics
    topics_disk: ClassTopics
    topics_fsync: ClassTopics
    routers: Annotated[U64, Meta(description="Number of routers.")]
    records_live: Annotated[U64, Meta(description="Live records of all topics.")]
    bytes_live: Annotated[U64, Meta(description="Bytes of all live records.")]
    queue_topics: Annotated[U64, Meta(description="Topics that are queues.")]
    queue_leases_in_flight: Annotated[U64, Meta(description="Unexpired leases.")]
    sse_connections: Annotated[U64, Meta(description="Open streams.")]
    watch_sessions: Annotated[U64, Meta(description="Watch sessions.")]
    ready: Annotated[bool, Meta(description="Whether every write can be taken.")]
    replay_progress: Annotated[float, Meta(description="How much of the log is recovered, from 0 to 1.")]
    uptime_ms: Annotated[U64, Meta(description="Milliseconds since the start.")]
    pressure: Annotated[float, Meta(description="How loaded the server is, from 0 to 1.")]
    wal: Annotated[WalMetrics, Meta(description="The write-ahead log.")]
    traffic: Annotated[TrafficMetrics, Meta(description="Requests, records and bytes.")]
    disk: Annotated[DiskMetrics | UnsetType, Meta(description="Absent until it was measured.")] = UNSET
    streams: Annotated[
        StreamsMetrics | UnsetType, Meta(description="The streams; absent in a server without streams.")
    ] = UNSET


# Watching.


class WatchedTopic(Struct, kw_only=True):
    """Where the watch of one topic begins."""

    from_seq: Annotated[U64, Meta(description="The stream begins with the first record that has a higher seq.")]
    head_seq: HeadSeq
    earliest_seq: EarliestSeq


class WatchCreated(Struct, kw_only=True):
    """A watch session, and the address of its stream."""

    wid: Annotated[str, Meta(description="Name of the session.")]
    stream_url: Annotated[str, Meta(description="Address of the stream.")]
    session_ttl_ms: Annotated[U64, Meta(description="How long the session stays without a stream.")]
    topics: Annotated[dict[str, WatchedTopic], Meta(description="Where each topic begins, by name.")]
    performance: TimeSpent
    ticket: Annotated[
        str | UnsetType, Meta(description="With keys: valid as `token` of the stream, once, for 30 seconds.")
    ] = UNSET


# Errors.


class ErrorMembers(Struct, kw_only=True):
    """`code` is stable, `message` is for people, `detail` is for programs."""

    code: Annotated[str, Meta(description="Stable name of the error.")]
    message: Annotated[str, Meta(description="For people.")]
    detail: Annotated[dict[str, Any] | UnsetType, Meta(description="Values that a program may decide by.")] = UNSET


class ErrorEnvelope(Struct, kw_only=True):
    """The body of every answer that is not a success."""

    error: Annotated[ErrorMembers, Meta(description="Only failures have this member.")]
