"""What a read gives back: raw records, where to go on, and what was lost on the way.

Records stay as the bytes they were read as until somebody asks for objects. Raw records come in two forms,
told apart by where their common core (seq, ts, lengths, node, tag, payload) begins: WAL bodies from memory
and from the WAL, and the body of segment frames from files.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Literal

from topics.formats import envelope
from topics.formats.records import Record
from topics.formats.wal_frame import BODY_CORE_OFFSET, FLAG_NODE, FLAG_TAG

_CORE: Final = Struct("<QQHHI")
CORE_HEADER_BYTES: Final = _CORE.size

Reason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "power_loss", "corrupt"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Records a reader asked for and cannot have: seqs `gap_from` to `gap_to`, both included."""

    gap_from: int
    gap_to: int
    reason: Reason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


@dataclass(slots=True)
class Page:
    """One read. Go on with `next_from_seq`; `caught_up` says that nothing was left."""

    topic: str
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    records_scanned: int = 0
    # How many of its records came from the cold tier.
    cold_records: int = 0
    # (where the core begins, raw records), in seq order.
    chunks: list[tuple[int, list[bytes]]] = field(default_factory=list)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    def __len__(self) -> int:
        return sum(len(raws) for _, raws in self.chunks)

    @property
    def records(self) -> list[Record]:
        """The records as objects. Decoded anew by every call."""
        return [decode_raw(raw, offset) for offset, raws in self.chunks for raw in raws]


def decode_raw(raw: bytes, core_offset: int) -> Record:
    seq, ts, node_len, tag_len, _ = _CORE.unpack_from(raw, core_offset)
    flags = raw[1 if core_offset == BODY_CORE_OFFSET else 0]
    node_at = core_offset + CORE_HEADER_BYTES
    tag_at = node_at + node_len
    data_at = tag_at + tag_len
    data, meta = envelope.split(raw[data_at:])
    node = raw[node_at:tag_at].decode() if flags & FLAG_NODE else None
    tag = raw[tag_at:data_at].decode() if flags & FLAG_TAG else None
    return Record(seq, ts, node, tag, data, meta)


def raw_node(raw: bytes, core_offset: int) -> bytes | None:
    """The node of a raw record without decoding the rest."""
    if not raw[1 if core_offset == BODY_CORE_OFFSET else 0] & FLAG_NODE:
        return None
    start = core_offset + CORE_HEADER_BYTES
    return raw[start : start + _CORE.unpack_from(raw, core_offset)[2]]


def raw_size(raw: bytes, core_offset: int) -> int:
    """Accounted bytes of a raw record."""
    return envelope.accounted_bytes(raw[len(raw) - _CORE.unpack_from(raw, core_offset)[4] :])
