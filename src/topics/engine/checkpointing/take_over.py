"""The engine goes on with the segments that a checkpoint job wrote. Live records are counted as of now, not as
of the capture."""

from topics.engine.checkpointing.topic_capture import CapturedTopic, current_entry
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import SegmentState


def take_over(captured: CapturedTopic, touched: list[SegmentState], now_ms: int) -> None:
    """Puts the new segments into use. Deletes since the capture become pending deletes of these segments."""
    topic, work = captured.topic, captured.work
    killed, topic.killed_meanwhile = topic.killed_meanwhile or [], None
    segments = topic.segments
    for first_seq, seqs in captured.deleted_seqs.items():
        segments.clear_pending(first_seq, seqs)
    _use_segments(topic, work.after_seq, work.upto_seq, touched)
    segments.mark_pending(seq for seq in killed if work.after_seq < seq <= work.upto_seq)
    topic.topic_json = work.topic_json or topic.topic_json
    if topic.encoded == b"":
        topic.encoded = None if segments.dropped else current_entry(topic, now_ms)


def _use_segments(topic: Topic, after_seq: int, upto_seq: int, touched: list[SegmentState]) -> None:
    """Replaces the active segment and adds new ones. Their live records are counted from memory."""
    segments = topic.segments
    by_first_seq = {segment.first_seq: segment for segment in segments.segments}
    for segment in touched:
        old = by_first_seq.get(segment.first_seq)
        count, size = (old.live_count, old.live_bytes) if old is not None else (0, 0)
        first, last = max(after_seq + 1, segment.first_seq, topic.first_live), segment.last_seq
        more_count, more_size = _numbers_in_memory(topic, first, last)
        segment.live_count, segment.live_bytes = count + more_count, size + more_size
        by_first_seq[segment.first_seq] = segment
    segments.replace([by_first_seq[first_seq] for first_seq in sorted(by_first_seq)])
    topic.checkpointed_seq = max(topic.checkpointed_seq, upto_seq)
    topic.replayed = None
    segments.drop([segment for segment in segments.segments if segment.last_seq < topic.first_live])
    sealed = [segment.last_seq for segment in segments.segments if segment.sealed]
    if len(topic.tags):
        topic.tags.forget_below(max(sealed[-1] + 1 if sealed else 0, topic.first_live))


def _numbers_in_memory(topic: Topic, first: int, last: int) -> tuple[int, int]:
    """(count, bytes) of live records."""
    count, size = 0, 0
    if topic.replayed is not None:
        count, size = topic.replayed.live_numbers(first, last)
        first = max(first, topic.replayed.end_seq)
    more_count, more_size = topic.tail.live_numbers(first, last)
    return count + more_count, size + more_size


def trim_tail(topic: Topic, cache_bytes: int) -> None:
    """Records that are in segments stay in memory only as far as the cache allows."""
    last_seq = min(topic.checkpointed_seq, topic.tail.end_seq - 1)
    if last_seq >= topic.tail.first_seq:
        topic.tail.forget_below(topic.tail.cache_from(last_seq, cache_bytes))
