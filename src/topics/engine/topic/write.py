"""A write between the reservation of its seqs and its publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from topics.engine.completions import Done
from topics.engine.topic.appended import Appended
from topics.errors import TopicsError
from topics.formats.control import WriterEpoch
from topics.formats.records import RecordBatch

if TYPE_CHECKING:
    from topics.engine.topic.topic import Topic


AppendDone = Done[Appended]


class Write:
    """Writes to one topic with consecutive seqs that commit together: all writes of one turn, or a single one.

    Readers see it once it is committed and every earlier write of the topic is published.
    """

    __slots__ = (
        "answers",
        "bodies",
        "cap_floor",
        "created",
        "first_seq",
        "is_committed",
        "is_holes",
        "is_reserved",
        "is_unlogged",
        "key",
        "last_seq",
        "on_end",
        "repeats",
        "size_bytes",
        "sizes",
        "sync_ms",
        "tags",
        "topic",
        "ts",
        "write_ms",
        "writer",
    )

    def __init__(
        self,
        topic: Topic,
        first_seq: int,
        bodies: list[bytes],
        sizes: Sequence[int],
        size_bytes: int,
        ts: int,
        *,
        tags: Sequence[bytes | None] | None = None,
        answers: Sequence[tuple[int, AppendDone]] = (),
        on_end: Callable[[TopicsError | None], None] | None = None,
        key: str | None = None,
        writer: WriterEpoch | None = None,
        cap_floor: int = 0,
        created: bool = False,
        is_unlogged: bool = False,
        is_reserved: bool = False,
    ) -> None:
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + len(bodies) - 1
        self.bodies = bodies
        self.sizes = sizes
        self.size_bytes = size_bytes
        self.ts = ts
        self.tags = tags
        # (number of records, callback) of each caller, in seq order.
        self.answers = answers
        # Callers that sent the same idempotency key while the write was in flight.
        self.repeats: tuple[AppendDone, ...] = ()
        # Called when the write is published or has failed, in the order of the log. It may change state, but must not
        # call the engine: the group is not complete yet.
        self.on_end = on_end
        # Idempotency key of a single write.
        self.key = key
        # The writer and epoch of a commit of staged records. Such a write grows until its last part is logged.
        self.writer = writer
        # The cap floor that this write raises, by bytes.
        self.cap_floor = cap_floor
        # Whether this write created the topic.
        self.created = created
        # Ephemeral, or derived copies of a router: the WAL has no frames of it.
        self.is_unlogged = is_unlogged
        # Class `disk`: the write is answered only once the head reservation that covers its seqs is synced.
        self.is_reserved = is_reserved
        # The write has no records, only seqs in place of records that the source of a router lost.
        self.is_holes = False
        self.is_committed = False
        # How long the log took, known once the write is committed.
        self.write_ms = 0.0
        self.sync_ms = 0.0

    @classmethod
    def of_holes(
        cls,
        topic: Topic,
        first_seq: int,
        count: int,
        ts: int,
        *,
        cap_floor: int,
        on_end: Callable[[TopicsError | None], None],
        is_reserved: bool,
    ) -> Write:
        """Seqs without records, for what a router's source lost."""
        write = cls(topic, first_seq, [], [], 0, ts, cap_floor=cap_floor, on_end=on_end, is_reserved=is_reserved)
        write.last_seq = first_seq + count - 1
        write.is_holes = True
        return write

    def commit(self, write_ms: float = 0.0, sync_ms: float = 0.0) -> None:
        """The log has kept the promise of the topic's class."""
        self.is_committed = True
        self.write_ms = write_ms
        self.sync_ms = sync_ms

    def share_answer(self, done: AppendDone) -> None:
        """Another caller sent the same key: it gets the same answer, as a repeat."""
        assert self.key is not None
        self.repeats = (*self.repeats, done)

    def move_to(self, first_seq: int) -> None:
        """An older write failed before this one logged anything: its seqs are free, and this write begins there."""
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        if self.writer is not None:
            self.writer = WriterEpoch(self.writer.writer, self.writer.epoch, first_seq)

    def announce(self, batch: RecordBatch) -> None:
        """The sizes and tags of the next records of a commit that is logged in parts."""
        if batch.tags is not None or self.tags is not None:
            tags: list[bytes | None] = self.tags if isinstance(self.tags, list) else [None] * len(self.bodies)
            tags += batch.tags or (None,) * len(batch)
            self.tags = tags
        assert isinstance(self.sizes, list)
        self.sizes += batch.sizes

    def extend(self, bodies: list[bytes]) -> None:
        """Those records, as they are logged."""
        self.bodies += bodies
        self.last_seq = self.first_seq + len(self.bodies) - 1

    def raise_cap_floor(self, floor: int) -> None:
        self.cap_floor = max(self.cap_floor, floor)
