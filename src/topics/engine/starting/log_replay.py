"""Second phase of a recovery: the frames of every WAL shard, from the snapshot's positions on, applied to the topics.

All frames of one topic are in one shard, in order. All frames of one router are in the shard of its dest.
"""

from collections.abc import Callable
from dataclasses import dataclass

from topics.engine.config import DEFAULT_CONFIG, stored_config
from topics.engine.engine import Engine
from topics.engine.starting.replayed_router import ReplayedRouter
from topics.engine.starting.report import RecoveryReport
from topics.engine.starting.shard_count import found_shard_count
from topics.engine.starting.snapshot_loading import LoadedTopics, topic_of_state
from topics.engine.starting.topic_replay import RUN_FRAMES_MIN, TopicReplay
from topics.engine.topic.replayed import WalFiles
from topics.engine.topic.topic import Topic
from topics.errors import BadFrame, Damaged
from topics.formats import control, kernel
from topics.formats.snapshot import SegmentState, TopicState, WalPosition
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, Frame, FrameType
from topics.storage import layout
from topics.storage.wal.reader import ShardEnd, ShardReader, WalFile
from topics.storage.wal.settling import finish_rewrites

Progress = Callable[[float], None]
"""Told how much of the log is read, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ReplayedLog:
    """What the phase found. The topics as of the end of the log are in `engine.topics`."""

    # Where the replay of each shard began. None: at its first frame.
    starts: list[WalPosition | None]
    ends: list[ShardEnd]
    # Topics that the log has any frame of.
    mentioned_ids: frozenset[int]
    # Topics whose segments must be counted again: their delete marks changed.
    recount_ids: frozenset[int]
    # Topic id -> segments, of topics whose removal is in the log.
    removed: dict[int, list[SegmentState]]
    routers: list[ReplayedRouter]
    # Records that other topics have by now.
    moves: list[control.Moved]


def replay_log(engine: Engine, report: RecoveryReport, loaded: LoadedTopics, progress: Progress) -> ReplayedLog:
    """Raises `Damaged` when the log cannot be read as a whole."""
    fs, root = engine.directory.fs, engine.directory.root
    wal_files = engine.core.wal_files
    assert wal_files is not None
    shard_count = _shard_count(engine, loaded)
    starts = loaded.start_positions(shard_count)
    found_count = found_shard_count(fs, root)
    for shard in range(found_count):
        finish_rewrites(fs, layout.shard_directory(root, shard, found_count))
    replay = _Replay(engine, wal_files, loaded)
    readers = [
        ShardReader(fs, layout.shard_directory(root, shard, shard_count), start) for shard, start in enumerate(starts)
    ]
    ends = _read_shards(replay, readers, report, progress)
    _check_no_shard_is_missing(readers, starts)
    replay.add_waiting()
    for item in replay.topics.values():
        item.end()
    for warning in replay.warnings:
        report.warn(warning)
    engine.core.note_time(replay.newest_ts)
    in_order = sorted(replay.topics.values(), key=lambda item: item.topic.id)
    engine.core.use_topics({item.topic.name: item.topic for item in in_order})
    return ReplayedLog(
        starts,
        ends,
        mentioned_ids=frozenset(replay.mentioned_ids),
        recount_ids=frozenset(item.topic.id for item in in_order if item.needs_recount),
        removed=replay.removed,
        routers=list(replay.routers.values()),
        moves=[moved for item in replay.topics.values() for moved in item.moves],
    )


def _shard_count(engine: Engine, loaded: LoadedTopics) -> int:
    if loaded.snapshot is not None:
        return len(loaded.snapshot.wal)
    return found_shard_count(engine.directory.fs, engine.directory.root) or engine.settings.wal_shards


def _read_shards(
    replay: "_Replay", readers: list[ShardReader], report: RecoveryReport, progress: Progress
) -> list[ShardEnd]:
    bytes_total = sum(reader.bytes_total for reader in readers) or 1
    ends: list[ShardEnd] = []
    bytes_done = 0
    for reader in readers:
        frame_count = replay.run(reader)
        assert reader.end is not None
        report.add_replayed(frame_count, reader.bytes_replayed)
        reader.end.directory = reader.directory
        ends.append(reader.end)
        bytes_done += reader.bytes_total
        progress(bytes_done / bytes_total)
        for warning in reader.end.warnings:
            report.warn(warning)
    return ends


def _check_no_shard_is_missing(readers: list[ShardReader], starts: list[WalPosition | None]) -> None:
    """The first files of all shards are made before any shard takes a frame. So once one shard has frames and there
    is no snapshot, a shard without files has lost them."""
    if any(reader.end is not None and reader.end.position.frame > 1 for reader in readers):
        for reader, start in zip(readers, starts, strict=True):
            if start is None and not reader.files:
                raise Damaged(reader.directory, 0, "a file that begins with frame 1", "no file")


class _Replay:
    """All topics and routers while the log is read."""

    def __init__(self, engine: Engine, wal_files: WalFiles, loaded: LoadedTopics) -> None:
        self._engine = engine
        self._wal_files = wal_files
        # A topic with a lower id that is not in the snapshot was removed before the snapshot was taken.
        self._known_below_id = loaded.known_below_id
        # Without a readable snapshot: topics that were rebuilt from their files, by id.
        self._rebuilt = loaded.rebuilt
        self._log_is_whole = loaded.snapshot is None
        # Rebuilt topics whose name and config are in the frame that created them, unless the log has lost that frame.
        self._waiting: dict[int, TopicState] = {}
        # Topic id -> segments, of topics whose removal was read.
        self.removed: dict[int, list[SegmentState]] = {}
        # By topic id.
        self.topics: dict[int, TopicReplay] = {
            topic.id: TopicReplay(topic, wal_files, loaded.adopted.get(topic.id)) for topic in engine.topics.values()
        }
        # By router id.
        self.routers: dict[int, ReplayedRouter] = {}
        self._removed_routers: set[int] = set()
        for state in loaded.routers:
            self._put_router(state)
        for topic_id, item in loaded.rebuilt.items():
            if item.is_named and loaded.snapshot is not None:
                self._add(topic_of_state(engine, item.state))
            else:
                self._waiting[topic_id] = item.state
        self.newest_ts = 0
        # Ids of topics that the log has any frame of.
        self.mentioned_ids: set[int] = set()
        self.warnings: list[str] = []

    def run(self, reader: ShardReader) -> int:
        """Applies every frame of a shard. Returns how many frames the shard has."""
        count = 0
        for file, buffer, base, frames in reader.windows():
            count += len(frames)
            self.newest_ts = max(self.newest_ts, *frames.times)
            # Append frames of one topic that follow each other are applied together. Id 0: any other frame.
            for topic_id, start, end in kernel.append_runs(frames.kinds, frames.topic_ids, frames.seqs):
                if topic_id == 0:
                    for frame in frames.part(start, end):
                        self._control(file, buffer, base, frame)
                    continue
                replay = self.topics.get(topic_id) or self._unknown(topic_id)
                if replay is not None:
                    self.mentioned_ids.add(topic_id)
                    is_run = end - start >= RUN_FRAMES_MIN
                    if not (is_run and replay.append_run(file.path, buffer, base, frames, start, end)):
                        replay.append_all(file.path, buffer, base, frames.part(start, end))
        return count

    def _control(self, file: WalFile, buffer: bytes, base: int, frame: Frame) -> None:
        try:
            kind = FrameType(frame.type)
            data = frame.data_in(buffer)
            if kind == FrameType.TOPIC_CREATE:
                self._create(frame.topic_id, control.decode(control.TopicCreate, data))
            elif kind == FrameType.SYNC:
                return
            elif kind == FrameType.CHECKPOINT:
                if self._rebuilt:
                    self._take_mark(control.decode(control.CheckpointMark, data))
            elif kind == FrameType.TOPIC_DELETE:
                self._remove(frame.topic_id)
            else:
                replay = self.topics.get(frame.topic_id) or self._unknown(frame.topic_id)
                if replay is not None:
                    self.mentioned_ids.add(frame.topic_id)
                    self._apply(replay, kind, frame, data)
        except BadFrame as error:
            raise Damaged(file.path, base + frame.offset, "a control frame that can be read", error.message) from error

    def _create(self, topic_id: int, create: control.TopicCreate) -> None:
        self._engine.core.note_topic_id(topic_id)
        if topic_id in self.topics or topic_id in self.removed:
            return
        state = self._waiting.pop(topic_id, None)
        if state is None:
            config = stored_config(create.config)
            self._add(self._engine.topic_life.new_topic(create.name, topic_id, create.epoch, config))
            return
        state.name, state.epoch, state.config = create.name, create.epoch, create.config
        self._add(topic_of_state(self._engine, state))

    def _add(self, topic: Topic) -> TopicReplay:
        topic.writes.created()
        replay = self.topics[topic.id] = TopicReplay(topic, self._wal_files)
        return replay

    def _remove(self, topic_id: int) -> None:
        replay = self.topics.pop(topic_id, None)
        self._waiting.pop(topic_id, None)
        self.removed[topic_id] = replay.topic.live.segments.segments if replay is not None else []

    def _unknown(self, topic_id: int) -> TopicReplay | None:
        """A frame names a topic that is not there: it was removed long ago, or the frame that created it is lost."""
        if topic_id in self.removed or topic_id < self._known_below_id:
            return None
        if topic_id in self._waiting:
            return self._add(topic_of_state(self._engine, self._waiting.pop(topic_id)))
        name = f"recovered-{topic_id}"
        self.warnings.append(f"frames of topic id {topic_id} without its creation: kept in topic {name}")
        self._engine.core.note_topic_id(topic_id)
        return self._add(self._engine.topic_life.new_topic(name, topic_id, 1, DEFAULT_CONFIG))

    def _apply(self, replay: TopicReplay, kind: FrameType, frame: Frame, data: bytes) -> None:
        if frame.flags & FLAG_FIRST:
            replay.begin(0)
        if kind == FrameType.NOTE:
            replay.note(control.decode(control.Note, data), frame.ts)
        elif kind == FrameType.ROUTER_CREATE:
            self._put_router(control.decode(control.RouterState, data))
        elif kind == FrameType.ROUTER_DELETE:
            self._remove_router(control.decode(control.RouterDelete, data).id)
        elif kind == FrameType.LEASE:
            if replay.topic.leases is not None:
                replay.lease(control.decode(control.Lease, data))
        elif kind == FrameType.EVICT:
            replay.note_evict(control.decode(control.Evict, data))
        elif kind == FrameType.LOST:
            replay.note_lost(control.decode(control.Lost, data))
        elif kind == FrameType.CONFIG:
            replay.configure(control.decode(control.ConfigUpdate, data), frame.ts)
        elif kind == FrameType.DELETE:
            replay.delete(control.decode(control.Delete, data))
        elif kind == FrameType.HEAD:
            replay.head(control.decode(control.Head, data))
        else:
            name = replay.topic.name
            self.warnings.append(f"frame kind {kind.name} of topic {name} has no meaning here; ignored")
        if not frame.flags & FLAG_MORE and replay.open_seq is not None:
            replay.finish(frame.ts)

    def add_waiting(self) -> None:
        """Rebuilt topics that the log does not mention."""
        for state in self._waiting.values():
            self._add(topic_of_state(self._engine, state))
        self._waiting.clear()

    def _take_mark(self, mark: control.CheckpointMark) -> None:
        """What the snapshot of a checkpoint knew of rebuilt topics and of routers into them."""
        for item in mark.topics:
            self._take_topic_mark(item)
        for state in mark.routers:
            known, dest = self.routers.get(state.id), self.topics.get(state.dest)
            if known is None:
                self._take_topic_mark(control.TopicMark(state.dest, state.dest_seq))
                self._put_router(state)
            elif dest is not None and dest.next_seq > state.dest_seq:
                # Else dest does not have the copies, and the router makes them again.
                known.catch_up(state)

    def _take_topic_mark(self, mark: control.TopicMark) -> None:
        rebuilt, replay = self._rebuilt.get(mark.id), self.topics.get(mark.id)
        if rebuilt is None or replay is None or (rebuilt.ends_damaged and self._log_is_whole):
            # The whole log has the records that a damaged file lost, or its routers make them again.
            return
        replay.take_mark(mark, ends_damaged=rebuilt.ends_damaged)

    def _put_router(self, state: control.RouterState) -> None:
        self._engine.routing.note_router_id(state.id)
        if state.id in self._removed_routers:
            return
        known = self.routers.get(state.id)
        if known is not None:
            known.change(state)
            return
        router = self.routers[state.id] = ReplayedRouter(state)
        dest = self.topics.get(state.dest)
        if dest is not None:
            dest.routers.append(router)
            dest.expect_unlogged()

    def _remove_router(self, router_id: int) -> None:
        self._removed_routers.add(router_id)
        router = self.routers.pop(router_id, None)
        dest = self.topics.get(router.dest) if router is not None else None
        if router is not None and dest is not None:
            dest.routers.remove(router)
