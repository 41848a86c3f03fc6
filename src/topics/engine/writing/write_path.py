"""The write path: how records get seqs, go into the log, and become visible. Everything that writes goes through here.

| Step | What happens | Methods |
|---|---|---|
| note | the write waits for the end of the owner's turn | `note` |
| submit | seqs are reserved and frames are queued on the shard, both in one step | `submit…`, `extend_commit` |
| commit | the shard wrote or synced the frames, as the class asks | `committed` |
| publish | readers see the records; waiters are woken, callers are answered | `publish_ready` |

The steps of one topic happen in seq order. A failed group takes its seqs back: every younger write of the shard fails
with it. Frames that are no records (a config, a delete, a lease) go through `Core.log`.

Owner only. Callbacks of the log (`core.Applied`, `Write.on_end`) run while a group completes: they change state and
queue answers, and never call the engine. Callers are answered through `Core.answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from topics.engine.config import TopicConfig
from topics.engine.core import Core
from topics.engine.topic.appended import Appended
from topics.engine.topic.topic import Topic
from topics.engine.topic.write_state import AppendDone, Write
from topics.engine.writing.derived_copies import DerivedCopies
from topics.errors import RecordTooLarge, Throttled, TopicFull, TopicsError, WalFailed
from topics.formats import control, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import KeyState, WriterState
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType

OnEnd = Callable[[TopicsError | None], None]


class WritePath:
    def __init__(self, core: Core, derived: DerivedCopies) -> None:
        self._core = core
        self._derived = derived
        # Topics with noted writes.
        self._noted: list[Topic] = []
        # Told of every source of a router that has new records, and of every published commit.
        self._on_source_grew: list[Callable[[Topic], None]] = []
        self._on_commit_published: list[Callable[[Topic, Write], None]] = []
        core.on_flush(self._submit_all_noted)

    def tell_source_grew(self, tell: Callable[[Topic], None]) -> None:
        self._on_source_grew.append(tell)

    def tell_commit_published(self, tell: Callable[[Topic, Write], None]) -> None:
        self._on_commit_published.append(tell)

    # Noting: the common case of an append.

    def note(self, topic: Topic, batch: RecordBatch, done: AppendDone) -> None:
        """Keeps the write until the end of the turn, to be submitted with all others of the topic."""
        topic.shard.admit()
        if topic.writes.note(batch, done):
            self._noted.append(topic)
            self._core.flush_soon()

    def note_config(self, topic: Topic) -> None:
        """Decides whether the topic's writes may be noted: nothing about them must be decided one by one."""
        config = topic.config
        topic.writes.allow_batches(
            topic.writes.is_created
            and not topic.writes.is_changing
            and not self._core.is_closed
            and config.durability != "ephemeral"
            and config.discard == "old"
            and not config.cap_bytes
            and not self._core.settings.total_bytes_max
            and not topic.links.routers_in
        )

    def _submit_all_noted(self) -> None:
        if self._noted:
            noted, self._noted = self._noted, []
            for topic in noted:
                self.submit_noted(topic)

    # Submitting.

    def submit_noted(self, topic: Topic) -> None:
        """Submits the noted writes of one topic: one pass of encoding, one entry on the shard, one commit."""
        writes = topic.writes
        noted = writes.take_noted()
        if not noted:
            return
        ts = max(writes.last_ts, self._core.now_ms())
        first_seq = writes.next_seq
        durability = topic.config.durability
        is_durable = durability == "fsync"
        batches = [batch for batch, _ in noted]
        buffer, bodies = wal_frame.encode_writes(topic.id, first_seq, ts, batches, durable=is_durable)
        sizes, size_bytes, tags = _joined(batches)
        write = Write(
            topic,
            first_seq,
            bodies,
            sizes,
            size_bytes,
            ts,
            tags=tags,
            answers=[(len(batch.envelopes), done) for batch, done in noted],
            is_reserved=durability == "disk",
        )
        try:
            if durability == "disk":
                self._ask_ceiling(topic, write.last_seq + 1, ts)
            topic.shard.submit(
                buffer, len(bodies), durable=is_durable, done=partial(self.committed, write), admitted=len(noted)
            )
        except TopicsError as error:
            topic.shard.dismiss(len(noted))
            self._answer_all(write, error)
            return
        writes.add(write)

    def submit(
        self,
        topic: Topic,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None = None,
        moved: control.Moved | None = None,
        bridge: control.BridgeUpdate | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        """Submits one write by itself. `check` has found room for it.

        Records that are moved from another topic are synced in every class: they are deleted there next, and a power
        loss must not take them from both topics.
        """
        if topic.links.routers_in:
            self._derived.log(topic)
            _note_direct_write(topic, batch)
        note: control.Note | None = None
        if key is not None or moved is not None or bridge is not None:
            note = control.Note(key, moved=moved, bridge=bridge)
        answers = [(len(batch), done)]
        self._submit(topic, batch, note, answers=answers, key=key, on_end=on_end, is_synced=moved is not None)

    def submit_copies(
        self, topic: Topic, batch: RecordBatch, copies: control.Copies, on_end: OnEnd, *, is_derived: bool
    ) -> None:
        """Submits copies of a router: derived ones are published at once, others are logged after a note."""
        self._submit(topic, batch, control.Note(copies=copies), is_derived=is_derived, on_end=on_end)

    def _submit(
        self,
        topic: Topic,
        batch: RecordBatch,
        note: control.Note | None,
        *,
        answers: Sequence[tuple[int, AppendDone]] = (),
        key: str | None = None,
        is_derived: bool = False,
        on_end: OnEnd | None = None,
        is_synced: bool = False,
    ) -> None:
        writes, config = topic.writes, topic.config
        durability = config.durability
        is_durable = durability == "fsync"
        is_unlogged = is_derived or durability == "ephemeral"
        first_seq = writes.next_seq
        ts = max(writes.last_ts, self._core.now_ms())
        floor = evicted = 0
        if config.cap_bytes and config.discard == "old":
            floor, evicted = topic.byte_cap_floor(config, first_seq, batch.sizes, batch.size_bytes)
        logs_floor = floor > writes.cap_floor and not is_unlogged
        bodies = wal_frame.append_bodies(
            topic.id,
            first_seq,
            ts,
            batch,
            durable=is_durable,
            opens=note is None or is_unlogged,
            closes=not logs_floor,
        )
        write = Write(
            topic,
            first_seq,
            bodies,
            batch.sizes,
            batch.size_bytes,
            ts,
            tags=batch.tags,
            answers=answers,
            on_end=on_end,
            key=key,
            cap_floor=floor,
            created=not writes.is_created and not writes.in_flight,
            is_unlogged=is_unlogged,
            is_reserved=durability == "disk" and not is_unlogged,
        )
        if not is_unlogged:
            buffer = wal_frame.seal_bodies(bodies)
            frames = len(bodies)
            if note is not None:
                buffer = _note_frame(topic, ts, note) + buffer
                frames += 1
            if logs_floor:
                buffer += _evict_frame(topic, ts, floor)
                frames += 1
            if durability == "disk":
                self._ask_ceiling(topic, write.last_seq + 1, ts)
            topic.shard.submit(buffer, frames, durable=is_durable or is_synced, done=partial(self.committed, write))
        writes.add(write, evicted=evicted)
        if is_unlogged:
            write.commit()
            self.publish_ready(topic)
        else:
            self._core.flush_soon()

    def submit_holes(self, topic: Topic, lost: control.Lost, on_end: OnEnd) -> None:
        """Submits seqs without records, for what a router's source lost."""
        writes = topic.writes
        ts = max(writes.last_ts, self._core.now_ms())
        durability = topic.config.durability
        write = Write.of_holes(
            topic,
            lost.first_seq,
            lost.last_seq - lost.first_seq + 1,
            ts,
            cap_floor=writes.cap_floor,
            on_end=on_end,
            is_reserved=durability == "disk",
        )
        if durability == "ephemeral":
            write.commit()
        else:
            if durability == "disk":
                self._ask_ceiling(topic, write.last_seq + 1, ts)
            frame = wal_frame.encode_control(FrameType.LOST, topic.id, ts, control.encode(lost))
            topic.shard.submit(frame, 1, durable=durability == "fsync", done=partial(self.committed, write))
            self._core.flush_soon()
        writes.add(write)
        self.publish_ready(topic)

    # A commit of staged records: one write that is logged in parts, over several turns.

    def begin_commit(self, topic: Topic, writer: str, epoch: int, size_bytes: int, on_end: OnEnd) -> Write:
        """The write, without records yet. It has its room, counted in bytes, from now on."""
        writes = topic.writes
        first_seq = writes.next_seq
        ts = max(writes.last_ts, self._core.now_ms())
        write = Write(
            topic,
            first_seq,
            [],
            [],
            size_bytes,
            ts,
            writer=control.WriterEpoch(writer, epoch, first_seq),
            cap_floor=writes.cap_floor,
            on_end=on_end,
            is_unlogged=topic.config.durability == "ephemeral",
        )
        writes.add(write)
        return write

    def begin_long_append(
        self, topic: Topic, batch: RecordBatch, done: AppendDone, on_end: OnEnd, *, key: str | None, created: bool
    ) -> Write:
        """The write of a large batch, without records yet. It has its room, counted in bytes, from now on."""
        writes = topic.writes
        durability = topic.config.durability
        write = Write(
            topic,
            writes.next_seq,
            [],
            [],
            batch.size_bytes,
            max(writes.last_ts, self._core.now_ms()),
            answers=[(len(batch), done)],
            key=key,
            created=created,
            cap_floor=writes.cap_floor,
            on_end=on_end,
            is_unlogged=durability == "ephemeral",
            is_reserved=durability == "disk",
        )
        writes.add(write)
        return write

    def extend_commit(
        self, write: Write, batch: RecordBatch | None, *, is_first: bool, is_last: bool, done: OnEnd
    ) -> None:
        """Logs the next records of the commit or the large batch. `done` is called once they are written; after the
        last ones the write is published or fails, and `done` is not called."""
        topic, config = write.topic, write.topic.config
        writes = topic.writes
        first_seq = writes.next_seq
        note: control.Note | None = None
        if is_first:
            # An older write may have failed since and given its seqs back. From here on this write fails with it.
            write.move_to(first_seq)
            if write.writer is not None or write.key is not None:
                note = control.Note(write.key, writer=write.writer)
        count = 0
        if batch is not None:
            count = len(batch)
            if topic.links.routers_in:
                _note_direct_write(topic, batch)
            write.announce(batch)
        floor = evicted = 0
        if is_last and config.cap_bytes and config.discard == "old":
            floor, evicted = topic.byte_cap_floor(config, first_seq + count, (), 0)
        logs_floor = floor > writes.cap_floor and not write.is_unlogged
        frames: list[bytes] = []
        if note is not None:
            is_only_frame = batch is None and not logs_floor
            frames.append(_note_frame(topic, write.ts, note, is_only_frame=is_only_frame))
        frame_count = len(frames) + count
        if batch is not None:
            buffer, bodies = wal_frame.encode_appends(
                topic.id,
                first_seq,
                write.ts,
                batch,
                durable=config.durability == "fsync",
                opens=is_first and note is None,
                closes=is_last and not logs_floor,
            )
            frames.append(buffer)
            write.extend(bodies)
        if logs_floor:
            frames.append(_evict_frame(topic, write.ts, floor))
            frame_count += 1
        write.raise_cap_floor(floor)
        writes.extend(write, count, floor, evicted)
        if write.is_unlogged:
            if is_last:
                write.commit()
                self.publish_ready(topic)
            else:
                done(None)
            return
        # A disk-class write is answered under a reservation of its seqs. A commit is synced instead: a reservation of
        # so many seqs would be as large a hole, if the machine went down half way.
        durable = is_last and (config.durability == "fsync" or (config.durability == "disk" and not write.is_reserved))
        if is_last and write.is_reserved:
            self._ask_ceiling(topic, write.last_seq + 1, write.ts)
        committed = partial(self.committed, write) if is_last else done
        topic.shard.submit_part(b"".join(frames), frame_count, durable=durable, done=committed)
        self._core.flush_in_turn()

    # Reserving seqs.

    def _ask_ceiling(self, topic: Topic, end_seq: int, ts: int) -> None:
        """Syncs a new head ceiling, ahead of need."""
        writes = topic.writes
        if not writes.needs_ceiling(end_seq):
            return
        ceiling, step = writes.next_ceiling(end_seq)
        frame = wal_frame.encode_control(FrameType.HEAD, topic.id, ts, control.encode(control.Head(ceiling)))
        topic.shard.submit_aside(frame, done=partial(self._ceiling_logged, topic, ceiling))
        writes.ask_ceiling(ceiling, step)

    def _ceiling_logged(self, topic: Topic, ceiling: int, error: TopicsError | None) -> None:
        if error is None:
            topic.writes.raise_ceiling(ceiling)
            self.publish_ready(topic)
            return
        topic.writes.refuse_ceiling()
        if isinstance(error, WalFailed):
            self.fail_committed(topic, error)

    # Committing and publishing.

    def committed(self, write: Write, error: TopicsError | None) -> None:
        """The frames of the write are written or synced, as its class asks, or they failed."""
        topic = write.topic
        if error is None:
            # The times of the group that the shard completes right now.
            write.commit(topic.shard.write_ms, topic.shard.sync_ms)
            self.publish_ready(topic)
            return
        topic.writes.failed(write, topic.live.cap_floor)
        topic.writes.recount_evictions(topic.live)
        self._answer_all(write, error)
        if write.on_end is not None:
            write.on_end(error)

    def fail_committed(self, topic: Topic, error: TopicsError) -> None:
        """Fails writes that are committed themselves, because what they wait for will never be."""
        for write in [write for write in topic.writes.in_flight if write.is_committed]:
            self.committed(write, error)

    def publish_ready(self, topic: Topic) -> None:
        """Publishes, in seq order, every write that is committed; then wakes readers."""
        writes = topic.writes
        if not writes.is_created:
            return
        head_seq = topic.live.head_seq
        in_flight = writes.in_flight
        while in_flight and writes.can_publish(write := in_flight[0]):
            topic.publish(write)
            self._core.note_time(write.ts)
            if write.key is not None:
                topic.keys.note(write.key, write.ts, write.first_seq, len(write.bodies), topic.live.head_seq)
            if write.writer is not None:
                self._note_writer(topic, write)
            if write.answers:
                self._answer_published(topic, write)
            if write.on_end is not None:
                write.on_end(None)
        if topic.live.head_seq > head_seq:
            if topic.links.routers_out:
                for tell in self._on_source_grew:
                    tell(topic)
            if topic.has_waiters:
                self.wake(topic)

    def _note_writer(self, topic: Topic, write: Write) -> None:
        """The records of a commit are there: so is the writer's epoch."""
        assert write.writer is not None
        name, first_seq = write.writer.writer, write.writer.first_seq
        assert first_seq == write.first_seq, "the note says where the records begin"
        topic.writers[name] = WriterState(name, write.writer.epoch, first_seq, write.last_seq)
        for tell in self._on_commit_published:
            tell(topic, write)

    def wake(self, topic: Topic) -> None:
        """Calls every waiter of the topic, once the group has ended."""
        for waiter in topic.take_waiters():
            self._core.completions.add_call(waiter)
        self._core.deliver_soon()

    # Answering.

    def _answer_published(self, topic: Topic, write: Write) -> None:
        add = self._core.completions.add
        name, ts, created = topic.name, write.ts, write.created
        write_ms, sync_ms = write.write_ms, write.sync_ms
        first_seq = write.first_seq
        for count, done in write.answers:
            last_seq = first_seq + count - 1
            add(done, Appended(name, first_seq, last_seq, last_seq, count, ts, created, False, write_ms, sync_ms))
            first_seq += count
            created = False
        if write.repeats:
            known = topic.keys.get(write.key or "")
            assert known is not None
            for done in write.repeats:
                add(done, deduped_answer(topic, known))
        self._core.deliver_soon()

    def _answer_all(self, write: Write, error: TopicsError) -> None:
        for _, done in write.answers:
            self._core.answer(done, error)
        for done in write.repeats:
            self._core.answer(done, error)

    # Room.

    def check(self, topic: Topic, count: int, size_bytes: int) -> None:
        """Raises when the topic's caps or the server's quota do not allow a write of so many records and bytes."""
        if topic.config.ttl_ms:
            topic.refresh(self._core.now_ms())
        if topic.config.discard == "reject":
            _check_room(topic, count, size_bytes)
        self.check_quota(size_bytes)

    def check_quota(self, size_bytes: int) -> None:
        maximum = self._core.settings.total_bytes_max
        if maximum and self._core.live_bytes.total + size_bytes > maximum:
            raise Throttled("the server's byte quota is used up", {"limit": "max_total_bytes", "max": maximum})


def check_fits(name: str, config: TopicConfig, count: int, size_bytes: int) -> None:
    """Raises when the write is larger than the whole cap: it would never fit."""
    too_many = config.cap_records and count > config.cap_records
    too_large = config.cap_bytes and size_bytes > config.cap_bytes
    if too_many or too_large:
        raise RecordTooLarge(f'the write is larger than the whole cap of topic "{name}"')


def _check_room(topic: Topic, count: int, size_bytes: int) -> None:
    config, live, writes = topic.config, topic.live, topic.writes
    check_fits(topic.name, config, count, size_bytes)
    count += live.count + writes.count_in_flight
    size = live.size_bytes + writes.bytes_in_flight + size_bytes
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
        raise topic_full(topic, f'topic "{topic.name}" is full')


def topic_full(topic: Topic, message: str) -> TopicFull:
    return TopicFull(
        message,
        {
            "topic": topic.name,
            "cap_records": topic.config.cap_records,
            "cap_bytes": topic.config.cap_bytes,
            "head_seq": topic.head_seq,
            "earliest_seq": topic.earliest_seq,
        },
    )


def deduped_answer(topic: Topic, known: KeyState) -> Appended:
    """The answer to a repeated write: that of the first one."""
    last_seq = known.first_seq + known.count - 1
    return Appended(topic.name, known.first_seq, last_seq, known.head_seq, known.count, known.ts, False, True)


def _note_direct_write(topic: Topic, batch: RecordBatch) -> None:
    """A record with the key of a router's copy counts as that copy while it lives."""
    for router in topic.links.routers_in:
        router.note_direct_write(topic.writes.next_seq, batch.envelopes)


def _note_frame(topic: Topic, ts: int, note: control.Note, *, is_only_frame: bool = False) -> bytes:
    """The note that opens a write. Unless it is the only frame, more frames of the same write follow."""
    flags = FLAG_FIRST if is_only_frame else FLAG_FIRST | FLAG_MORE
    return wal_frame.encode_control(FrameType.NOTE, topic.id, ts, control.encode(note), flags=flags)


def _evict_frame(topic: Topic, ts: int, floor: int) -> bytes:
    """The last frame of a write that raises the cap floor by bytes."""
    data = control.encode(control.Evict(floor, topic.live.ttl_floor))
    return wal_frame.encode_control(FrameType.EVICT, topic.id, ts, data, flags=0)


def _joined(batches: list[RecordBatch]) -> tuple[list[int], int, list[bytes | None] | None]:
    """Sizes, their sum, and tags (if any) of several batches."""
    sizes: list[int] = []
    for batch in batches:
        sizes += batch.sizes
    if all(batch.tags is None for batch in batches):
        return sizes, sum(sizes), None
    tags: list[bytes | None] = []
    for batch in batches:
        tags += batch.tags or (None,) * len(batch)
    return sizes, sum(sizes), tags
