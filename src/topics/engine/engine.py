"""The engine: topics by name, and what can be done to them.

Owner only: no method may be called by two threads at a time (`runtime` says who the owner is). Nothing here
waits. What needs the disk is queued on a WAL shard and answered through a `done` callback, which is called
exactly once, with the result or with the error, never before the call returned its own errors by raising. A
callback resolves a future or sets an event; it must not call the engine, which may be half way through a group.

The life of a write: *stage* (seqs reserved, frames queued on the shard, both in one step), *commit* (the
shard wrote or synced them, as the class asks), *publish* (visible to readers), in that order per topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from topics.clock import Clock
from topics.engine.config import TopicConfig, config_members
from topics.engine.groups import Groups
from topics.engine.names import SortedNames, check_topic_name
from topics.engine.pins import Pins
from topics.engine.priority import effective_priority
from topics.engine.queues.queues import Queues
from topics.engine.routers.forwarding import Forwarder
from topics.engine.routers.router import Router, RouterSpec
from topics.engine.routers.routing import Routing
from topics.engine.runtime import Runtime
from topics.engine.settings import EngineSettings
from topics.engine.topic.page import Page
from topics.engine.topic.replayed import WalFiles
from topics.engine.topic.segment_set import SegmentSet
from topics.engine.topic.topic import NOBODY, LiveBytes, Topic, Waiter
from topics.engine.writing.commits import Commits
from topics.engine.writing.staged import AppendDone, Appended, Staged
from topics.engine.writing.staging import Staging
from topics.errors import (
    Closed,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    WalFailed,
)
from topics.formats import control, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import KeyState
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    READ_LIMIT_MAX,
    RESERVE_SEQS_MAX,
    RESERVE_SEQS_MIN,
    U64_MAX,
)
from topics.storage.cached_store import CachedStore
from topics.storage.directory import DataDirectory
from topics.storage.segments import SegmentCache
from topics.storage.wal import Wal

logger = logging.getLogger(__name__)

Done = Callable[[Any], None]


class Deleted:
    """What a delete removed, and the topic's numbers after it."""

    __slots__ = ("count", "deleted", "earliest_seq", "head_seq", "size_bytes", "topic")

    def __init__(self, topic: Topic, deleted: int) -> None:
        self.topic = topic.name
        self.deleted = deleted
        self.earliest_seq = topic.earliest_seq
        self.head_seq = topic.head_seq
        self.count = topic.count
        self.size_bytes = topic.size_bytes


class Engine:
    """Made by `recovery.open_engine`."""

    def __init__(
        self,
        directory: DataDirectory,
        settings: EngineSettings,
        runtime: Runtime,
        clock: Clock,
        cache: SegmentCache,
        cold: CachedStore | None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.runtime = runtime
        self.clock = clock
        self.cache = cache
        self.cold = cold
        # Whether the cold tier is known to be ours, for good: nothing moves there before.
        self.cold_claimed = False
        self.topics: dict[str, Topic] = {}
        # Made when somebody lists topics for the first time.
        self._names: SortedNames | None = None
        self.live_bytes = LiveBytes()
        # Created but not yet synced: writers see them, readers do not.
        self._creating: dict[str, Topic] = {}
        # Topics with writes that are not staged yet.
        self._pending: list[Topic] = []
        self.next_topic_id = 1
        # Time never runs behind what is stored.
        self.newest_ts = 0
        self.lost_seqs_total = 0
        self.closed = False
        self.wal: Wal
        # Files that records of the last start are read from, until the first checkpoint has put them away.
        self.wal_files: WalFiles | None = None
        self.pins = Pins(clock)
        self.queues = Queues(self)
        # Told of each new topic once it can be read. They must not call back.
        self.on_topic_created: list[Callable[[Topic], None]] = []
        self.groups = Groups(self)
        self.staging = Staging(self)
        self.commits = Commits(self)
        self.forwarder = Forwarder(self)
        self.routing = Routing(self)
        # Whether a flush is under way, and something was queued behind what it has written.
        self._is_flushing = False
        self._flush_again = False

    def now_ms(self) -> int:
        now_ms = self.clock.now_ms()
        return max(self.newest_ts, now_ms)

    def flush(self) -> None:
        """Ends a turn of the owner: what it wrote is staged, and each shard writes one group."""
        if self._pending:
            pending, self._pending = self._pending, []
            for topic in pending:
                self.stage_pending(topic)
        if self._is_flushing:
            # From a callback of the group that is being written: it goes next.
            self._flush_again = True
            return
        self._is_flushing = True
        try:
            self.wal.flush()
            while self._flush_again:
                self._flush_again = False
                self.wal.flush()
        finally:
            self._is_flushing = False

    def flush_soon(self) -> None:
        self.runtime.flush_soon(self.flush)

    def flush_next(self) -> None:
        """For the next step of one call, queued by a callback of the step before: in the same turn, if it can be."""
        if self._is_flushing:
            self._flush_again = True
        else:
            self.flush_soon()

    def stop_writes(self) -> None:
        """From here on everything that changes something is refused. What is on its way is answered."""
        self.closed = True
        for topic in self.topics.values():
            self.note_config(topic)

    # Topics.

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def has_topic(self, name: str) -> bool:
        """Whether a write to this name finds a topic, or one that is being created."""
        return name in self.topics or name in self._creating

    def new_topic(self, name: str, topic_id: int, epoch: int, config: TopicConfig) -> Topic:
        return Topic(name, topic_id, epoch, config, SegmentSet(self.cache, topic_id, []), self.live_bytes)

    def put_topic(self, name: str, config: TopicConfig, done: Done) -> None:
        """Creates or reconfigures. `done(created: bool)` once that is synced and in effect."""
        self.check_open()
        topic = self.topics.get(name) or self._creating.get(name)
        if topic is None:
            self._check_creation(name, config)
            self._create(name, config, lambda result: done(result if isinstance(result, TopicsError) else True))
        elif topic.changing:
            topic.on_changed.append(lambda: self.again(lambda: self.put_topic(name, config, done), done))
        else:
            self._reconfigure(topic, config, done)

    def again(self, call: Callable[[], None], done: Done) -> None:
        """A call that waited: what it raises now goes to its callback."""
        try:
            call()
        except TopicsError as error:
            done(error)

    def _check_creation(self, name: str, config: TopicConfig) -> None:
        check_topic_name(name)
        _check_dead_letter(name, config)
        self.check_topic_room(1)

    def check_topic_room(self, count: int) -> None:
        """Whether so many topics more may be created."""
        maximum = self.settings.topics_max
        if count and maximum and len(self.topics) + len(self._creating) + count > maximum:
            raise Throttled(f"there are {maximum} topics already", {"limit": "max_topics", "max": maximum})

    def with_topic(self, name: str, config: TopicConfig, done: Done) -> None:
        """Creates the topic unless it is there or on its way; `done` when it is worth looking again, or an error."""
        topic = self.topics.get(name) or self._creating.get(name)
        if topic is None:
            self._check_creation(name, config)
            self._create(name, config, done)
        elif topic.created and not topic.changing:
            done(topic)
        else:
            topic.on_changed.append(lambda: done(topic))

    def _create(self, name: str, config: TopicConfig, done: Done) -> Topic:
        topic = self.new_topic(name, self.next_topic_id, 1, config)
        topic.shard = self.wal.shard_for(topic.id)
        frame = wal_frame.encode_control(
            FrameType.TOPIC_CREATE,
            topic.id,
            self.now_ms(),
            control.encode(control.TopicCreate(name, topic.epoch, config_members(config))),
        )

        def created(error: TopicsError | None) -> None:
            del self._creating[name]
            if error is not None:
                self._fail_stuck(topic, error)
                done(error)
                self.call_waiting(topic)
                return
            topic.created = True
            self.topics[name] = topic
            if self._names is not None:
                self._names.add(name)
            self.note_config(topic)
            done(topic)
            for tell in self.on_topic_created:
                tell(topic)
            self.publish_ready(topic)
            self.call_waiting(topic)

        topic.shard.submit(frame, 1, durable=True, done=created)
        self.next_topic_id += 1
        self._creating[name] = topic
        self.flush_soon()
        return topic

    def _reconfigure(self, topic: Topic, config: TopicConfig, done: Done) -> None:
        _check_dead_letter(topic.name, config)
        if config.type != topic.config.type:
            raise TopicExistsIncompatible(
                f'topic "{topic.name}" is a {topic.config.type}',
                {"topic": topic.name, "existing_type": topic.config.type, "requested_type": config.type},
            )
        self.stage_pending(topic)
        topic.refresh(self.now_ms())
        becomes_stored = topic.config.durability == "ephemeral" and config.durability != "ephemeral"
        unlogged_last_seq = topic.next_seq - 1 if becomes_stored else 0
        # What the old caps evicted, also by writes on their way, and what the new ones will: nothing of it may
        # come back, and a floor by bytes has no other frame.
        cap_floor = max(topic.floor_under(topic.config), topic.floor_under(config))
        update = control.ConfigUpdate(config_members(config), cap_floor, topic.ttl_floor, unlogged_last_seq)
        ts = self.now_ms()
        frame = wal_frame.encode_control(FrameType.CONFIG, topic.id, ts, control.encode(update))
        # Derived copies were made under the old one.
        self.forwarder.log_copies(topic, durable=True)
        frames = [frame]
        if becomes_stored:
            # Copies of an ephemeral dest are in no frame, nor is how far their routers are: a stored one would get
            # them again. First, so that a crash cannot keep the one without the other.
            frames = [*self.forwarder.cursor_notes(topic), frame]

        def updated(error: TopicsError | None) -> None:
            if error is None:
                topic.forget_keys(ts)
                topic.apply_config(config, cap_floor, unlogged_last_seq)
                topic.forget_keys(ts)
                topic.refresh(self.now_ms())
            self.end_change(topic)
            done(error if error is not None else False)
            self.call_waiting(topic)

        topic.shard.submit(b"".join(frames), len(frames), durable=True, done=updated)
        self.begin_change(topic)

    def begin_change(self, topic: Topic) -> None:
        """Writes that come now wait: what is logged behind this frame obeys the new config, or a new instance."""
        topic.changing = True
        self.note_config(topic)
        self.flush_soon()

    def end_change(self, topic: Topic) -> None:
        topic.changing = False
        self.note_config(topic)

    def call_waiting(self, topic: Topic) -> None:
        waiting, topic.on_changed = topic.on_changed, []
        for call in waiting:
            call()

    def delete_topic(self, name: str, *, if_empty: bool, done: Done, removed: list[str] | None = None) -> None:
        """Ends the instance. `done(deleted: bool)` once that is synced.

        Routers that touch it go with it: their names are added to `removed`.
        """
        self.check_open()
        topic = self.topics.get(name) or self._creating.get(name)
        if topic is None:
            done(False)
            return
        if topic.changing:
            topic.on_changed.append(
                lambda: self.again(lambda: self.delete_topic(name, if_empty=if_empty, done=done, removed=removed), done)
            )
            return
        self.stage_pending(topic)
        if topic.routers_in:
            self.forwarder.bring_up_to_date(topic)
        for router in topic.routers_out:
            # What was written before it goes is copied.
            self.forwarder.bring_up_to_date(router.dest)
        topic.refresh(self.now_ms())
        if if_empty and topic.count + topic.staged_count:
            raise TopicNotEmpty(f'topic "{name}" is not empty', {"topic": name, "count": topic.count})
        frame = wal_frame.encode_control(FrameType.TOPIC_DELETE, topic.id, self.now_ms(), control.encode({}))

        def deleted(error: TopicsError | None) -> None:
            self.end_change(topic)
            if error is None:
                del self.topics[name]
                if self._names is not None:
                    self._names.remove(name)
                topic.leave_total()
                names = self.routing.topic_removed(topic)
                if removed is not None:
                    removed.extend(names)
                self.on_topic_removed(topic)
                self.commits.forget_topic(topic)
                self.staging.forget_topic(topic)
                if topic.waiters:
                    _wake(topic)
            done(error if error is not None else True)
            self.call_waiting(topic)

        def copies_logged(error: TopicsError | None) -> None:
            if error is None:
                try:
                    topic.shard.submit(frame, 1, durable=True, done=deleted)
                    self.flush_next()
                    return
                except TopicsError as refusal:
                    error = refusal
            deleted(error)

        if topic.routers_out:
            # Copies that only its records could give again are logged first, and none are made meanwhile.
            self.begin_change(topic)
            self.forwarder.log_copies_of(topic, copies_logged, durable=True)
            return
        topic.shard.submit(frame, 1, durable=True, done=deleted)
        self.begin_change(topic)

    def on_topic_removed(self, topic: Topic) -> None:
        """Set by the checkpointer, which owns the files."""

    def names_after(self, prefix: str, after: str | None, count: int) -> list[str]:
        """At most `count` names that begin with `prefix` and come behind `after`, in ascending order."""
        if self._names is None:
            self._names = SortedNames(self.topics)
        return self._names.after(prefix, after, count)

    # Readers that wait, and how urgent they are.

    def wait_append(self, name: str, callback: Waiter) -> None:
        """Calls back once: at the next publication, or when the topic instance ends."""
        topic = self.topic(name)
        if topic.waiters:
            topic.waiters.add(callback)
        else:
            topic.waiters = {callback}

    def cancel_wait(self, name: str, callback: Waiter) -> None:
        """Also when it was called already, or the topic is gone, or is another one by now."""
        topic = self.topics.get(name)
        if topic is not None:
            topic.waiters.discard(callback)

    def is_synced(self, name: str) -> bool:
        """Whether a power loss would take no record that is written to the topic's shard."""
        return self.topic(name).shard.is_synced

    def when_synced(self, name: str, callback: Callable[[], None]) -> None:
        """Calls back once, when everything that the topic's shard has now is synced. Never if the sync fails."""
        self.topic(name).shard.when_synced(callback)

    def touch(self, topic: Topic) -> None:
        """Somebody looked at the topic: that makes its work more urgent for a while."""
        topic.last_read_ts = self.now_ms()

    def effective_priority(self, topic: Topic, waited_ms: int = 0) -> int:
        return effective_priority(topic.config, topic.last_read_ts, self.now_ms(), waited_ms)

    # Writing.

    def append(
        self,
        name: str,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        dead_letter: control.DeadLetter | None = None,
    ) -> None:
        """Appends the batch: all of it or nothing, seqs in order. `done` once the class's promise is kept.

        Raises at once what can be told at once; then `done` is not called. `dead_letter` is the job that the only
        record of the batch is a copy of.
        """
        topic = self.topics.get(name)
        if key is not None:
            _check_key(key)
        elif topic is not None and topic.takes_groups and dead_letter is None:
            # The common case: only noted now, and staged with all others of this turn.
            topic.shard.admit()
            pending = topic.pending
            pending.append((batch, done))
            if len(pending) == 1:
                self._pending.append(topic)
                self.flush_soon()
            return
        if topic is None or topic.changing or self.closed:
            topic = self._topic_to_append(
                name, batch, done, key=key, create=create, config=config, dead_letter=dead_letter
            )
            if topic is None:
                return
        if topic.pending:
            self.stage_pending(topic)
        now_ms = self.now_ms()
        if key is not None and self._deduped(topic, key, now_ms, done):
            return
        self.check_write(topic, len(batch), batch.size_bytes, now_ms)
        ts = max(topic.last_ts, now_ms)
        self._stage(topic, batch, ts, key, done, dead_letter=dead_letter)

    def note_config(self, topic: Topic) -> None:
        """Whether its writes can be staged by the turn: nothing about them must be decided one by one."""
        config = topic.config
        topic.takes_groups = (
            topic.created
            and not topic.changing
            and not self.closed
            and config.durability != "ephemeral"
            and config.discard == "old"
            and not config.cap_bytes
            and not self.settings.total_bytes_max
            and not topic.routers_in
        )

    def stage_pending(self, topic: Topic) -> None:
        """Stages the writes of this turn to one topic: one pass of encoding, one submission, one commit."""
        pending, topic.pending = topic.pending, []
        if not pending:
            return
        now_ms = self.now_ms()
        ts = max(topic.last_ts, now_ms)
        topic.last_ts = ts
        first_seq = topic.next_seq
        durability = topic.config.durability
        is_durable = durability == "fsync"
        batches = [batch for batch, _ in pending]
        buffer, bodies = wal_frame.encode_writes(topic.id, first_seq, ts, batches, durable=is_durable)
        count = len(bodies)
        sizes, size_bytes, tags = _joined(batches)
        writes = [(len(batch.envelopes), done) for batch, done in pending]
        staged = Staged(topic, first_seq, bodies, sizes, size_bytes, ts, writes)
        staged.tags = tags
        try:
            if durability == "disk":
                staged.reserved = True
                if first_seq + count + (topic.reserve >> 1) > topic.ceiling_asked:
                    self._reserve(topic, first_seq + count, ts)
            topic.shard.submit(
                buffer, count, durable=is_durable, done=partial(self.committed, staged), admitted=len(pending)
            )
        except TopicsError as error:
            topic.shard.dismiss(len(pending))
            staged.answer_all(error)
            return
        topic.next_seq = first_seq + count
        topic.staged.append(staged)
        topic.staged_count += count
        topic.staged_bytes += size_bytes

    def _topic_to_append(
        self,
        name: str,
        batch: RecordBatch,
        done: AppendDone,
        *,
        key: str | None,
        create: bool | None,
        config: TopicConfig | None,
        dead_letter: control.DeadLetter | None,
    ) -> Topic | None:
        """The topic, created or being created; None when the write waits for a deletion to end."""
        self.check_open()
        topic = self.topics.get(name) or self._creating.get(name)
        if topic is not None and topic.changing:
            again = partial(
                self.append, name, batch, done, key=key, create=create, config=config, dead_letter=dead_letter
            )
            topic.on_changed.append(lambda: self.again(again, done))
            return None
        if topic is None:
            wanted = config or TopicConfig()
            if not (wanted.auto_create if create is None else create):
                raise TopicNotFound(name)
            self._check_creation(name, wanted)
            if wanted.discard == "reject":
                _check_fits(name, wanted, len(batch), batch.size_bytes)
            self._check_quota(batch.size_bytes)
            topic = self._create(name, wanted, _ignore)
        return topic

    def _stage(
        self,
        topic: Topic,
        batch: RecordBatch,
        ts: int,
        key: str | None,
        done: AppendDone,
        *,
        dead_letter: control.DeadLetter | None = None,
        copies: control.Copies | None = None,
        is_derived: bool = False,
    ) -> None:
        if topic.routers_in and copies is None:
            self.forwarder.log_copies(topic)
            self.forwarder.note_direct_write(topic, batch, topic.next_seq)
        first_seq = topic.next_seq
        count = len(batch)
        config = topic.config
        durability = config.durability
        is_unlogged = is_derived or durability == "ephemeral"
        floor = evicted = 0
        if config.cap_bytes and config.discard == "old":
            floor, evicted = topic.byte_cap_floor(config, first_seq, batch.sizes, batch.size_bytes)
        logs_floor = floor > topic.staged_floor and not is_unlogged
        has_note = key is not None or dead_letter is not None or copies is not None
        buffer, bodies = wal_frame.encode_appends(
            topic.id,
            first_seq,
            ts,
            batch,
            durable=durability == "fsync",
            opens=not has_note or is_unlogged,
            closes=not logs_floor,
        )
        staged = Staged(topic, first_seq, bodies, batch.sizes, batch.size_bytes, ts, [(count, done)])
        staged.tags = batch.tags
        staged.key = key
        staged.cap_floor = floor
        staged.created = not topic.created and not topic.staged
        if is_unlogged:
            staged.is_unlogged = staged.committed = True
        else:
            frames = count
            if has_note:
                note = control.encode(control.Note(key, dead_letter, copies))
                buffer = (
                    wal_frame.encode_control(FrameType.NOTE, topic.id, ts, note, flags=FLAG_FIRST | FLAG_MORE) + buffer
                )
                frames += 1
            if logs_floor:
                data = control.encode(control.Evict(floor, topic.ttl_floor))
                buffer += wal_frame.encode_control(FrameType.EVICT, topic.id, ts, data, flags=0)
                frames += 1
            if durability == "disk":
                staged.reserved = True
                if first_seq + count + (topic.reserve >> 1) > topic.ceiling_asked:
                    self._reserve(topic, first_seq + count, ts)
            topic.shard.submit(buffer, frames, durable=durability == "fsync", done=partial(self.committed, staged))
        topic.next_seq = first_seq + count
        topic.staged.append(staged)
        topic.staged_count += count
        topic.staged_bytes += batch.size_bytes
        topic.staged_evict_bytes += evicted
        if floor > topic.staged_floor:
            topic.staged_floor = floor
        if is_unlogged:
            self.publish_ready(topic)
        else:
            self.flush_soon()

    def stage_copies(
        self, topic: Topic, batch: RecordBatch, copies: control.Copies, done: AppendDone, *, is_derived: bool
    ) -> None:
        """Copies of a router: derived ones are published at once, others logged behind a note. Room is checked."""
        ts = max(topic.last_ts, self.now_ms())
        self._stage(topic, batch, ts, None, done, copies=copies, is_derived=is_derived)

    def stage_holes(self, topic: Topic, count: int, evict: control.Evict, done: AppendDone) -> None:
        """Seqs without records, for what a router's source lost."""
        first_seq = topic.next_seq
        ts = max(topic.last_ts, self.now_ms())
        staged = Staged(topic, first_seq, [], [], 0, ts, [(count, done)])
        staged.last_seq = first_seq + count - 1
        staged.is_holes = True
        staged.cap_floor = topic.staged_floor
        if topic.config.durability == "ephemeral":
            staged.committed = True
        else:
            durable = topic.config.durability == "fsync"
            frame = wal_frame.encode_control(FrameType.EVICT, topic.id, ts, control.encode(evict))
            topic.shard.submit(frame, 1, durable=durable, done=partial(self.committed, staged))
            self.flush_soon()
        topic.next_seq = first_seq + count
        topic.staged.append(staged)
        self.publish_ready(topic)

    def _reserve(self, topic: Topic, next_seq: int, ts: int) -> None:
        """Syncs a new head ceiling, ahead of need: twice the last one while the topic stays busy."""
        reserve = min(max(topic.reserve * 2, RESERVE_SEQS_MIN), RESERVE_SEQS_MAX)
        ceiling = next_seq + reserve

        def reserved(error: TopicsError | None) -> None:
            if error is None:
                topic.ceiling = max(topic.ceiling, ceiling)
                self.publish_ready(topic)
                return
            # Not what was asked for before: that may have failed too.
            topic.ceiling_asked = topic.ceiling
            if isinstance(error, WalFailed):
                self._fail_stuck(topic, error)

        frame = wal_frame.encode_control(FrameType.HEAD, topic.id, ts, control.encode(control.Head(ceiling)))
        topic.shard.submit(frame, 1, durable=True, done=reserved)
        topic.reserve = reserve
        topic.ceiling_asked = ceiling

    def committed(self, staged: Staged, error: TopicsError | None) -> None:
        topic = staged.topic
        if error is None:
            staged.committed = True
            # Those of the group that is being completed right now.
            staged.write_ms, staged.sync_ms = topic.shard.write_ms, topic.shard.sync_ms
            self.publish_ready(topic)
            return
        # Everything staged behind it on this shard fails with it, so its seqs are free again.
        topic.next_seq = min(topic.next_seq, staged.first_seq)
        topic.staged.remove(staged)
        self._unstage(topic, staged)
        topic.staged_floor = topic.staged[-1].cap_floor if topic.staged else topic.cap_floor
        topic.recount_staged_evictions()
        staged.answer_all(error)
        if staged.on_end is not None:
            staged.on_end()

    def _fail_stuck(self, topic: Topic, error: TopicsError) -> None:
        """Answers writes that are committed themselves, but what they wait for will never be."""
        for staged in [staged for staged in topic.staged if staged.committed]:
            self.committed(staged, error)

    def _unstage(self, topic: Topic, staged: Staged) -> None:
        topic.staged_count -= len(staged.bodies)
        topic.staged_bytes -= staged.size_bytes

    def publish_ready(self, topic: Topic) -> None:
        """Publishes, in order, what is committed."""
        if not topic.created:
            return
        queue = topic.staged
        head_seq = topic.head_seq
        on_end: Callable[[], None] | None = None
        while queue:
            staged = queue[0]
            if not staged.committed or (staged.reserved and staged.last_seq >= topic.ceiling):
                break
            del queue[0]
            self._unstage(topic, staged)
            if staged.is_holes:
                topic.publish_holes(staged)
            else:
                topic.publish(staged)
            if staged.ts > self.newest_ts:
                self.newest_ts = staged.ts
            if staged.key is not None:
                topic.keys[staged.key] = KeyState(
                    staged.key, staged.ts, staged.first_seq, len(staged.bodies), topic.head_seq
                )
            if staged.writer is not None:
                self.commits.note_published(topic, staged)
                # Nothing is staged behind it before this is called.
                on_end = staged.on_end
            name, ts, created = topic.name, staged.ts, staged.created
            write_ms, sync_ms = staged.write_ms, staged.sync_ms
            first_seq = staged.first_seq
            for count, done in staged.writes:
                last_seq = first_seq + count - 1
                done(Appended(name, first_seq, last_seq, last_seq, count, ts, created, False, write_ms, sync_ms))
                first_seq += count
                created = False
        if topic.head_seq > head_seq:
            if topic.routers_out:
                self.forwarder.note_source(topic)
            if topic.waiters:
                _wake(topic)
        if on_end is not None:
            on_end()

    def _deduped(self, topic: Topic, key: str, now_ms: int, done: AppendDone) -> bool:
        """Whether a write with this key was made, or is being made, within the window. Answers it then."""
        window_ms = topic.config.idempotency_window_ms
        keys = topic.keys
        while keys:
            oldest = next(iter(keys.values()))
            if now_ms - oldest.ts < window_ms:
                break
            del keys[oldest.key]
        known = keys.get(key)
        # Asked again: after a replay a key that was used twice stands where it stood first.
        if known is not None and now_ms - known.ts < window_ms:
            done(_deduped_answer(topic, known))
            return True
        for staged in topic.staged:
            if staged.key == key:
                _share_answer(staged, topic, done)
                return True
        return False

    def check_write(self, topic: Topic, count: int, size_bytes: int, now_ms: int) -> None:
        """Whether a write of so many records and bytes is taken, by the topic's caps and the server's quota."""
        if topic.config.ttl_ms:
            topic.refresh(now_ms)
        if topic.config.discard == "reject":
            _check_room(topic, count, size_bytes)
        self._check_quota(size_bytes)

    def _check_quota(self, size_bytes: int) -> None:
        maximum = self.settings.total_bytes_max
        if maximum and self.live_bytes.total + size_bytes > maximum:
            raise Throttled("the server's byte quota is used up", {"limit": "max_total_bytes", "max": maximum})

    # Deleting records.

    def delete_records(
        self,
        name: str,
        done: Done,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        seqs: list[int] | None = None,
    ) -> None:
        """Removes what is live now and matches, for good. `done(Deleted)` once that is logged."""
        self.check_open()
        if before_seq is None and tag is None and tag_prefix is None and seqs is None:
            raise InvalidRequest("say what to delete: before_seq, a tag, or both")
        if tag is not None and tag_prefix is not None:
            raise InvalidRequest("delete by a tag or by a prefix of it, not both")
        # Checked here because a frame that cannot be read back would stop the next start.
        if before_seq is not None and not 0 <= before_seq <= U64_MAX:
            raise InvalidRequest("before_seq is out of range")
        _check_unicode(tag, "tag")
        _check_unicode(tag_prefix, "tag")
        topic = self.topic(name)
        self.stage_pending(topic)
        if topic.routers_in:
            self.forwarder.bring_up_to_date(topic)
            # A replay must find the copies that the frame is about.
            self.forwarder.log_copies(topic)
        topic.refresh(self.now_ms())
        delete = control.Delete(topic.head_seq + 1, before_seq, tag, tag_prefix, seqs, topic.ttl_floor)

        def committed(error: TopicsError | None) -> None:
            topic.hazards -= 1
            if error is not None:
                done(error)
                return
            topic.refresh(self.now_ms())
            done(Deleted(topic, apply_delete(topic, delete)))

        durability = topic.config.durability
        stored_last_seq = max(topic.logged_last_seq, topic.checkpointed_seq)
        topic.hazards += 1
        if durability == "ephemeral" and stored_last_seq < topic.first_live:
            committed(None)
            return
        # Records of a stored class must not come back because the topic is ephemeral by now.
        durable = durability in ("fsync", "ephemeral")
        frame = wal_frame.encode_control(FrameType.DELETE, topic.id, self.now_ms(), control.encode(delete))

        def copies_logged(error: TopicsError | None) -> None:
            if error is None:
                try:
                    topic.shard.submit(frame, 1, durable=durable, done=committed)
                    self.flush_next()
                    return
                except TopicsError as refusal:
                    error = refusal
            committed(error)

        if topic.routers_out:
            # What was copied from these records, and is in no frame, could not be copied again.
            self.forwarder.log_copies_of(topic, copies_logged)
            return
        try:
            topic.shard.submit(frame, 1, durable=durable, done=committed)
        except TopicsError:
            topic.hazards -= 1
            raise
        self.flush_soon()

    # Routers.

    @property
    def routers(self) -> dict[str, Router]:
        return self.routing.routers

    def router(self, name: str) -> Router:
        return self.routing.router(name)

    def put_router(self, name: str, spec: RouterSpec, done: Done) -> None:
        """Creates or changes a router, and creates its topics. `done(created: bool)` once that is synced."""
        self.check_open()
        self.routing.put(name, spec, done)

    def delete_router(self, name: str, done: Done) -> None:
        """Stops it; its copies stay. `done(deleted: bool)` once that is synced."""
        self.check_open()
        self.routing.delete(name, done)

    def bring_up_to_date(self, name: str) -> bool:
        """Forwards what routers can copy into this topic. False when copies are on their way: see `wait_copies`."""
        topic = self.topics.get(name)
        return topic is None or not topic.routers_in or self.forwarder.bring_up_to_date(topic)

    def wait_copies(self, callback: Waiter) -> None:
        """Calls back once, when it is worth asking `bring_up_to_date` again."""
        self.forwarder.wait_copies(callback)

    # Reading.

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int = READ_LIMIT_DEFAULT,
        bytes_max: int = READ_BYTES_DEFAULT,
        nodes: frozenset[bytes] | None = None,
    ) -> Page:
        topic = self.topic(name)
        if from_seq < 0 or limit < 0 or bytes_max < 0:
            raise InvalidRequest("from_seq, limit and bytes_max are not negative")
        if topic.routers_in:
            self.forwarder.bring_up_to_date(topic)
        now_ms = self.now_ms()
        topic.refresh(now_ms)
        topic.last_read_ts = now_ms
        return topic.read(from_seq, *_read_bounds(limit, bytes_max), nodes)

    def fetch_needed(
        self, name: str, from_seq: int, limit: int = READ_LIMIT_DEFAULT, bytes_max: int = READ_BYTES_DEFAULT
    ) -> Callable[[], None] | None:
        """What must be done elsewhere before a `read` of this page, so that the owner waits for no disk or network.

        None when the page is at hand: in memory, or in the page cache as far as the system tells. Else a function
        for a thread of a pool; once it has returned `read` is called, once. What it raises is the answer to the
        reader. Between the two the topic may change, so `read` may come to other records and then has to wait
        after all; so it does on a system that does not tell what is cached, behind what was fetched.

        Not covered: what keeps the numbers of a topic in order. Expiry, a byte cap, and deletes by tag look into
        the files of the segments they work on, also into cold ones, on the owner.
        """
        topic = self.topic(name)
        if topic.tail.first_seq <= from_seq + 1 and from_seq <= topic.head_seq:
            return None
        if from_seq < 0 or limit < 0 or bytes_max < 0:
            # For `read` to refuse.
            return None
        topic.refresh(self.now_ms())
        return topic.fetch_needed(from_seq, *_read_bounds(limit, bytes_max))

    def check_open(self) -> None:
        if self.closed:
            raise Closed


def _check_dead_letter(name: str, config: TopicConfig) -> None:
    """Dead letters of a queue that go to the queue itself would never leave it."""
    if config.type == "queue" and config.dead_letter == name:
        raise InvalidRequest(
            f'queue "{name}" cannot be its own dead_letter: name another topic', {"dead_letter": config.dead_letter}
        )


def _read_bounds(limit: int, bytes_max: int) -> tuple[int, int]:
    return min(limit or READ_LIMIT_DEFAULT, READ_LIMIT_MAX), min(bytes_max or READ_BYTES_DEFAULT, READ_BYTES_MAX)


def _check_unicode(text: str | None, name: str) -> int:
    """Its length in bytes."""
    try:
        return len((text or "").encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {name} is not valid Unicode") from error


def _check_key(key: str) -> None:
    if _check_unicode(key, "idempotency key") > IDEMPOTENCY_KEY_BYTES_MAX:
        raise InvalidRequest(f"an idempotency key has at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes")


def apply_delete(topic: Topic, delete: control.Delete) -> int:
    """Carries out a logged delete; how many live records went."""
    if delete.seqs is not None:
        return topic.delete_seqs(sorted(seq for seq in set(delete.seqs) if seq < delete.bound))[0]
    bound = delete.bound if delete.before_seq is None else min(delete.bound, delete.before_seq)
    if delete.tag is not None:
        return topic.delete_seqs(topic.tagged_seqs(delete.tag.encode(), is_prefix=False, end_seq=bound))[0]
    if delete.tag_prefix is not None:
        return topic.delete_seqs(topic.tagged_seqs(delete.tag_prefix.encode(), is_prefix=True, end_seq=bound))[0]
    return topic.delete_before(bound)[0]


def _check_fits(name: str, config: TopicConfig, count: int, size_bytes: int) -> None:
    """A write that is larger than the whole cap never fits."""
    too_many = config.cap_records and count > config.cap_records
    too_large = config.cap_bytes and size_bytes > config.cap_bytes
    if too_many or too_large:
        raise RecordTooLarge(f'the write is larger than the whole cap of topic "{name}"')


def _check_room(topic: Topic, count: int, size_bytes: int) -> None:
    config = topic.config
    _check_fits(topic.name, config, count, size_bytes)
    count += topic.count + topic.staged_count
    size = topic.size_bytes + topic.staged_bytes + size_bytes
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
        raise TopicFull(
            f'topic "{topic.name}" is full',
            {
                "topic": topic.name,
                "cap_records": config.cap_records,
                "cap_bytes": config.cap_bytes,
                "head_seq": topic.head_seq,
                "earliest_seq": topic.earliest_seq,
            },
        )


def _deduped_answer(topic: Topic, known: KeyState) -> Appended:
    return Appended(
        topic.name,
        known.first_seq,
        known.first_seq + known.count - 1,
        known.head_seq,
        known.count,
        known.ts,
        False,
        True,
    )


def _share_answer(staged: Staged, topic: Topic, done: AppendDone) -> None:
    """A write with the same key is on its way: both get its answer, one of them as a repeat."""
    ((count, first_done),) = staged.writes

    def both(result: Appended | TopicsError) -> None:
        first_done(result)
        if isinstance(result, TopicsError):
            done(result)
        else:
            done(_deduped_answer(topic, topic.keys[staged.key or ""]))

    staged.writes = [(count, both)]


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


def _wake(topic: Topic) -> None:
    """Calls everybody who waits, once: who wants to wait on asks again."""
    waiters, topic.waiters = topic.waiters, NOBODY
    for wake in waiters:
        wake()


def _ignore(result: object) -> None:
    pass
