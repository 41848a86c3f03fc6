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
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from operator import add
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FormatError, FutureVersion, Torn
from topics.formats.buffers import Buffer
from topics.formats.record_layout import (
    CHECKSUM,
    CHECKSUM_BYTES,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN,
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    WAL_BODY_HEADER,
    WAL_FLAGS_AT,
    WAL_FRAME_HEADER,
    WAL_HEAD,
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
_SYNC: Final = int(FrameType.SYNC)

# A body header that is packed in four parts: the head; seq; ts, node_len and tag_len; data_len.
_MIDDLE: Final = Struct("<QHH")
_PLAIN_BODY: Final = Struct(f"<{WAL_HEAD.size}sQ{_MIDDLE.size}sI")
assert _PLAIN_BODY.size == WAL_BODY_HEADER.size
# The checksum of a frame and the length of the next frame.
_SEAM: Final = Struct("<QI")
_SYNCED_FRAME: Final = Struct("<Q")
# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_pack_length: Final = FRAME_LEN.pack
_pack_header: Final = WAL_BODY_HEADER.pack

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


class FrameColumns(NamedTuple):
    """Frames by the column: entry i of every column is about the same frame."""

    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    kinds: tuple[int, ...]
    flags: tuple[int, ...]
    topic_ids: tuple[int, ...]
    seqs: tuple[int, ...]
    times: tuple[int, ...]
    node_lens: tuple[int, ...]
    tag_lens: tuple[int, ...]
    data_lens: tuple[int, ...]

    @classmethod
    def of(cls, frames: list[Frame]) -> "FrameColumns":
        """There must be at least one frame."""
        return cls(*zip(*frames, strict=True))

    def part(self, start: int, end: int) -> "FrameColumns":
        return FrameColumns(*[column[start:end] for column in self])

    def frames(self) -> Iterator[Frame]:
        return map(Frame._make, zip(*self, strict=True))


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
    before them and a floor after them. 100 records of 100 bytes: about 30 µs.
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
    encode = _plain_bodies if batch.tags is None and batch.nodes is None else _labelled_bodies
    return encode(topic_id, first_seq, ts, batch, base, opens=opens, closes=closes)


def encode_writes(
    topic_id: int, first_seq: int, ts: int, batches: Sequence[RecordBatch], *, durable: bool
) -> tuple[bytes, list[bytes]]:
    """Several whole writes to one topic, encoded in one pass."""
    assert topic_id > 0
    assert first_seq > 0
    base = FLAG_MORE | (FLAG_DURABLE if durable else 0)
    single = base & ~FLAG_MORE | FLAG_FIRST
    pack, length, checksum, digest = _pack_header, _pack_length, CHECKSUM.pack, xxh3_64_intdigest
    bodies: list[bytes] = []
    parts: list[bytes] = []
    seq = first_seq
    for batch in batches:
        envelopes = batch.envelopes
        if len(envelopes) == 1 and batch.tags is None and batch.nodes is None:
            envelope = envelopes[0]
            size = len(envelope)
            body = pack(1, single, topic_id, seq, ts, 0, 0, size) + envelope
            bodies.append(body)
            parts += (length(size + FRAME_LEN_MIN), body, checksum(digest(body)))
            seq += 1
            continue
        encode = _plain_bodies if batch.tags is None and batch.nodes is None else _labelled_bodies
        more = encode(topic_id, seq, ts, batch, base, opens=True, closes=True)
        bodies += more
        parts.append(seal_bodies(more))
        seq += len(more)
    return b"".join(parts), bodies


def _plain_bodies(
    topic_id: int, first_seq: int, ts: int, batch: RecordBatch, base: int, *, opens: bool, closes: bool
) -> list[bytes]:
    """Columns in, columns out: `map` calls C from C, which takes half the time of a loop."""
    envelopes = batch.envelopes
    count = len(envelopes)
    flags = [base] * count
    if opens:
        flags[0] |= FLAG_FIRST
    if closes:
        flags[-1] &= ~FLAG_MORE
    # The bytes that are the same in most headers are packed once.
    leads = {each: WAL_HEAD.pack(1, each, topic_id) for each in set(flags)}
    seqs = range(first_seq, first_seq + count)
    middle = repeat(_MIDDLE.pack(ts, 0, 0))
    headers = map(_PLAIN_BODY.pack, map(leads.__getitem__, flags), seqs, middle, map(len, envelopes))
    return list(map(add, headers, envelopes))


def _labelled_bodies(
    topic_id: int, first_seq: int, ts: int, batch: RecordBatch, base: int, *, opens: bool, closes: bool
) -> list[bytes]:
    pack = _pack_header
    absent = (None,) * len(batch)
    bodies: list[bytes] = []
    keep = bodies.append
    seq = first_seq
    last_seq = first_seq + len(batch) - 1
    flags = base | FLAG_FIRST if opens else base
    for envelope, tag, node in zip(batch.envelopes, batch.tags or absent, batch.nodes or absent, strict=True):
        if seq == last_seq and closes:
            flags &= ~FLAG_MORE
        if tag is None:
            tag = b""
        else:
            flags |= FLAG_TAG
        if node is None:
            node = b""
        else:
            flags |= FLAG_NODE
        header = pack(1, flags, topic_id, seq, ts, len(node), len(tag), len(envelope))
        keep(b"".join((header, node, tag, envelope)))
        flags = base
        seq += 1
    return bodies


def seal_bodies(bodies: list[bytes]) -> bytes:
    """Length and checksum around each body, all in one buffer. A third of a microsecond each."""
    lengths = list(map(CHECKSUM_BYTES.__add__, map(len, bodies)))
    # Between two bodies are the checksum of the first and the length of the second.
    seams = list(map(_SEAM.pack, map(xxh3_64_intdigest, bodies), [*lengths[1:], 0]))
    seams[-1] = seams[-1][:CHECKSUM_BYTES]
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[::2] = bodies
    parts[1::2] = seams
    return _pack_length(lengths[0]) + b"".join(parts)


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

    frames: list[Frame]
    marks: list[int]
    error: FormatError | FutureVersion | None


def scan(buffer: Buffer, offset: int, end: int, frame_bytes_max: int) -> Scan:
    """What `walk` finds, all at once: the hot loop of a start.

    A million frames of 150 bytes take about 0.8 s. So the loop only finds out whether a frame is valid. The reason why
    the last one is not valid is found after the loop.
    """
    assert offset >= 0
    frames: list[Frame] = []
    marks: list[int] = []
    keep = frames.append
    unpack, digest, number, new = WAL_FRAME_HEADER.unpack_from, xxh3_64_intdigest, int.from_bytes, tuple.__new__
    # Small slices of bytes are cheaper than views of them.
    data = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    end = min(end, len(data))
    last_start = end - HEADER_BYTES
    while offset <= last_start:
        frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = unpack(data, offset)
        frame_end = offset + FRAME_LEN_BYTES + frame_len
        checksum_at = frame_end - CHECKSUM_BYTES
        if (
            frame_len != node_len + tag_len + data_len + FRAME_LEN_MIN
            or frame_len > frame_bytes_max
            or frame_end > end
            or digest(data[offset + FRAME_LEN_BYTES : checksum_at]) != number(data[checksum_at:frame_end], "little")
            or not 0 < kind <= _TYPE_LAST
            or flags > _FLAGS_KNOWN
            or (tag_len and not flags & FLAG_TAG)
            or (node_len and not flags & FLAG_NODE)
        ):
            break
        if kind == _SYNC:
            marks.append(len(frames))
        # A quarter of a microsecond cheaper than `Frame._make`.
        keep(new(Frame, (offset, frame_end, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len)))
        offset = frame_end
    with memoryview(data) as view:
        try:
            _explain_end(view, offset, end, frame_bytes_max)
        except (FormatError, FutureVersion) as error:
            return Scan(frames, marks, error)
        finally:
            if isinstance(data, memoryview):
                data.release()
    return Scan(frames, marks, None)


def _explain_end(view: memoryview, offset: int, end: int, frame_bytes_max: int) -> None:
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


def append_body(raw: bytes, form: RecordForm, topic_id: int) -> bytes:
    """The WAL body of a raw record as a record of this topic. Its flags are the ones of the tag and the node only."""
    return WAL_HEAD.pack(FrameType.APPEND, raw[form.flags_at] & LABEL_FLAGS, topic_id) + raw[form.core_at :]


def with_flags(body: bytes, flags: int) -> bytes:
    """The same WAL body with these flags set, too."""
    return b"%b%c%b" % (body[:WAL_FLAGS_AT], body[WAL_FLAGS_AT] | flags, body[WAL_FLAGS_AT + 1 :])


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
