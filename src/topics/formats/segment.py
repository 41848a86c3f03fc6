"""Segment `.data` frame, version 1. All integers little-endian.

    offset size  field
    0      4     frame_len u32, bytes after this field, delete byte included
    4      1     flags: 1 has tag, 2 has node
    5      8     seq u64
    13     8     ts u64
    21     2+2+4 node_len u16, tag_len u16, data_len u32
    29     …     node, tag, data (the payload envelope)
    …      8     XXH3-64 of everything from `flags` to the end of data
    …      1     delete byte: 0xD5 deleted, anything else live; not under the checksum, flipped in place

One frame a record, seqs ascending. A seq that never got a record has no frame here, only an entry in `.idx`.
A frame is valid when its inner lengths add up to `frame_len`, that fits the bytes that are there, the
checksum agrees, the flags are known, and node and tag have bytes only with their flags. Zeros are not a
frame.

A frame is made from a WAL body by leaving out type and topic id, so its checksum is computed anew, after
the WAL's was verified.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, Torn
from topics.formats import envelope, kernel
from topics.formats.buffers import Buffer
from topics.formats.record_layout import (
    DELETED,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN,
    FRAME_LEN_BYTES,
    LABEL_FLAGS,
    LIVE,
    SEGMENT_FRAME_HEADER,
    SEGMENT_TRAILER,
    SEGMENT_TRAILER_BYTES,
    WAL_CORE_AT,
    WAL_FLAGS_AT,
    RecordForm,
)
from topics.formats.records import Record

VERSION: Final = 1

HEADER_BYTES: Final = SEGMENT_FRAME_HEADER.size
TRAILER_BYTES: Final = SEGMENT_TRAILER_BYTES
# Bytes of a frame beyond node, tag and data.
OVERHEAD_BYTES: Final = HEADER_BYTES + TRAILER_BYTES

# Bound once: Python looks the method of an imported object up anew at every call, which costs 50 ns.
_pack_length: Final = FRAME_LEN.pack
_pack_trailer: Final = SEGMENT_TRAILER.pack
_unpack_trailer: Final = SEGMENT_TRAILER.unpack_from
_unpack_header: Final = SEGMENT_FRAME_HEADER.unpack_from

# The flags byte of a segment frame by the flags of its WAL frame.
_FLAGS_BY_WAL_FLAGS: Final = tuple(bytes((flags & LABEL_FLAGS,)) for flags in range(256))


class SegmentFrame(NamedTuple):
    """The place of a valid frame in a buffer, and the fields of its header."""

    offset: int
    end: int
    flags: int
    seq: int
    ts: int
    node_len: int
    tag_len: int
    data_len: int
    deleted: bool

    def body_in(self, buffer: bytes) -> bytes:
        """The body of this frame, out of the buffer that the frame was found in."""
        return buffer[self.offset + FRAME_LEN_BYTES : self.end - TRAILER_BYTES]

    def tag_in(self, buffer: bytes) -> bytes:
        """The tag of this frame, out of the buffer that the frame was found in; empty without one."""
        tag_at = self.offset + HEADER_BYTES + self.node_len
        return buffer[tag_at : tag_at + self.tag_len]

    def data_in(self, buffer: bytes) -> bytes:
        """The payload envelope of this frame, out of the buffer that the frame was found in."""
        end = self.end - TRAILER_BYTES
        return buffer[end - self.data_len : end]

    def checksum_in(self, buffer: bytes) -> bytes:
        """The stored checksum bytes of this frame, out of the buffer that the frame was found in."""
        return buffer[self.end - TRAILER_BYTES : self.end - 1]


def from_wal_body(body: bytes) -> bytes:
    """The segment frame of a verified WAL body, live."""
    return kernel.segment_frames((body,), WAL_FLAGS_AT, WAL_CORE_AT)[0]


def from_raws(raws: Iterable[bytes], form: RecordForm) -> list[bytes]:
    """The frames, live, of verified raw records of one form."""
    return kernel.segment_frames(raws, form.flags_at, form.core_at)


def frame_seq(frame: bytes) -> int:
    """The seq of a whole frame."""
    seq: int = SEGMENT_FRAME_HEADER.unpack_from(frame)[2]
    return seq


def encode(record: Record) -> bytes:
    node = b"" if record.node is None else record.node.encode()
    tag = b"" if record.tag is None else record.tag.encode()
    data = envelope.encode(record.data, record.meta)
    flags = (FLAG_TAG if record.tag is not None else 0) | (FLAG_NODE if record.node is not None else 0)
    length = OVERHEAD_BYTES - FRAME_LEN_BYTES + len(node) + len(tag) + len(data)
    header = SEGMENT_FRAME_HEADER.pack(length, flags, record.seq, record.ts, len(node), len(tag), len(data))
    frame = b"".join((header, node, tag, data))
    return frame + _pack_trailer(xxh3_64_intdigest(memoryview(frame)[FRAME_LEN_BYTES:]), LIVE)


def check(buffer: Buffer, offset: int, end: int) -> SegmentFrame:
    """The frame at `offset` of `buffer[:end]`, whole and verified.

    Raises `Torn` or `BadFrame` with that offset. Any offset and end are allowed, also the ones of an index entry that
    may be wrong. The frame may be of another seq than the one looked for: the caller compares it.
    """
    with memoryview(buffer) as view:
        return _check(view, offset, min(end, len(view)))


def _check(view: memoryview, offset: int, end: int) -> SegmentFrame:
    assert offset >= 0
    if end - offset < OVERHEAD_BYTES:
        raise Torn("the bytes end inside a frame", offset)
    frame_len, flags, seq, ts, node_len, tag_len, data_len = _unpack_header(view, offset)
    if frame_len != node_len + tag_len + data_len + OVERHEAD_BYTES - FRAME_LEN_BYTES:
        raise BadFrame(
            f"frame length {frame_len} does not fit its parts (node {node_len}, tag {tag_len}, data {data_len})", offset
        )
    frame_end = offset + FRAME_LEN_BYTES + frame_len
    if frame_end > end:
        raise Torn(
            f"a frame of {frame_len} bytes does not fit the {end - offset - FRAME_LEN_BYTES} that are left", offset
        )
    checksum_at = frame_end - TRAILER_BYTES
    stored, delete_byte = _unpack_trailer(view, checksum_at)
    computed = xxh3_64_intdigest(view[offset + FRAME_LEN_BYTES : checksum_at])
    if computed != stored:
        raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {computed:016x}", offset)
    if flags > LABEL_FLAGS or (tag_len and not flags & FLAG_TAG) or (node_len and not flags & FLAG_NODE):
        raise BadFrame(f"flags {flags} are unknown, or do not fit tag and node", offset)
    return tuple.__new__(
        SegmentFrame,
        (offset, frame_end, flags, seq, ts, node_len, tag_len, data_len, delete_byte == DELETED),
    )


def walk(buffer: Buffer, offset: int, end: int) -> Iterator[SegmentFrame]:
    """Verified frames of `buffer[offset:end]`, one after the other; raises at the first that is not.

    A frame whose seq is not above the one before it is a `BadFrame`, too. Ends only exactly at `end`.
    """
    seq_before = -1
    with memoryview(buffer) as view:
        end = min(end, len(view))
        while offset < end:
            frame = _check(view, offset, end)
            if frame.seq <= seq_before:
                raise BadFrame(f"seq {frame.seq} follows seq {seq_before}", offset)
            yield frame
            seq_before = frame.seq
            offset = frame.end


class SegmentColumns:
    """Segment frames by the column: entry i of every column is about the same frame."""

    __slots__ = ("checksums", "data_lens", "deleted", "ends", "flags", "seqs", "times")

    def __init__(
        self,
        ends: "array[int]",
        flags: bytes,
        deleted: bytes,
        seqs: "array[int]",
        times: "array[int]",
        data_lens: "array[int]",
        checksums: "array[int]",
    ) -> None:
        self.ends = ends
        self.flags = flags
        # 1 for a deleted record.
        self.deleted = deleted
        self.seqs = seqs
        self.times = times
        self.data_lens = data_lens
        self.checksums = checksums

    def __len__(self) -> int:
        return len(self.flags)

    def part(self, start: int, end: int) -> "SegmentColumns":
        return SegmentColumns(
            self.ends[start:end],
            self.flags[start:end],
            self.deleted[start:end],
            self.seqs[start:end],
            self.times[start:end],
            self.data_lens[start:end],
            self.checksums[start:end],
        )


def scan(buffer: bytes, offset: int, end: int) -> SegmentColumns:
    """What `walk` finds before it ends or raises, all at once."""
    return SegmentColumns(*kernel.scan_segment(buffer, offset, end))


def frame_checksum(frame: Buffer) -> bytes:
    """The stored checksum bytes of one whole frame."""
    return bytes(frame[-TRAILER_BYTES:-1])


def decode(buffer: Buffer, frame: SegmentFrame) -> Record:
    """The record of a frame that `check` accepted in this buffer. Raises `BadFrame` when it is none."""
    node_at = frame.offset + HEADER_BYTES
    tag_at = node_at + frame.node_len
    data_at = tag_at + frame.tag_len
    try:
        node = str(buffer[node_at:tag_at], "utf-8") if frame.flags & FLAG_NODE else None
        tag = str(buffer[tag_at:data_at], "utf-8") if frame.flags & FLAG_TAG else None
        data, meta = envelope.split(bytes(buffer[data_at : data_at + frame.data_len]))
    except UnicodeDecodeError as error:
        raise BadFrame("tag or node is not UTF-8", frame.offset) from error
    except BadFrame as error:
        raise BadFrame(error.message, frame.offset) from error
    return Record(frame.seq, frame.ts, node, tag, data, meta)
