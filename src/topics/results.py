"""What a caller writes and gets: the same values from a log inside a program and from a server.

`Record` is in `formats.records`, beside the batches that are written.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

Reason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "power_loss", "corrupt"]

Start = Literal["start", "head"]
"""Before the first record that can be read, or after the last one."""


class ConfigMembers(TypedDict, total=False):
    """The config members of the HTTP contract: see `docs/http.md`. Members that are not given have their defaults."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


class NewRecord(msgspec.Struct, frozen=True):
    """A record to append. `data` and `meta`: any JSON-able value, or JSON text as bytes."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Records that a reader asked for and that are lost: seqs `gap_from` to `gap_to`, both included."""

    gap_from: int
    gap_to: int
    reason: Reason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Job(NamedTuple):
    """A job and its lease. `data` and `meta` are JSON text; `deadline` is the last millisecond of the lease."""

    seq: int
    ts: int
    tag: str | None
    data: bytes
    meta: bytes | None
    lease_id: int
    deadline: int
    deliveries: int


class Settled(NamedTuple):
    """How many jobs were acked or nacked, and the seqs that were not, in the order of the call."""

    settled: int
    skipped: list[int]
    ready: int
    in_flight: int
    # How long the log's sync took; 0.0 unless there was one.
    sync_ms: float = 0.0


class Extended(NamedTuple):
    """New deadlines by seq, and the seqs that got none."""

    deadlines: dict[int, int]
    skipped: list[int]


class GroupCursor(NamedTuple):
    """The position of a group. `lag` counts seqs, not records: some seqs may have no record."""

    group: str
    seq: int
    head_seq: int
    lag: int
    last_commit_ts: int


class GroupChanged(NamedTuple):
    """The position of a group after a call, and what the call did."""

    cursor: GroupCursor
    created: bool
    moved: bool
