"""WAL frame, version 2. All integers little-endian.

    offset size  field
    0      4     frame_len u32, bytes after this field
    4      1     type, see FrameType
    5      1     flags: 1 has tag, 2 has node, 4 durable, 8 more frames of this write follow,
                 16 first frame of a write
    6      8     topic_id u64, 0 where no topic is meant
    14     8     seq u64 (append, lease), else 0
    22     8     ts u64, ms
    30     2     node_len u16, 0 without flag 2
    32     2     tag_len u16, 0 without flag 1
    34     4     data_len u32
    38     …     node, tag, data
    …      8     XXH3-64 of everything from `type` to the end of data

A frame is valid when the inner lengths add up to `frame_len`, `frame_len` is within the limit and fits the bytes of
the file, the checksum agrees, and node and tag have bytes only with their flags. No memory is allocated by a length
that was not checked. A frame with a right checksum but an unknown type or flag was written by a newer version:
`FutureVersion`.

Preallocated space is zeros, so zeros where a header should begin are the clean end of the frames. After a crash, later
sectors may hold frames nevertheless. The caller checks for them.

The *body* of a frame (type to data, without length and checksum; see `record_layout`) is also the form of a record in
memory: it is made once, hashed, written, kept, and read from without another copy.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats import kernel
from topics.formats.buffers import Buffer
from topics.formats.record_layout import (
    CHECKSUM,
    CHECKSUM_BYTES,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN_BYTES,
    WAL_BODY_HEADER,
    WAL_FRAME_HEADER,
    RecordForm,
)
from topics.formats.records import RecordBatch

VERSION: Final = 2


class FrameType(IntEnum):
    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT = 7
    CHECKPOINT = 8
    CONFIG = 9
    LEASE = 10
    HEAD = 11
    NOTE = 12
    SYNC = 13
    LOST = 14


FLAG_DURABLE: Final = 4
FLAG_MORE: Final = 8
FLAG_FIRST: Final = 16
_FLAGS_KNOWN: Final = 31
_TYPE_LAST: Final = int(max(FrameType))
_SYNCED_FRAME: Final = Struct("<Q")
# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_pack_header: Final = WAL_BODY_HEADER.pack
# Lengths and checksums around bodies, all in one buffer.
seal_bodies: Final = kernel.seal_bodies

HEADER_BYTES: Final = WAL_FRAME_HEADER.size
BODY_HEADER_BYTES: Final = WAL_BODY_HEADER.size
# `frame_len` of a frame without node, tag and data.
FRAME_LEN_MIN: Final = BODY_HEADER_BYTES + CHECKSUM_BYTES
# Bytes of a frame beyond node, tag and data.
OVERHEAD_BYTES: Final = HEADER_BYTES + CHECKSUM_BYTES

assert list(FrameType) == list(range(1, _TYPE_LAST + 1)), "`walk` takes the known types for one range"
assert _FLAGS_KNOWN == FLAG_TAG | FLAG_NODE | FLAG_DURABLE | FLAG_MORE | FLAG_FIRST

# A reader searches for this string to find sync marks after a bad frame. It is not UTF-8, so it appears in no JSON, tag
# or name, and no client can write one.
SYNC_MAGIC: Final = bytes.fromhex("f10674f3c75dd6dc8e1b3a5fa4095ee2")
SYNC_DATA_BYTES: Final = len(SYNC_MAGIC) + _SYNCED_FRAME.size
SYNC_FRAME_BYTES: Final = OVERHEAD_BYTES + SYNC_DATA_BYTES

# A pattern searches any buffer in place. 64 MiB take 25 ms; copied out for `bytes.find` they take 53 ms.
_find_sync_magic: Final = re.compile(re.escape(SYNC_MAGIC)).finditer


class Frame(NamedTuple):
    """The place of a valid frame in a buffer, and the fields of its header."""

    offset: int
    end: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node_len: int
    tag_len: int
    data_len: int

    def body_in(self, buffer: bytes) -> bytes:
        """The body of this frame, out of the buffer that the frame was found in."""
        return buffer[self.offset + FRAME_LEN_BYTES : self.end - CHECKSUM_BYTES]

    def data_in(self, buffer: bytes) -> bytes:
        """The data of this frame, out of the buffer that the frame was found in."""
        end = self.end - CHECKSUM_BYTES
        return buffer[end - self.data_len : end]


class FrameColumns:
    """Frames by the column: entry i of every column is about the same frame."""

    __slots__ = (
        "data_lens",
        "ends",
        "flags",
        "kinds",
        "node_lens",
        "offsets",
        "seqs",
        "tag_lens",
        "times",
        "topic_ids",
    )

    def __init__(
        self,
        offsets: "array[int]",
        ends: "array[int]",
        kinds: bytes,
        flags: bytes,
        topic_ids: "array[int]",
        seqs: "array[int]",
        times: "array[int]",
        node_lens: "array[int]",
        tag_lens: "array[int]",
        data_lens: "array[int]",
    ) -> None:
        self.offsets = offsets
        self.ends = ends
        self.kinds = kinds
        self.flags = flags
        self.topic_ids = topic_ids
        self.seqs = seqs
        self.times = times
        self.node_lens = node_lens
        self.tag_lens = tag_lens
        self.data_lens = data_lens

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, place: int) -> Frame:
        return Frame(
            self.offsets[place],
            self.ends[place],
            self.kinds[place],
            self.flags[place],
            self.topic_ids[place],
            self.seqs[place],
            self.times[place],
            self.node_lens[place],
            self.tag_lens[place],
            self.data_lens[place],
        )

    def part(self, start: int, end: int) -> "FrameColumns":
        return FrameColumns(
            self.offsets[start:end],
            self.ends[start:end],
            self.kinds[start:end],
            self.flags[start:end],
            self.topic_ids[start:end],
            self.seqs[start:end],
            self.times[start:end],
            self.node_lens[start:end],
            self.tag_lens[start:end],
            self.data_lens[start:end],
        )

    def __iter__(self) -> Iterator[Frame]:
        return map(
            Frame,
            self.offsets,
            self.ends,
            self.kinds,
            self.flags,
            self.topic_ids,
            self.seqs,
            self.times,
            self.node_lens,
            self.tag_lens,
            self.data_lens,
        )


def encode_appends(
    topic_id: int,
    first_seq: int,
    ts: int,
    batch: RecordBatch,
    *,
    durable: bool,
    opens: bool = True,
    closes: bool = True,
) -> tuple[bytes, list[bytes]]:
    """One frame a record: the bytes to write, and the bodies to keep.

    `opens` and `closes` say whether these frames include the first and the last frame of the write: a note may come
    before them and a floor after them. 100 records of 100 bytes: about 40 µs, compiled 9 µs.
    """
    bodies = append_bodies(topic_id, first_seq, ts, batch, durable=durable, opens=opens, closes=closes)
    return seal_bodies(bodies), bodies


def append_bodies(
    topic_id: int,
    first_seq: int,
    ts: int,
    batch: RecordBatch,
    *,
    durable: bool,
    opens: bool = True,
    closes: bool = True,
) -> list[bytes]:
    """The bodies of `encode_appends`, for records that are kept in memory only."""
    assert topic_id > 0
    assert first_seq > 0
    base = FLAG_MORE | (FLAG_DURABLE if durable else 0)
    return kernel.append_bodies(topic_id, first_seq, ts, batch, base, opens, closes)


def encode_writes(
    topic_id: int, first_seq: int, ts: int, batches: Sequence[RecordBatch], *, durable: bool
) -> tuple[bytes, list[bytes]]:
    """Several whole writes to one topic, encoded in one pass."""
    assert topic_id > 0
    assert first_seq > 0
    base = FLAG_MORE | (FLAG_DURABLE if durable else 0)
    return kernel.encode_writes(topic_id, first_seq, ts, batches, base)


def encode_control(
    frame_type: FrameType,
    topic_id: int,
    ts: int,
    data: bytes,
    *,
    seq: int = 0,
    flags: int = FLAG_FIRST,
) -> bytes:
    """One frame that is not an append, without tag and node. By default it is a whole write."""
    assert frame_type != FrameType.APPEND
    assert flags & ~(FLAG_DURABLE | FLAG_MORE | FLAG_FIRST) == 0
    body = _pack_header(frame_type, flags, topic_id, seq, ts, 0, 0, len(data)) + data
    return seal_bodies([body])


def encode_sync_mark(synced_frame: int, ts: int) -> bytes:
    """Says that every frame numbered up to `synced_frame` is known to be on disk."""
    return encode_control(FrameType.SYNC, 0, ts, SYNC_MAGIC + _SYNCED_FRAME.pack(synced_frame))


def decode_sync_mark(data: Buffer) -> int:
    """The frame number in the data of a sync mark. Raises `BadFrame` when that is something else."""
    if len(data) != SYNC_DATA_BYTES or data[: len(SYNC_MAGIC)] != SYNC_MAGIC:
        raise BadFrame("a sync mark without its magic")
    (frame,) = _SYNCED_FRAME.unpack_from(data, len(SYNC_MAGIC))
    return int(frame)


def walk(buffer: Buffer, offset: int, end: int, frame_bytes_max: int) -> Iterator[Frame]:
    """Valid frames of `buffer[offset:end]`, one after the other.

    Ends without an error exactly at `end`, or where there are zeros instead of a header (or instead of the part of a
    header that fits before `end`). Raises `Torn` when the bytes end inside a frame, `BadFrame` when a frame is
    wrong or `frame_len` is over `frame_bytes_max`, `FutureVersion` when it is valid but unknown. The
    error's `offset` is where that frame begins.
    """
    found = scan(buffer, offset, end, frame_bytes_max)
    yield from found.frames
    if found.error is not None:
        raise found.error


class Scan(NamedTuple):
    """Valid frames of a buffer, which of them are sync marks, and why they end (None: cleanly)."""

    frames: FrameColumns
    marks: list[int]
    error: FormatError | FutureVersion | None


def scan(buffer: Buffer, offset: int, end: int, frame_bytes_max: int) -> Scan:
    """What `walk` finds, all at once: the hot loop of a start.

    A million frames of 120 bytes take about 0.02 s, in plain Python 1 s. The kernel only finds out whether a frame is
    valid. The reason why the last one is not valid is found afterwards.
    """
    assert offset >= 0
    columns, marks, offset = kernel.scan_frames(buffer, offset, end, frame_bytes_max)
    frames = FrameColumns(*columns)
    with memoryview(buffer) as view:
        try:
            explain_end(view, offset, min(end, len(view)), frame_bytes_max)
        except (FormatError, FutureVersion) as error:
            return Scan(frames, marks, error)
    return Scan(frames, marks, None)


def explain_end(view: memoryview, offset: int, end: int, frame_bytes_max: int) -> None:
    """Raises the reason why there is no valid frame at `offset`; returns at a clean end."""
    if not any(view[offset : min(end, offset + HEADER_BYTES)]):
        return
    if end - offset < HEADER_BYTES:
        raise Torn("the bytes end inside a frame header", offset)
    frame_len, kind, flags, _, _, _, node_len, tag_len, data_len = WAL_FRAME_HEADER.unpack_from(view, offset)
    if frame_len != node_len + tag_len + data_len + FRAME_LEN_MIN:
        raise BadFrame(
            f"frame length {frame_len} does not fit its parts (node {node_len}, tag {tag_len}, data {data_len})", offset
        )
    if frame_len > frame_bytes_max:
        raise BadFrame(f"frame length {frame_len} is over the limit of {frame_bytes_max}", offset)
    frame_end = offset + FRAME_LEN_BYTES + frame_len
    if frame_end > end:
        raise Torn(
            f"a frame of {frame_len} bytes does not fit the {end - offset - FRAME_LEN_BYTES} that are left", offset
        )
    checksum_at = frame_end - CHECKSUM_BYTES
    (stored,) = CHECKSUM.unpack_from(view, checksum_at)
    computed = xxh3_64_intdigest(view[offset + FRAME_LEN_BYTES : checksum_at])
    if computed != stored:
        raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {computed:016x}", offset)
    if not 0 < kind <= _TYPE_LAST or flags > _FLAGS_KNOWN:
        raise FutureVersion(
            f"frame type {kind} with flags {flags} at offset {offset} is unknown to WAL version {VERSION}; "
            "it was written by a newer version of topics",
            offset,
        )
    raise BadFrame(f"a frame has tag or node bytes, but flags {flags}", offset)


def find_sync_marks(buffer: Buffer, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, synced frame number) of every valid sync mark inside `buffer[offset:end]`, at any position."""
    assert offset >= 0
    end = min(end, len(buffer))
    for match in _find_sync_magic(buffer, offset, end):
        start = match.start() - HEADER_BYTES
        mark_end = start + SYNC_FRAME_BYTES
        if start < offset or mark_end > end:
            continue
        try:
            frame = next(walk(buffer, start, mark_end, SYNC_FRAME_BYTES), None)
        except (FormatError, FutureVersion):
            continue
        # All of these bytes are one frame, and its data begins with the magic.
        if frame is not None and frame.type == FrameType.SYNC and frame.data_len == SYNC_DATA_BYTES:
            yield start, decode_sync_mark(buffer[start + HEADER_BYTES : mark_end - CHECKSUM_BYTES])


def body_of(frame: bytes) -> bytes | None:
    """The body of one whole frame; None when the checksum does not agree with it."""
    body = frame[FRAME_LEN_BYTES:-CHECKSUM_BYTES]
    if (
        len(frame) < FRAME_LEN_BYTES + CHECKSUM_BYTES
        or CHECKSUM.pack(xxh3_64_intdigest(body)) != frame[-CHECKSUM_BYTES:]
    ):
        return None
    return body


def seal_copies(raws: list[bytes], form: RecordForm, topic_id: int, *, closes: bool) -> bytes:
    """The frames of raw records as records of this topic. Each frame has the flags of its tag and node, and says that
    more frames of the same write follow. With `closes` the last one does not say so."""
    return kernel.seal_copies(raws, form.flags_at, form.core_at, topic_id, closes)


def topic_of(frame: bytes) -> int:
    """The topic id of a frame that this process encoded."""
    topic_id: int = WAL_FRAME_HEADER.unpack_from(frame)[3]
    return topic_id


class BodyHeader(NamedTuple):
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node_len: int
    tag_len: int
    data_len: int


def body_header(body: Buffer) -> BodyHeader:
    """Header of a body that this process encoded or verified. Raises `Torn` when it is shorter than that."""
    if len(body) < BODY_HEADER_BYTES:
        raise Torn("the bytes end inside a frame header")
    return BodyHeader._make(WAL_BODY_HEADER.unpack_from(body))
