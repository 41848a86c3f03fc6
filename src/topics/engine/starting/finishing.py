"""Last phase for the topics: floors that have no frame, counts, leases, and moves to dead-letter topics."""

import logging
from collections.abc import Iterable

from topics.engine.engine import Engine
from topics.engine.groups import pull_back
from topics.engine.queues.leases import LeaseTable
from topics.engine.starting.log_replay import ReplayedLog
from topics.engine.starting.snapshot_loading import LoadedTopics, MissingSegment
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.tail import Tail
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, Damaged
from topics.formats import control
from topics.formats.record_layout import decode_raw
from topics.limits import READ_PIECE_BYTES_MIN

logger = logging.getLogger(__name__)


def finish_topics(engine: Engine, loaded: LoadedTopics, log: ReplayedLog) -> None:
    """Makes every topic ready to serve. Raises `Damaged` when live records have no file."""
    now_ms = engine.now_ms()
    for topic in engine.topics.values():
        finish_topic(topic, now_ms, recount=topic.id in log.recount_ids)
        entry = loaded.unused_entries.get(topic.id)
        if entry is not None and topic.id not in log.mentioned_ids and not topic.head_seq:
            # The snapshot entry is still right: the next checkpoint uses it as it is.
            topic.encoded = entry
    _check_missing(engine, loaded.missing)
    finish_moves(engine.topics.values(), log.dead_letters)


def _check_missing(engine: Engine, missing: list[MissingSegment]) -> None:
    """Refuses the start when a listed segment without a file may hold live records."""
    topics = {topic.id: topic for topic in engine.topics.values()}
    for topic_id, segment in missing:
        topic = topics.get(topic_id)
        if topic is not None and segment.last_seq >= max(topic.evict_floor, topic.delete_below):
            path = f"{engine.cache.stem(topic_id, segment.first_seq)}.data"
            seqs = f"seqs {segment.first_seq} to {segment.last_seq} of topic {topic.name}"
            raise Damaged(path, 0, seqs, "no file")


def finish_topic(topic: Topic, now_ms: int, *, recount: bool) -> None:
    """Resumes the topic after the replay. `recount`: the numbers of its segments are counted from the files."""
    replayed = topic.replayed
    assert replayed is not None
    if replayed.end_seq == replayed.first_seq:
        topic.replayed = None
    topic.next_seq = topic.head_seq + 1
    if topic.tail.end_seq != topic.head_seq + 1:
        # A tail that ends at the head holds copies that a router has just made: it stays.
        topic.tail = Tail(topic.head_seq + 1)
    _settle_floors(topic)
    _count_records(topic, recount=recount)
    # Expired records take no room, so they go before the caps are applied.
    topic.refresh(now_ms)
    topic.apply_caps()
    # Removes lost ranges that a floor has passed.
    topic.raise_floors()
    topic.staged_floor = topic.cap_floor
    topic.ceiling_asked = topic.ceiling
    _finish_leases(topic)
    pull_back(topic.groups, topic.head_seq)


def _settle_floors(topic: Topic) -> None:
    """The head of an ephemeral topic falls back to the last checkpoint. No floor may stay above the head: it would
    take seqs that are still to come."""
    topic.cap_floor = min(topic.cap_floor, topic.head_seq)
    topic.ttl_floor = min(topic.ttl_floor, topic.head_seq)
    topic.delete_below = min(topic.delete_below, topic.head_seq + 1)
    config = topic.config
    if config.cap_records and config.discard == "old":
        topic.cap_floor = max(topic.cap_floor, topic.head_seq - config.cap_records)
    topic.staged_floor = topic.cap_floor


def _count_records(topic: Topic, *, recount: bool) -> None:
    floor = max(topic.evict_floor, min(topic.delete_below, topic.head_seq + 1))
    segments = topic.segments
    floor_rose = floor > topic.first_live
    for segment in segments.segments:
        is_cut_by_floor = floor_rose and segment.first_seq < floor <= segment.last_seq
        if recount or segments.has_pending(segment) or is_cut_by_floor:
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
    if not topic.count:
        topic.first_live = topic.head_seq + 1
    elif recount or floor > topic.first_live or topic.first_live > topic.checkpointed_seq:
        # In all other cases `first_live` of the snapshot is right, and no file is read.
        topic.first_live = topic.next_live(floor) or topic.head_seq + 1


def _mark_deleted_below(topic: Topic, first_seq: int, last_seq: int) -> None:
    """A checkpoint may have had no time to set the delete bytes of a `before_seq` delete."""
    if first_seq < topic.delete_below <= last_seq:
        topic.segments.mark_pending(range(first_seq, topic.delete_below))


def _finish_leases(topic: Topic) -> None:
    """Keeps leases of live jobs, if the queue stores leases at all."""
    if topic.config.type == "queue" and topic.leases is None:
        # The frame that created the topic is lost; a later frame with its config is not.
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


def finish_moves(topics: Iterable[Topic], dead_letters: list[control.DeadLetter]) -> None:
    """Deletes each job that a dead-letter topic already has.

    All shards must be read before: a queue and its dead-letter topic may be in two shards.
    """
    queues = {topic.id: topic for topic in topics if topic.leases is not None}
    for queue in queues.values():
        assert queue.leases is not None
        queue.delete_seqs(sorted(queue.leases.moved))
        queue.leases.moved.clear()
    for letter in dead_letters:
        topic = queues.get(letter.queue_id)
        # After a power loss another job may have got the seq of the moved one. Its time tells them apart.
        if topic is not None and _ts_of(topic, letter.seq) == letter.ts:
            topic.delete_seqs([letter.seq])


def _ts_of(topic: Topic, seq: int) -> int | None:
    """When the record was written; None when the topic does not have it, or it cannot be read."""
    if not topic.first_live <= seq <= topic.head_seq:
        return None
    try:
        found = topic.job_slots(seq, seq, READ_PIECE_BYTES_MIN, may_wait=True)
    except ColdUnavailable as error:
        logger.warning("a job that is already a dead letter may be delivered once more: %s", error.message)
        return None
    assert not isinstance(found, Fetch)
    form, slots = found
    return decode_raw(slots[0], form).ts if isinstance(slots[0], bytes) else None
