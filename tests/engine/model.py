"""The rules of one topic in plain Python. The state machine compares the engine with this model.

A `TopicModel` has the live records and the floors. All other values are computed when they are asked for. Times and the
outcome of a crash are passed in. Two values are not fixed by the rules, so the model takes them over from the engine
after a check: how far `ttl_floor` goes over dead slots above the last expired record, and which prefix survives a power
loss.
"""

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.engine.config import TopicConfig
from topics.engine.topic.reading import Page
from topics.formats.records import Record
from topics.results import Tombstone


class NewModelRecord(NamedTuple):
    data: bytes
    meta: bytes | None = None
    tag: str | None = None
    node: str | None = None

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta or b"")


class KeyModel(NamedTuple):
    ts: int
    first_seq: int
    count: int


class PageModel(NamedTuple):
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None

    @classmethod
    def of(cls, page: Page) -> "PageModel":
        return cls(page.records, page.next_from_seq, page.head_seq, page.earliest_seq, page.tombstone)


def size_of(record: Record) -> int:
    return len(record.data) + len(record.meta or b"")


@dataclass
class TopicModel:
    config: TopicConfig
    head_seq: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    cap_floor: int = 0
    ttl_floor: int = 0
    # `ttl_floor` may go up to here: all slots in between are dead.
    ttl_floor_max: int = 0
    delete_below: int = 0
    last_ts: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    keys: dict[str, KeyModel] = field(default_factory=dict)
    # Seqs that only memory knows of: written while the topic was ephemeral.
    unlogged: set[int] = field(default_factory=set)

    def copy(self) -> "TopicModel":
        return copy.deepcopy(self)

    # Numbers.

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        return sum(map(size_of, self.records.values()))

    @property
    def evict_floor(self) -> int:
        return min(max(self.cap_floor, self.ttl_floor) + 1, self.head_seq + 1)

    @property
    def earliest_seq(self) -> int:
        first_live = min(self.records, default=self.head_seq + 1)
        return max(self.evict_floor, min(self.delete_below, self.head_seq + 1), first_live)

    def _remove(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.records[seq]
        return len(seqs)

    # Retention.

    def refresh(self, now_ms: int) -> None:
        ttl_ms = self.config.ttl_ms
        self.keys = {key: known for key, known in self.keys.items() if self.known_key(key, now_ms) is not None}
        expired = [seq for seq, record in self.records.items() if ttl_ms and now_ms - record.ts > ttl_ms]
        if expired:
            self._remove(expired)
            self.ttl_floor = max(self.ttl_floor, *expired)
            self.ttl_floor_max = max(self.ttl_floor, min(self.records, default=self.head_seq + 1) - 1)

    def settle_ttl_floor(self, ttl_floor: int) -> None:
        """Takes over the floor of the engine. It may have passed dead slots above the last expired record."""
        assert self.ttl_floor <= ttl_floor <= max(self.ttl_floor_max, self.ttl_floor)
        self.ttl_floor = ttl_floor
        self.lost = [(first, last) for first, last in self.lost if last >= self.evict_floor]

    def apply_caps(self) -> None:
        config = self.config
        if config.discard != "old":
            return
        if config.cap_records:
            self._apply_record_cap()
        while config.cap_bytes and self.size_bytes > config.cap_bytes:
            self.cap_floor = min(self.records)
            self._remove([self.cap_floor])

    def _apply_record_cap(self) -> None:
        """The newest `cap_records` seqs that are not lost stay."""
        kept = [seq for seq in range(1, self.head_seq + 1) if not self._is_lost(seq)]
        self.cap_floor = max([self.cap_floor, *kept[: -self.config.cap_records]])
        self._remove([seq for seq in self.records if seq <= self.cap_floor])
        self.lost = [(first, last) for first, last in self.lost if last >= self.evict_floor]

    def refusal(self, new: list[NewModelRecord]) -> str | None:
        """Error code of a write that a `reject` topic refuses."""
        config, count, size = self.config, len(new), sum(record.size for record in new)
        if config.discard != "reject":
            return None
        if 0 < config.cap_records < count or 0 < config.cap_bytes < size:
            return "record_too_large"
        if 0 < config.cap_records < self.count + count or 0 < config.cap_bytes < self.size_bytes + size:
            return "topic_full"
        return None

    # Writing.

    def known_key(self, key: str | None, now_ms: int) -> KeyModel | None:
        known = self.keys.get(key) if key is not None else None
        return known if known is not None and now_ms - known.ts < self.config.idempotency_window_ms else None

    def append(self, new: list[NewModelRecord], key: str | None, now_ms: int) -> None:
        first_seq, self.last_ts = self.head_seq + 1, max(self.last_ts, now_ms)
        for seq, record in enumerate(new, first_seq):
            self.records[seq] = Record(seq, self.last_ts, record.node, record.tag, record.data, record.meta)
            if self.config.durability == "ephemeral":
                self.unlogged.add(seq)
        self.head_seq += len(new)
        if key is not None:
            self.keys[key] = KeyModel(self.last_ts, first_seq, len(new))
        self.apply_caps()

    # Deleting.

    def delete(self, before_seq: int | None, tag: str | None, tag_prefix: str | None) -> int:
        bound = self.head_seq + 1 if before_seq is None else min(before_seq, self.head_seq + 1)
        if tag is None and tag_prefix is None:
            self.delete_below = max(self.delete_below, bound)
            return self._remove([seq for seq in self.records if seq < bound])
        return self._remove(
            [
                seq
                for seq, record in self.records.items()
                if seq < bound
                and record.tag is not None
                and (record.tag == tag if tag is not None else record.tag.startswith(tag_prefix or ""))
            ]
        )

    # Reading.

    def read(self, from_seq: int, limit: int, bytes_max: int, nodes: frozenset[str]) -> PageModel:
        cursor, tombstone = self._tombstone(from_seq)
        if not self.config.dedupe_node:
            nodes = frozenset()
        taken: list[Record] = []
        used = 0
        while cursor < self.head_seq and len(taken) < limit and not self._is_lost(cursor + 1):
            record = self.records.get(cursor + 1)
            if record is not None and (record.node is None or record.node not in nodes):
                used += size_of(record)
                if used > bytes_max and taken:
                    break
                taken.append(record)
            cursor += 1
        return PageModel(taken, cursor, self.head_seq, self.earliest_seq, tombstone)

    def _is_lost(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self.lost)

    def _tombstone(self, cursor: int) -> tuple[int, Tombstone | None]:
        head, evict_floor, earliest = self.head_seq, self.evict_floor, self.earliest_seq
        gap = cursor + 1
        if cursor > head:
            return earliest - 1, Tombstone(1, head, "recreated", max(head - 1, 0) + 1, earliest, head)
        if gap < evict_floor:
            capped, expired = self.cap_floor >= gap, self.ttl_floor >= gap
            reason = "mixed" if capped and expired else "cap" if capped else "ttl"
            behind = evict_floor - 1 if self.lost else max(earliest - 1, cursor)
            return behind, Tombstone(gap, evict_floor - 1, reason, evict_floor - gap, evict_floor, head)
        for first, last in self.lost:
            if first <= gap <= last:
                return last, Tombstone(gap, last, "power_loss", last - cursor, last + 1, head)
        return cursor, None

    # Crashes.

    def recovered(self, *, ceiling: int, now_ms: int) -> "TopicModel":
        """What a start makes of this state; `ceiling` is 0 unless the power was lost."""
        model = self.copy()
        if ceiling > model.head_seq + 1:
            first_seq = model.head_seq + 1
            if model.lost and model.lost[-1][1] == model.head_seq:
                # Nothing was written since the last loss: both are one range.
                first_seq = model.lost.pop()[0]
            model.lost.append((first_seq, ceiling - 1))
            model.head_seq = ceiling - 1
        model.refresh(now_ms)
        return model
