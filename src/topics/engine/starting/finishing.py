"""Last phase for the topics: floors that have no frame, counts, leases, and moves to dead-letter topics."""

import logging
from collections.abc import Iterable

from topics.engine.engine import Engine
from topics.engine.groups import pull_back
from topics.engine.starting.log_replay import ReplayedLog
from topics.engine.starting.slots import read_slots
from topics.engine.starting.snapshot_loading import LoadedTopics, MissingSegment
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
            topic.checkpoint.use_entry(entry)
    _check_missing(engine, loaded.missing)
    finish_moves(engine.topics.values(), log.dead_letters)


def _check_missing(engine: Engine, missing: list[MissingSegment]) -> None:
    """Refuses the start when a listed segment without a file may hold live records."""
    topics = {topic.id: topic for topic in engine.topics.values()}
    for topic_id, segment in missing:
        topic = topics.get(topic_id)
        if topic is not None and segment.last_seq >= max(topic.live.evict_floor, topic.live.delete_below):
            path = f"{engine.core.cache.stem(topic_id, segment.first_seq)}.data"
            seqs = f"seqs {segment.first_seq} to {segment.last_seq} of topic {topic.name}"
            raise Damaged(path, 0, seqs, "no file")


def finish_topic(topic: Topic, now_ms: int, *, recount: bool) -> None:
    """Resumes the topic after the replay. `recount`: the numbers of its segments are counted from the files."""
    topic.finish_replay(now_ms, recount=recount)
    _finish_leases(topic)
    pull_back(topic.groups, topic.head_seq)


def _finish_leases(topic: Topic) -> None:
    """Keeps leases of live jobs, if the queue stores leases at all."""
    if topic.config.type == "queue" and topic.leases is None:
        # The frame that created the topic is lost; a later frame with its config is not.
        topic.become_queue()
    table = topic.leases
    if table is None:
        return
    table.resume()
    if not topic.config.leases_durable or topic.config.durability == "ephemeral":
        table.forget_all()
    for state in table.states():
        if topic.live.next_live(state.seq) != state.seq:
            table.forget(state.seq)


def finish_moves(topics: Iterable[Topic], dead_letters: list[control.DeadLetter]) -> None:
    """Deletes each job that a dead-letter topic already has.

    All shards must be read before: a queue and its dead-letter topic may be in two shards.
    """
    queues = {topic.id: topic for topic in topics if topic.leases is not None}
    for queue in queues.values():
        assert queue.leases is not None
        queue.delete_seqs(queue.leases.take_moved())
    for letter in dead_letters:
        topic = queues.get(letter.queue_id)
        # After a power loss another job may have got the seq of the moved one. Its time tells them apart.
        if topic is not None and _ts_of(topic, letter.seq) == letter.ts:
            topic.delete_seqs([letter.seq])


def _ts_of(topic: Topic, seq: int) -> int | None:
    """When the record was written; None when the topic does not have it, or it cannot be read."""
    if not topic.live.first_live <= seq <= topic.head_seq:
        return None
    try:
        form, slots = read_slots(topic, seq, seq, READ_PIECE_BYTES_MIN)
    except ColdUnavailable as error:
        logger.warning("a job that is already a dead letter may be delivered once more: %s", error.message)
        return None
    return decode_raw(slots[0], form).ts if isinstance(slots[0], bytes) else None
