"""Which topics have records that the log has no frames of, although the log has its first frame.

Two kinds of records may be only in segments: copies that a router made without frames, and records that were written
while their topic was `ephemeral`. Seqs of such copies are missing in the frames of the topic, although a note, a delete
or a checkpoint mark says that the topic had them. All other copies without frames are made again from their source.

Only a start that has no readable snapshot asks for this.
"""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from topics.engine.starting.shard_count import found_shard_count
from topics.errors import BadFrame, Damaged
from topics.formats import control, kernel
from topics.formats.wal_frame import FLAG_FIRST, Frame, FrameType
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.wal.reader import WINDOW_BYTES, ShardReader, WalFile, list_wal_files
from topics.storage.wal.settling import finish_rewrites

_APPEND: Final = int(FrameType.APPEND)
_SYNC: Final = int(FrameType.SYNC)
# A checkpoint mark after its length: type and flags, then neither topic nor seq.
_MARK_HEAD: Final = bytes((FrameType.CHECKPOINT, FLAG_FIRST)) + bytes(16)


@dataclass(slots=True)
class LogGaps:
    # Topics that have records without frames.
    topic_ids: set[int] = field(default_factory=set)
    # Topics that the log creates or removes. A crash while the shard count changes may leave a log without some topics.
    known_ids: set[int] = field(default_factory=set)
    frame_count: int = 0


class _GapScan:
    """The seqs that the frames of each topic name, in the order of the log."""

    def __init__(self) -> None:
        self.gaps = LogGaps()
        self._dest_ids: set[int] = set()
        # Topic id -> last seq that a frame of the topic accounts for.
        self._last_seqs: dict[int, int] = {}
        # Topic id -> last seq of the copies that the open write of the topic holds.
        self._copied_seqs: dict[int, int] = {}

    def append(self, frame: Frame) -> None:
        topic_id, seq = frame.topic_id, frame.seq
        if frame.flags & FLAG_FIRST:
            self._end_write(topic_id)
        last_seq = self._last_seqs.get(topic_id, 0)
        if seq > last_seq + 1:
            self._gap(topic_id)
        if seq > last_seq:
            self._last_seqs[topic_id] = seq

    def control(self, frame: Frame, data: bytes) -> None:
        topic_id = frame.topic_id
        if frame.flags & FLAG_FIRST:
            self._end_write(topic_id)
        if frame.type == FrameType.CHECKPOINT:
            for router in control.decode(control.CheckpointMark, data).routers:
                if router.dest_seq > self._last_seqs.get(router.dest, 0):
                    # Its source may have lost the records since, and then no run of the router makes the copies again.
                    self._gap(router.dest)
        elif frame.type in (FrameType.TOPIC_CREATE, FrameType.TOPIC_DELETE):
            self.gaps.known_ids.add(topic_id)
        elif frame.type == FrameType.ROUTER_CREATE:
            self._dest_ids.add(control.decode(control.RouterState, data).dest)
        elif frame.type == FrameType.NOTE:
            copies = control.decode(control.Note, data).copies
            if copies is not None:
                self._copied_seqs[topic_id] = copies.dest_seq
        elif frame.type == FrameType.DELETE:
            if control.decode(control.Delete, data).bound > self._last_seqs.get(topic_id, 0) + 1:
                # It may have deleted copies that were in segments only.
                self._gap(topic_id)
        elif frame.type == FrameType.EVICT:
            self._account(topic_id, control.decode(control.Evict, data).trim_floor)
        elif frame.type == FrameType.LOST:
            lost = control.decode(control.Lost, data)
            if lost.first_seq > self._last_seqs.get(topic_id, 0) + 1:
                self._gap(topic_id)
            self._account(topic_id, lost.last_seq)
        elif frame.type == FrameType.HEAD:
            head = control.decode(control.Head, data)
            if head.lost_first:
                self._account(topic_id, head.ceiling - 1)
        elif frame.type == FrameType.CONFIG:
            unlogged_last_seq = control.decode(control.ConfigUpdate, data).unlogged_last_seq
            if unlogged_last_seq:
                self.gaps.topic_ids.add(topic_id)
                self._account(topic_id, unlogged_last_seq)

    def end(self) -> None:
        for topic_id in list(self._copied_seqs):
            self._end_write(topic_id)

    def _end_write(self, topic_id: int) -> None:
        copied_seq = self._copied_seqs.pop(topic_id, 0)
        if copied_seq > self._last_seqs.get(topic_id, 0):
            self._gap(topic_id)
            self._account(topic_id, copied_seq)

    def _gap(self, topic_id: int) -> None:
        if topic_id in self._dest_ids:
            self.gaps.topic_ids.add(topic_id)

    def _account(self, topic_id: int, last_seq: int) -> None:
        self._last_seqs[topic_id] = max(self._last_seqs.get(topic_id, 0), last_seq)


def is_before_first_checkpoint(fs: Fs, root: str) -> bool:
    """Whether the log has frames, and none of them is a checkpoint mark. False also means: not known.

    It searches for the header of a mark, which takes a tenth of the time of a scan.
    """
    count = found_shard_count(fs, root)
    directories = [layout.shard_directory(root, shard, count) for shard in range(count)]
    if any(_has_bytes(fs, file, _MARK_HEAD) for directory in directories for file in list_wal_files(fs, directory)):
        return False
    return any(_has_frames(fs, directory) for directory in directories)


def _has_frames(fs: Fs, directory: str) -> bool:
    with closing(ShardReader(fs, directory, None).windows()) as windows:
        return next(windows, None) is not None


def _has_bytes(fs: Fs, wal_file: WalFile, wanted: bytes) -> bool:
    file = fs.open(wal_file.path, "read")
    try:
        # Windows overlap, so that none cuts what is wanted.
        starts = range(0, wal_file.size, WINDOW_BYTES)
        windows = (file.pread(WINDOW_BYTES + len(wanted), start) for start in starts)
        return any(kernel.has_text(window, 0, len(window), wanted) for window in windows)
    finally:
        file.close()


def topics_with_gaps(fs: Fs, root: str) -> LogGaps:
    """Raises `Damaged` as the replay would."""
    scan = _GapScan()
    count = found_shard_count(fs, root)
    for shard in range(count):
        directory = layout.shard_directory(root, shard, count)
        finish_rewrites(fs, directory)
        for file, buffer, base, frames in ShardReader(fs, directory, None).windows():
            scan.gaps.frame_count += len(frames)
            for frame in frames:
                if frame.type == _APPEND:
                    scan.append(frame)
                elif frame.type != _SYNC:
                    try:
                        scan.control(frame, frame.data_in(buffer))
                    except BadFrame as error:
                        offset = base + frame.offset
                        raise Damaged(file.path, offset, "a control frame that can be read", error.message) from error
    scan.end()
    return scan.gaps
