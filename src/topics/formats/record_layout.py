"""The layout of a stored record. All integers are little-endian.

The *core* of a record is the same bytes in the WAL, in memory and in a segment:

    offset size  field
    0      8     seq u64
    8      8     ts u64, ms
    16     2     node_len u16
    18     2     tag_len u16
    20     4     data_len u32
    24     …     node, tag, data (the payload envelope, see `envelope`)

A *body* is the part of a frame that its checksum covers: a head, then the core. There are two forms.

    WAL body       0   1  type
                   1   1  flags
                   2   8  topic_id u64
                   10  …  core

    segment body   0   1  flags
                   1   …  core

A *frame* is a body in a file, with its length before it and its checksum after it:

    WAL frame      frame_len u32, WAL body, XXH3-64 u64
    segment frame  frame_len u32, segment body, XXH3-64 u64, delete byte

`frame_len` counts the bytes after itself. Flags 1 (has a tag) and 2 (has a node) mean the same in both forms. The
other flags are in WAL bodies only (`wal_frame`). A node or a tag has bytes only if its flag is set; a flag without
bytes is an empty node or tag.

A *raw record* is a verified body in memory. Its `RecordForm` says where its fields are. Code outside of this package
takes raw records apart with the functions of this module, and uses no offset of its own.
"""

from struct import Struct
from typing import Final, NamedTuple

from topics.formats import envelope
from topics.formats.records import Record

FLAG_TAG: Final = 1
FLAG_NODE: Final = 2
# The flags that a WAL body and a segment body share.
LABEL_FLAGS: Final = FLAG_TAG | FLAG_NODE

# The delete byte of a segment frame. Any other value than DELETED means live.
DELETED: Final = 0xD5
DELETED_BYTE: Final = b"\xd5"
LIVE: Final = 0

_CORE_FIELDS: Final = "QQHHI"
_WAL_HEAD_FIELDS: Final = "BBQ"
_SEGMENT_HEAD_FIELDS: Final = "B"

FRAME_LEN: Final = Struct("<I")
CHECKSUM: Final = Struct("<Q")
# Checksum and delete byte of a segment frame.
SEGMENT_TRAILER: Final = Struct("<QB")

# seq, ts, node_len, tag_len, data_len.
CORE_HEADER: Final = Struct("<" + _CORE_FIELDS)
SEQ: Final = Struct("<Q")
SEQ_TS: Final = Struct("<QQ")
TS: Final = Struct("<Q")
# node_len, tag_len, data_len.
LENGTHS: Final = Struct("<HHI")
_DATA_LEN: Final = Struct("<I")

# type, flags, topic_id.
WAL_HEAD: Final = Struct("<" + _WAL_HEAD_FIELDS)
# type, flags, topic_id, seq, ts, node_len, tag_len, data_len.
WAL_BODY_HEADER: Final = Struct("<" + _WAL_HEAD_FIELDS + _CORE_FIELDS)
# frame_len, then the header of the body.
WAL_FRAME_HEADER: Final = Struct("<I" + _WAL_HEAD_FIELDS + _CORE_FIELDS)
# frame_len, flags, seq, ts, node_len, tag_len, data_len.
SEGMENT_FRAME_HEADER: Final = Struct("<I" + _SEGMENT_HEAD_FIELDS + _CORE_FIELDS)
# The first fields of that: frame_len, flags, seq.
SEGMENT_FRAME_LEAD: Final = Struct("<I" + _SEGMENT_HEAD_FIELDS + "Q")

FRAME_LEN_BYTES: Final = FRAME_LEN.size
CHECKSUM_BYTES: Final = CHECKSUM.size
SEGMENT_TRAILER_BYTES: Final = SEGMENT_TRAILER.size
CORE_HEADER_BYTES: Final = CORE_HEADER.size
# Where fields are in a core.
TS_AT: Final = SEQ.size
LENGTHS_AT: Final = SEQ_TS.size
_DATA_LEN_AT: Final = CORE_HEADER_BYTES - _DATA_LEN.size
# Where fields are in a WAL body.
WAL_FLAGS_AT: Final = 1
WAL_CORE_AT: Final = WAL_HEAD.size
# Where fields are in a segment body.
SEGMENT_FLAGS_AT: Final = 0
SEGMENT_CORE_AT: Final = 1

assert CORE_HEADER_BYTES == LENGTHS_AT + LENGTHS.size == 24
assert WAL_CORE_AT == 10
assert WAL_FRAME_HEADER.size == FRAME_LEN_BYTES + WAL_CORE_AT + CORE_HEADER_BYTES == 38
assert SEGMENT_FRAME_HEADER.size == FRAME_LEN_BYTES + SEGMENT_CORE_AT + CORE_HEADER_BYTES == 29
assert SEGMENT_TRAILER_BYTES == CHECKSUM_BYTES + 1
assert DELETED_BYTE[0] == DELETED


class RecordForm:
    """Where the fields of a raw record are. There are two values: `WAL_BODY` and `SEGMENT_BODY`."""

    __slots__ = ("core_at", "data_len_at", "flags_at", "name", "node_at")

    def __init__(self, name: str, flags_at: int, core_at: int) -> None:
        self.name = name
        self.flags_at = flags_at
        self.core_at = core_at
        self.data_len_at = core_at + _DATA_LEN_AT
        # Node, tag and data follow each other from here on.
        self.node_at = core_at + CORE_HEADER_BYTES

    def __repr__(self) -> str:
        return self.name


# Raw records from memory and from the WAL.
WAL_BODY: Final = RecordForm("WAL_BODY", WAL_FLAGS_AT, WAL_CORE_AT)
# Raw records from segments.
SEGMENT_BODY: Final = RecordForm("SEGMENT_BODY", SEGMENT_FLAGS_AT, SEGMENT_CORE_AT)


class RawParts(NamedTuple):
    """The parts of a raw record that a copy of it needs."""

    ts: int
    node: bytes | None
    tag: bytes | None
    envelope: bytes


def split_raw(raw: bytes, form: RecordForm) -> RawParts:
    """The parts of a raw record, undecoded."""
    _, ts, node_len, tag_len, _ = CORE_HEADER.unpack_from(raw, form.core_at)
    flags = raw[form.flags_at]
    node_at = form.node_at
    tag_at = node_at + node_len
    data_at = tag_at + tag_len
    return RawParts(
        ts,
        raw[node_at:tag_at] if flags & FLAG_NODE else None,
        raw[tag_at:data_at] if flags & FLAG_TAG else None,
        raw[data_at:],
    )


def decode_raw(raw: bytes, form: RecordForm) -> Record:
    """The record as an object. Raises `BadFrame` when its payload is not an envelope."""
    seq, ts, node_len, tag_len, _ = CORE_HEADER.unpack_from(raw, form.core_at)
    flags = raw[form.flags_at]
    node_at = form.node_at
    tag_at = node_at + node_len
    data_at = tag_at + tag_len
    data, meta = envelope.split(raw[data_at:])
    node = raw[node_at:tag_at].decode() if flags & FLAG_NODE else None
    tag = raw[tag_at:data_at].decode() if flags & FLAG_TAG else None
    return Record(seq, ts, node, tag, data, meta)


def raw_node(raw: bytes, form: RecordForm) -> bytes | None:
    """The node alone; None for a record without one."""
    if not raw[form.flags_at] & FLAG_NODE:
        return None
    node_at = form.node_at
    return raw[node_at : node_at + CORE_HEADER.unpack_from(raw, form.core_at)[2]]


def raw_tag(raw: bytes, form: RecordForm) -> bytes | None:
    """The tag alone; None for a record without one."""
    if not raw[form.flags_at] & FLAG_TAG:
        return None
    node_len, tag_len, _ = LENGTHS.unpack_from(raw, form.core_at + LENGTHS_AT)
    tag_at: int = form.node_at + node_len
    return raw[tag_at : tag_at + tag_len]


def raw_size(raw: bytes, form: RecordForm) -> int:
    """Accounted bytes: what the record counts towards caps and quotas."""
    return envelope.accounted_bytes(raw[len(raw) - _DATA_LEN.unpack_from(raw, form.data_len_at)[0] :])
