"""Staged chunk, version 1: records that a writer has handed over and not committed yet. Little-endian.

    offset size  field
    0      4     magic "TSTG"
    4      4     version u32
    8      4     head_len u32
    12     4     reserved, 0
    16     8     XXH3-64 of bytes 0-15 and the head u64
    24     …     head: MessagePack map, see ChunkHead
    …      …     WAL append frames of the records, back to back, seqs 1 to `records`: all from the middle of a write

The head has a checksum of its own, so that a start learns what is staged without reading the records. Each record
has that of its frame. A chunk is valid when its frames are exactly the records that the head tells of.

Its seqs are places in the chunk; real ones are given out by the commit, which encodes the records anew.
"""

from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FutureVersion, Torn
from topics.formats import envelope, wal_frame
from topics.formats.buffers import Buffer
from topics.formats.control import MALFORMED, U64, refuse_extension
from topics.formats.records import RecordBatch
from topics.formats.wal_frame import FLAG_NODE, FLAG_TAG, HEADER_BYTES, FrameType
from topics.limits import FRAME_BYTES_MAX

MAGIC: Final = b"TSTG"
VERSION: Final = 1
_HEADER: Final = Struct("<4sIIIQ")
# The part of the header that is under the checksum.
_LEAD: Final = Struct("<4sIII")
LEAD_BYTES: Final = _HEADER.size
# Far more than a head with the longest writer's name has.
HEAD_BYTES_MAX: Final = 4096

assert LEAD_BYTES == 24
assert _LEAD.size == LEAD_BYTES - 8


class ChunkHead(msgspec.Struct, frozen=True):
    """Which chunk it is, when it was staged, and what is in it: records, and their accounted bytes."""

    topic_id: U64
    writer: str
    epoch: U64
    part: U64
    attempt: U64
    chunk: U64
    ts: U64
    records: U64
    size_bytes: U64


_encode_head: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(ChunkHead, ext_hook=refuse_extension).decode


def encode(head: ChunkHead, batch: RecordBatch) -> bytes:
    assert head.records == len(batch)
    assert head.size_bytes == batch.size_bytes
    data = _encode_head(head)
    assert len(data) <= HEAD_BYTES_MAX
    lead = _LEAD.pack(MAGIC, VERSION, len(data), 0)
    checksum = xxh3_64_intdigest(lead + data).to_bytes(8, "little")
    # Not a write yet: neither the first nor the last frame of one.
    frames, _ = wal_frame.encode_appends(head.topic_id, 1, head.ts, batch, durable=False, opens=False, closes=False)
    return b"".join((lead, checksum, data, frames))


def decode_head(buffer: Buffer) -> tuple[ChunkHead, int]:
    """(head, where the frames begin). Raises `Torn`, `BadFrame` or `FutureVersion`."""
    if len(buffer) < LEAD_BYTES:
        raise Torn("the chunk ends inside its header")
    magic, version, head_len, reserved, stored = _HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise BadFrame("not a staged chunk: wrong magic")
    if version > VERSION:
        raise FutureVersion(
            f"staged chunk version {version} is unknown (this is {VERSION}); a newer version of topics wrote it"
        )
    if version < VERSION or reserved != 0 or head_len > HEAD_BYTES_MAX:
        raise BadFrame(f"not a staged chunk: version {version}, reserved {reserved}, head of {head_len} bytes")
    end = LEAD_BYTES + head_len
    if len(buffer) < end:
        raise Torn(f"the chunk ends inside its head of {head_len} bytes")
    data = bytes(buffer[LEAD_BYTES:end])
    computed = xxh3_64_intdigest(bytes(buffer[: _LEAD.size]) + data)
    if computed != stored:
        raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {computed:016x}")
    try:
        return _decode_head(data), end
    except MALFORMED as error:
        raise BadFrame(f"not the head of a staged chunk: {error}") from error


def decode(buffer: bytes) -> tuple[ChunkHead, RecordBatch]:
    """The whole chunk. Raises `Torn`, `BadFrame` or `FutureVersion`."""
    head, start = decode_head(buffer)
    found = wal_frame.scan(buffer, start, len(buffer), FRAME_BYTES_MAX)
    if found.error is not None:
        raise found.error
    frames = found.frames
    end = frames[-1].end if frames else start
    if end != len(buffer) or len(frames) != head.records or not frames:
        raise BadFrame(f"the chunk has {len(frames)} whole records of {head.records}", end)
    if any(frame.type != FrameType.APPEND or frame.seq != seq for seq, frame in enumerate(frames, 1)):
        raise BadFrame("the chunk has frames that are not its records", start)
    envelopes = [buffer[frame.end - 8 - frame.data_len : frame.end - 8] for frame in frames]
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    if any(frame.flags & (FLAG_TAG | FLAG_NODE) for frame in frames):
        tags, nodes = [], []
        for frame in frames:
            node_at = frame.offset + HEADER_BYTES
            tag_at = node_at + frame.node_len
            nodes.append(buffer[node_at:tag_at] if frame.flags & FLAG_NODE else None)
            tags.append(buffer[tag_at : tag_at + frame.tag_len] if frame.flags & FLAG_TAG else None)
        tags = None if tags.count(None) == len(tags) else tags
        nodes = None if nodes.count(None) == len(nodes) else nodes
    batch = RecordBatch(envelopes, list(map(envelope.accounted_bytes, envelopes)), tags, nodes)
    if batch.size_bytes != head.size_bytes:
        raise BadFrame(f"the chunk has {batch.size_bytes} bytes of {head.size_bytes}", start)
    return head, batch
