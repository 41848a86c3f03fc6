"""What the log holds beyond a snapshot, while a server may go on writing it. It only reads the headers of frames.

The last frame may be incomplete, because it is being written. That is no damage here.
"""

from dataclasses import dataclass, field

from topics.formats.snapshot import Snapshot
from topics.formats.wal_frame import FrameType
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.wal.reader import ShardReader


@dataclass(slots=True)
class LogBeyond:
    """What the log holds and segments do not, by topic id."""

    # First and last seq of records.
    records: dict[int, tuple[int, int]] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)

    def add_record(self, topic_id: int, seq: int) -> None:
        first_seq, last_seq = self.records.get(topic_id, (seq, seq))
        self.records[topic_id] = min(first_seq, seq), max(last_seq, seq)


def log_beyond(fs: Fs, root: str, snapshot: Snapshot) -> LogBeyond:
    """Raises `FileNotFoundError` or `Damaged` when a checkpoint takes files away meanwhile, and `Damaged` also when
    bytes changed while they were read: with a newer snapshot it is worth another try."""
    found = LogBeyond()
    for shard, start in enumerate(snapshot.wal):
        reader = ShardReader(fs, layout.shard_directory(root, shard, len(snapshot.wal)), start)
        for _, _, _, frames in reader.windows():
            for frame in frames:
                if frame.type == FrameType.APPEND:
                    found.add_record(frame.topic_id, frame.seq)
                elif frame.type == FrameType.TOPIC_DELETE:
                    found.removed.add(frame.topic_id)
    return found
