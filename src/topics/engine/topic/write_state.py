"""The writes of one topic that are not published yet, and the seqs that are reserved for them.

The life of a write: *noted* (it waits for the end of the owner's turn), *in flight* (its seqs are reserved and its
frames are queued on the shard), *committed* (the shard wrote or synced the frames), *published* (readers see it).

A topic of class `disk` answers a write only below its *ceiling*: a synced frame that says which seqs may have been
given out, so that no seq is used twice after a power loss.

Only this module assigns the fields of `WriteState`. Owner only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from topics.engine.topic.appended import Appended
from topics.engine.topic.live_records import LiveBytes
from topics.errors import TopicsError
from topics.formats.control import WriterEpoch
from topics.formats.records import RecordBatch
from topics.limits import RESERVE_SEQS_MAX, RESERVE_SEQS_MIN

if TYPE_CHECKING:
    from topics.engine.topic.live_records import LiveRecords
    from topics.engine.topic.topic import Topic


AppendDone = Callable[[Appended | TopicsError], None]


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


class WriteState:
    __slots__ = (
        "_live_bytes",
        "_waiting_calls",
        "bytes_in_flight",
        "can_batch",
        "cap_floor",
        "ceiling",
        "ceiling_asked",
        "ceiling_step",
        "count_in_flight",
        "evict_bytes",
        "in_flight",
        "is_changing",
        "is_created",
        "last_ts",
        "last_write_ts",
        "next_seq",
        "noted",
    )

    def __init__(self, live_bytes: LiveBytes) -> None:
        self._live_bytes = live_bytes
        # Whether the creation of the topic is durable: nothing is published before.
        self.is_created = False
        # A new config, the removal, or a commit of staged records is being logged: new writes wait until that ends.
        self.is_changing = False
        self._waiting_calls: list[Callable[[], None]] | None = None
        # Writes of this turn of the owner, and whether the topic's writes may wait for the end of the turn.
        self.noted: list[tuple[RecordBatch, AppendDone]] = []
        self.can_batch = False
        # In seq order. A list: a deque costs an idle topic more memory.
        self.in_flight: list[Write] = []
        self.count_in_flight = 0
        self.bytes_in_flight = 0
        # First seq that is not reserved.
        self.next_seq = 1
        # Time of the newest write that has seqs. Times never go back.
        self.last_ts = 0
        self.last_write_ts: int | None = None
        # The cap floor once every write in flight is published, and the bytes, live or in flight, that it will take.
        self.cap_floor = 0
        self.evict_bytes = 0
        # Seqs below `ceiling` may be answered; `ceiling_asked` is being logged. The step doubles while the topic is
        # busy.
        self.ceiling = 0
        self.ceiling_asked = 0
        self.ceiling_step = 0

    # Before and after the life of a topic.

    def restore(self, *, last_ts: int, ceiling: int) -> None:
        """A topic of a snapshot."""
        self.is_created = True
        self.last_ts = last_ts
        self.ceiling = self.ceiling_asked = ceiling

    def created(self) -> None:
        self.is_created = True

    def resume(self, next_seq: int, cap_floor: int) -> None:
        """A start has read everything: writes go on here."""
        self.next_seq = next_seq
        self.cap_floor = cap_floor
        self.ceiling_asked = self.ceiling

    def leave_total(self) -> None:
        """The topic instance has ended: nothing that still happens to it counts against the quota."""
        self._live_bytes.add(-self.bytes_in_flight)
        self._live_bytes = LiveBytes()

    # Changes that writes wait for.

    def begin_change(self) -> None:
        self.is_changing = True

    def end_change(self) -> None:
        self.is_changing = False

    def wait_change(self, call: Callable[[], None]) -> None:
        """Calls back, once, when the change has ended."""
        if self._waiting_calls is None:
            self._waiting_calls = []
        self._waiting_calls.append(call)

    def take_waiting_calls(self) -> list[Callable[[], None]]:
        calls, self._waiting_calls = self._waiting_calls, None
        return calls or []

    def allow_batches(self, allowed: bool) -> None:  # noqa: FBT001 - the value is the message.
        self.can_batch = allowed

    # Noted and in flight.

    def note(self, batch: RecordBatch, done: AppendDone) -> bool:
        """Keeps the write until the end of the turn; whether it is the first one."""
        self.noted.append((batch, done))
        return len(self.noted) == 1

    def take_noted(self) -> list[tuple[RecordBatch, AppendDone]]:
        noted, self.noted = self.noted, []
        return noted

    def add(self, write: Write, *, evicted: int = 0) -> None:
        """The frames of the write are queued."""
        self.in_flight.append(write)
        self.next_seq = write.last_seq + 1
        self.last_ts = write.ts
        size = write.size_bytes
        self.bytes_in_flight += size
        self._live_bytes.add(size)
        self.count_in_flight += len(write.bodies)
        if evicted:
            self.evict_bytes += evicted
        if write.cap_floor > self.cap_floor:
            self.cap_floor = write.cap_floor

    def extend(self, write: Write, count: int, floor: int, evicted: int) -> None:
        """More records of a commit that is logged in parts. Its bytes were counted by `add`."""
        self.count_in_flight += count
        self.next_seq = write.last_seq + 1
        self.evict_bytes += evicted
        self.cap_floor = max(self.cap_floor, floor)

    @property
    def holes_in_flight(self) -> list[Write]:
        """Writes in flight that have no records, only seqs."""
        return [write for write in self.in_flight if write.is_holes]

    def can_publish(self, write: Write) -> bool:
        """Whether readers may see the oldest write in flight now."""
        return write.is_committed and (not write.is_reserved or write.last_seq < self.ceiling)

    def published(self, write: Write) -> None:
        """The oldest write in flight is visible."""
        assert write is self.in_flight[0]
        del self.in_flight[0]
        # The bytes stay in the engine's total: they are live now.
        self.count_in_flight -= len(write.bodies)
        self.bytes_in_flight -= write.size_bytes
        if not write.is_holes:
            self.last_write_ts = write.ts

    def failed(self, write: Write, live_cap_floor: int) -> None:
        """Every younger write of the shard fails too, so the seqs of this write are free again."""
        self.in_flight.remove(write)
        self.count_in_flight -= len(write.bodies)
        self.bytes_in_flight -= write.size_bytes
        self._live_bytes.add(-write.size_bytes)
        self.next_seq = min(self.next_seq, write.first_seq)
        self.cap_floor = self.in_flight[-1].cap_floor if self.in_flight else live_cap_floor

    # Evictions by a byte cap.

    def note_evicted(self, evicted: int) -> None:
        """A published write has evicted so many bytes."""
        self.evict_bytes = max(self.evict_bytes - evicted, 0) if self.in_flight else 0

    def recount_evictions(self, live: LiveRecords) -> None:
        """Records died for another reason than a write in flight. Counts again what the writes in flight will evict."""
        if self.evict_bytes == 0:
            return
        self.evict_bytes = 0
        for seq, size, _ in self.sizes_after(live, 0, self.next_seq, ()):
            if seq > self.cap_floor:
                break
            self.evict_bytes += size

    def sizes_after(
        self, live: LiveRecords, floor: int, first_seq: int, sizes: Sequence[int]
    ) -> Iterator[tuple[int, int, bool]]:
        """(seq, size, True) of every record above `floor`: live, in flight, or about to be written from `first_seq` on.
        (last seq, bytes, False) for a cold segment of which only the sum is known."""
        yield from live.live_sizes(max(live.first_live, floor + 1))
        for write in self.in_flight:
            for seq, size in enumerate(write.sizes, write.first_seq):
                if seq > floor:
                    yield seq, size, True
        for seq, size in enumerate(sizes, first_seq):
            yield seq, size, True

    # Time.

    def note_time(self, ts: int) -> None:
        """A write with this time was read from the log."""
        self.last_ts = max(self.last_ts, ts)

    # The ceiling.

    def needs_ceiling(self, end_seq: int) -> bool:
        """Whether a write up to `end_seq - 1` should ask for a higher ceiling, ahead of need."""
        return end_seq + (self.ceiling_step >> 1) > self.ceiling_asked

    def next_ceiling(self, end_seq: int) -> tuple[int, int]:
        """(ceiling, step) to ask for: the step is twice the last one while the topic stays busy."""
        step = min(max(self.ceiling_step * 2, RESERVE_SEQS_MIN), RESERVE_SEQS_MAX)
        return end_seq + step, step

    def ask_ceiling(self, ceiling: int, step: int) -> None:
        """The frame of the new ceiling is queued."""
        self.ceiling_step = step
        self.ceiling_asked = ceiling

    def raise_ceiling(self, ceiling: int) -> None:
        """The frame is synced."""
        self.ceiling = max(self.ceiling, ceiling)

    def refuse_ceiling(self) -> None:
        """The frame failed. Frames that were queued before may have failed too, so only the synced ceiling counts."""
        self.ceiling_asked = self.ceiling

    def give_ceiling_back(self, head_seq: int) -> bool:
        """An idle topic reserves nothing: the next write asks again. Whether anything was given back."""
        if self.ceiling <= head_seq + 1 or self.in_flight:
            return False
        self.ceiling = self.ceiling_asked = head_seq + 1
        self.ceiling_step = 0
        return True

    def drop_ceiling(self) -> None:
        """Every answered write is synced: there is nothing to reserve for."""
        self.ceiling = self.ceiling_asked = self.ceiling_step = 0

    def settle_cap_floor(self, cap_floor: int) -> None:
        """The cap floor is that of the published records, or a higher one of writes in flight."""
        self.cap_floor = cap_floor
