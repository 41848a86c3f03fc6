"""The whole engine as of the turn in which all shards of the WAL hold still."""

from dataclasses import dataclass

from topics.engine.checkpointing.old_files import OldFiles
from topics.engine.checkpointing.requests import CheckpointRequests
from topics.engine.checkpointing.topic_capture import CapturedTopic, apply_due_changes, capture_topic
from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import Snapshot, WalPosition


@dataclass(frozen=True, slots=True)
class Capture:
    """What one checkpoint stores."""

    # Up to where the checkpoint puts the records of each shard into segments.
    positions: list[WalPosition]
    # Topics that changed since the last checkpoint.
    topics: list[CapturedTopic]
    # Topic id -> snapshot entry of all other topics. A captured topic gets its entry when its segments are written.
    entries: dict[int, bytes]
    # Without its topics.
    snapshot: Snapshot
    routers_changed: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed since the last snapshot."""
        return not self.topics and not self.routers_changed


def capture_engine(engine: Engine, number: int, requests: CheckpointRequests, old_files: OldFiles) -> Capture:
    """Captures all topics that changed, for the snapshot of this number."""
    now_ms = engine.now_ms()
    age_ms_max = engine.settings.segment_age_ms_max
    topics: list[CapturedTopic] = []
    for topic in engine.topics.values():
        apply_due_changes(topic, now_ms, age_ms_max, closing=requests.closing)
        if topic.checkpoint.is_changed:
            topics.append(_capture(topic, now_ms, number, requests, old_files))
    positions = engine.wal.positions
    # Routers are captured in the same turn as their dests: a cursor and the copies up to it belong together.
    routers, routers_changed = engine.routing.take_states()
    snapshot = Snapshot(
        number,
        engine.core.next_topic_id,
        requests.layout_positions or positions,
        next_router_id=engine.routing.next_router_id,
        routers=routers,
    )
    entries = {topic.id: entry for topic in engine.topics.values() if (entry := topic.checkpoint.entry) is not None}
    return Capture(positions, topics, entries, snapshot, routers_changed)


def _capture(
    topic: Topic, now_ms: int, number: int, requests: CheckpointRequests, old_files: OldFiles
) -> CapturedTopic:
    topic.live.segments.drop_dead()
    old_files.take_dropped(topic, last_snapshot=number - 1)
    captured = capture_topic(topic, now_ms, requests.busy_segments, seal=topic.id in requests.to_seal)
    requests.to_seal.discard(topic.id)
    return captured
