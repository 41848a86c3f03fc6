"""A topic as of the turn in which all shards of the WAL hold still."""

from collections.abc import Collection

import msgspec

from topics.engine.config import config_members
from topics.engine.topic import slot_bits
from topics.engine.topic.live_records import DeadMarks
from topics.engine.topic.topic import Topic
from topics.formats import snapshot as codec
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage.checkpoints.job import FlagWork, TopicWork


class CapturedTopic:
    """What one checkpoint stores of one topic."""

    __slots__ = ("_dead", "deleted_bits", "state", "topic", "work")

    def __init__(
        self,
        topic: Topic,
        state: TopicState,
        work: TopicWork,
        dead: list[DeadMarks],
        deleted_bits: dict[int, bytes],
    ) -> None:
        self.topic = topic
        self.state = state
        # Complete after `prepare`.
        self.work = work
        self._dead = dead
        # First seq of a hot segment -> one bit per slot: this checkpoint sets its delete byte.
        self.deleted_bits = deleted_bits

    def prepare(self) -> list[FlagWork]:
        """Completes the work, and says which delete bytes the job sets. For the thread that runs the job: with many
        deletes it takes longer than a turn should."""
        self.work.dead = [
            (piece.first_seq + first, piece.first_seq + last)
            for piece in self._dead
            for first, last in slot_bits.runs_of_marks(piece.marks)
        ]
        return [
            FlagWork(
                self.topic.id,
                msgspec.structs.replace(segment),
                [segment.first_seq + place for place in slot_bits.places(self.deleted_bits[segment.first_seq])],
            )
            for segment in self.state.segments
            if segment.first_seq in self.deleted_bits
        ]

    def entry(self, touched: list[SegmentState]) -> bytes:
        """The snapshot entry: the captured state with the segments that the job wrote, and the captured numbers."""
        state = self.state
        changed = {segment.first_seq: segment for segment in touched}
        kept = [segment for segment in state.segments if segment.first_seq not in changed]
        state.segments = sorted([*kept, *touched], key=lambda segment: segment.first_seq)
        return bytes(codec.encode_topic(state))

    def segment_rewritten(self, segment: SegmentState) -> None:
        """The job wrote the segment again: the snapshot notes the new files."""
        state = self.state
        state.segments = [segment if held.first_seq == segment.first_seq else held for held in state.segments]

    def topic_removed(self) -> None:
        """The topic was removed while the job ran."""
        self.topic.live.end_capture()

    def job_failed(self) -> None:
        """Nothing of the capture is durable: the next checkpoint captures the topic again."""
        self.topic.live.end_capture()
        self.topic.checkpoint.capture_failed()

    def snapshot_failed(self) -> None:
        """The new segments are in use, but no snapshot lists them: the next one must."""
        self.topic.checkpoint.mark_changed()

    def snapshot_written(self) -> None:
        self.topic.checkpoint.snapshot_written(self.work.upto_seq)


def apply_due_changes(topic: Topic, now_ms: int, segment_age_ms_max: int, *, closing: bool) -> None:
    """Changes that are due at a checkpoint: expired records go, unused reservations are given back, and an active
    segment that is old enough is sealed by the job."""
    topic.refresh(now_ms)
    if topic.live.segments.dropped:
        topic.checkpoint.mark_changed()
    _give_reservations_back(topic, closing=closing)
    active = topic.live.active_segment()
    if active is not None and segment_age_ms_max and now_ms - active.created_ts >= segment_age_ms_max:
        topic.checkpoint.mark_changed()


def _give_reservations_back(topic: Topic, *, closing: bool) -> None:
    # A topic that did not change since the last checkpoint is idle. The next write reserves seqs again.
    is_idle = closing or not topic.checkpoint.is_changed
    if is_idle and topic.writes.give_ceiling_back(topic.head_seq):
        topic.checkpoint.mark_changed()
    # When the engine closes, no job is claimed any more.
    if closing and topic.leases is not None and topic.leases.give_ceiling_back():
        topic.checkpoint.mark_changed()


def capture_topic(topic: Topic, now_ms: int, busy_segments: set[tuple[int, int]], *, seal: bool) -> CapturedTopic:
    """Captures the topic for a job. `busy_segments` get no delete bytes; `seal`: the active segment is sealed."""
    upto_seq = stored_last_seq(topic)
    if topic.links.hops is not None and topic.links.routers_out:
        topic.links.hops.checkpoint(min(router.settled[0] for router in topic.links.routers_out))
    segments = topic.live.segments
    deleted_bits = {
        segment.first_seq: segments.pending_bits(segment)
        for segment in segments.segments
        if segment.tier == "hot"
        and segments.has_pending(segment)
        and (topic.id, segment.first_seq) not in busy_segments
    }
    state = capture_state(topic, upto_seq, now_ms, flagged=deleted_bits)
    active = topic.live.active_segment()
    work = TopicWork(
        topic.id,
        after_seq=topic.live.checkpointed_seq,
        upto_seq=upto_seq,
        floor_seq=topic.live.first_live,
        dead=[],
        active=msgspec.structs.replace(active) if active is not None else None,
        unlogged=_unlogged(topic, upto_seq),
        topic_json=_changed_topic_json(topic, upto_seq),
        topic_json_may_stand=topic.checkpoint.topic_json is None,
        seal=seal,
    )
    dead = topic.live.begin_capture(upto_seq)
    topic.checkpoint.begin_capture()
    return CapturedTopic(topic, state, work, dead, deleted_bits)


def stored_last_seq(topic: Topic) -> int:
    """The last seq whose record outlives the process. Records of an ephemeral topic are only in memory."""
    is_ephemeral = topic.config.durability == "ephemeral"
    return max(topic.live.logged_last_seq if is_ephemeral else topic.head_seq, topic.live.checkpointed_seq)


def current_entry(topic: Topic, now_ms: int) -> bytes:
    """The snapshot entry of a topic that did not change since its capture. Later snapshots use it too."""
    return bytes(codec.encode_topic(capture_state(topic, topic.live.checkpointed_seq, now_ms)))


def capture_state(topic: Topic, upto_seq: int, now_ms: int, flagged: Collection[int] = ()) -> TopicState:
    """The topic with its records up to `upto_seq` in segments, and with all delete bytes of the segments `flagged`, by
    their first seqs."""
    # An idempotency key is kept while its window runs, whatever the durability is now. But its records must be kept
    # too: records that only memory holds end with the process.
    keys = topic.keys.up_to(upto_seq)
    if not topic.writes.is_changing:
        # A config that is being logged has a time and a window of its own, and decides itself which keys have ended.
        window_ms = topic.config.idempotency_window_ms
        keys = [key for key in keys if now_ms - key.ts < window_ms]
    segments = topic.live.segments
    leases = topic.leases
    keeps_leases = topic.config.leases_durable and topic.config.durability != "ephemeral"
    return TopicState(
        topic.name,
        topic.id,
        topic.epoch,
        config_members(topic.config),
        head_seq=topic.head_seq,
        last_ts=topic.writes.last_ts,
        cap_floor=topic.live.cap_floor,
        ttl_floor=topic.live.ttl_floor,
        delete_below=topic.live.delete_below,
        first_live=topic.live.first_live,
        checkpointed_seq=upto_seq,
        segments=[msgspec.structs.replace(segment) for segment in segments.segments],
        ceiling=topic.writes.ceiling,
        lost=topic.live.lost.pairs("power_loss"),
        source_trims=topic.live.lost.pairs("source_trim"),
        keys=keys,
        pending_deletes=segments.pending_runs(segments.segments, without=flagged),
        leases=leases.states() if leases is not None and keeps_leases else [],
        lease_ceiling=leases.ceiling if leases is not None else 1,
        moved=sorted(topic.live.moved.seqs) if topic.live.moved is not None else [],
        groups=list(topic.groups.values()),
        writers=list(topic.writers.values()),
        bridges=topic.links.bridge_states(),
        hops=topic.links.hops.within(0, upto_seq) if topic.links.hops is not None else [],
    )


def _unlogged(topic: Topic, upto_seq: int) -> list[bytes]:
    """Records that the job must get from memory, because the WAL has no frame of them: records of a topic that was
    ephemeral when they were written and is not any more, and derived copies of a router."""
    first = max(topic.live.checkpointed_seq + 1, topic.live.tail.first_seq)
    last = min(max(topic.live.unlogged_last_seq, topic.links.copied_last_seq), upto_seq)
    if last < first:
        return []
    return [body for body in topic.live.tail.read(first, last) if body is not None]


def topic_json(topic: Topic) -> bytes:
    """Content of `topic.json`: for a start without a snapshot, and for readers of the topic's directory alone."""
    leases = {} if topic.leases is None else {"lease_ceiling": topic.leases.ceiling}
    # Else the last record on disk says where the topic ends, and the file need not be written at every checkpoint.
    head = {} if topic.live.head_has_record else {"head_seq": topic.head_seq}
    lost = {}
    if topic.live.lost:
        lost = {
            "lost": topic.live.lost.pairs("power_loss"),
            "source_trims": topic.live.lost.pairs("source_trim"),
        }
    return msgspec.json.encode(
        {
            "format": 1,
            "id": topic.id,
            "name": topic.name,
            "epoch": topic.epoch,
            "config": config_members(topic.config),
            "cap_floor": topic.live.cap_floor,
            "ttl_floor": topic.live.ttl_floor,
            "delete_below": topic.live.delete_below,
            **head,
            **leases,
            **lost,
        }
    )


def _changed_topic_json(topic: Topic, upto_seq: int) -> bytes:
    """Empty when the file need not be written."""
    if upto_seq == 0:
        # A topic without segments gets no directory, so a hundred thousand idle topics have none.
        return b""
    content = topic_json(topic)
    return b"" if content == topic.checkpoint.topic_json else content
