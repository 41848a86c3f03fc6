"""Which topics have records that the log has no frames of, although the log has its first frame.

Two kinds of records are only in segments: copies that a router made without frames, and records that were written while
their topic was `ephemeral`. The log tells in which topics there may be such records. It is read for a start that has no
readable snapshot only.
"""

from dataclasses import dataclass, field

from topics.engine.starting.shard_count import found_shard_count
from topics.errors import BadFrame, Damaged
from topics.formats import control
from topics.formats.wal_frame import Frame, FrameType
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.wal.reader import ShardReader
from topics.storage.wal.settling import finish_rewrites

_KINDS = frozenset({FrameType.ROUTER_CREATE, FrameType.CONFIG, FrameType.CHECKPOINT})


@dataclass(slots=True)
class LogGaps:
    # Dests of routers, and topics that were ephemeral.
    topic_ids: set[int] = field(default_factory=set)
    # Whether a checkpoint was ever finished.
    has_marks: bool = False

    def take(self, frame: Frame, data: bytes) -> None:
        if frame.type == FrameType.ROUTER_CREATE:
            self.topic_ids.add(control.decode(control.RouterState, data).dest)
        elif frame.type == FrameType.CONFIG:
            if control.decode(control.ConfigUpdate, data).unlogged_last_seq:
                self.topic_ids.add(frame.topic_id)
        else:
            self.has_marks = True


def topics_with_gaps(fs: Fs, root: str) -> LogGaps:
    """Raises `Damaged` as the replay would."""
    gaps = LogGaps()
    count = found_shard_count(fs, root)
    for shard in range(count):
        directory = layout.shard_directory(root, shard, count)
        finish_rewrites(fs, directory)
        for file, buffer, base, frames in ShardReader(fs, directory, None).windows():
            for frame in frames:
                if frame.type in _KINDS:
                    try:
                        gaps.take(frame, frame.data_in(buffer))
                    except BadFrame as error:
                        offset = base + frame.offset
                        raise Damaged(file.path, offset, "a control frame that can be read", error.message) from error
    return gaps
