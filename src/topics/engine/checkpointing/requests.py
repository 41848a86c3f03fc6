"""What the next capture must take into account."""

from topics.engine.checkpointing.old_files import SegmentKey
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import WalPosition


class CheckpointRequests:
    def __init__(self) -> None:
        # No write follows the last checkpoint: all reservations are given back.
        self.closing = False
        # Ids of topics whose active segment is sealed.
        self.to_seal: set[int] = set()
        # Whether a snapshot must be written although no topic changed.
        self.needs_snapshot = False
        # Positions that the snapshot notes instead of the real ones: positions in a layout with another shard count.
        self.layout_positions: list[WalPosition] | None = None
        # Segments that are being moved or replaced: their deletes stay pending.
        self.busy_segments: set[SegmentKey] = set()
        # Segments to be written again that were pinned, moved or replaced when a checkpoint came to them, and their
        # topics.
        self.held_rewrites: dict[SegmentKey, Topic] = {}

    def close(self) -> None:
        self.closing = True

    def forget_topic(self, topic: Topic) -> None:
        """The topic is gone."""
        self.held_rewrites = {key: other for key, other in self.held_rewrites.items() if other is not topic}

    def ask_snapshot(self) -> None:
        self.needs_snapshot = True

    def snapshot_begun(self) -> None:
        self.needs_snapshot = False

    def change_layout(self, positions: list[WalPosition]) -> None:
        self.layout_positions = positions
        self.needs_snapshot = True
