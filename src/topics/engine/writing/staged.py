"""A write between the reservation of its seqs and its publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from topics.errors import TopicsError
from topics.formats.control import WriterEpoch

if TYPE_CHECKING:
    from topics.engine.topic.topic import Topic


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What a write got. `deduped`: an earlier write with the same key did it, nothing was appended now.

    `write_ms` is how long its group took to be written to the WAL, `sync_ms` how long it then waited for the
    sync: 0.0 unless the class is `fsync`. Both are 0.0 when nothing was logged.
    """

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    ts: int
    created: bool
    deduped: bool
    write_ms: float = 0.0
    sync_ms: float = 0.0


AppendDone = Callable[[Appended | TopicsError], None]


class Staged:
    """Writes to one topic with consecutive seqs that commit together: those of one turn, or a single one.

    Invisible until committed, and until everything staged before it is published.
    """

    __slots__ = (
        "bodies",
        "cap_floor",
        "committed",
        "created",
        "first_seq",
        "is_holes",
        "is_unlogged",
        "key",
        "last_seq",
        "on_end",
        "reserved",
        "size_bytes",
        "sizes",
        "sync_ms",
        "tags",
        "topic",
        "ts",
        "write_ms",
        "writer",
        "writes",
    )

    def __init__(
        self,
        topic: Topic,
        first_seq: int,
        bodies: list[bytes],
        sizes: Sequence[int],
        size_bytes: int,
        ts: int,
        writes: list[tuple[int, AppendDone]],
    ) -> None:
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + len(bodies) - 1
        self.bodies = bodies
        self.sizes = sizes
        self.size_bytes = size_bytes
        self.ts = ts
        # (records, callback) of each write, in seq order.
        self.writes = writes
        self.tags: Sequence[bytes | None] | None = None
        # Idempotency key; then there is one write only.
        self.key: str | None = None
        # A commit of staged records: whose. Then there is one write only, which grows until its last part is there.
        self.writer: WriterEpoch | None = None
        # Called when it is published or has failed, and the engine may be called again.
        self.on_end: Callable[[], None] | None = None
        # Byte-cap floor that this write raises.
        self.cap_floor = 0
        # Whether the first of the writes created the topic.
        self.created = False
        self.committed = False
        # How long the log took, known once committed.
        self.write_ms = 0.0
        self.sync_ms = 0.0
        # Ephemeral, or a router's derived copies: in memory only.
        self.is_unlogged = False
        # No records: seqs that stand for what a router's source lost.
        self.is_holes = False
        # Whether it is answered only under a synced head reservation (class `disk`).
        self.reserved = False

    def answer_all(self, error: TopicsError) -> None:
        for _, done in self.writes:
            done(error)
