"""A small model of routers: topics are dicts from seq to record, and records are copied slot by slot."""

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

    def append(self, record: ModelRecord) -> None:
        self.head += 1
        self.records[self.head] = record

    def evict(self) -> None:
        if self.cap_records:
            self.raise_floor(self.head - self.cap_records)

    def raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        self.records = {seq: record for seq, record in self.records.items() if seq > self.floor}

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
        lost = source.floor - self.cursor
        if lost > 0:
            self.cursor += lost
            self.forwarded_total += lost
            dest.head += lost
            dest.raise_floor(dest.head)
        while self.cursor < source.head:
            record = source.records.get(self.cursor + 1)
            if record is not None and record.hops < HOPS_MAX and self._passes(record.tag):
                if self.room is not None and len(dest.records) >= self.room:
                    return
                dest.append(ModelRecord(record.payload, record.tag, record.hops + 1))
                self.forwarded_total += 1
            self.cursor += 1
        dest.evict()

    def _passes(self, tag: str | None) -> bool:
        return self.prefix is None or (tag is not None and tag.startswith(self.prefix))
