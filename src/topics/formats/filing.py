"""Records on their way from WAL frames into segment frames, many at a time.

`scan` verifies the frames of a buffer and gives their records as *runs*: segment frames of one topic whose seqs follow
each other. Frames of other topics may be between its WAL frames. `encode_entries` makes the index entries of a run or
of a part of it.
"""

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from topics.errors import FormatError, FutureVersion
from topics.formats import envelope, kernel, wal_frame
from topics.formats.record_layout import LABEL_FLAGS
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameColumns

# The part of a frame in its write, by its flags: S a write of one frame, F first, M middle, L last of several.
_SHAPES: Final = bytes(b"LSMF"[(flags >> 4 & 1) + (flags >> 3 & 1) * 2] for flags in range(256))
# A write that ends without its last frame, because another write begins.
_BROKEN_OFF: Final = re.compile(rb"[FM](?=[SF])")
# The flags of a segment frame by the flags of its WAL frame.
_LABELS: Final = bytes(flags & LABEL_FLAGS for flags in range(256))

assert (FLAG_FIRST, FLAG_MORE) == (16, 8)


class Run:
    """Records of one topic, seqs without gaps, as segment frames. Entry i of every column is about seq `first_seq + i`.

    A run without records is another frame of the topic, which may begin or end a write.
    """

    __slots__ = (
        "begins_write",
        "buffer",
        "checksums",
        "ends",
        "first_seq",
        "flags",
        "frames",
        "is_open",
        "size_excess",
        "sizes",
        "times",
        "topic_id",
        "wal_frames",
        "whole_count",
    )

    def __init__(self, topic_id: int, first_seq: int, wal_flags: bytes) -> None:
        shapes = wal_flags.translate(_SHAPES)
        self.topic_id: int = topic_id
        self.first_seq: int = first_seq
        # Whether the first frame is the first one of its write, and whether frames of the last write are missing.
        self.begins_write: bool = shapes[0] in b"SF"
        self.is_open: bool = shapes[-1] in b"FM"
        # Number of records up to the end of the last write that ends in the run.
        self.whole_count: int = 0
        # The segment frames, all live, and where each of them ends.
        self.frames: bytes = b""
        self.ends: array[int] = array("I")
        self.checksums: array[int] = array("Q")
        self.times: array[int] = array("Q")
        # Flags of tag and node.
        self.flags: bytes = b""
        # Accounted bytes, each of them too high by `size_excess`.
        self.sizes: Sequence[int] = ()
        self.size_excess: int = 0
        # The buffer with the WAL frames, and their columns.
        self.buffer: bytes = b""
        self.wal_frames: FrameColumns | None = None


class FiledFrames:
    """What `scan` found: runs in the order in which they begin, the number of frames and where they end, and why (None:
    cleanly, or there are `frames_max`)."""

    __slots__ = ("end", "error", "frame_count", "runs")

    def __init__(self, runs: list[Run], frame_count: int, end: int, error: FormatError | FutureVersion | None) -> None:
        self.runs: list[Run] = runs
        self.frame_count: int = frame_count
        self.end: int = end
        self.error: FormatError | FutureVersion | None = error


class _Parts:
    """The places of the frames of one run: parts of the columns that `wal_frame.scan` gives."""

    __slots__ = ("control_place", "end_seq", "is_open", "parts", "topic_id")

    def __init__(self, topic_id: int, control_place: int | None = None) -> None:
        self.topic_id = topic_id
        # The place of a frame that is no record.
        self.control_place = control_place
        self.parts: list[tuple[int, int]] = []
        self.end_seq = 0
        self.is_open = False


def scan(buffer: bytes, frames_max: int, frame_bytes_max: int) -> FiledFrames:
    """The records of the valid frames at the beginning of the buffer, at most `frames_max` frames."""
    found = wal_frame.scan(buffer, 0, len(buffer), frame_bytes_max)
    frames, error = found.frames, found.error
    if len(frames) >= frames_max:
        frames, error = frames.part(0, frames_max), None
    if not frames:
        return FiledFrames([], 0, 0, error)
    has_meta = kernel.has_text(buffer, 0, frames.ends[-1], envelope.META)
    runs = [_filed(buffer, frames, parts, has_meta=has_meta) for parts in _group(frames)]
    return FiledFrames(runs, len(frames), frames.ends[-1], error)


def _group(frames: FrameColumns) -> list[_Parts]:
    """The frames by run. Frames of no topic are left out."""
    groups: list[_Parts] = []
    # The run of each topic that goes on.
    by_topic: dict[int, _Parts] = {}
    seqs, flags = frames.seqs, frames.flags
    for topic_id, start, stop in kernel.append_runs(frames.kinds, frames.topic_ids, seqs):
        if topic_id == 0:
            for place in range(start, stop):
                if other_id := frames.topic_ids[place]:
                    groups.append(_Parts(other_id, place))
                    by_topic.pop(other_id, None)
            continue
        begin = start
        breaks = [match.end() + start for match in _BROKEN_OFF.finditer(flags[start:stop].translate(_SHAPES))]
        for end in (*breaks, stop):
            run = by_topic.get(topic_id)
            if run is None or run.end_seq != seqs[begin] or (run.is_open and flags[begin] & FLAG_FIRST):
                run = by_topic[topic_id] = _Parts(topic_id)
                groups.append(run)
            run.parts.append((begin, end))
            run.end_seq = seqs[end - 1] + 1
            run.is_open = flags[end - 1] & FLAG_MORE != 0
            begin = end
    return groups


def _filed(buffer: bytes, frames: FrameColumns, group: _Parts, *, has_meta: bool) -> Run:
    if group.control_place is not None:
        return Run(group.topic_id, 0, frames.flags[group.control_place : group.control_place + 1])
    columns = _joined(frames, group.parts)
    run = Run(group.topic_id, columns.seqs[0], columns.flags)
    shapes = columns.flags.translate(_SHAPES)
    run.whole_count = max(shapes.rfind(b"S"), shapes.rfind(b"L")) + 1
    run.frames, run.ends, run.checksums = kernel.filed_frames(buffer, columns.offsets, columns.ends)
    run.times = columns.times
    run.flags = columns.flags.translate(_LABELS)
    if has_meta:
        run.sizes = [accounted_bytes(frame.data_in(buffer)) for frame in columns]
    else:
        run.sizes = columns.data_lens
        run.size_excess = envelope.PLAIN_OVERHEAD_BYTES
    run.buffer, run.wal_frames = buffer, columns
    return run


def _joined(frames: FrameColumns, parts: list[tuple[int, int]]) -> FrameColumns:
    """The frames of all these parts."""
    if len(parts) == 1:
        return frames.part(*parts[0])
    pieces = [frames.part(start, stop) for start, stop in parts]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined.offsets += piece.offsets
        joined.ends += piece.ends
        joined.topic_ids += piece.topic_ids
        joined.seqs += piece.seqs
        joined.times += piece.times
        joined.node_lens += piece.node_lens
        joined.tag_lens += piece.tag_lens
        joined.data_lens += piece.data_lens
    joined.kinds = b"".join([piece.kinds for piece in pieces])
    joined.flags = b"".join([piece.flags for piece in pieces])
    return joined


def runs_of(bodies: Iterable[bytes]) -> list[Run]:
    """The records of verified WAL bodies of one topic, seqs ascending. Each record counts as a whole write."""
    frames = wal_frame.seal_bodies(list(bodies))
    runs = scan(frames, len(frames), len(frames)).runs
    for run in runs:
        run.whole_count = len(run.ends)
    return runs


def accounted_bytes(data: bytes) -> int:
    """What a record with this payload counts. A payload that is no envelope, which the engine never writes, counts
    whole."""
    if envelope.META not in data:
        return len(data) - envelope.PLAIN_OVERHEAD_BYTES
    try:
        return envelope.accounted_bytes(data)
    except FormatError:
        return len(data)


def size_bytes(run: Run, start: int, stop: int) -> int:
    """Accounted bytes of records `start` to `stop - 1`."""
    return sum(run.sizes[start:stop]) - run.size_excess * (stop - start)


def add_tags(run: Run, start: int, stop: int, seqs_by_tag: dict[bytes, "array[int]"]) -> None:
    """Adds the seqs of the tagged records among `start` to `stop - 1` to the seqs of their tags."""
    if run.wal_frames is not None:
        kernel.add_tags(run.buffer, run.wal_frames, start, stop, seqs_by_tag)


def encode_entries(run: Run, start: int, stop: int, data_offset: int) -> bytes:
    """The index entries of records `start` to `stop - 1` of the run. The frame of the first one is at `data_offset`."""
    return kernel.index_entries(run.ends, run.times, run.flags, start, stop, data_offset)


def checksum_bytes(run: Run, start: int, stop: int) -> bytes:
    """The stored checksums of records `start` to `stop - 1`, one after the other."""
    checksums = run.checksums[start:stop]
    if sys.byteorder == "big":
        checksums.byteswap()
    return checksums.tobytes()
