"""Checkpoints: what is in the WAL goes into segments, a snapshot says so, and old files go.

Order, each step durable before the next:

1. All shards hold still: everything written is synced. In that same turn every topic that changed is
   captured, so that the snapshot is exactly the state at the noted positions. Writing goes on at once.
2. The job (in a worker process) puts records into segments and sets delete bytes.
3. The snapshot is written; the engine takes over the new segments.
4. A checkpoint mark goes into each shard.
5. Files that neither of the two kept snapshots needs are removed: snapshots, WAL files, dead segments.

One at a time. When a step fails nothing is taken over beyond what it made durable, and the next checkpoint
begins again from there. Owner only, except the work handed to the background.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from topics.engine.config import config_members
from topics.engine.engine import Engine
from topics.engine.topic.tail import runs_of
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, Overloaded, StorageFull, Throttled, TopicsError
from topics.formats import control, wal_frame
from topics.formats import snapshot as codec
from topics.formats.snapshot import KeyState, SegmentState, Snapshot, TopicState, WalPosition
from topics.formats.wal_frame import FrameType
from topics.limits import CHECKPOINT_RETRY_MS, CHECKPOINTS_BEHIND_MAX, TAIL_CACHE_TOTAL_BYTES
from topics.storage import layout
from topics.storage.background import Background
from topics.storage.checkpoint_job import FlagWork, Job, JobResult, ShardRange, TopicWork
from topics.storage.fs import NO_SPACE
from topics.storage.job_runner import JobRunner
from topics.storage.relocation import flag_deleted_cold
from topics.storage.removal import (
    remove_hot_copy,
    remove_marks,
    remove_segment,
    remove_topic_directory,
    remove_wal_files,
)
from topics.storage.snapshots import drop_old_snapshots, write_snapshot
from topics.storage.wal import shard_index

logger = logging.getLogger(__name__)

CheckpointDone = Callable[[Exception | None], None]
T = TypeVar("T")


class _Captured:
    """One topic as of the noted positions."""

    __slots__ = ("flagged", "state", "topic", "work")

    def __init__(self, topic: Topic, state: TopicState, work: TopicWork) -> None:
        self.topic = topic
        self.state = state
        self.work = work
        # Segment first seq -> seqs whose delete bytes this checkpoint sets.
        self.flagged: dict[int, list[int]] = {}


class Checkpointer:
    """Runs checkpoints of one engine, and owns the removal of files."""

    def __init__(
        self,
        engine: Engine,
        runner: JobRunner,
        background: Background,
        snapshot: Snapshot | None,
        positions: list[WalPosition],
        replayed_bytes: int = 0,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._background = background
        self._fs = engine.directory.fs
        self._root = engine.directory.root
        self.number = snapshot.number if snapshot is not None else 0
        # Where the next job begins to read, and what each kept snapshot still needs of the WAL.
        self._positions = positions
        self._kept_positions = [positions]
        self._running = False
        self._closing = False
        self._again: list[CheckpointDone] = []
        self._done: list[CheckpointDone] = []
        # (number of the last snapshot that lists it, topic id, segment).
        self._doomed: list[tuple[int, int, SegmentState]] = []
        # (number of the last snapshot that calls it hot, topic id, segment) of segments that are cold now.
        self._hot_copies: list[tuple[int, int, SegmentState]] = []
        # (topic id, first seq) of segments that must keep their pending deletes: they are being moved or replaced.
        self.moving: set[tuple[int, int]] = set()
        # The same of replaced segments -> number of the last snapshot that may note them as they were before.
        self._marks: dict[tuple[int, int], int] = {}
        # Ids of topics whose directory could not be synced after a segment was replaced.
        self._unsynced: set[int] = set()
        self._topics_removed = 0
        # Ids of topics whose active segment the next checkpoint seals.
        self._to_seal: set[int] = set()
        self.count_total = 0
        self._last_error: Exception | None = None
        # Positions the next snapshot notes instead of the real ones: a change of the shard count.
        self._layout: list[WalPosition] | None = None
        self._began_ms = engine.clock.monotonic_ms()
        self._filed_bytes = self._wal_bytes()
        # What was replayed counts: a server that dies again and again before it has written enough, or lived long
        # enough, would never put anything away, and each start would have more to read.
        self._began_bytes = self._filed_bytes - replayed_bytes
        engine.on_topic_removed = self._topic_removed  # type: ignore[method-assign]

    @property
    def is_running(self) -> bool:
        return self._running

    # When.

    def _wal_bytes(self) -> int:
        return sum(shard.stats.bytes_written for shard in self._engine.wal.shards)

    @property
    def wal_bytes_since(self) -> int:
        return self._wal_bytes() - self._began_bytes

    def tick(self) -> None:
        """Starts a checkpoint when enough was written, or long enough ago; holds writers back that outrun it."""
        self._throttle()
        if self._running:
            return
        settings = self._engine.settings
        written = self.wal_bytes_since
        waited_ms = self._engine.clock.monotonic_ms() - self._began_ms
        wait_ms = settings.checkpoint_interval_ms if self._last_error is None else CHECKPOINT_RETRY_MS
        if written >= settings.checkpoint_wal_bytes or waited_ms >= wait_ms:
            self.start()

    def _throttle(self) -> None:
        """What no segment holds is in memory: it must not grow without end, also when checkpoints keep failing."""
        behind = self._wal_bytes() - self._filed_bytes
        is_behind = behind > CHECKPOINTS_BEHIND_MAX * self._engine.settings.checkpoint_wal_bytes
        self._engine.wal.throttle(self._refusal() if is_behind else None)

    def _refusal(self) -> TopicsError:
        """What a writer is told: to wait, unless the last checkpoint failed, for then waiting may not help."""
        error = self._last_error
        if error is None:
            return Overloaded("writes outrun the checkpoints; try again")
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return StorageFull("no space left to put away what is already written; nothing was written")
        return Throttled("checkpoints fail, so no more writes are taken", {"checkpoint": str(error)})

    # The steps.

    def start(self, done: CheckpointDone | None = None, *, closing: bool = False) -> None:
        """Begins a checkpoint, or one right behind the running one. `closing`: no write follows the last one."""
        self._closing = self._closing or closing
        if self._running:
            self._again.append(done or _ignore)
            return
        self._running = True
        self._done = [done] if done is not None else []
        self._began_ms = self._engine.clock.monotonic_ms()
        # A commit of several turns is in the log as a whole, or not yet: no position lies inside it.
        self._engine.commits.when_none_is_open(lambda: self._engine.wal.hold(self._quiet))

    def seal(self, topic: Topic, done: CheckpointDone) -> None:
        """Puts away what was written to the topic until now, and seals its last segment: then all of it is in files
        that do not change any more."""
        if topic.active_segment() is not None or topic.checkpointed_seq < topic.head_seq:
            self._to_seal.add(topic.id)
            topic.encoded = None
        self.start(done)

    def move_to_layout(self, positions: list[WalPosition]) -> int:
        """A checkpoint after which nothing of the present WAL is needed; the number of its snapshot.

        Runs on the caller. Raises what made it fail.
        """
        outcome: list[Exception | None] = []
        self._layout = positions
        self._topics_removed += 1
        self.start(outcome.append)
        assert outcome, "an inline checkpoint is done when it returns"
        if outcome[0] is not None:
            raise outcome[0]
        return self.number

    def _quiet(self) -> None:
        engine = self._engine
        failure = engine.wal.failure()
        if failure is not None:
            engine.wal.release()
            self._finish(failure)
            return
        positions = engine.wal.positions
        captured = self._capture_all(closing=self._closing)
        entries = {topic.id: topic.encoded for topic in engine.topics.values() if topic.encoded is not None}
        # Routers in the same turn as their dests: a cursor and the copies it stands for belong together.
        routing = engine.routing
        snapshot = Snapshot(
            self.number + 1,
            engine.next_topic_id,
            self._layout or positions,
            next_router_id=routing.next_router_id,
            routers=routing.states(),
        )
        routers_changed, routing.is_dirty = routing.is_dirty, False
        self._began_bytes = self._wal_bytes()
        engine.wal.release()
        if not captured and self.number and self._topics_removed == 0 and not routers_changed:
            # Only marks were written since: the last snapshot still says it all.
            self._filed_bytes = self._began_bytes
            self._finish(None)
            return
        self._topics_removed = 0
        job = self._job(captured, positions)
        cold = self._cold_flags(captured)

        def work() -> JobResult:
            result = self._runner.run(job)
            self._flag_cold(cold)
            return result

        self._background.run(work, lambda result: self._job_done(captured, entries, snapshot, positions, result))

    def _capture_all(self, *, closing: bool) -> list[_Captured]:
        now_ms = self._engine.now_ms()
        return [
            self._capture(topic)
            for topic in self._engine.topics.values()
            if self._is_dirty(topic, now_ms, closing=closing)
        ]

    def _is_dirty(self, topic: Topic, now_ms: int, *, closing: bool) -> bool:
        topic.refresh(now_ms)
        if (closing or topic.encoded is not None) and topic.ceiling > topic.head_seq + 1 and not topic.staged:
            # Idle since the last checkpoint: give the reservation back, the next write asks again.
            topic.ceiling = topic.ceiling_asked = topic.head_seq + 1
            topic.reserve = 0
            topic.encoded = None
        if closing and topic.leases is not None and topic.leases.ceiling > topic.leases.next_id:
            # Nothing is claimed any more.
            topic.leases.ceiling = topic.leases.next_id
            topic.encoded = None
        active = topic.active_segment()
        age_ms_max = self._engine.settings.segment_age_ms_max
        if active is not None and age_ms_max and now_ms - active.created_ts >= age_ms_max:
            topic.encoded = None
        return topic.encoded is None

    def _capture(self, topic: Topic) -> _Captured:
        segments = topic.segments
        segments.release_columns()
        segments.drop_dead()
        self._note_dropped(topic)
        is_ephemeral = topic.config.durability == "ephemeral"
        upto_seq = topic.logged_last_seq if is_ephemeral else topic.head_seq
        upto_seq = max(upto_seq, topic.checkpointed_seq)
        if topic.hops is not None and topic.routers_out:
            topic.hops.checkpoint(min(router.settled[0] for router in topic.routers_out))
        state = capture_state(topic, upto_seq, self._engine.now_ms())
        active = topic.active_segment()
        work = TopicWork(
            topic.id,
            after_seq=topic.checkpointed_seq,
            upto_seq=upto_seq,
            floor_seq=topic.first_live,
            dead=topic.dead_ranges(max(topic.checkpointed_seq + 1, topic.first_live), upto_seq),
            active=msgspec.structs.replace(active) if active is not None else None,
            unlogged=_unlogged(topic, upto_seq),
            topic_json=_changed_topic_json(topic, upto_seq),
            topic_json_may_stand=topic.topic_json is None,
            seal=topic.id in self._to_seal,
        )
        self._to_seal.discard(topic.id)
        captured = _Captured(topic, state, work)
        for segment in segments.segments:
            if segments.has_pending(segment) and (topic.id, segment.first_seq) not in self.moving:
                captured.flagged[segment.first_seq] = segments.pending_seqs(segment)
        topic.killed_meanwhile = []
        # Whatever changes from here on makes it None again.
        topic.encoded = b""
        return captured

    def _job(self, captured: list[_Captured], positions: list[WalPosition]) -> Job:
        settings = self._engine.settings
        count = len(positions)
        return Job(
            self._root,
            self._engine.now_ms(),
            [
                ShardRange(layout.shard_directory(self._root, shard, count), start, stop)
                for shard, (start, stop) in enumerate(zip(self._positions, positions, strict=True))
            ],
            [item.work for item in captured],
            [
                FlagWork(item.topic.id, msgspec.structs.replace(segment), item.flagged[segment.first_seq])
                for item in captured
                for segment in item.state.segments
                if segment.first_seq in item.flagged
            ],
            settings.segment_events_max,
            settings.segment_bytes_max,
            settings.segment_age_ms_max,
        )

    def _cold_flags(self, captured: list[_Captured]) -> list[tuple[_Captured, SegmentState]]:
        return [
            (item, segment)
            for item in captured
            for segment in item.state.segments
            if segment.tier == "cold" and segment.first_seq in item.flagged
        ]

    def _flag_cold(self, flags: list[tuple[_Captured, SegmentState]]) -> None:
        """On the background. What the cold tier does not take now stays pending."""
        for item, segment in flags:
            seqs = item.flagged[segment.first_seq]
            try:
                if self._engine.cold is None:
                    raise ColdUnavailable("no cold tier is configured")
                flag_deleted_cold(self._engine.cold, item.topic.id, segment, seqs)
            except (ColdUnavailable, FileNotFoundError) as error:
                logger.warning("delete bytes of %s stay pending: %s", item.topic.name, error)
                del item.flagged[segment.first_seq]

    def _job_done(
        self,
        captured: list[_Captured],
        entries: dict[int, bytes],
        snapshot: Snapshot,
        positions: list[WalPosition],
        result: JobResult | BaseException,
    ) -> None:
        if isinstance(result, BaseException):
            for item in captured:
                item.topic.killed_meanwhile = None
                item.topic.encoded = None
                # It may stand there and not be durable.
                item.topic.topic_json = b""
            self._finish(_reportable(result))
            return
        self._positions = positions
        self._filed_bytes = self._began_bytes
        self._throttle()
        for item in captured:
            touched = result.touched.get(item.topic.id, [])
            entries[item.topic.id] = self._state_entry(item, touched)
            self._take_over(item, touched)
        self._close_replayed_files()
        snapshot.topics = [msgspec.Raw(entry) for entry in entries.values()]
        self._background.run(
            lambda: write_snapshot(self._fs, self._root, snapshot),
            lambda written: self._snapshot_written(captured, snapshot, written),
        )

    def _close_replayed_files(self) -> None:
        engine = self._engine
        if engine.wal_files is not None and all(topic.replayed is None for topic in engine.topics.values()):
            engine.wal_files.close()
            engine.wal_files = None

    def _state_entry(self, item: _Captured, touched: list[SegmentState]) -> bytes:
        """The captured state with the segments the job made, encoded. Numbers are those of the capture."""
        state = item.state
        changed = {segment.first_seq: segment for segment in touched}
        kept = [segment for segment in state.segments if segment.first_seq not in changed]
        state.segments = sorted([*kept, *touched], key=lambda segment: segment.first_seq)
        done = {seq for seqs in item.flagged.values() for seq in seqs}
        left = [seq for first, last in state.pending_deletes for seq in range(first, last + 1) if seq not in done]
        state.pending_deletes = runs_of(left)
        return bytes(codec.encode_topic(state))

    def _take_over(self, item: _Captured, touched: list[SegmentState]) -> None:
        """The engine goes on with the new segments. Numbers are those of now."""
        topic = item.topic
        killed, topic.killed_meanwhile = topic.killed_meanwhile or [], None
        if self._engine.topics.get(topic.name) is not topic:
            return
        segments = topic.segments
        for first_seq, seqs in item.flagged.items():
            segments.clear_pending(first_seq, seqs)
        take_over_segments(topic, item.work.after_seq, item.work.upto_seq, touched)
        segments.mark_pending(seq for seq in killed if item.work.after_seq < seq <= item.work.upto_seq)
        topic.topic_json = item.work.topic_json or topic.topic_json
        if topic.encoded == b"":
            topic.encoded = None if segments.dropped else self._fresh_entry(topic)
        self._note_dropped(topic)
        share = TAIL_CACHE_TOTAL_BYTES // max(1, len(self._engine.topics))
        _trim_tail(topic, min(self._engine.settings.tail_cache_bytes, share))

    def _fresh_entry(self, topic: Topic) -> bytes:
        """Nothing changed since the capture: this entry serves the next snapshots too."""
        return bytes(codec.encode_topic(capture_state(topic, topic.checkpointed_seq, self._engine.now_ms())))

    def _snapshot_written(self, captured: list[_Captured], snapshot: Snapshot, written: object) -> None:
        if isinstance(written, BaseException):
            for item in captured:
                item.topic.encoded = None
            self._finish(_reportable(written))
            return
        self.number = snapshot.number
        self.count_total += 1
        if self._layout is not None:
            self._finish(None)
            return
        self._kept_positions = [*self._kept_positions[-1:], snapshot.wal]
        for item in captured:
            self._note_dropped(item.topic)
            item.topic.snapshot_seqs = (item.topic.snapshot_seqs[1], item.work.upto_seq)
        self._mark(captured, snapshot)

    def _mark(self, captured: list[_Captured], snapshot: Snapshot) -> None:
        """One checkpoint mark per shard, synced; then the clean-up."""
        shards = self._engine.wal.shards
        marks: list[list[control.TopicMark]] = [[] for _ in shards]
        for item in captured:
            state = item.state
            active = state.segments[-1].data_bytes if state.segments and not state.segments[-1].sealed else 0
            marks[shard_index(state.id, len(shards))].append(
                control.TopicMark(state.id, state.checkpointed_seq, state.cap_floor, state.ttl_floor, active)
            )
        missing = len(shards)

        def marked(_error: TopicsError | None) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                self._clean_up()

        for shard, topics in zip(shards, marks, strict=True):
            data = control.encode(control.CheckpointMark(snapshot.number, topics))
            frame = wal_frame.encode_control(FrameType.CHECKPOINT, 0, self._engine.now_ms(), data)
            try:
                shard.submit(frame, 1, durable=True, done=marked)
            except TopicsError as error:
                marked(error)
        self._engine.flush()

    def _clean_up(self) -> None:
        """Removes what neither kept snapshot needs. Nobody waits for it but the next checkpoint."""
        newest = self.number
        doomed, self._doomed = _split(self._doomed, newest - 2)
        pins = self._engine.pins
        # What somebody is about to read is looked at again by the next checkpoint.
        self._doomed += [entry for entry in doomed if pins.holds(entry[1], entry[2].first_seq)]
        doomed = [entry for entry in doomed if not pins.holds(entry[1], entry[2].first_seq)]
        hot_copies, self._hot_copies = _split(self._hot_copies, newest - 2)
        # One that is being replaced once more has a new mark by the time this is done.
        marks = [key for key, upto in self._marks.items() if upto <= newest - 2 and key not in self.moving]
        oldest_positions = self._kept_positions[0]
        unsynced = sorted(self._unsynced)
        fs, root, cold = self._fs, self._root, self._engine.cold

        def work() -> None:
            for topic_id in unsynced:
                fs.sync_dir(layout.topic_directory(root, topic_id))
            drop_old_snapshots(fs, root, newest)
            remove_wal_files(fs, root, oldest_positions)
            while doomed:
                _, topic_id, segment = doomed[-1]
                remove_segment(fs, root, cold, topic_id, segment)
                doomed.pop()
            while hot_copies and cold is not None:
                _, topic_id, segment = hot_copies[-1]
                remove_hot_copy(fs, root, cold, topic_id, segment.first_seq)
                hot_copies.pop()
            remove_marks(fs, root, marks)

        def cleaned_up(result: object) -> None:
            if isinstance(result, BaseException):
                logger.warning("old files stay for now: %s", result)
            else:
                self._unsynced -= set(unsynced)
                for key in marks:
                    self._marks.pop(key, None)
            # What is left is tried again by the next checkpoint.
            self._doomed += doomed
            self._hot_copies += hot_copies
            self._finish(None)

        self._background.run(work, cleaned_up)

    def _finish(self, error: Exception | None) -> None:
        self._running = False
        self._last_error = error
        if error is not None:
            logger.error("checkpoint failed: %s", error)
            self._engine.routing.is_dirty = True
        done, self._done = self._done, []
        _call_all(done, error)
        if self._again:
            again, self._again = self._again, []
            self.start(lambda result: _call_all(again, result))

    def close(self) -> None:
        self._background.close()

    # Files of dead records.

    def _note_dropped(self, topic: Topic) -> None:
        """Segments without live records: listed by the snapshots up to now, gone from the next one on."""
        dropped, topic.segments.dropped = topic.segments.dropped, []
        upto = self.number + 1 if self._running else self.number
        self._doomed += [(upto, topic.id, segment) for segment in dropped]

    def hot_copy_left(self, topic_id: int, segment: SegmentState) -> None:
        """A segment is cold now; its hot files go once no kept snapshot asks for them."""
        upto = self.number + 1 if self._running else self.number
        self._hot_copies.append((upto, topic_id, segment))

    def mark_left(self, topic_id: int, first_seq: int, *, is_durable: bool) -> None:
        """A segment was replaced; the mark that says so goes once both kept snapshots are younger than that.

        When a sync failed, only a start, which finds what is there, lets the mark go; and no old snapshot goes before
        another sync of the directory.
        """
        if is_durable:
            self._marks[topic_id, first_seq] = self.number + 1 if self._running else self.number
        else:
            self._marks.pop((topic_id, first_seq), None)
            self._unsynced.add(topic_id)

    def run_in_line(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Work on segment files that must not run beside a job, nor beside a removal."""
        self._background.run(work, done)

    def _topic_removed(self, topic: Topic) -> None:
        self._topics_removed += 1
        self._engine.cache.forget_topic(topic.id)
        self._engine.pins.forget_topic(topic.id)
        segments = [*topic.segments.segments, *topic.segments.dropped]
        self._doomed = [entry for entry in self._doomed if entry[1] != topic.id]
        self._unsynced.discard(topic.id)
        self._marks = {key: upto for key, upto in self._marks.items() if key[0] != topic.id}
        fs, root, cold = self._fs, self._root, self._engine.cold

        def work() -> None:
            remove_topic_directory(fs, root, cold, topic.id, segments)

        self._background.run(work, self._topic_files_removed)

    def _topic_files_removed(self, result: object) -> None:
        if isinstance(result, BaseException):
            logger.warning("files of a removed topic stay for now: %s", result)


def capture_state(topic: Topic, upto_seq: int, now_ms: int) -> TopicState:
    # A key stays as long as its window runs, whatever the class is by now, but not without the records it answers
    # for: those that only memory holds end with the process.
    window_ms = topic.config.idempotency_window_ms
    keys: list[KeyState] = [
        key for key in topic.keys.values() if now_ms - key.ts < window_ms and key.first_seq + key.count - 1 <= upto_seq
    ]
    segments = topic.segments
    leases = topic.leases
    keeps_leases = topic.config.leases_durable and topic.config.durability != "ephemeral"
    return TopicState(
        topic.name,
        topic.id,
        topic.epoch,
        config_members(topic.config),
        head_seq=topic.head_seq,
        last_ts=topic.last_ts,
        cap_floor=topic.cap_floor,
        ttl_floor=topic.ttl_floor,
        trim_floor=topic.trim_floor,
        delete_below=topic.delete_below,
        first_live=topic.first_live,
        checkpointed_seq=upto_seq,
        segments=[msgspec.structs.replace(segment) for segment in segments.segments],
        ceiling=topic.ceiling,
        lost=list(topic.lost),
        keys=keys,
        pending_deletes=runs_of(seq for segment in segments.segments for seq in segments.pending_seqs(segment)),
        leases=leases.states() if leases is not None and keeps_leases else [],
        lease_ceiling=leases.ceiling if leases is not None else 1,
        moved=sorted(leases.moved) if leases is not None else [],
        groups=list(topic.groups.values()),
        writers=list(topic.writers.values()),
        hops=topic.hops.within(0, upto_seq) if topic.hops is not None else [],
    )


def take_over_segments(topic: Topic, after_seq: int, upto_seq: int, touched: list[SegmentState]) -> None:
    """Replaces the active segment and adds new ones; their live numbers are counted from memory."""
    segments = topic.segments
    before = {segment.first_seq: segment for segment in segments.segments}
    for segment in touched:
        old = before.get(segment.first_seq)
        count, size = (old.live_count, old.live_bytes) if old is not None else (0, 0)
        first, last = max(after_seq + 1, segment.first_seq, topic.first_live), segment.last_seq
        more_count, more_size = _memory_numbers(topic, first, last)
        segment.live_count, segment.live_bytes = count + more_count, size + more_size
        before[segment.first_seq] = segment
    segments.replace([before[first_seq] for first_seq in sorted(before)])
    topic.checkpointed_seq = max(topic.checkpointed_seq, upto_seq)
    topic.replayed = None
    segments.drop([segment for segment in segments.segments if segment.last_seq < topic.first_live])
    sealed = [segment.last_seq for segment in segments.segments if segment.sealed]
    if len(topic.tags):
        topic.tags.forget_below(max(sealed[-1] + 1 if sealed else 0, topic.first_live))


def _memory_numbers(topic: Topic, first: int, last: int) -> tuple[int, int]:
    count, size = 0, 0
    if topic.replayed is not None:
        count, size = topic.replayed.live_numbers(first, last)
        first = max(first, topic.replayed.end_seq)
    more_count, more_size = topic.tail.live_numbers(first, last)
    return count + more_count, size + more_size


def _trim_tail(topic: Topic, cache_bytes: int) -> None:
    """What is in segments stays in memory only as far as the cache allows."""
    last_seq = min(topic.checkpointed_seq, topic.tail.end_seq - 1)
    if last_seq >= topic.tail.first_seq:
        topic.tail.forget_below(topic.tail.cache_from(last_seq, cache_bytes))


def _unlogged(topic: Topic, upto_seq: int) -> list[bytes]:
    """Records written while the topic was ephemeral, once it is not any more, and derived copies of a router: the WAL
    has no frame of them, or not yet."""
    first = max(topic.checkpointed_seq + 1, topic.tail.first_seq)
    last = min(max(topic.unlogged_last_seq, topic.copied_last_seq), upto_seq)
    if last < first:
        return []
    return [body for body in topic.tail.read(first, last) if body is not None]


def topic_json(topic: Topic) -> bytes:
    """Derived: for a start without snapshots, and for readers of one directory."""
    leases = {} if topic.leases is None else {"lease_ceiling": topic.leases.ceiling}
    return msgspec.json.encode(
        {
            "format": 1,
            "id": topic.id,
            "name": topic.name,
            "epoch": topic.epoch,
            "config": config_members(topic.config),
            "cap_floor": topic.cap_floor,
            "ttl_floor": topic.ttl_floor,
            "trim_floor": topic.trim_floor,
            "delete_below": topic.delete_below,
            **leases,
        }
    )


def _changed_topic_json(topic: Topic, upto_seq: int) -> bytes:
    if upto_seq == 0:
        # There are no segments to describe. A hundred thousand idle topics have no directories.
        return b""
    content = topic_json(topic)
    return b"" if content == topic.topic_json else content


_Entries = list[tuple[int, int, SegmentState]]


def _split(entries: _Entries, upto: int) -> tuple[_Entries, _Entries]:
    """Entries noted under a snapshot number of at most `upto`, and the others."""
    return [entry for entry in entries if entry[0] <= upto], [entry for entry in entries if entry[0] > upto]


def _reportable(error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        raise error
    return error


def _call_all(callbacks: list[CheckpointDone], error: Exception | None) -> None:
    for callback in callbacks:
        callback(error)


def _ignore(error: Exception | None) -> None:
    pass
