"""Last phase for the topics: floors that have no frame, counts, leases, and moves from topic to topic."""

import logging
from collections.abc import Iterable, Iterator

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
    finish_moves(engine.topics.values(), log.moves)


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


def finish_moves(topics: Iterable[Topic], moves: list[control.Moved]) -> None:
    """Deletes each record that was moved to another topic.

    All shards must be read before: the two topics may be in two shards.
    """
    by_id = {topic.id: topic for topic in topics}
    for topic in by_id.values():
        if topic.live.moved is not None:
            topic.delete_seqs(topic.live.moved.take_all())
    doomed: dict[Topic, set[int]] = {}
    for moved in moves:
        source = by_id.get(moved.topic_id)
        if source is not None:
            doomed.setdefault(source, set()).update(_same_records(source, moved))
    for source, seqs in doomed.items():
        source.delete_seqs(sorted(seqs))


def _same_records(topic: Topic, moved: control.Moved) -> Iterator[int]:
    """The seqs whose records are the ones that were moved. After a power loss another record may have got such a seq.
    Its time tells them apart."""
    for seq, ts in zip(moved.seqs, moved.times, strict=False):
        is_live = topic.live.first_live <= seq <= topic.head_seq and topic.live.next_live(seq) == seq
        if is_live and _ts_of(topic, seq) == ts:
            yield seq


def _ts_of(topic: Topic, seq: int) -> int | None:
    """When the record was written; None when the topic does not have it, or it cannot be read."""
    try:
        form, slots = read_slots(topic, seq, seq, READ_PIECE_BYTES_MIN)
    except ColdUnavailable as error:
        logger.warning("a record that was moved to another topic may be in both: %s", error.message)
        return None
    return decode_raw(slots[0], form).ts if isinstance(slots[0], bytes) else None
