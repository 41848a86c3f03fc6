"""Pairs of files in `staging/`, as a program would make them to replace segments."""

from collections.abc import Callable

from topics.engine.checkpointing.replacement import Offer
from topics.engine.topic.topic import Topic
from topics.formats import segment as codec
from topics.formats import segment_index
from topics.formats.segment import SegmentFrame
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.testing.fake_disk import FakeDisk


def rewritten(
    data: bytes, first_seq: int, entry_count: int, stays: Callable[[SegmentFrame], bool]
) -> tuple[bytes, bytes]:
    """`.data` with the frames that stay, and its `.idx`."""
    frames = [frame for frame in codec.walk(data, 0, len(data)) if stays(frame)]
    entries = [(0, 0, 0, 0)] * entry_count
    offset = 0
    for frame in frames:
        length = frame.end - frame.offset
        entries[frame.seq - first_seq] = (offset, length, frame.ts, frame.flags)
        offset += length
    return b"".join(data[frame.offset : frame.end] for frame in frames), segment_index.encode(entries)


def purged(disk: FakeDisk, root: str, topic: Topic, state: SegmentState) -> Offer:
    """Offers the segment without its deleted records. The last record of the segment always stays."""
    path = f"{root}/{layout.segment_object(topic.id, state.first_seq, 'data')}"
    data, index = rewritten(
        disk.read(path),
        state.first_seq,
        state.entry_count,
        lambda frame: not frame.deleted or frame.seq == state.last_seq,
    )
    return offered(disk, root, topic, state, data, index)


def offered(disk: FakeDisk, root: str, topic: Topic, state: SegmentState, data: bytes, index: bytes) -> Offer:
    names = (f"{topic.id}-{state.first_seq}.data", f"{topic.id}-{state.first_seq}.idx")
    disk.makedirs(layout.staging_directory(root))
    for name, content in zip(names, (data, index), strict=True):
        disk.replace(f"{layout.staging_directory(root)}/{name}", content)
    return Offer(topic.id, topic.epoch, state.first_seq, state.digest, *names)
