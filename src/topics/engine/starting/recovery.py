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

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from topics.clock import Clock
from topics.engine.checkpointing.checkpoint import Checkpointer
from topics.engine.checkpointing.relocator import Relocator
from topics.engine.checkpointing.replacement import Replacer
from topics.engine.config import stored_config
from topics.engine.engine import Engine
from topics.engine.groups import pull_back
from topics.engine.queues.leases import LeaseTable
from topics.engine.runtime import InlineRuntime, Runtime
from topics.engine.settings import EngineSettings
from topics.engine.starting.adoption import adopt_segments, rebuild_states
from topics.engine.starting.replay import Replay
from topics.engine.starting.router_recovery import restore_routers
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.hops import HopRuns
from topics.engine.topic.page import decode_raw
from topics.engine.topic.replayed import WalFiles
from topics.engine.topic.segment_set import SegmentSet
from topics.engine.topic.tail import Tail
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, Damaged, FormatError, StartRefused, StorageFull
from topics.formats import control, wal_frame
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition, decode_topic, encode_topic
from topics.formats.wal_frame import FrameType
from topics.limits import READ_PIECE_BYTES_MIN
from topics.storage import layout
from topics.storage.background import InlineBackground
from topics.storage.cached_store import CachedStore
from topics.storage.directory import DataDirectory, open_directory
from topics.storage.fs import NO_SPACE, Fs, write_all, write_atomic
from topics.storage.job_runner import InlineRunner, JobRunner, WorkerRunner
from topics.storage.removal import remove_deleted_directory, remove_topic_directory
from topics.storage.segments import SegmentCache
from topics.storage.snapshots import LoadedSnapshots, drop_old_snapshots, load_snapshots
from topics.storage.stores import MissingStore, SegmentStore, ensure_store_id, open_store, read_store_id
from topics.storage.wal import Wal, WalShard, create_shard_files, shard_index
from topics.storage.wal_recovery import ShardEnd, ShardReader, finish_rewrites, list_wal_files, settle, sync_log

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did, for logs, `topics doctor` and tests."""

    warnings: list[str] = field(default_factory=list)
    # What was put right without anything being lost.
    notes: list[str] = field(default_factory=list)
    snapshot_number: int | None = None
    frames_replayed: int = 0
    bytes_replayed: int = 0
    lost_seqs: int = 0
    torn_bytes: int = 0

    def warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    def note(self, text: str) -> None:
        logger.info("%s", text)
        self.notes.append(text)


@dataclass(slots=True)
class OpenEngine:
    """An engine ready to serve, with what keeps it going."""

    engine: Engine
    checkpointer: Checkpointer
    runner: JobRunner
    relocator: Relocator
    replacer: Replacer
    report: RecoveryReport

    def tick(self) -> None:
        """What must happen without anybody asking. Called on the owner, every `TICK_MS`."""
        self.engine.wal.tick()
        self.checkpointer.tick()
        self.relocator.tick()
        self.engine.forwarder.tick()
        self.engine.staging.tick()
        self.engine.flush()

    def close(self, done: Callable[[Exception | None], None]) -> None:
        """The last checkpoint: everything in segments, reservations given back. Then `release`."""
        self.engine.stop_writes()
        self.engine.flush()
        self.checkpointer.start(done, closing=True)

    def release(self) -> None:
        """Lets go of files, threads and the lock. Not on the owner's turn: threads may need it to end."""
        self.relocator.close()
        self.engine.queues.close()
        self.engine.forwarder.close()
        self.engine.commits.close()
        self.engine.staging.close()
        self.checkpointer.close()
        self.runner.close()
        self.engine.wal.close()
        if self.engine.wal_files is not None:
            self.engine.wal_files.close()
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
    open_tier: Callable[[str, Fs], SegmentStore] = open_store,
) -> OpenEngine:
    """Recovers the directory. Raises `StartRefused` (nothing was cut) when it cannot be served as it is."""
    directory = open_directory(fs, root, clock)
    try:
        cold = None if settings.cold_dir is None else CachedStore(open_tier(settings.cold_dir, fs))
        recovery = _Recovery(directory, settings, clock, runtime, cold, progress or _no_progress)
        return recovery.run(runner or WorkerRunner(directory.lock))
    except OSError as error:
        directory.release()
        where = error.filename or root
        raise StartRefused(f"cannot use the data directory {root}: {where}: {error.strerror or error}") from error
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
        cold: CachedStore | None,
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
        self._wal_files = self._engine.wal_files = WalFiles(self._fs)
        # (topic id, segment) that the snapshot lists and the directory does not have.
        self._missing: list[tuple[int, SegmentState]] = []
        self._with_directory: set[int] = set()
        # (topic id, first seq) of segments that were replaced, and may be noted by a kept snapshot as they were before.
        self._marked: list[tuple[int, int]] = []
        # Topic id -> snapshot entry, of topics that nobody ever wrote to.
        self._unused: dict[int, bytes] = {}
        # Topic id -> highest seq that was evicted when the snapshot was taken.
        self._floors: dict[int, int] = {}

    def run(self, runner: JobRunner) -> OpenEngine:
        with _collector_paused():
            return self._run(runner)

    def _run(self, runner: JobRunner) -> OpenEngine:
        engine = self._engine
        loaded = load_snapshots(self._fs, self._root)
        self.report.warnings += [f"{path} is unreadable" for path in loaded.bad]
        snapshot = self._snapshot_or_rebuild(loaded)
        self._claim_cold()
        shard_count = self._shard_count(snapshot)
        starts: list[WalPosition | None] = list(snapshot.wal) if snapshot is not None else [None] * shard_count
        ends = self._replay(shard_count, starts, snapshot)
        self._resume_heads(ends)
        self._restore_routers(shard_count)
        self._finish_topics()
        if loaded.newest is not None:
            self._finish_layout_change(loaded.newest)
        cuts = [self._settle(shard, end) for shard, end in enumerate(ends)]
        engine.wal = self._open_wal(ends, cuts)
        positions = [start or WalPosition(1, 1, 0) for start in starts]
        if shard_count != self._settings.wal_shards and engine.wal.failure() is None and not any(cuts):
            snapshot, positions = self._change_shard_count(snapshot, positions)
        background = self._runtime.background("checkpoint")
        checkpointer = Checkpointer(engine, runner, background, snapshot, positions, self.report.bytes_replayed)
        for mark in self._marked:
            checkpointer.mark_left(*mark, is_durable=True)
        for topic in engine.topics.values():
            topic.shard = engine.wal.shard_for(topic.id)
            engine.note_config(topic)
        self._remove_left_overs()
        engine.commits.resume()
        for warning in engine.staging.resume():
            self.report.warn(warning)
        self._directory.note_recovered()
        relocator = Relocator(engine, checkpointer, self._runtime.background("relocate"))
        return OpenEngine(engine, checkpointer, runner, relocator, Replacer(engine, checkpointer), self.report)

    # Snapshot and segments.

    def _claim_cold(self) -> None:
        """An outage stops nothing but reads of old records. A tier without the segments it should have is no tier."""
        cold = self._engine.cold
        if cold is None:
            return
        is_used = any(
            segment.tier == "cold" for topic in self._engine.topics.values() for segment in topic.segments.segments
        )
        try:
            if is_used and read_store_id(cold) is None:
                self._engine.cold = self._engine.cache.cold = CachedStore(MissingStore(cold.address))
                self.report.warn(f"{cold.address} is not the cold tier it was: its STORE is missing; not using it")
            else:
                ensure_store_id(cold, self._directory.store_id)
                self._engine.cold_claimed = True
        except (ColdUnavailable, StorageFull) as error:
            self.report.warn(f"the cold tier cannot be used: {error.message}")

    def _snapshot_or_rebuild(self, loaded: LoadedSnapshots) -> Snapshot | None:
        snapshot = loaded.newest
        if snapshot is not None:
            self.report.snapshot_number = snapshot.number
            self._engine.next_topic_id = snapshot.next_topic_id
            self._engine.routing.next_router_id = snapshot.next_router_id
            self._with_directory.update(self._topic_directories())
            # All are decoded before any is looked into: a refused start leaves everything as it is.
            states = [self._decode(entry, snapshot.number) for entry in snapshot.topics]
            for state, entry in zip(states, snapshot.topics, strict=True):
                self._load_topic(state)
                if not state.head_seq and state.ceiling <= 1 and not state.groups and not state.writers:
                    self._unused[state.id] = bytes(entry)
            return snapshot
        if self._wal_is_complete() or not (loaded.numbers or self._found_shard_count() or self._topic_directories()):
            return None
        return self._rebuild(max(loaded.numbers, default=0))

    def _wal_is_complete(self) -> bool:
        """Whether every shard still has its first frame."""
        shards = [list_wal_files(self._fs, directory) for directory in self._wal_directories()]
        firsts = [files[0].first_frame for files in shards if files]
        return bool(firsts) and all(first == 1 for first in firsts)

    def _topic_directories(self) -> list[int]:
        names = self._fs.listdir(layout.topics_directory(self._root))
        return [topic_id for name in names if (topic_id := layout.topic_of(name)) is not None]

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

    def _decode(self, entry: bytes | msgspec.Raw, number: int) -> TopicState:
        """An entry under a good checksum that makes no sense is not bit rot: refuse rather than fall back."""
        try:
            state = decode_topic(entry)
            stored_config(state.config)
        except FormatError as error:
            raise Damaged(layout.snapshot_path(self._root, number), 0, "a topic entry", error.message) from error
        return state

    def _load_topic(self, state: TopicState) -> Topic:
        engine = self._engine
        state, dropped = self._adopt(state)
        self._set_aside_missing(state)
        topic = Topic(
            state.name,
            state.id,
            state.epoch,
            stored_config(state.config),
            SegmentSet(engine.cache, state.id, state.segments),
            engine.live_bytes,
        )
        topic.segments.dropped += dropped
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
        topic.groups = {group.name: group for group in state.groups}
        topic.writers = {writer.name: writer for writer in state.writers}
        if topic.leases is not None:
            topic.leases.ceiling = state.lease_ceiling
            topic.leases.moved.update(state.moved)
            for lease in state.leases:
                topic.leases.restore(lease)
        if any(segment.tagged_count and not segment.sealed for segment in state.segments):
            topic.tags_missing_to = state.checkpointed_seq
        topic.segments.mark_pending(seq for first, last in state.pending_deletes for seq in range(first, last + 1))
        topic.hops = HopRuns(state.hops) if state.hops else None
        self._floors[state.id] = max(state.cap_floor, state.ttl_floor, state.trim_floor)
        engine.topics[topic.name] = topic
        engine.newest_ts = max(engine.newest_ts, topic.last_ts)
        return topic

    def _adopt(self, state: TopicState) -> tuple[TopicState, list[SegmentState]]:
        if not state.segments and state.id not in self._with_directory:
            return state, []
        noted = encode_topic(state)
        try:
            return state, adopt_segments(
                self._fs,
                self._root,
                state,
                self.report.warn,
                self.report.note,
                lambda first_seq: self._marked.append((state.id, first_seq)),
            )
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # The log still has whatever an unfinished checkpoint put there.
            self.report.warn(f'topic "{state.name}": no room to take in what an unfinished checkpoint left')
            return decode_topic(noted), []

    def _set_aside_missing(self, state: TopicState) -> None:
        """Listed segments without a file are not looked into: the log may say that they are dead."""
        cold = self._engine.cold
        for segment in state.segments:
            path = f"{self._engine.cache.stem(state.id, segment.first_seq)}.data"
            if segment.tier == "hot" and not self._fs.exists(path):
                if cold is not None and cold.exists(layout.segment_object(state.id, segment.first_seq, "data")):
                    segment.tier = "cold"
                else:
                    self._missing.append((state.id, segment))
        if self._missing:
            gone = [segment for topic_id, segment in self._missing if topic_id == state.id]
            state.segments = [segment for segment in state.segments if segment not in gone]

    # WAL.

    def _wal_directories(self) -> list[str]:
        """Directories that hold WAL files, whatever the configured count."""
        count = self._found_shard_count()
        return [layout.shard_directory(self._root, shard, count) for shard in range(count)]

    def _found_shard_count(self) -> int:
        return found_shard_count(self._fs, self._root)

    def _shard_count(self, snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            return len(snapshot.wal)
        return self._found_shard_count() or self._settings.wal_shards

    def _replay(self, shard_count: int, starts: list[WalPosition | None], snapshot: Snapshot | None) -> list[ShardEnd]:
        for directory in self._wal_directories():
            finish_rewrites(self._fs, directory)
        known_below_id = snapshot.next_topic_id if snapshot is not None else 1
        routers = snapshot.routers if snapshot is not None else []
        replay = Replay(self._engine, self._wal_files, known_below_id, routers)
        readers = [
            ShardReader(self._fs, layout.shard_directory(self._root, shard, shard_count), start)
            for shard, start in enumerate(starts)
        ]
        total = sum(reader.bytes_total for reader in readers) or 1
        ends: list[ShardEnd] = []
        done = 0
        for reader in readers:
            self.report.frames_replayed += replay.run(reader)
            assert reader.end is not None
            self.report.bytes_replayed += reader.bytes_replayed
            reader.end.directory = reader.directory
            ends.append(reader.end)
            done += reader.bytes_total
            self._progress(done / total)
            for warning in reader.end.warnings:
                self.report.warn(warning)
        self._check_no_shard_is_missing(readers, starts)
        for item in replay.topics.values():
            item.drop_open()
        for warning in replay.warnings:
            self.report.warn(warning)
        self._engine.newest_ts = max(self._engine.newest_ts, replay.newest_ts)
        self._name_topics(replay)
        return ends

    def _check_no_shard_is_missing(self, readers: list[ShardReader], starts: list[WalPosition | None]) -> None:
        """All first files are made before any takes a frame: without a snapshot a shard without files lost them."""
        if any(reader.end is not None and reader.end.position.frame > 1 for reader in readers):
            for reader, start in zip(readers, starts, strict=True):
                if start is None and not reader.files:
                    raise Damaged(reader.directory, 0, "a file that begins with frame 1", "no file")

    def _name_topics(self, replay: Replay) -> None:
        topics: dict[str, Topic] = {}
        self._touched = set()
        self._seen = replay.seen
        self._removed = replay.removed
        self._routers = list(replay.routers.values())
        self._trims = {topic_id: item.trims for topic_id, item in replay.topics.items() if item.trims}
        self._dead_letters = [letter for item in replay.topics.values() for letter in item.dead_letters]
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
            assert topic.replayed is not None
            # Copies that an unfinished checkpoint put into segments have no frames, but they are there.
            first, last = max(topic.head_seq + 1, topic.replayed.end_seq), topic.ceiling - 1
            if not self._directory.power_was_lost or last < first:
                continue
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
        first = topic.replayed.end_seq
        if topic.head_seq < first:
            return
        # What went with an earlier process is part of the same range.
        while topic.lost and topic.lost[-1][1] >= first - 1:
            first = min(first, topic.lost.pop()[0])
        topic.lost.append((first, topic.head_seq))

    def _restore_routers(self, shard_count: int) -> None:
        """Before anything is evicted: what routers copied since the last checkpoint is copied again."""
        try:
            warnings, frames = restore_routers(self._engine, self._routers, self._floors, self._trims)
        except FormatError as error:
            raise Damaged(layout.meta_directory(self._root), 0, "a router", error.message) from error
        for warning in warnings:
            self.report.warn(warning)
        for topic_id, frame in frames:
            self._frames.setdefault(shard_index(topic_id, shard_count), []).append(frame)

    def _finish_topics(self) -> None:
        now_ms = self._engine.now_ms()
        for topic in self._engine.topics.values():
            finish_topic(topic, now_ms, recount=topic.id in self._touched)
            entry = self._unused.get(topic.id)
            if entry is not None and topic.id not in self._seen and not topic.head_seq:
                # As the snapshot has it: the next one need not look at it.
                topic.encoded = entry
        self._check_missing()
        finish_moves(self._engine.topics.values(), self._dead_letters)

    def _check_missing(self) -> None:
        """A listed segment without its file, after everything dead was dropped: refuse, and name it."""
        topics = {topic.id: topic for topic in self._engine.topics.values()}
        for topic_id, segment in self._missing:
            topic = topics.get(topic_id)
            if topic is not None and segment.last_seq >= max(topic.evict_floor, topic.delete_below):
                path = f"{self._engine.cache.stem(topic_id, segment.first_seq)}.data"
                seqs = f"seqs {segment.first_seq} to {segment.last_seq} of topic {topic.name}"
                raise Damaged(path, 0, seqs, "no file")

    # Ends.

    def _settle(self, shard: int, end: ShardEnd) -> Callable[[], WalPosition] | None:
        """Makes the shard's end durable; what must be done later, when there was no room to do it now."""
        frames = self._frames.get(shard, [])

        def complete() -> WalPosition:
            settle(self._fs, end, self._settings.wal_file_bytes)
            self._append_frames(end, frames)
            return end.position

        if end.path is None:
            self._begin_file(end)
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
        assert end.path is not None
        file = self._fs.open(end.path, "write")
        try:
            data = b"".join(frames)
            write_all(file, data, end.position.offset)
            sync_log(file)
        finally:
            file.close()
        position = end.position
        end.position = WalPosition(position.frame + len(frames), position.file_frame, position.offset + len(data))
        frames.clear()

    def _begin_file(self, end: ShardEnd) -> None:
        """The shard goes on in a new file, at the frame number it has come to."""
        self._set_aside_stale(end)
        directory = end.directory
        create_shard_files(self._fs, directory, end.position.frame, self._settings.wal_file_bytes).close()
        end.path = f"{directory}/{layout.wal_name(end.position.frame)}"

    def _open_wal(self, ends: list[ShardEnd], cuts: list[Callable[[], WalPosition] | None]) -> Wal:
        shards: list[WalShard] = []
        for shard, (end, cut) in enumerate(zip(ends, cuts, strict=True)):
            if end.path is None:
                self._begin_file(end)
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
            try:
                write_atomic(self._fs, path, name.encode())
            except OSError as error:
                # It is derived from the files, so the next start can do without it too.
                if error.errno not in NO_SPACE:
                    raise

    def _change_shard_count(
        self, snapshot: Snapshot | None, positions: list[WalPosition]
    ) -> tuple[Snapshot | None, list[WalPosition]]:
        """Everything into segments, the old layout away, and only then the new one: frame numbers go on above
        every old one, so that files of the two can never be mixed up. Without room the old one stays."""
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
        try:
            number = checkpointer.move_to_layout(target)
        except OSError as error:
            noted = self._fs.exists(layout.snapshot_path(self._root, checkpointer.number + 1))
            if error.errno not in NO_SPACE or noted:
                raise
            self.report.warn(f"no room to change the log from {old_count} to {new_count} shards; it stays as it is")
            engine.runtime = runtime
            for shard in old_wal.shards:
                shard.use_background(self._runtime.background(f"wal-{shard.index}"))
            return snapshot, positions
        old_wal.close()
        drop_old_snapshots(self._fs, self._root, number, kept=1)
        self._remove_layout([layout.shard_directory(self._root, shard, old_count) for shard in range(old_count)], first)
        engine.runtime = runtime
        ends = [
            ShardEnd(
                position, None, position.frame - 1, 0, directory=layout.shard_directory(self._root, shard, new_count)
            )
            for shard, position in enumerate(target)
        ]
        engine.wal = self._open_wal(ends, [None] * new_count)
        return Snapshot(number, engine.next_topic_id, target), target

    def _finish_layout_change(self, snapshot: Snapshot) -> None:
        """What a change of the shard count left when it was cut short goes before the new layout takes a frame.

        All of it is in segments: a snapshot of the new layout is written only then. The one before it goes
        first, because it needs the old layout.
        """
        wal = layout.wal_directory(self._root)
        count = len(snapshot.wal)
        ours = [layout.shard_directory(self._root, shard, count) for shard in range(count)]
        found = [wal, *(f"{wal}/{name}" for name in self._fs.listdir(wal) if layout.shard_of(name) is not None)]
        below_frame = min(position.frame for position in snapshot.wal)
        others = [directory for directory in found if directory not in ours]
        files = [file for directory in others for file in list_wal_files(self._fs, directory)]
        if any(file.first_frame >= below_frame for file in files):
            self.report.warn(f"{wal} holds files of another shard count that the snapshot does not know; left alone")
            return
        if files:
            drop_old_snapshots(self._fs, self._root, snapshot.number, kept=1)
        self._remove_layout(others, below_frame)

    def _remove_layout(self, directories: list[str], below_frame: int) -> None:
        wal = layout.wal_directory(self._root)
        for directory in directories:
            for file in list_wal_files(self._fs, directory):
                if file.first_frame < below_frame:
                    self._fs.unlink(file.path)
            current = f"{directory}/{layout.CURRENT}"
            if not list_wal_files(self._fs, directory) and self._fs.exists(current):
                self._fs.unlink(current)
            if directory != wal and not self._fs.listdir(directory):
                self._fs.rmdir(directory)
            else:
                self._fs.sync_dir(directory)
        self._fs.sync_dir(wal)

    def _remove_left_overs(self) -> None:
        """Finishes removals that a crash cut short."""
        directory = layout.topics_directory(self._root)
        for topic_id, segments in self._removed.items():
            try:
                remove_topic_directory(self._fs, self._root, self._engine.cold, topic_id, segments)
            except ColdUnavailable as error:
                logger.warning("cold files of a removed topic stay for now: %s", error.message)
        for name in self._fs.listdir(directory):
            if name.endswith(layout.DELETED):
                remove_deleted_directory(self._fs, f"{directory}/{name}")


def found_shard_count(fs: Fs, root: str) -> int:
    """How many shards the log in this directory has; 0 when it has no files."""
    wal = layout.wal_directory(root)
    if list_wal_files(fs, wal):
        return 1
    shards = [
        shard
        for name in fs.listdir(wal)
        if (shard := layout.shard_of(name)) is not None and list_wal_files(fs, f"{wal}/{name}")
    ]
    # One shard has no directory of its own, so these are at least two, whatever is left of them.
    return max(2, max(shards) + 1) if shards else 0


def finish_topic(topic: Topic, now_ms: int, *, recount: bool) -> None:
    """Floors that have no frame, then the numbers, from what is really there."""
    replayed = topic.replayed
    assert replayed is not None
    if replayed.end_seq == replayed.first_seq:
        topic.replayed = None
    topic.next_seq = topic.head_seq + 1
    if topic.tail.end_seq != topic.head_seq + 1:
        # Else it holds what routers have just copied.
        topic.tail = Tail(topic.head_seq + 1)
    # The head of an ephemeral topic falls back to the last checkpoint: floors behind it are of seqs to come.
    topic.cap_floor = min(topic.cap_floor, topic.head_seq)
    topic.ttl_floor = min(topic.ttl_floor, topic.head_seq)
    topic.delete_below = min(topic.delete_below, topic.head_seq + 1)
    config = topic.config
    if config.cap_records and config.discard == "old":
        topic.cap_floor = max(topic.cap_floor, topic.head_seq - config.cap_records)
    topic.staged_floor = topic.cap_floor
    _count_again(topic, recount=recount)
    # Before the caps: what has expired takes no room.
    topic.refresh(now_ms)
    topic.apply_caps()
    # Lets go of lost ranges that a floor has passed.
    topic.raise_floors()
    topic.staged_floor = topic.cap_floor
    topic.ceiling_asked = topic.ceiling
    _finish_leases(topic)
    pull_back(topic.groups, topic.head_seq)


def finish_moves(topics: Iterable[Topic], dead_letters: list[control.DeadLetter]) -> None:
    """Deletes jobs that a dead-letter topic has. Once every shard is read: queue and dead letters may be in two."""
    queues = {topic.id: topic for topic in topics if topic.leases is not None}
    for queue in queues.values():
        assert queue.leases is not None
        queue.delete_seqs(sorted(queue.leases.moved))
        queue.leases.moved.clear()
    for letter in dead_letters:
        topic = queues.get(letter.queue_id)
        # Another job may have got the seq after a power loss had taken this one.
        if topic is not None and _ts_of(topic, letter.seq) == letter.ts:
            topic.delete_seqs([letter.seq])


def _ts_of(topic: Topic, seq: int) -> int | None:
    """When the record was written; None when it is not there."""
    if not topic.first_live <= seq <= topic.head_seq:
        return None
    try:
        found = topic.job_slots(seq, seq, READ_PIECE_BYTES_MIN, may_wait=True)
    except ColdUnavailable as error:
        logger.warning("a job that is a dead letter by now may be delivered once more: %s", error.message)
        return None
    assert not isinstance(found, Fetch)
    offset, slots = found
    return decode_raw(slots[0], offset).ts if isinstance(slots[0], bytes) else None


def _finish_leases(topic: Topic) -> None:
    """Leases of jobs that are still there, if they were kept at all."""
    if topic.config.type == "queue" and topic.leases is None:
        # A topic whose creation is lost, and whose config is not.
        topic.leases = LeaseTable()
    table = topic.leases
    if table is None:
        return
    table.resume()
    if not topic.config.leases_durable or topic.config.durability == "ephemeral":
        table.forget_all()
    for state in table.states():
        if topic.next_live(state.seq) != state.seq:
            table.forget(state.seq)


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
    topic.tail.forget_below(floor)
    more_count, more_size = topic.tail.live_numbers(floor, topic.head_seq)
    topic.count, topic.size_bytes = count + more_count, size + more_size
    count = topic.count
    if not count:
        topic.first_live = topic.head_seq + 1
    elif recount or floor > topic.first_live or topic.first_live > topic.checkpointed_seq:
        # Else the snapshot's stands, and nothing needs to be read.
        topic.first_live = topic.next_live(floor) or topic.head_seq + 1


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


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A replay makes millions of short-lived tuples and no cycles: looking for those costs a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _no_progress(fraction: float) -> None:
    pass
