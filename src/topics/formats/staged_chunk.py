"""Staged chunk, version 1: records that a writer has handed over and not committed yet. Little-endian.

    offset size  field
    0      4     magic "TSTG"
    4      4     version u32
    8      4     head_len u32
    12     4     reserved, 0
    16     8     XXH3-64 of bytes 0-15 and the head u64
    24     …     head: MessagePack map, see ChunkHead
    …      …     the records, by columns
    …      8     XXH3-64 of the columns u64

Columns of n records: n lengths of envelopes u32, n accounted sizes u32; if the head says that there are labels, n flags
u8 (1 has a tag, 2 has a node), n lengths of tags u16, n of nodes u16; then all envelopes, all tags, all nodes.

The head has a separate checksum, so that a start learns what is staged without reading the records. Records of a chunk
are read all or not at all, so one checksum covers all of them. A checksum for each record took four times as long. A
chunk is valid when its columns are exactly the records that the head counts.
"""

from itertools import accumulate, pairwise
from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from topics.errors import BadFrame, FutureVersion, Torn
from topics.formats.buffers import Buffer
from topics.formats.control import MALFORMED, U64, refuse_extension
from topics.formats.records import RecordBatch

MAGIC: Final = b"TSTG"
VERSION: Final = 1
_HEADER: Final = Struct("<4sIIIQ")
# The part of the header that is under the checksum.
_LEAD: Final = Struct("<4sIII")
LEAD_BYTES: Final = _HEADER.size
_CHECKSUM: Final = Struct("<Q")
# Far more than the size of a head with the longest writer name.
HEAD_BYTES_MAX: Final = 4096

FLAG_TAG: Final = 1
FLAG_NODE: Final = 2

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
    has_labels: bool = False


_encode_head: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(ChunkHead, ext_hook=refuse_extension).decode


def encode(head: ChunkHead, batch: RecordBatch) -> bytes:
    assert head.records == len(batch)
    assert head.size_bytes == batch.size_bytes
    has_labels = batch.tags is not None or batch.nodes is not None
    data = _encode_head(msgspec.structs.replace(head, has_labels=has_labels))
    assert len(data) <= HEAD_BYTES_MAX
    lead = _LEAD.pack(MAGIC, VERSION, len(data), 0)
    checksum = xxh3_64_intdigest(lead + data)
    columns = b"".join(_columns(batch, has_labels=has_labels))
    return b"".join((lead, _CHECKSUM.pack(checksum), data, columns, _CHECKSUM.pack(xxh3_64_intdigest(columns))))


def _columns(batch: RecordBatch, *, has_labels: bool) -> list[bytes]:
    count = len(batch)
    numbers = Struct(f"<{count}I").pack
    parts = [numbers(*map(len, batch.envelopes)), numbers(*batch.sizes)]
    contents = list(batch.envelopes)
    if has_labels:
        tags, nodes = batch.tags or [None] * count, batch.nodes or [None] * count
        parts.append(
            bytes(
                (FLAG_TAG if tag is not None else 0) | (FLAG_NODE if node is not None else 0)
                for tag, node in zip(tags, nodes, strict=True)
            )
        )
        for labels in ([tag or b"" for tag in tags], [node or b"" for node in nodes]):
            parts.append(Struct(f"<{count}H").pack(*map(len, labels)))
            contents += labels
    return [*parts, *contents]


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
    end = len(buffer) - _CHECKSUM.size
    count = head.records
    column_bytes = count * (13 if head.has_labels else 8)
    if not count or end - start < column_bytes:
        raise Torn(f"the chunk ends before its {count} records", start)
    (stored,) = _CHECKSUM.unpack_from(buffer, end)
    computed = xxh3_64_intdigest(memoryview(buffer)[start:end])
    if computed != stored:
        raise BadFrame(f"checksum does not agree: stored {stored:016x}, computed {computed:016x}", start)
    cut = _Cutter(buffer, start, end)
    lengths, sizes = cut.numbers("I", count), cut.numbers("I", count)
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    if head.has_labels:
        flags = cut.numbers("B", count)
        tag_lengths, node_lengths = cut.numbers("H", count), cut.numbers("H", count)
        envelopes = cut.pieces(lengths)
        tags = _present(cut.pieces(tag_lengths), flags, FLAG_TAG)
        nodes = _present(cut.pieces(node_lengths), flags, FLAG_NODE)
    else:
        envelopes = cut.pieces(lengths)
    batch = RecordBatch(envelopes, sizes, tags, nodes)
    if cut.position != end or batch.size_bytes != head.size_bytes:
        raise BadFrame("the chunk has not the records that its head tells of", start)
    return head, batch


class _Cutter:
    """Takes one column after the other from the front."""

    def __init__(self, buffer: bytes, start: int, end: int) -> None:
        self._buffer = buffer
        self._end = end
        self.position = start

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        column = Struct(f"<{count}{kind}")
        found = column.unpack_from(self._buffer, self.position)
        self.position += column.size
        return found

    def pieces(self, lengths: tuple[int, ...]) -> list[bytes]:
        buffer = self._buffer
        places = list(accumulate(lengths, initial=self.position))
        if places[-1] > self._end:
            raise Torn("the chunk ends inside its records", self.position)
        self.position = places[-1]
        return [buffer[start:end] for start, end in pairwise(places)]


def _present(labels: list[bytes], flags: tuple[int, ...], flag: int) -> list[bytes | None] | None:
    """A label for each record that has one; no column when none has."""
    found = [label if each & flag else None for label, each in zip(labels, flags, strict=True)]
    return None if found.count(None) == len(found) else found
