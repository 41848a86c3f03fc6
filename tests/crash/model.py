"""A plain model of topics, and of the histories that a crash may leave.

Every operation is noted before the engine gets it, and its outcome when the answer comes. All frames of a topic are in
one shard, in order. So after a crash a topic has the state after *some prefix* of its operations. The prefix must
contain at least the operations that were answered and promised to survive that kind of crash. `Oracle.settle` finds the
prefix whose state the engine shows exactly, or fails with the state of the engine.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Literal

from topics.engine.config import TopicConfig
from topics.formats.records import Record

Kind = Literal["create", "append", "delete", "config", "drop"]
Fate = Literal["unanswered", "acked", "failed"]


@dataclass(eq=False)
class Op:
    """One operation on one topic. `failed`: the shard failed, and after a restart the operation may be there, whole."""

    kind: Kind
    ts: int
    # Whether its answer promises that it survives a power loss.
    promised: bool = False
    fate: Fate = "unanswered"
    # Known to be durable, because a background sync or a checkpoint came after it.
    synced: bool = False
    config: TopicConfig | None = None
    records: list[tuple[str | None, str | None, bytes, bytes | None]] = field(default_factory=list)
    key: str | None = None
    bound: int = 0
    before_seq: int | None = None
    tag: str | None = None
    tag_prefix: str | None = None
    # The answer: first seq of an append, or number of records that a delete removed.
    first_seq: int | None = None
    deleted: int | None = None
    created: bool = False


@dataclass
class ModelTopic:
    """The state of one name after some operations. `exists` is False before a create and after a drop."""

    exists: bool = False
    config: TopicConfig = field(default_factory=TopicConfig)
    head_seq: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    cap_floor: int = 0
    ttl_floor: int = 0
    delete_below: int = 0
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)
    # Whether seqs were ever reserved: only then may the head jump after a power loss.
    reserved: bool = False
    # Highest answered seq that the class promised never to give to another record.
    answered_seq: int = 0

    # Whether the topic ever had a TTL. Then the floor may have passed dead slots, or not.
    expires: bool = False

    def copy(self) -> ModelTopic:
        return replace(self, records=dict(self.records), keys=dict(self.keys), lost=list(self.lost))

    # Numbers.

    @property
    def evict_floor(self) -> int:
        return min(max(self.cap_floor, self.ttl_floor) + 1, self.head_seq + 1)

    @property
    def earliest_seq(self) -> int:
        first_live = min(self.records, default=self.head_seq + 1)
        return max(self.evict_floor, min(self.delete_below, self.head_seq + 1), first_live)

    @property
    def size_bytes(self) -> int:
        return sum(_size(record) for record in self.records.values())

    # Operations.

    def apply(self, op: Op) -> None:
        if op.kind == "create":
            assert op.config is not None
            fresh = ModelTopic(exists=True, config=op.config)
            self.__dict__.update(fresh.__dict__)
        elif op.kind == "drop":
            self.__dict__.update(ModelTopic().__dict__)
        elif op.kind == "append":
            self._append(op)
        elif op.kind == "delete":
            self._delete(op)
        else:
            assert op.config is not None
            self.refresh(op.ts)
            self.config = op.config
            self.refresh(op.ts)
            self._apply_caps()

    def _append(self, op: Op) -> None:
        self.refresh(op.ts)
        first_seq = self.head_seq + 1
        for node, tag, data, meta in op.records:
            self.head_seq += 1
            self.records[self.head_seq] = Record(self.head_seq, op.ts, node, tag, data, meta)
        if op.key is not None:
            self.keys[op.key] = (op.ts, first_seq, len(op.records))
        if self.config.durability == "disk":
            self.reserved = True
        self._apply_caps()

    def _delete(self, op: Op) -> None:
        self.refresh(op.ts)
        bound = op.bound if op.before_seq is None else min(op.bound, op.before_seq)
        if op.tag is None and op.tag_prefix is None:
            self.delete_below = max(self.delete_below, min(bound, self.head_seq + 1))
        for seq in [seq for seq in self.records if seq < bound]:
            tag = self.records[seq].tag
            if op.tag is not None and tag != op.tag:
                continue
            if op.tag_prefix is not None and (tag is None or not tag.startswith(op.tag_prefix)):
                continue
            del self.records[seq]

    def refresh(self, now_ms: int) -> None:
        ttl_ms = self.config.ttl_ms
        self.expires |= ttl_ms > 0
        if not ttl_ms or not self.records:
            return
        expired = [seq for seq, record in self.records.items() if now_ms - record.ts > ttl_ms]
        if expired:
            self._evict(ttl_floor=max(expired))

    def _apply_caps(self) -> None:
        config = self.config
        if config.discard != "old":
            return
        if config.cap_records:
            self._evict(cap_floor=evicted_by_count(self.head_seq, self.lost, config.cap_records))
        if config.cap_bytes:
            floor = 0
            excess = self.size_bytes - config.cap_bytes
            for seq in sorted(self.records):
                if excess <= 0:
                    break
                excess -= _size(self.records[seq])
                floor = seq
            self._evict(cap_floor=floor)

    def _evict(self, *, cap_floor: int = 0, ttl_floor: int = 0) -> None:
        self.cap_floor = max(self.cap_floor, cap_floor)
        self.ttl_floor = max(self.ttl_floor, ttl_floor)
        floor = self.evict_floor
        for seq in [seq for seq in self.records if seq < floor]:
            del self.records[seq]

    def restart(self, now_ms: int, head_seq: int) -> None:
        """Applies a start to a topic: time has passed, and after a power loss the head may have skipped lost seqs."""
        if head_seq > self.head_seq:
            first_seq = self.head_seq + 1
            if self.lost and self.lost[-1][1] == self.head_seq:
                # Nothing was kept since the last power loss: both are one range.
                first_seq = self.lost.pop()[0]
            self.lost.append((first_seq, head_seq))
            self.head_seq = head_seq
        self.refresh(now_ms)
        self.lost = [(first, last) for first, last in self.lost if last >= self.evict_floor]


def evicted_by_count(head_seq: int, lost: list[tuple[int, int]], cap_records: int) -> int:
    """The highest seq that a cap of so many records evicts. Seqs that are lost take no room."""
    lost_seqs = {seq for first, last in lost for seq in range(first, last + 1)}
    evicted = [seq for seq in range(1, head_seq + 1) if seq not in lost_seqs][:-cap_records]
    return max(evicted, default=0)


def _size(record: Record) -> int:
    return len(record.data) + (0 if record.meta is None else len(record.meta))


@dataclass
class History:
    """One topic name: its state after the last start, and the operations since then."""

    base: ModelTopic = field(default_factory=ModelTopic)
    ops: list[Op] = field(default_factory=list)

    def copy(self) -> History:
        return History(self.base.copy(), [copy.copy(op) for op in self.ops])

    def required(self, *, power_lost: bool) -> int:
        """How many operations must be there: all up to the last promised one."""
        for place in range(len(self.ops), 0, -1):
            op = self.ops[place - 1]
            if op.fate == "acked" and (not power_lost or op.promised or op.synced):
                return place
        return 0

    def latest(self) -> ModelTopic:
        """The state that a running engine shows: all answered operations and no others."""
        state = self.base.copy()
        for op in self.ops:
            if op.fate == "acked":
                state.apply(op)
        return state

    def attempted(self) -> dict[int, list[Record]]:
        """Every record that any operation wrote, by seq. A seq may have several records, of several topic instances."""
        state = self.base.copy()
        attempted = {seq: [record] for seq, record in state.records.items()}
        for op in self.ops:
            before = state.head_seq
            kept = state.copy()
            state.apply(op)
            if op.kind == "append":
                kept.config = TopicConfig(durability=kept.config.durability)
                kept.apply(op)
                for seq in range(before + 1, kept.head_seq + 1):
                    attempted.setdefault(seq, []).append(kept.records[seq])
        return attempted

    def removed(self) -> set[int]:
        """Seqs that some operation deleted or evicted."""
        state = self.base.copy()
        removed: set[int] = set()
        for op in self.ops:
            before = set(state.records)
            state.apply(op)
            removed |= set(range(1, state.head_seq + 1)) - set(state.records)
            removed |= before - set(state.records)
        return removed

    def reserves(self) -> bool:
        """Whether a reservation may be on disk. It is written before the write that needs it."""
        state = self.base.copy()
        for op in self.ops:
            state.apply(op)
        return state.reserved

    def answered_seq(self) -> int:
        """Highest seq of this instance that no other record may ever get, also after a power loss."""
        state = self.base.copy()
        answered = state.answered_seq
        for op in self.ops:
            state.apply(op)
            if op.kind in ("create", "drop"):
                answered = 0
            if op.kind == "append" and op.fate == "acked" and state.config.durability in ("disk", "fsync"):
                answered = state.head_seq
        return answered
