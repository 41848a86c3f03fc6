"""Opening a data directory: snapshot, segments, WAL; then an engine that serves.

1. Lock, store id, temporary files away.
2. Newest valid snapshot (or none: then from the files alone).
3. Segments checked against it: an unfinished checkpoint is taken in, missing files are looked for.
4. The WAL of every shard replayed from the snapshot's positions.
5. Heads after a power loss, floors, numbers.
6. Torn tails cut, the unsynced part written again and synced, new frames (lost ranges) made durable.
7. Another shard count than configured: a checkpoint, then the old layout goes.
8. Only then the boot id is noted, and the engine handed out.

Nothing is deleted because metadata is missing: what is not understood is left alone and reported.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from topics.clock import Clock
from topics.engine.adoption import adopt_segments, rebuild_states
from topics.engine.checkpoint import Checkpointer
from topics.engine.config import stored_config
from topics.engine.engine import Engine
from topics.engine.replay import Replay
from topics.engine.replayed import WalFiles
from topics.engine.runtime import InlineRuntime, Runtime
from topics.engine.segment_set import SegmentSet
from topics.engine.settings import EngineSettings
from topics.engine.tail import Tail
from topics.engine.topic import Topic
from topics.errors import ColdUnavailable, Damaged, StartRefused
from topics.formats import control, wal_frame
from topics.formats.snapshot import Snapshot, TopicState, WalPosition, decode_topic
from topics.formats.wal_frame import FrameType
from topics.storage import layout
from topics.storage.background import InlineBackground
from topics.storage.directory import DataDirectory, open_directory
from topics.storage.fs import Fs, write_all, write_atomic
from topics.storage.job_runner import InlineRunner, JobRunner, WorkerRunner
from topics.storage.removal import remove_deleted_directory
from topics.storage.segments import SegmentCache
from topics.storage.snapshots import LoadedSnapshots, drop_old_snapshots, load_snapshots
from topics.storage.stores import SegmentStore, ensure_store_id, open_store
from topics.storage.wal import NO_SPACE, Wal, WalShard, create_shard_files, shard_index
from topics.storage.wal_recovery import ShardEnd, ShardReader, list_wal_files, settle

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did, for logs, `topics doctor` and tests."""

    warnings: list[str] = field(default_factory=list)
    snapshot_number: int | None = None
    frames_replayed: int = 0
    lost_seqs: int = 0
    torn_bytes: int = 0

    def warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)


@dataclass(slots=True)
class OpenEngine:
    """An engine ready to serve, with what keeps it going."""

    engine: Engine
    checkpointer: Checkpointer
    runner: JobRunner
    report: RecoveryReport

    def close(self, done: Callable[[Exception | None], None]) -> None:
        """The last checkpoint: everything in segments, reservations given back. Then `release`."""
        self.engine.closed = True
        self.engine.flush()
        self.checkpointer.start(done, closing=True)

    def release(self) -> None:
        """Lets go of files, threads and the lock. Not on the owner's turn: threads may need it to end."""
        self.checkpointer.close()
        self.runner.close()
        self.engine.wal.close()
        self.engine.cache.close()
        if self.engine.cold is not None:
            self.engine.cold.close()
        self.engine.directory.release()


def open_engine(
    fs: Fs,
    root: str,
    *,
    settings: EngineSettings,
    clock: Clock,
    runtime: Runtime,
    runner: JobRunner | None = None,
    progress: Progress | None = None,
) -> OpenEngine:
    """Recovers the directory. Raises `StartRefused` (nothing was cut) when it cannot be served as it is."""
    directory = open_directory(fs, root, clock)
    try:
        cold = None
        if settings.cold_dir is not None:
            cold = open_store(settings.cold_dir, fs)
            try:
                ensure_store_id(cold, directory.store_id)
            except ColdUnavailable as error:
                # Old records cannot be read until it is back; everything else works.
                logger.warning("the cold tier does not answer: %s", error.message)
        recovery = _Recovery(directory, settings, clock, runtime, cold, progress or _no_progress)
        return recovery.run(runner or WorkerRunner(directory.lock))
    except BaseException:
        directory.release()
        raise


class _Recovery:
    def __init__(
        self,
        directory: DataDirectory,
        settings: EngineSettings,
        clock: Clock,
        runtime: Runtime,
        cold: SegmentStore | None,
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._fs = directory.fs
        self._root = directory.root
        self._settings = settings
        self._clock = clock
        self._runtime = runtime
        self._progress = progress
        self.report = RecoveryReport()
        cache = SegmentCache(self._fs, self._root, cold)
        self._engine = Engine(directory, settings, runtime, clock, cache, cold)
        self._wal_files = WalFiles(self._fs)

    def run(self, runner: JobRunner) -> OpenEngine:
        engine = self._engine
        loaded = load_snapshots(self._fs, self._root)
        self.report.warnings += [f"{path} is unreadable" for path in loaded.bad]
        snapshot = self._snapshot_or_rebuild(loaded)
        shard_count = self._shard_count(snapshot)
        starts: list[WalPosition | None] = list(snapshot.wal) if snapshot is not None else [None] * shard_count
        ends = self._replay(shard_count, starts, snapshot)
        self._resume_heads(ends)
        self._finish_topics()
        cuts = [self._settle(shard, end) for shard, end in enumerate(ends)]
        engine.wal = self._open_wal(shard_count, ends, cuts)
        positions = [start or WalPosition(1, 1, 0) for start in starts]
        if shard_count != self._settings.wal_shards and engine.wal.failure() is None and not any(cuts):
            snapshot, positions = self._change_shard_count(snapshot, positions)
        checkpointer = Checkpointer(engine, runner, self._runtime.background("checkpoint"), snapshot, positions)
        self._remove_left_overs()
        self._directory.note_recovered()
        for warning in self.report.warnings:
            logger.info("recovery: %s", warning)
        return OpenEngine(engine, checkpointer, runner, self.report)

    # Snapshot and segments.

    def _snapshot_or_rebuild(self, loaded: LoadedSnapshots) -> Snapshot | None:
        snapshot = loaded.newest
        if snapshot is not None:
            self.report.snapshot_number = snapshot.number
            self._engine.next_topic_id = snapshot.next_topic_id
            states = [decode_topic(entry) for entry in snapshot.topics]
            for state in states:
                self._load_topic(state)
            return snapshot
        if not loaded.numbers or self._wal_is_complete():
            return None
        return self._rebuild(max(loaded.numbers))

    def _wal_is_complete(self) -> bool:
        """Whether every shard still has its first frame."""
        shards = [list_wal_files(self._fs, directory) for directory in self._wal_directories()]
        firsts = [files[0].first_frame for files in shards if files]
        return bool(firsts) and all(first == 1 for first in firsts)

    def _rebuild(self, number: int) -> Snapshot:
        """No snapshot can be read and the WAL does not reach back: segments and topic.json must do."""
        self.report.warn("no snapshot is readable: rebuilding topics from their segments; floors are guesses")
        states, next_topic_id = rebuild_states(self._fs, self._root, self.report.warn)
        self._engine.next_topic_id = next_topic_id
        for state in states:
            self._load_topic(state)
        count = self._found_shard_count() or self._settings.wal_shards
        positions = []
        for shard in range(count):
            files = list_wal_files(self._fs, layout.shard_directory(self._root, shard, count))
            first = files[0].first_frame if files else 1
            positions.append(WalPosition(first, first, 0))
        return Snapshot(number, 0, positions)

    def _load_topic(self, state: TopicState) -> Topic:
        engine = self._engine
        adopt_segments(self._fs, self._root, state, self.report.warn)
        topic = Topic(
            state.name,
            state.id,
            state.epoch,
            stored_config(state.config),
            SegmentSet(engine.cache, state.id, state.segments),
        )
        topic.created = True
        topic.head_seq = state.head_seq
        topic.logged_last_seq = state.checkpointed_seq
        topic.checkpointed_seq = state.checkpointed_seq
        topic.last_ts = state.last_ts
        topic.cap_floor, topic.ttl_floor, topic.trim_floor = state.cap_floor, state.ttl_floor, state.trim_floor
        topic.delete_below = state.delete_below
        topic.first_live = state.first_live
        topic.ceiling = topic.ceiling_asked = state.ceiling
        topic.lost = [(first, last) for first, last in state.lost]
        topic.keys = {key.key: key for key in state.keys}
        topic.tags_missing = any(segment.tagged_count and not segment.sealed for segment in state.segments)
        topic.segments.mark_pending(seq for first, last in state.pending_deletes for seq in range(first, last + 1))
        engine.topics[topic.name] = topic
        engine.newest_ts = max(engine.newest_ts, topic.last_ts)
        return topic

    # WAL.

    def _wal_directories(self) -> list[str]:
        """Directories that hold WAL files, whatever the configured count."""
        count = self._found_shard_count()
        return [layout.shard_directory(self._root, shard, count) for shard in range(count)]

    def _found_shard_count(self) -> int:
        wal = layout.wal_directory(self._root)
        if list_wal_files(self._fs, wal):
            return 1
        shards = [shard for name in self._fs.listdir(wal) if (shard := layout.shard_of(name)) is not None]
        return max(shards) + 1 if shards else 0

    def _shard_count(self, snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            return len(snapshot.wal)
        return self._found_shard_count() or self._settings.wal_shards

    def _replay(self, shard_count: int, starts: list[WalPosition | None], snapshot: Snapshot | None) -> list[ShardEnd]:
        known_below_id = snapshot.next_topic_id if snapshot is not None else 1
        replay = Replay(self._engine, self._wal_files, known_below_id)
        readers = [
            ShardReader(self._fs, layout.shard_directory(self._root, shard, shard_count), start)
            for shard, start in enumerate(starts)
        ]
        total = sum(reader.bytes_total for reader in readers) or 1
        ends: list[ShardEnd] = []
        done = 0
        for reader in readers:
            replay.run(reader)
            assert reader.end is not None
            ends.append(reader.end)
            done += reader.bytes_total
            self._progress(done / total)
            for warning in reader.end.warnings:
                self.report.warn(warning)
        for item in replay.topics.values():
            item.drop_open()
        for warning in replay.warnings:
            self.report.warn(warning)
        self._engine.newest_ts = max(self._engine.newest_ts, replay.newest_ts)
        self._name_topics(replay)
        return ends

    def _name_topics(self, replay: Replay) -> None:
        topics: dict[str, Topic] = {}
        self._touched = set()
        for item in sorted(replay.topics.values(), key=lambda item: item.topic.id):
            topics[item.topic.name] = item.topic
            if item.touched:
                self._touched.add(item.topic.id)
        self._engine.topics = topics

    # Heads, floors, numbers.

    def _resume_heads(self, ends: list[ShardEnd]) -> None:
        """After a power loss no seq below a synced ceiling is handed out again (A21)."""
        self._frames: dict[int, list[bytes]] = {}
        for topic in self._engine.topics.values():
            self._lose_unlogged(topic)
            if not self._directory.power_was_lost or topic.ceiling <= topic.head_seq + 1:
                continue
            first, last = topic.head_seq + 1, topic.ceiling - 1
            self.report.lost_seqs += last - first + 1
            self.report.warn(
                f'topic "{topic.name}": seqs {first} to {last} may have gone with the power; readers get a tombstone'
            )
            topic.lost.append((first, last))
            topic.head_seq = last
            frame = wal_frame.encode_control(
                FrameType.HEAD,
                topic.id,
                self._engine.now_ms(),
                control.encode(control.Head(topic.ceiling, first)),
            )
            self._frames.setdefault(shard_index(topic.id, len(ends)), []).append(frame)
        self._engine.lost_seqs_total = self.report.lost_seqs

    def _lose_unlogged(self, topic: Topic) -> None:
        """The head of an ephemeral topic is that of the last checkpoint; its records went with the process."""
        assert topic.replayed is not None
        stored_last = topic.replayed.end_seq - 1
        if topic.head_seq > stored_last:
            topic.lost.append((stored_last + 1, topic.head_seq))

    def _finish_topics(self) -> None:
        now_ms = self._engine.now_ms()
        for topic in self._engine.topics.values():
            finish_topic(topic, now_ms, recount=topic.id in self._touched)
            self._check_files(topic)

    def _check_files(self, topic: Topic) -> None:
        """A listed segment without its file, after everything dead was dropped: refuse, and name it."""
        for segment in topic.segments.segments:
            if segment.tier == "hot":
                path = f"{self._engine.cache.stem(topic.id, segment.first_seq)}.data"
                if not self._fs.exists(path):
                    raise Damaged(
                        path, 0, f"seqs {segment.first_seq} to {segment.last_seq} of topic {topic.name}", "no file"
                    )

    # Ends.

    def _settle(self, shard: int, end: ShardEnd) -> Callable[[], None] | None:
        """Makes the shard's end durable; what must be done later, when there was no room to do it now."""
        frames = self._frames.get(shard, [])

        def complete() -> None:
            settle(self._fs, end, self._settings.wal_file_bytes)
            self._append_frames(end, frames)

        self.report.torn_bytes += max(0, end.torn_end - end.position.offset)
        try:
            complete()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise StartRefused(f"{end.path}: cannot repair the end of the log: {error.strerror}") from error
            self.report.warn(f"{end.path}: no room to keep the torn tail aside; writes wait until there is")
            return complete
        return None

    def _append_frames(self, end: ShardEnd, frames: list[bytes]) -> None:
        if not frames:
            return
        if end.path is None:
            self._new_file(end)
        assert end.path is not None
        file = self._fs.open(end.path, "write")
        try:
            data = b"".join(frames)
            write_all(file, data, end.position.offset)
            file.fsync()
        finally:
            file.close()
        position = end.position
        end.position = WalPosition(position.frame + len(frames), position.file_frame, position.offset + len(data))
        frames.clear()

    def _new_file(self, end: ShardEnd) -> None:
        directory = end.directory
        create_shard_files(self._fs, directory, end.position.frame, self._settings.wal_file_bytes).close()
        end.path = f"{directory}/{layout.wal_name(end.position.frame)}"

    def _open_wal(self, shard_count: int, ends: list[ShardEnd], cuts: list[Callable[[], None] | None]) -> Wal:
        shards: list[WalShard] = []
        for shard, (end, cut) in enumerate(zip(ends, cuts, strict=True)):
            end.directory = layout.shard_directory(self._root, shard, shard_count)
            if end.path is None:
                self._set_aside_stale(end)
                self._new_file(end)
            assert end.path is not None
            self._check_current(end)
            shards.append(
                WalShard(
                    self._fs,
                    end.directory,
                    shard,
                    self._runtime.background(f"wal-{shard}"),
                    self._clock,
                    self._fs.open(end.path, "write"),
                    end.position,
                    file_bytes=self._settings.wal_file_bytes,
                    complete_cut=cut,
                )
            )
        return Wal(shards)

    def _set_aside_stale(self, end: ShardEnd) -> None:
        """Files whose frames end before the snapshot's position: out of the count, but not out of sight."""
        for file in list_wal_files(self._fs, end.directory):
            self._fs.rename(file.path, file.path + layout.TORN)
            self._fs.sync_dir(end.directory)

    def _check_current(self, end: ShardEnd) -> None:
        path = f"{end.directory}/{layout.CURRENT}"
        name = (end.path or "").rpartition("/")[2]
        found = _read_current(self._fs, path)
        if found != name:
            if found is not None or end.position.frame > 1:
                self.report.warn(f"{path} names {found or 'nothing'}; it is {name}")
            write_atomic(self._fs, path, name.encode())

    def _change_shard_count(
        self, snapshot: Snapshot | None, positions: list[WalPosition]
    ) -> tuple[Snapshot, list[WalPosition]]:
        """Everything into segments, the old layout away, and only then the new one: frame numbers go on above
        every old one, so that files of the two can never be mixed up."""
        engine = self._engine
        old_wal = engine.wal
        old_count = len(old_wal.shards)
        runtime, engine.runtime = engine.runtime, InlineRuntime()
        for shard in old_wal.shards:
            shard.use_background(InlineBackground())
        first = max(position.frame for position in old_wal.positions) + 1
        new_count = self._settings.wal_shards
        target = [WalPosition(first, first, 0)] * new_count
        checkpointer = Checkpointer(engine, InlineRunner(self._fs), InlineBackground(), snapshot, positions)
        number = checkpointer.move_to_layout(target)
        old_wal.close()
        drop_old_snapshots(self._fs, self._root, number, kept=1)
        self._remove_layout(old_count, first)
        engine.runtime = runtime
        ends = [
            ShardEnd(
                position, None, position.frame - 1, 0, directory=layout.shard_directory(self._root, shard, new_count)
            )
            for shard, position in enumerate(target)
        ]
        engine.wal = self._open_wal(new_count, ends, [None] * new_count)
        return Snapshot(number, engine.next_topic_id, target), target

    def _remove_layout(self, count: int, below_frame: int) -> None:
        for shard in range(count):
            directory = layout.shard_directory(self._root, shard, count)
            for file in list_wal_files(self._fs, directory):
                if file.first_frame < below_frame:
                    self._fs.unlink(file.path)
            if count > 1:
                for name in self._fs.listdir(directory):
                    if name == layout.CURRENT:
                        self._fs.unlink(f"{directory}/{name}")
                if not self._fs.listdir(directory):
                    self._fs.rmdir(directory)
                    continue
            self._fs.sync_dir(directory)
        self._fs.sync_dir(layout.wal_directory(self._root))

    def _remove_left_overs(self) -> None:
        """Finishes removals that a crash cut short."""
        directory = layout.topics_directory(self._root)
        for name in self._fs.listdir(directory):
            if name.endswith(layout.DELETED):
                remove_deleted_directory(self._fs, f"{directory}/{name}")


def finish_topic(topic: Topic, now_ms: int, *, recount: bool) -> None:
    """Floors that have no frame, then the numbers, from what is really there."""
    replayed = topic.replayed
    assert replayed is not None
    if replayed.end_seq == replayed.first_seq:
        topic.replayed = None
    topic.next_seq = topic.head_seq + 1
    topic.tail = Tail(topic.head_seq + 1)
    config = topic.config
    if config.cap_records and config.discard == "old":
        topic.cap_floor = max(topic.cap_floor, topic.head_seq - config.cap_records)
    topic.staged_floor = topic.cap_floor
    _count_again(topic, recount=recount)
    topic.refresh(now_ms)
    topic.staged_floor = topic.cap_floor
    topic.ceiling_asked = topic.ceiling


def _count_again(topic: Topic, *, recount: bool) -> None:
    floor = max(topic.evict_floor, min(topic.delete_below, topic.head_seq + 1))
    segments = topic.segments
    straddled = floor > topic.first_live
    for segment in segments.segments:
        if recount or segments.has_pending(segment) or (straddled and segment.first_seq < floor <= segment.last_seq):
            _mark_deleted_below(topic, segment.first_seq, segment.last_seq)
            segments.recount(segment, floor)
    segments.drop([segment for segment in segments.segments if segment.last_seq < floor])
    count, size = segments.live_numbers()
    if topic.replayed is not None:
        topic.replayed.forget_below(floor)
        more_count, more_size = topic.replayed.live_numbers(floor, topic.head_seq)
        count, size = count + more_count, size + more_size
    topic.count, topic.size_bytes = count, size
    live = topic.next_live(floor) if count else None
    topic.first_live = topic.head_seq + 1 if live is None else live


def _mark_deleted_below(topic: Topic, first_seq: int, last_seq: int) -> None:
    """A `before_seq` delete that a checkpoint had no time to flag."""
    if first_seq < topic.delete_below <= last_seq:
        topic.segments.mark_pending(range(first_seq, topic.delete_below))


def _read_current(fs: Fs, path: str) -> str | None:
    if not fs.exists(path):
        return None
    file = fs.open(path, "read")
    try:
        return file.pread(256, 0).decode("ascii", "replace") or None
    finally:
        file.close()


def _no_progress(fraction: float) -> None:
    pass
