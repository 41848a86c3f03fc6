"""The numbers of a segment (`SegmentState`), counted from its frames."""

from bisect import bisect_left

from topics.formats import envelope, filing, kernel
from topics.formats import segment as codec
from topics.formats.record_layout import FLAG_TAG
from topics.formats.segment import SegmentColumns
from topics.formats.snapshot import SegmentState


def extend(segment: SegmentState, data: bytes, end_seq: int | None = None) -> SegmentColumns:
    """Adds the whole valid frames after the noted length, and below `end_seq`, to the numbers of the segment. Returns
    the frames that were added."""
    frames = codec.scan(data, segment.data_bytes, len(data))
    count = len(frames) if end_seq is None else bisect_left(frames.seqs, end_seq)
    if count and frames.seqs[0] <= segment.last_seq:
        count = 0
    frames = frames.part(0, count)
    if not count:
        return frames
    if segment.entry_count == 0 and segment.first_ts == 0:
        segment.first_ts = segment.created_ts = frames.times[0]
    first_at = segment.data_bytes
    segment.entry_count = frames.seqs[-1] - segment.first_seq + 1
    segment.data_bytes = frames.ends[-1]
    segment.last_ts = max(segment.last_ts, *frames.times)
    segment.tagged_count += sum(flags & FLAG_TAG for flags in frames.flags)
    if kernel.has_text(data, first_at, segment.data_bytes, envelope.META) or any(frames.deleted):
        sizes = [
            filing.accounted_bytes(data[end - codec.TRAILER_BYTES - data_len : end - codec.TRAILER_BYTES])
            for end, data_len, is_deleted in zip(frames.ends, frames.data_lens, frames.deleted, strict=True)
            if not is_deleted
        ]
        segment.live_count += len(sizes)
        segment.live_bytes += sum(sizes)
    else:
        segment.live_count += count
        segment.live_bytes += sum(frames.data_lens) - count * envelope.PLAIN_OVERHEAD_BYTES
    return frames
