"""Request bodies of the HTTP contract, declared once.

The server decodes these structs, the client encodes them, and the OpenAPI document is made from them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from topics.limits import READ_BYTES_MAX, REDRIVE_MS, REDRIVE_MS_MAX
from topics.protocol.member_types import (
    I32,
    U32,
    U64,
    EpochNumber,
    PartNumber,
    RouterDest,
    RouterSource,
    TopicName,
    WriterName,
)

LONG_POLL_MS_MAX: Final = 30_000

ReadLimit = Annotated[
    U32, Meta(description="Records at most; 0 = the default. A value above the server's limit is lowered to it.")
]
PageBytes = Annotated[
    U64,
    Meta(description=f"Bytes of one page, which has at least one record; 0 = the default, at most {READ_BYTES_MAX}."),
]
HiddenNodes = Annotated[str | list[str] | None, Meta(description="Leave out records of this node or these nodes.")]
IncludeTags = Annotated[bool, Meta(description="Whether records show `$tag`.")]
IncludeMeta = Annotated[bool, Meta(description="Whether records show `meta`.")]


class ConfigBody(Struct, kw_only=True, omit_defaults=True):
    """Settings of a topic. Members left out take their defaults."""

    type: Annotated[Literal["log", "queue"], Meta(description="Fixed when the topic is created.")] = "log"
    ttl_ms: Annotated[U64, Meta(description="Age at which records expire; 0 = never.")] = 0
    cap_records: Annotated[U64, Meta(description="Records kept; 0 = unlimited.")] = 0
    cap_bytes: Annotated[U64, Meta(description="Bytes kept; 0 = unlimited.")] = 0
    discard: Annotated[
        Literal["old", "reject"],
        Meta(description="What happens at a cap: the oldest records go, or the write is refused."),
    ] = "old"
    durable: Annotated[bool, Meta(description="Short for `durability`: true is `fsync`, false is `disk`.")] = False
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync"] | None,
        Meta(description="What an acknowledged write survives. Wins over `durable`."),
    ] = None
    priority: Annotated[I32 | None, Meta(description="Acts within -1000 to 1000; null = by recency.")] = None
    auto_priority: Annotated[bool, Meta(description="Whether recency counts while `priority` is null.")] = True
    auto_create: Annotated[
        bool, Meta(description="Whether a write with this config creates a missing topic if its `create` is not set.")
    ] = True
    idempotency_window_ms: Annotated[U64, Meta(description="How long an idempotency key is remembered.")] = 120_000
    dedupe_node: Annotated[bool, Meta(description="Whether readers can leave out records of their own node.")] = True
    lease_ms: Annotated[
        U64, Meta(description="How long a claimed job is leased; raised to 100 or lowered to 86400000.")
    ] = 30_000
    claim_jitter_ms: Annotated[
        U64, Meta(description="Window in which claims are served together; lowered to 5000.")
    ] = 0
    max_deliveries: Annotated[
        U64, Meta(description="Deliveries before a job is moved to `dead_letter`; 0 = unlimited.")
    ] = 0
    dead_letter: Annotated[
        str | None, Meta(description="Topic for jobs that were delivered too often. Not the queue itself.")
    ] = None
    leases_durable: Annotated[bool, Meta(description="Whether leases survive a restart.")] = False


class DiffBody(Struct, kw_only=True, omit_defaults=True):
    """A read of the records after a cursor."""

    from_seq: Annotated[
        U64, Meta(description="Cursor: the read begins with the first record that has a higher seq.")
    ] = 0
    limit: ReadLimit = 256
    node: HiddenNodes = None
    include_tags: IncludeTags = False
    include_meta: IncludeMeta = True
    wait_ms: Annotated[
        U32,
        Meta(
            description=f"How long to wait for an append when there is nothing to read; lowered to {LONG_POLL_MS_MAX}."
        ),
    ] = 0
    max_batch_bytes: PageBytes = 1_048_576
    group: Annotated[
        str | None,
        Meta(description="A consumer group: without `from_seq`, or with 0, the read begins after its cursor."),
    ] = None


class ManifestBody(Struct, kw_only=True, omit_defaults=True):
    """Which part of a topic a reader of files wants, and for how long its files stay."""

    from_seq: Annotated[U64, Meta(description="First seq.")] = 0
    to_seq: Annotated[U64 | None, Meta(description="Last seq; null = the head.")] = None
    from_ts: Annotated[U64, Meta(description="Earliest time, in milliseconds since the Unix epoch.")] = 0
    to_ts: Annotated[U64 | None, Meta(description="Only records that were appended before this time; null = any.")] = (
        None
    )
    pin_ms: Annotated[
        U64, Meta(description="How long the files stay where they are; lowered to an hour, 0 = no pin.")
    ] = 0


class CaptureBody(Struct, kw_only=True, omit_defaults=True):
    """For how long the files of a capture stay."""

    pin_ms: Annotated[
        U64, Meta(description="How long the files stay where they are; lowered to an hour, 0 = no pin.")
    ] = 0


class ReplaceBody(Struct, kw_only=True, omit_defaults=True):
    """A segment, and the pair of files that replaces its files."""

    topic_id: Annotated[U64, Meta(description="Number of the topic, as in a manifest.")]
    epoch: Annotated[U64, Meta(description="Epoch of the topic, as in a manifest.")]
    first_seq: Annotated[U64, Meta(description="First seq of the segment.")]
    expect_digest: Annotated[str, Meta(description="Digest that the segment must have, as in a manifest.")]
    data: Annotated[
        str, Meta(description="Name of the new `.data` file in the folder `staging` of the data directory.")
    ]
    idx: Annotated[str, Meta(description="Name of the new `.idx` file in the same folder.")]


class DeleteBody(Struct, kw_only=True, omit_defaults=True):
    """What to delete for good: records below a seq, records whose tag matches, or both conditions at once."""

    before_seq: Annotated[U64 | None, Meta(description="Records below this seq.")] = None
    match: Annotated[
        str | list[Raw] | None,
        Meta(
            description='Records with this tag (`"v"`, `["tag","Eq","v"]`) or prefix (`"p*"`, `["tag","Glob","p*"]`).'
        ),
    ] = None


class ClaimBody(Struct, kw_only=True, omit_defaults=True):
    """Which node wants jobs, how many, and for how long."""

    node: Annotated[str, Meta(description="Node that claims.")]
    max: Annotated[U32, Meta(description="Jobs at most; 0 = 1. A value above the server's limit is lowered to it.")] = 1
    lease_ms: Annotated[
        U64 | None,
        Meta(
            description="How long the jobs are leased, raised to 100 or lowered to 86400000; null = as the queue says."
        ),
    ] = None
    wait_ms: Annotated[
        U32, Meta(description=f"How long to wait for a job when none is ready; lowered to {LONG_POLL_MS_MAX}.")
    ] = 0


class AckBody(Struct, kw_only=True, omit_defaults=True):
    """Jobs that are done."""

    node: Annotated[str, Meta(description="Node that has the jobs.")]
    seqs: Annotated[list[U64], Meta(description="The jobs.")]
    lease_ids: Annotated[
        list[str],
        Meta(description="The lease of each job: as many as seqs, or none. An empty one means any lease of the node."),
    ] = []


class NackBody(AckBody, kw_only=True, omit_defaults=True):
    """Jobs that are given back."""

    delay_ms: Annotated[U64, Meta(description="How long the jobs cannot be claimed; lowered to 86400000.")] = 0
    reason: Annotated[
        str,
        Meta(
            description="Why the jobs were not done. The dead letter of a job has the reason of the last nack that "
            "gave one, as `$dead_letter_reason` of its `meta`."
        ),
    ] = ""


class ExtendBody(AckBody, kw_only=True, omit_defaults=True):
    """Jobs that take longer."""

    lease_ms: Annotated[
        U64, Meta(description="How long the jobs are leased from now on; raised to 100 or lowered to 86400000.")
    ]


class RedriveBody(Struct, kw_only=True, omit_defaults=True):
    """Which jobs to move, where to, and how fast. Without members: all dead letters of the queue go back into it."""

    to: Annotated[
        str | None,
        Meta(
            description="The queue that the jobs go to. Then the topic of the path is where they come from: a queue, "
            "or a log with dead letters. Null: the dead letters of the queue go back into it."
        ),
    ] = None
    match: Annotated[
        str | list[Raw] | None,
        Meta(description="Only jobs with this tag or prefix, in the forms of `match` of a delete; null = all."),
    ] = None
    from_ts: Annotated[
        U64, Meta(description="Only jobs that came into their source at or after this time, in milliseconds.")
    ] = 0
    to_ts: Annotated[
        U64 | None, Meta(description="Only jobs that came into their source before this time; null = any.")
    ] = None
    from_seq: Annotated[U64, Meta(description="Only jobs with a higher seq in their source.")] = 0
    until_seq: Annotated[
        U64 | None,
        Meta(description="Only jobs up to this seq of their source; null = its head at the time of the call."),
    ] = None
    limit: Annotated[U64, Meta(description="Jobs at most; 0 = all.")] = 0
    rate: Annotated[U32, Meta(description="Jobs a second; 0 = as fast as it goes.")] = 0
    max_ms: Annotated[
        U32,
        Meta(description=f"How long the call may take; lowered to {REDRIVE_MS_MAX}. The next call moves the rest."),
    ] = REDRIVE_MS
    dry_run: Annotated[bool, Meta(description="Whether to count and show the jobs only, and move none.")] = False
    idempotency_key: Annotated[
        str | None,
        Meta(
            description="A repeat under this key counts the jobs that were moved before towards `limit`. The header "
            "`Idempotency-Key` does the same."
        ),
    ] = None


class WatchTopic(Struct, kw_only=True, omit_defaults=True):
    """Where the watch of one topic begins."""

    from_seq: Annotated[
        U64, Meta(description="Cursor: the watch begins with the first record that has a higher seq.")
    ] = 0
    tail: Annotated[bool, Meta(description="Whether to begin at the head. Wins over `from_seq`.")] = False


class WatchBody(Struct, kw_only=True, omit_defaults=True):
    """The topics to watch, and how."""

    topics: Annotated[
        dict[str, WatchTopic],
        Meta(description="What to watch, by name. `orders.*` is every topic that begins so, later ones included."),
    ]
    node: HiddenNodes = None
    limit: ReadLimit = 256
    max_batch_bytes: PageBytes = 262_144
    heartbeat_ms: Annotated[
        U64, Meta(description="Silence after which a comment is sent; raised to 1000 or lowered to 60000.")
    ] = 15_000
    include_meta: IncludeMeta = True
    include_tags: IncludeTags = False
    include_data: Annotated[bool, Meta(description="Whether records show `data`.")] = True
    consistency: Annotated[
        Literal["eventual", "strong"],
        Meta(description="`strong` pushes records only when they are synced, in every durability class."),
    ] = "eventual"


class GroupBody(Struct, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """Where the cursor of a consumer group is placed."""

    seq: Annotated[U64 | None, Meta(description="The last seq that the group has finished; at most `head_seq`.")] = None
    from_: Annotated[
        Literal["start", "head"] | None,
        Meta(
            description="`start`: before the first record that can be read. `head`: after the last one. Not with `seq`."
        ),
    ] = None


class CommitBody(Struct, kw_only=True, omit_defaults=True):
    """How far a consumer group has come."""

    seq: Annotated[U64, Meta(description="The last seq that the group has finished; at most `head_seq`.")]
    rewind: Annotated[bool, Meta(description="Whether a lower seq moves the cursor back.")] = False


class RouterBody(Struct, kw_only=True, omit_defaults=True):
    """What a router copies, from which topic to which."""

    source: RouterSource
    dest: RouterDest
    preserve_node: Annotated[bool, Meta(description="Whether copies keep the node.")] = True
    preserve_tag: Annotated[bool, Meta(description="Whether copies keep the tag.")] = True
    create_dest: Annotated[bool, Meta(description="Whether a missing dest is created.")] = True
    filter: Annotated[
        str | list[Raw] | None,
        Meta(description="Copy only records with this tag or prefix, in the forms of `match` of a delete; null = all."),
    ] = None
    allow_cycle: Annotated[bool, Meta(description="Whether the router may close a cycle.")] = False
    guarantee: Annotated[
        Literal["at_least_once", "exactly_once"],
        Meta(
            description="`exactly_once` gives each copy a key, and skips a record whose key a live record of the dest "
            "already has."
        ),
    ] = "at_least_once"


class RecordBody(Struct, gc=False):
    """A record to append."""

    data: Annotated[Raw, Meta(description="The payload: any JSON, given back byte for byte.")]
    tag: Annotated[str | UnsetType | None, Meta(description="Label to delete by.")] = UNSET
    node: Annotated[
        str | UnsetType | None,
        Meta(description="Node that writes the record, so that readers can leave out their own records."),
    ] = UNSET
    meta: Annotated[Raw | UnsetType, Meta(description="More about the payload: any JSON, usually an object.")] = UNSET


class SentConfig(Struct):
    """The config of a write as it was sent, unknown members included."""

    config: dict[str, Raw] | None = None


class RecordsBody(Struct, kw_only=True):
    """Records, and the node of the records that name none."""

    records: Annotated[list[RecordBody], Meta(description="The records, in the order of their seqs.")]
    node: Annotated[str | UnsetType | None, Meta(description="Node of the records that name none.")] = UNSET


class WriteBody(RecordsBody, kw_only=True):
    """Records to append: all of them or none."""

    idempotency_key: Annotated[
        str | UnsetType | None,
        Meta(description="A repeat under this key appends nothing and gets the first answer again."),
    ] = UNSET
    create: Annotated[
        bool | UnsetType | None,
        Meta(
            description="True creates a missing topic, false refuses it with 404. `config.auto_create` is the default."
        ),
    ] = UNSET
    config: Annotated[
        ConfigBody | UnsetType | None, Meta(description="Config of the topic if this write creates it.")
    ] = UNSET
    disable_backpressure: Annotated[
        bool | UnsetType,
        Meta(description="Whether the write waits for room also when high load would refuse it. Caps still refuse it."),
    ] = UNSET


class StageBody(RecordsBody, kw_only=True):
    """Records to keep until they are committed, and their place in the epoch of their writer."""

    writer: WriterName
    epoch: Annotated[
        U64,
        Meta(
            description="Number of the epoch. A commit adds nothing if its epoch is not above the last committed one."
        ),
    ]
    part: PartNumber
    attempt: Annotated[
        U64, Meta(description="Number of the attempt at the part. A commit takes one attempt of each part.")
    ]
    chunk: Annotated[U64, Meta(description="Number of the chunk in its attempt, from 0.")]


class PartBody(Struct, kw_only=True):
    """What a commit takes of one part of an epoch."""

    part: PartNumber
    attempt: Annotated[U64, Meta(description="Number of the attempt that the commit takes.")]
    chunks: Annotated[U64, Meta(description="How many chunks the attempt has; 0 if it is empty.")]
    records: Annotated[U64, Meta(description="How many records the chunks have together.")]


class EpochBody(Struct, kw_only=True):
    """Staged records to append: all of them or none, and once."""

    epoch: EpochNumber
    topic: TopicName
    parts: Annotated[list[PartBody], Meta(description="What to append: one attempt of each part.")]


class AbortBody(Struct, kw_only=True):
    """An epoch that will not be committed."""

    epoch: EpochNumber
