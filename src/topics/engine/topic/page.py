"""The result of a read: raw records, the seq to go on from, and a tombstone for records that are lost.

A page holds raw records (`formats.record_layout`). They are decoded only when `Page.records` is asked for.
"""

from dataclasses import dataclass, field

from topics.formats.record_layout import RecordForm, decode_raw
from topics.formats.records import Record
from topics.results import Tombstone


@dataclass(slots=True)
class Page:
    """One read. The next read begins after `next_from_seq`. `caught_up` says that no record is left."""

    topic: str
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    records_scanned: int = 0
    # Number of records that came from the cold tier.
    cold_records: int = 0
    # (form, raw records of that form), in seq order.
    chunks: list[tuple[RecordForm, list[bytes]]] = field(default_factory=list)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    def add(self, form: RecordForm, raws: list[bytes], *, is_cold: bool) -> None:
        """Takes the next records in."""
        self.chunks.append((form, raws))
        if is_cold:
            self.cold_records += len(raws)

    def advance(self, seq: int) -> None:
        """Every slot up to this seq was looked at."""
        self.records_scanned += seq - self.next_from_seq
        self.next_from_seq = seq

    def __len__(self) -> int:
        return sum(len(raws) for _, raws in self.chunks)

    @property
    def records(self) -> list[Record]:
        """The records as objects. Every call decodes them again."""
        return [decode_raw(raw, form) for form, raws in self.chunks for raw in raws]
