"""A small model of routers: topics are dicts from seq to record, and records are copied slot by slot.

A slot that the source has lost becomes a lost slot of dest. Lost are slots at or below a floor, and slots that are lost
in the source already. A lost slot takes no room under a cap, and no other record goes with it.
"""

from dataclasses import dataclass, field

HOPS_MAX = 8


@dataclass(frozen=True)
class ModelRecord:
    payload: int
    tag: str | None
    hops: int = 0


@dataclass
class ModelTopic:
    cap_records: int = 0
    head: int = 0
    floor: int = 0
    records: dict[int, ModelRecord] = field(default_factory=dict)
    # Seqs in place of records that a source lost before they were copied.
    lost: set[int] = field(default_factory=set)

    def append(self, record: ModelRecord) -> None:
        self.head += 1
        self.records[self.head] = record

    def evict(self) -> None:
        if self.cap_records:
            kept = [seq for seq in range(1, self.head + 1) if seq not in self.lost]
            self.floor = max([self.floor, *kept[: -self.cap_records]])
            self.records = {seq: record for seq, record in self.records.items() if seq > self.floor}

    def lose(self) -> None:
        self.head += 1
        self.lost.add(self.head)

    @property
    def told(self) -> list[tuple[int, int, str]]:
        """Every tombstone that a reader from the first record gets."""
        gaps = [(1, self.floor, "cap")] if self.floor else []
        for seq in sorted(self.lost):
            if seq <= self.floor:
                continue
            if gaps and gaps[-1][1:] == (seq - 1, "source_trim"):
                gaps[-1] = (gaps[-1][0], seq, "source_trim")
            else:
                gaps.append((seq, seq, "source_trim"))
        return gaps

    def delete(self, *, before_seq: int | None = None, tag: str | None = None) -> None:
        self.records = {
            seq: record
            for seq, record in self.records.items()
            if not ((before_seq is None or seq < before_seq) and (tag is None or record.tag == tag))
        }


@dataclass
class ModelRouter:
    source: ModelTopic
    dest: ModelTopic
    prefix: str | None = None
    room: int | None = None
    cursor: int = 0
    forwarded_total: int = 0

    def __post_init__(self) -> None:
        self.cursor = self.source.head

    def forward(self) -> None:
        source, dest = self.source, self.dest
        while self.cursor < source.head:
            seq = self.cursor + 1
            record = source.records.get(seq)
            if seq <= source.floor or seq in source.lost:
                dest.lose()
                self.forwarded_total += 1
            elif record is not None and record.hops < HOPS_MAX and self._passes(record.tag):
                if self.room is not None and len(dest.records) >= self.room:
                    return
                dest.append(ModelRecord(record.payload, record.tag, record.hops + 1))
                self.forwarded_total += 1
            self.cursor += 1
        dest.evict()

    def _passes(self, tag: str | None) -> bool:
        return self.prefix is None or (tag is not None and tag.startswith(self.prefix))
