"""The engine goes on with the segments that a checkpoint job wrote. Live records are counted as of now, not as
of the capture."""

from topics.engine.checkpointing.topic_capture import CapturedTopic, current_entry
from topics.formats.snapshot import SegmentState


def take_over(captured: CapturedTopic, touched: list[SegmentState], now_ms: int) -> None:
    """Puts the new segments into use. Deletes since the capture become pending deletes of these segments."""
    topic, work = captured.topic, captured.work
    live, checkpoint = topic.live, topic.checkpoint
    deleted = live.end_capture()
    for first_seq, bits in captured.deleted_bits.items():
        live.segments.clear_pending(first_seq, bits)
    live.take_over_segments(work.after_seq, work.upto_seq, touched)
    live.segments.mark_pending_bits(*deleted)
    checkpoint.topic_json_written(work.topic_json)
    if not checkpoint.is_as_captured:
        return
    if live.segments.dropped:
        checkpoint.mark_changed()
    else:
        checkpoint.use_entry(current_entry(topic, now_ms))
