"""Replaying WAL frames into topics. Idempotent: what the segments or the replay already hold is skipped.

A write comes back whole or not at all: its frames count once the last of them is seen, and are taken back when
the topic's next frame begins another write, or the log ends. Counting is left to the end (`recovery`): while
frames are replayed only places, floors and marks are kept.
"""

import logging
import re
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Final

from topics.engine.config import TopicConfig, stored_config
from topics.engine.engine import Engine
from topics.engine.groups import apply_update
from topics.engine.queues.queues import replay_lease
from topics.engine.topic.hops import HopRuns
from topics.engine.topic.replayed import Replayed, WalFiles
from topics.engine.topic.topic import Topic
from topics.errors import BadFrame, Damaged
from topics.formats import control, envelope
from topics.formats.snapshot import KeyState, SegmentState, WriterState
from topics.formats.wal_frame import (
    FLAG_FIRST,
    FLAG_MORE,
    FLAG_TAG,
    HEADER_BYTES,
    Frame,
    FrameType,
)
from topics.storage.wal_recovery import ShardReader, WalFile

logger = logging.getLogger(__name__)

_APPEND: Final = int(FrameType.APPEND)
_META: Final = envelope.META
_ts_of: Final = attrgetter("ts")

# Fewer frames than this are not worth taking by the column.
RUN_FRAMES_MIN: Final = 16
# What a frame is in its write: S a write of one, F first of several, M in the middle, L last; T has a tag.
_SHAPES: Final = bytes(
    ord("T") if flags & FLAG_TAG else b"LSMF"[(flags >> 4 & 1) + (flags >> 3 & 1) * 2] for flags in range(256)
)
_WHOLE_WRITES: Final = re.compile(rb"(?:S|FM*L)*")
assert (FLAG_FIRST, FLAG_MORE) == (16, 8)


class TopicReplay:
    """One topic while the log is read."""

    __slots__ = (
        "copies",
        "dead_letter",
        "dead_letters",
        "evict",
        "first_seq",
        "key",
        "last_seq",
        "next_seq",
        "open_seq",
        "open_tags",
        "replayed",
        "routers",
        "topic",
        "touched",
        "trims",
        "writer",
    )

    def __init__(self, topic: Topic, wal_files: WalFiles) -> None:
        self.topic = topic
        self.next_seq = topic.checkpointed_seq + 1
        self.replayed = topic.replayed = Replayed(wal_files, self.next_seq)
        # First seq of the write whose last frame is still to come, None when none is open.
        self.open_seq: int | None = None
        self.open_tags: list[tuple[bytes, int]] = []
        # First and last seq of its records, also when segments hold them already: what a key's answer names.
        self.first_seq = self.last_seq = 0
        self.key: str | None = None
        self.writer: control.WriterEpoch | None = None
        self.evict: control.Evict | None = None
        # The job that the open write is a copy of, and those of all writes that were finished.
        self.dead_letter: control.DeadLetter | None = None
        self.dead_letters: list[control.DeadLetter] = []
        # Routers that it is the dest of, and what the open write says of one.
        self.routers: list[ReplayedRouter] = []
        self.copies: control.Copies | None = None
        # [first, last] holes for what a router's source lost, ascending.
        self.trims: list[tuple[int, int]] = []
        # Whether delete marks of files were changed: their numbers must be counted again.
        self.touched = False

    def begin(self, seq: int) -> None:
        self.drop_open()
        self.open_seq = max(seq, self.next_seq) if seq else self.next_seq

    def drop_open(self) -> None:
        """Takes back a write that was not finished."""
        if self.open_seq is not None and self.open_seq < self.next_seq:
            self.replayed.truncate(self.open_seq)
            self.next_seq = self.open_seq
        self.open_seq = None
        self.open_tags.clear()
        self.first_seq = self.last_seq = 0
        self.key = None
        self.writer = None
        self.evict = None
        self.dead_letter = None
        self.copies = None

    def finish(self, ts: int) -> None:
        """The write is whole: it counts."""
        topic = self.topic
        if self.routers:
            self._finish_copies()
        last_seq = self.next_seq - 1
        if last_seq > topic.head_seq:
            topic.head_seq = last_seq
            topic.logged_last_seq = last_seq
        if ts > topic.last_ts:
            topic.last_ts = ts
        for tag, seq in self.open_tags:
            topic.tags.add(tag, seq)
        if self.key is not None and self.first_seq:
            count = self.last_seq - self.first_seq + 1
            topic.keys[self.key] = KeyState(self.key, ts, self.first_seq, count, self.last_seq)
        if self.writer is not None:
            name, first_seq = self.writer.writer, self.writer.first_seq
            topic.writers[name] = WriterState(name, self.writer.epoch, first_seq, self.last_seq or first_seq - 1)
            self.writer = None
        if self.evict is not None:
            topic.cap_floor = max(topic.cap_floor, self.evict.cap_floor)
            topic.ttl_floor = max(topic.ttl_floor, self.evict.ttl_floor)
        if self.dead_letter is not None:
            self.dead_letters.append(self.dead_letter)
            self.dead_letter = None
        self.open_seq = None
        if self.open_tags:
            self.open_tags = []
        self.first_seq = self.last_seq = 0
        self.key = None
        self.evict = None

    def _finish_copies(self) -> None:
        """A write to a router's dest: behind it copies go on, from where it says, or from where they were."""
        copies, last_seq = self.copies, self.last_seq
        self.copies = None
        if self.evict is not None and self.evict.trim_floor:
            self.topic.trim_floor = max(self.topic.trim_floor, self.evict.trim_floor)
            self.trims.append((self.evict.trim_first, self.evict.trim_floor))
            copies = self.evict.copies or copies
        if copies is not None:
            last_seq = max(last_seq, copies.dest_seq)
            if last_seq >= self.next_seq:
                # A source trim, or copies that were dead when they were logged.
                self.replayed.append_holes(last_seq + 1 - self.next_seq)
                self.next_seq = last_seq + 1
            for router in self.routers:
                if router.id == copies.router:
                    router.cursor = copies.cursor
                    router.forwarded_total = copies.forwarded_total
            if copies.hops:
                self.topic.hops = HopRuns([*_runs(self.topic.hops, copies.hops[0][0]), *copies.hops])
        for router in self.routers:
            router.dest_seq = max(router.dest_seq, last_seq)


class ReplayedRouter:
    """A router while the log is read: everything up to `cursor` is done, its copies end at `dest_seq`."""

    __slots__ = (
        "cursor",
        "dest",
        "dest_base",
        "dest_seq",
        "evidence",
        "forwarded_total",
        "id",
        "name",
        "searched_seq",
        "source",
        "spec",
    )

    def __init__(self, state: control.RouterState) -> None:
        self.id = state.id
        self.name = state.name
        # Topic ids.
        self.source = state.source
        self.dest = state.dest
        self.spec = state.spec
        self.cursor = state.cursor
        self.dest_seq = state.dest_seq
        self.dest_base = state.dest_base
        self.forwarded_total = state.forwarded_total
        self.searched_seq = state.searched_seq
        self.evidence = state.evidence

    def change(self, state: control.RouterState) -> None:
        self.spec = state.spec
        self.cursor = state.cursor
        self.dest_seq = max(self.dest_seq, state.dest_seq)
        self.forwarded_total = state.forwarded_total
        self.searched_seq = state.searched_seq
        self.evidence = state.evidence


def _runs(hops: HopRuns | None, end_seq: int) -> list[tuple[int, int, int]]:
    return hops.within(0, end_seq - 1) if hops is not None else []


class Replay:
    """All topics while the log is read. Frames of one topic stand in one shard, in order."""

    def __init__(
        self, engine: Engine, wal_files: WalFiles, known_below_id: int, routers: Iterable[control.RouterState] = ()
    ) -> None:
        self._engine = engine
        self._wal_files = wal_files
        # Ids below this that are not in the snapshot were removed before it was taken.
        self._known_below_id = known_below_id
        # Topic id -> segments it had, of the topics whose removal was read.
        self.removed: dict[int, list[SegmentState]] = {}
        self.topics: dict[int, TopicReplay] = {
            topic.id: TopicReplay(topic, wal_files) for topic in engine.topics.values()
        }
        # By their ids. The frames of a router stand in the shard of its dest.
        self.routers: dict[int, ReplayedRouter] = {}
        self._removed_routers: set[int] = set()
        for state in routers:
            self._put_router(state)
        self.newest_ts = 0
        # Topics that the log says anything of.
        self.seen: set[int] = set()
        self.warnings: list[str] = []

    def run(self, reader: ShardReader) -> int:
        """Applies every frame of a shard; how many there were."""
        count = 0
        for file, buffer, base, frames in reader.windows():
            count += len(frames)
            newest_ts = max(map(_ts_of, frames))
            self.newest_ts = max(self.newest_ts, newest_ts)
            end = 0
            # Appends to one topic that stand together are taken together; 0 stands for everything else.
            for topic_id, group in groupby([frame[4] if frame[2] == _APPEND else 0 for frame in frames]):
                start, end = end, end + len(list(group))
                if topic_id == 0:
                    for frame in frames[start:end]:
                        self._control(file, buffer, base, frame)
                    continue
                replay = self.topics.get(topic_id) or self._unknown(topic_id)
                if replay is not None:
                    self.seen.add(topic_id)
                    _append_all(replay, file.path, buffer, base, frames[start:end])
        return count

    def _control(self, file: WalFile, buffer: bytes, base: int, frame: Frame) -> None:
        try:
            kind = FrameType(frame.type)
            data = buffer[frame.end - 8 - frame.data_len : frame.end - 8]
            if kind == FrameType.TOPIC_CREATE:
                self._create(frame.topic_id, control.decode(control.TopicCreate, data))
            elif kind in (FrameType.SYNC, FrameType.CHECKPOINT):
                return
            elif kind == FrameType.TOPIC_DELETE:
                self._remove(frame.topic_id)
            else:
                replay = self.topics.get(frame.topic_id) or self._unknown(frame.topic_id)
                if replay is not None:
                    self.seen.add(frame.topic_id)
                    self._apply(replay, kind, frame, data)
        except BadFrame as error:
            raise Damaged(file.path, base + frame.offset, "a control frame that can be read", error.message) from error

    def _create(self, topic_id: int, create: control.TopicCreate) -> None:
        self._engine.next_topic_id = max(self._engine.next_topic_id, topic_id + 1)
        if topic_id in self.topics or topic_id in self.removed:
            return
        self._add(self._engine.new_topic(create.name, topic_id, create.epoch, stored_config(create.config)))

    def _add(self, topic: Topic) -> TopicReplay:
        topic.created = True
        replay = self.topics[topic.id] = TopicReplay(topic, self._wal_files)
        return replay

    def _remove(self, topic_id: int) -> None:
        replay = self.topics.pop(topic_id, None)
        self.removed[topic_id] = replay.topic.segments.segments if replay is not None else []

    def _unknown(self, topic_id: int) -> TopicReplay | None:
        """Frames of a topic that nothing tells of: removed long ago, or its creation is lost."""
        if topic_id in self.removed or topic_id < self._known_below_id:
            return None
        name = f"recovered-{topic_id}"
        self.warnings.append(f"frames of topic id {topic_id} without its creation: kept in topic {name}")
        self._engine.next_topic_id = max(self._engine.next_topic_id, topic_id + 1)
        return self._add(self._engine.new_topic(name, topic_id, 1, TopicConfig()))

    def _apply(self, replay: TopicReplay, kind: FrameType, frame: Frame, data: bytes) -> None:
        topic = replay.topic
        if frame.flags & FLAG_FIRST:
            replay.begin(0)
        if kind == FrameType.NOTE:
            note = control.decode(control.Note, data)
            if note.group is not None:
                apply_update(topic.groups, note.group, frame.ts)
            replay.key, replay.dead_letter, replay.copies = note.key, note.dead_letter, note.copies
            replay.writer = note.writer
        elif kind == FrameType.ROUTER_CREATE:
            self._put_router(control.decode(control.RouterState, data))
        elif kind == FrameType.ROUTER_DELETE:
            self._remove_router(control.decode(control.RouterDelete, data).id)
        elif kind == FrameType.LEASE:
            if topic.leases is not None:
                replay_lease(topic.leases, control.decode(control.Lease, data))
        elif kind == FrameType.EVICT:
            replay.evict = control.decode(control.Evict, data)
        elif kind == FrameType.CONFIG:
            self._configure(replay, control.decode(control.ConfigUpdate, data), frame.ts)
        elif kind == FrameType.DELETE:
            replay_delete(replay, control.decode(control.Delete, data))
        elif kind == FrameType.HEAD:
            self._head(replay, control.decode(control.Head, data))
        else:
            self.warnings.append(f"frame kind {kind.name} of topic {topic.name} has no meaning here; passed over")
        if not frame.flags & FLAG_MORE and replay.open_seq is not None:
            replay.finish(frame.ts)

    def _put_router(self, state: control.RouterState) -> None:
        routing = self._engine.routing
        routing.next_router_id = max(routing.next_router_id, state.id + 1)
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

    def _remove_router(self, router_id: int) -> None:
        self._removed_routers.add(router_id)
        router = self.routers.pop(router_id, None)
        dest = self.topics.get(router.dest) if router is not None else None
        if dest is not None:
            dest.routers = [other for other in dest.routers if other is not router]

    def _configure(self, replay: TopicReplay, update: control.ConfigUpdate, ts: int) -> None:
        topic = replay.topic
        topic.forget_keys(ts)
        topic.config = stored_config(update.config)
        topic.forget_keys(ts)
        topic.cap_floor = max(topic.cap_floor, update.cap_floor)
        topic.ttl_floor = max(topic.ttl_floor, update.ttl_floor)
        if topic.leases is not None and not topic.config.leases_durable:
            # What became of them from here on was not logged.
            topic.leases.forget_all()
        if topic.config.durability != "disk":
            # Synced, and all before it: see `Topic.apply_config`.
            topic.ceiling = 0
        if update.unlogged_last_seq >= replay.next_seq:
            # Written while the topic was ephemeral: they went with the process.
            topic.lost.append((replay.next_seq, update.unlogged_last_seq))
            self._jump(replay, update.unlogged_last_seq)

    def _head(self, replay: TopicReplay, head: control.Head) -> None:
        topic = replay.topic
        topic.ceiling = max(topic.ceiling, head.ceiling)
        if not head.lost_first:
            return
        if head.ceiling > replay.next_seq:
            # From what is there now: a full disk may not have let in the copies of an unfinished checkpoint.
            topic.lost.append((replay.next_seq, head.ceiling - 1))
            self._jump(replay, head.ceiling - 1)
        else:
            # An unfinished checkpoint holds records from behind it.
            topic.lost.append((head.lost_first, head.ceiling - 1))

    def _jump(self, replay: TopicReplay, head_seq: int) -> None:
        """Derived copies that stood before it still do: routers go on from where they were, and jump too."""
        replay.replayed.append_holes(head_seq + 1 - replay.next_seq)
        replay.next_seq = head_seq + 1
        replay.topic.head_seq = max(replay.topic.head_seq, head_seq)


def _append_all(replay: TopicReplay, path: str, buffer: bytes, base: int, frames: list[Frame]) -> None:
    """Append frames of one topic, one behind the other."""
    place = 0
    if replay.open_seq is not None:
        # The rest of a write that began before: up to its last frame.
        while place < len(frames) and (place == 0 or frames[place - 1].flags & FLAG_MORE):
            _append_one(replay, path, buffer, base, frames[place])
            place += 1
    if len(frames) - place >= RUN_FRAMES_MIN:
        place += _append_run(replay, path, buffer, base, frames[place:])
    for frame in frames[place:]:
        _append_one(replay, path, buffer, base, frame)


def _append_run(replay: TopicReplay, path: str, buffer: bytes, base: int, frames: list[Frame]) -> int:
    """How many of the frames were taken by the column: all whole writes among them, or none.

    None when anything about them is unusual: a seq out of line, an unfinished write, tags, or a meta. Per frame
    it costs a third of `_append_one`, and a start is made of these.
    """
    shape = bytes([frame.flags for frame in frames]).translate(_SHAPES)
    count = max(shape.rfind(b"S"), shape.rfind(b"L")) + 1
    if count == 0 or not _WHOLE_WRITES.fullmatch(shape, 0, count):
        return 0
    offsets, ends, _, _, _, seqs, times, _, _, data_lens = zip(*frames[:count], strict=True)
    first_seq = seqs[0]
    if first_seq != replay.next_seq or seqs != tuple(range(first_seq, first_seq + count)):
        return 0
    if buffer.find(_META, offsets[0], ends[-1]) >= 0:
        return 0
    replay.replayed.extend(
        path,
        [base + offset for offset in offsets],
        [end - offset for offset, end in zip(offsets, ends, strict=True)],
        [data_len - envelope.PLAIN_OVERHEAD_BYTES for data_len in data_lens],
        times,
    )
    replay.next_seq = first_seq + count
    replay.last_seq = first_seq + count - 1
    replay.finish(times[-1])
    return count


def _append_one(replay: TopicReplay, path: str, buffer: bytes, base: int, frame: Frame) -> None:
    offset, end, _, flags, _, seq, ts, node_len, tag_len, data_len = frame
    if flags & FLAG_FIRST:
        replay.begin(seq)
    if replay.key is not None:
        replay.first_seq = replay.first_seq or seq
    replay.last_seq = seq
    expected = replay.next_seq
    if seq >= expected:
        if seq > expected:
            replay.replayed.append_holes(seq - expected)
        size = envelope.accounted_bytes(buffer[end - 8 - data_len : end - 8])
        replay.replayed.append(path, base + offset, end - offset, size, ts)
        replay.next_seq = seq + 1
        if flags & FLAG_TAG:
            tag_at = offset + HEADER_BYTES + node_len
            replay.open_tags.append((buffer[tag_at : tag_at + tag_len], seq))
    if not flags & FLAG_MORE:
        replay.finish(ts)


def replay_delete(replay: TopicReplay, delete: control.Delete) -> None:
    """Marks what a logged delete removed. Which of it was live is counted at the end."""
    topic, replayed = replay.topic, replay.replayed
    topic.ttl_floor = max(topic.ttl_floor, delete.ttl_floor)
    bound = delete.bound if delete.before_seq is None else min(delete.bound, delete.before_seq)
    if delete.seqs is not None:
        seqs = [seq for seq in sorted(delete.seqs) if seq < delete.bound]
    elif delete.tag is not None:
        seqs = topic.tagged_seqs(delete.tag.encode(), is_prefix=False, end_seq=bound)
    elif delete.tag_prefix is not None:
        seqs = topic.tagged_seqs(delete.tag_prefix.encode(), is_prefix=True, end_seq=bound)
    else:
        topic.delete_below = max(topic.delete_below, min(bound, replay.next_seq))
        return
    active = topic.active_segment()
    if delete.seqs is None and active is not None and active.tagged_count:
        # An unfinished checkpoint may have set the delete bytes already. Then the tags of the active segment, which
        # come from its live frames, do not name them, and the noted numbers still count them.
        replay.touched = True
    for seq in seqs:
        if replayed.first_seq <= seq < replayed.end_seq:
            replayed.kill(seq)
        if topic.leases is not None:
            topic.leases.forget(seq)
    filed = [seq for seq in seqs if seq <= topic.checkpointed_seq]
    if filed:
        topic.segments.mark_pending(filed)
        replay.touched = True
