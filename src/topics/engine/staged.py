"""A write between the reservation of its seqs and its publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.engine.topic import Topic


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What a write got. `deduped`: an earlier write with the same key did it, nothing was appended now."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    ts: int
    created: bool
    deduped: bool


AppendDone = Callable[[Appended | TopicsError], None]


class Staged:
    """Invisible until it is committed and everything staged before it is published."""

    __slots__ = (
        "bodies",
        "cap_floor",
        "committed",
        "created",
        "done",
        "evict_bytes",
        "first_seq",
        "is_unlogged",
        "key",
        "last_seq",
        "reserved",
        "size_bytes",
        "sizes",
        "tags",
        "topic",
        "ts",
    )

    def __init__(
        self,
        topic: Topic,
        first_seq: int,
        bodies: list[bytes],
        sizes: Sequence[int],
        size_bytes: int,
        ts: int,
        done: AppendDone,
    ) -> None:
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + len(bodies) - 1
        self.bodies = bodies
        self.sizes = sizes
        self.size_bytes = size_bytes
        self.ts = ts
        self.done = done
        self.tags: Sequence[bytes | None] | None = None
        self.key: str | None = None
        # Byte-cap floor that this write raises, and the live bytes that floor takes.
        self.cap_floor = 0
        self.evict_bytes = 0
        self.created = False
        self.committed = False
        # Ephemeral: in memory only.
        self.is_unlogged = False
        # Whether it is answered only under a synced head reservation (class `disk`).
        self.reserved = False
