"""Records on their way from WAL frames into segment frames, many at a time.

`scan` verifies the frames of a buffer and gives their records as *runs*: segment frames of one topic whose seqs follow
each other. Frames of other topics may be between its WAL frames. `encode_entries` makes the index entries of a run or
of a part of it.

The body of a segment frame (flags, then the core) is a copy of the last bytes of the WAL body: the byte before the core
becomes the flags. Its checksum is computed anew, after the checksum of the WAL frame was compared.
"""

import sys
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, repeat
from operator import sub
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from topics.errors import FormatError, FutureVersion
from topics.formats import envelope, wal_frame
from topics.formats.record_layout import (
    CHECKSUM,
    CHECKSUM_BYTES,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN,
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    LIVE,
    SEGMENT_TRAILER_BYTES,
    WAL_BODY_HEADER,
    WAL_CORE_AT,
    WAL_FRAME_HEADER,
)
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.wal_frame import FLAG_DURABLE, FLAG_FIRST, FLAG_MORE, FrameType

_APPEND: Final = int(FrameType.APPEND)
_TYPE_LAST: Final = int(max(FrameType))
_FLAGS_KNOWN: Final = LABEL_FLAGS | FLAG_DURABLE | FLAG_MORE | FLAG_FIRST
# The flags byte of a segment body by the flags of its WAL frame.
_FLAGS_BYTES: Final = tuple(bytes((flags & LABEL_FLAGS,)) for flags in range(256))
# Checksum and delete byte of a segment frame, and the length of the next frame.
_SEAM: Final = Struct("<QBI")
# An index entry in words of 32 bits: offset, length, ts (low, high), flags.
_ENTRY_WORDS: Final = ENTRY_BYTES // 4

# The highest byte of a topic id below this is zero.
_SHORT_IDS_END: Final = 2**56
# By the flags of a WAL frame: whether its write ends with it; the flags of its tag and node.
_ENDS: Final = bytes(flags & FLAG_MORE == 0 for flags in range(256))
_LABELS: Final = bytes(flags & LABEL_FLAGS for flags in range(256))

assert _ENTRY_WORDS == 5
assert array("I").itemsize == 4

_Adders = tuple[Callable[[bytes], None], Callable[[int], None], Callable[[int], None], Callable[[int], None]]


class Run:
    """Records of one topic, seqs without gaps, as segment frames. Entry i of every column is about seq `first_seq + i`.

    A run without records is another frame of the topic, which may begin or end a write.
    """

    __slots__ = (
        "begins_write",
        "checksums",
        "ends",
        "first_seq",
        "flags",
        "frames",
        "is_open",
        "sizes",
        "tags",
        "times",
        "topic_id",
        "whole_count",
    )

    def __init__(self, topic_id: int, first_seq: int) -> None:
        self.topic_id: int = topic_id
        self.first_seq: int = first_seq
        # Whether the first frame is the first one of its write, and whether frames of the last write are missing.
        self.begins_write: bool = False
        self.is_open: bool = False
        # Number of records up to the end of the last write that ends in the run.
        self.whole_count: int = 0
        # The segment frames, all live, and where each of them ends.
        self.frames: bytes = b""
        self.ends: array[int] = array("I")
        self.checksums: array[int] = array("Q")
        self.times: array[int] = array("Q")
        # Flags of tag and node.
        self.flags: bytes = b""
        # Accounted bytes.
        self.sizes: array[int] = array("I")
        # (seq, tag) of the records that have a tag.
        self.tags: list[tuple[int, bytes]] = []


class FiledFrames:
    """What `scan` found: runs in the order in which they begin, the number of frames and where they end, and why (None:
    cleanly, or there are `frames_max`)."""

    __slots__ = ("end", "error", "frame_count", "runs")

    def __init__(self, runs: list[Run], frame_count: int, end: int, error: FormatError | FutureVersion | None) -> None:
        self.runs: list[Run] = runs
        self.frame_count: int = frame_count
        self.end: int = end
        self.error: FormatError | FutureVersion | None = error


class _Columns:
    """A run while its frames are found."""

    __slots__ = ("bodies", "end_seq", "flags", "run", "sizes", "tags", "times")

    def __init__(self, topic_id: int, first_seq: int) -> None:
        self.run = Run(topic_id, first_seq)
        self.end_seq = first_seq
        # Segment bodies.
        self.bodies: list[bytes] = []
        self.times: list[int] = []
        # Flags of the WAL frames.
        self.flags = bytearray()
        self.sizes: list[int] = []
        self.tags: list[tuple[int, bytes]] = []

    def finish(self) -> Run:
        run, bodies = self.run, self.bodies
        if not bodies:
            return run
        wal_flags = self.flags
        run.begins_write = wal_flags[0] & FLAG_FIRST != 0
        run.is_open = wal_flags[-1] & FLAG_MORE != 0
        run.whole_count = wal_flags.translate(_ENDS).rfind(1) + 1
        lengths = list(map(SEGMENT_TRAILER_BYTES.__add__, map(len, bodies)))
        checksums = list(map(xxh3_64_intdigest, bodies))
        # Between two bodies are the checksum and the delete byte of the first, and the length of the second.
        seams = list(map(_SEAM.pack, checksums, repeat(LIVE), [*lengths[1:], 0]))
        seams[-1] = seams[-1][:SEGMENT_TRAILER_BYTES]
        parts: list[bytes] = [b""] * (2 * len(bodies))
        parts[::2] = bodies
        parts[1::2] = seams
        run.frames = FRAME_LEN.pack(lengths[0]) + b"".join(parts)
        run.ends = array("I", accumulate(map(FRAME_LEN_BYTES.__add__, lengths)))
        run.checksums = array("Q", checksums)
        run.times = array("Q", self.times)
        run.flags = bytes(wal_flags.translate(_LABELS))
        run.sizes = array("I", self.sizes)
        run.tags = self.tags
        return run


def scan(buffer: bytes, frames_max: int, frame_bytes_max: int) -> FiledFrames:
    """The records of the valid frames at the beginning of the buffer, at most `frames_max` frames.

    A frame is valid as for `wal_frame.scan`. This is the hot loop of a checkpoint.
    """
    unpack, digest, stored_at = WAL_FRAME_HEADER.unpack_from, xxh3_64_intdigest, CHECKSUM.unpack_from
    end = len(buffer)
    last_start = end - wal_frame.HEADER_BYTES
    has_meta = buffer.find(envelope.META) >= 0
    found: list[_Columns] = []
    # The run of each topic that goes on.
    by_topic: dict[int, _Columns] = {}
    # The run that the last record went to: its topic, the seq after its last record, and whether a write is open.
    run_topic, run_seq, is_open = 0, 0, 0
    columns = _Columns(0, 0)
    add_body, add_time, add_flags, add_size = _adders(columns)
    offset = count = 0
    while offset <= last_start and count < frames_max:
        frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = unpack(buffer, offset)
        frame_end = offset + FRAME_LEN_BYTES + frame_len
        checksum_at = frame_end - CHECKSUM_BYTES
        if (
            frame_len != node_len + tag_len + data_len + wal_frame.FRAME_LEN_MIN
            or frame_len > frame_bytes_max
            or frame_end > end
            or digest(buffer[offset + FRAME_LEN_BYTES : checksum_at]) != stored_at(buffer, checksum_at)[0]
            or not 0 < kind <= _TYPE_LAST
            or flags > _FLAGS_KNOWN
            or (tag_len and not flags & FLAG_TAG)
            or (node_len and not flags & FLAG_NODE)
        ):
            break
        count += 1
        if kind == _APPEND:
            if topic_id != run_topic or seq != run_seq or (is_open and flags & FLAG_FIRST):
                columns.end_seq = run_seq
                known = by_topic.get(topic_id)
                if known is None or seq != known.end_seq or (known.flags[-1] & FLAG_MORE and flags & FLAG_FIRST):
                    known = by_topic[topic_id] = _Columns(topic_id, seq)
                    found.append(known)
                columns, run_topic = known, topic_id
                add_body, add_time, add_flags, add_size = _adders(columns)
            core_at = offset + FRAME_LEN_BYTES + WAL_CORE_AT
            if flags & LABEL_FLAGS:
                add_body(_FLAGS_BYTES[flags] + buffer[core_at:checksum_at])
                if flags & FLAG_TAG:
                    tag_at = offset + wal_frame.HEADER_BYTES + node_len
                    columns.tags.append((seq, buffer[tag_at : tag_at + tag_len]))
            elif topic_id < _SHORT_IDS_END:
                add_body(buffer[core_at - 1 : checksum_at])
            else:
                add_body(b"\0" + buffer[core_at:checksum_at])
            add_time(ts)
            add_flags(flags)
            add_size(
                accounted_bytes(buffer[checksum_at - data_len : checksum_at])
                if has_meta
                else data_len - envelope.PLAIN_OVERHEAD_BYTES
            )
            run_seq = seq + 1
            is_open = flags & FLAG_MORE
        elif topic_id:
            columns.end_seq = run_seq
            control = _Columns(topic_id, 0)
            control.run.begins_write = flags & FLAG_FIRST != 0
            control.run.is_open = flags & FLAG_MORE != 0
            found.append(control)
            by_topic.pop(topic_id, None)
            run_topic = 0
        offset = frame_end
    error = None if count == frames_max else wal_frame.scan(buffer, offset, end, frame_bytes_max).error
    return FiledFrames([columns.finish() for columns in found], count, offset, error)


def _adders(columns: _Columns) -> _Adders:
    return columns.bodies.append, columns.times.append, columns.flags.append, columns.sizes.append


def runs_of(bodies: Iterable[bytes]) -> list[Run]:
    """The records of verified WAL bodies of one topic, seqs ascending. Each record counts as a whole write."""
    found: list[_Columns] = []
    columns: _Columns | None = None
    for body in bodies:
        _, flags, topic_id, seq, ts, node_len, tag_len, data_len = WAL_BODY_HEADER.unpack_from(body)
        if columns is None or seq != columns.end_seq:
            columns = _Columns(topic_id, seq)
            found.append(columns)
        columns.end_seq = seq + 1
        columns.bodies.append(_FLAGS_BYTES[flags] + body[WAL_CORE_AT:])
        columns.times.append(ts)
        columns.flags.append(flags & LABEL_FLAGS | FLAG_FIRST)
        columns.sizes.append(accounted_bytes(body[len(body) - data_len :]))
        if flags & FLAG_TAG:
            tag_at = wal_frame.BODY_HEADER_BYTES + node_len
            columns.tags.append((seq, body[tag_at : tag_at + tag_len]))
    return [columns.finish() for columns in found]


def accounted_bytes(data: bytes) -> int:
    """What a record with this payload counts. A payload that is no envelope, which the engine never writes, counts
    whole."""
    if envelope.META not in data:
        return len(data) - envelope.PLAIN_OVERHEAD_BYTES
    try:
        return envelope.accounted_bytes(data)
    except FormatError:
        return len(data)


def encode_entries(run: Run, start: int, stop: int, data_offset: int) -> bytes:
    """The index entries of records `start` to `stop - 1` of the run. The frame of the first one is at `data_offset`."""
    count = stop - start
    ends = run.ends[start:stop]
    first_at = run.ends[start - 1] if start else 0
    begins = array("I", [first_at])
    begins.extend(ends[:-1])
    words = array("I", bytes(ENTRY_BYTES * count))
    words[0::_ENTRY_WORDS] = array("I", map((data_offset - first_at).__add__, begins))
    words[1::_ENTRY_WORDS] = array("I", map(sub, ends, begins))
    halves = array("I", run.times[start:stop].tobytes())
    low = 0 if sys.byteorder == "little" else 1
    words[2::_ENTRY_WORDS] = halves[low::2]
    words[3::_ENTRY_WORDS] = halves[1 - low :: 2]
    words[4::_ENTRY_WORDS] = array("I", list(run.flags[start:stop]))
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def checksum_bytes(run: Run, start: int, stop: int) -> bytes:
    """The stored checksums of records `start` to `stop - 1`, one after the other."""
    checksums = run.checksums[start:stop]
    if sys.byteorder == "big":
        checksums.byteswap()
    return checksums.tobytes()
