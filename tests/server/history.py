"""Histories of concurrent clients, and the rules that hold for every interleaving of them.

Every operation has the times of its begin and its answer, on one monotonic clock. It took effect at an unknown moment
between the two. So the rules only compare operations of which one was answered before the other began. Seqs come from
the server, so no search is needed: each rule is one pass over sorted operations.

Rules of a topic:
1. Each write got consecutive seqs, one per record; no two writes share a seq; together they are 1 to the head.
2. A write that was answered before another began has the lower seqs.
3. A repeated key got the seqs of the one write that appended.
4. A page has exactly the records of its range, in order, with the written payloads: a seq is missing only if it is in
   the declared tombstone or a delete may have removed it. The page ends at its limit or at the head.
5. A read that began after a write was answered has a head that includes the write. No record is read before its write
   began.
6. A record that one read found gone is gone for all later reads: evicted and deleted records do not come back.
7. A read that began after a delete was answered has no record that the delete must have removed. The counts of all
   deletes add up to the number of records that are missing in the end.
8. `head_seq` and `earliest_seq` never fall from one read to a later one.
9. A read has a tombstone exactly when its cursor is below the cap's floor, and the tombstone ends at that floor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

# The number of faults of one rule that are reported, because one bug makes thousands.
FAULTS_TOLD: Final = 5
# The client that reads everything, from 0 to the head, after all others.
LAST_READER: Final = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    topic: str
    client: str
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote(Operation):
    """An answered write."""

    payloads: tuple[str, ...]
    tag: str | None = None
    key: str | None = None
    seqs: tuple[int, ...]
    deduped: bool = False

    @property
    def first_seq(self) -> int:
        return self.seqs[0]

    @property
    def last_seq(self) -> int:
        return self.seqs[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operation):
    """An answered diff."""

    from_seq: int
    limit: int
    # Seq, payload, tag.
    records: tuple[tuple[int, str, str | None], ...]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    # First and last seq of the gap.
    gap: tuple[int, int] | None = None

    def seqs_missing(self) -> Iterator[int]:
        """Seqs of this page without a record that no tombstone explains."""
        first = self.gap[1] + 1 if self.gap else self.from_seq + 1
        found = {seq for seq, _, _ in self.records}
        yield from (seq for seq in range(first, self.next_from_seq + 1) if seq not in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased(Operation):
    """An answered delete of everything with one tag."""

    tag: str
    deleted: int


@dataclass
class History:
    """The operations of all clients. Each client has its own list; the lists are joined at the end."""

    operations: list[Operation] = field(default_factory=list)
    # Topics with `cap_records`.
    caps: dict[str, int] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """The broken rules; empty if every rule holds."""
        by_topic: dict[str, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            by_topic[operation.topic].append(operation)
        found: list[str] = []
        for topic, operations in sorted(by_topic.items()):
            check = _TopicCheck(operations, self.caps.get(topic))
            for rule in check.rules():
                told = [f"{topic}: {fault}" for fault in rule]
                found += told[:FAULTS_TOLD] + [f"{topic}: … {len(told)} of these"] * (len(told) > FAULTS_TOLD)
        return found


class _TopicCheck:
    def __init__(self, operations: Sequence[Operation], cap_records: int | None) -> None:
        self._cap_records = cap_records
        answers = [operation for operation in operations if isinstance(operation, Wrote)]
        self._repeats = [write for write in answers if write.deduped]
        self._writes = sorted((write for write in answers if not write.deduped), key=lambda write: write.seqs)
        self._reads = sorted((read for read in operations if isinstance(read, Read)), key=lambda read: read.begun_ns)
        self._erasures = [operation for operation in operations if isinstance(operation, Erased)]
        self._write_by_seq = {seq: write for write in self._writes for seq in write.seqs}
        # A key counts as answered when its first answer has come.
        self._answered_ns = {write.first_seq: write.ended_ns for write in self._writes}
        for repeat in self._repeats:
            known_ns = self._answered_ns.get(repeat.first_seq, repeat.ended_ns)
            self._answered_ns[repeat.first_seq] = min(known_ns, repeat.ended_ns)

    def rules(self) -> Iterator[Iterator[str]]:
        yield self._check_seqs()
        yield self._check_real_time_order()
        yield self._check_keys()
        yield self._check_pages()
        yield self._check_freshness()
        yield self._check_nothing_comes_back()
        yield self._check_deletes()
        yield self._check_numbers_never_fall()
        yield self._check_tombstones()

    def _answered(self, write: Wrote) -> int:
        return self._answered_ns[write.first_seq]

    # Writes.

    def _check_seqs(self) -> Iterator[str]:
        for write in self._writes:
            if write.seqs != tuple(range(write.first_seq, write.first_seq + len(write.payloads))):
                yield f"{len(write.payloads)} records of {write.client} got the seqs {write.seqs}"
        for before, after in pairwise(self._writes):
            if after.first_seq <= before.last_seq:
                yield f"{before.client} and {after.client} were both given seq {after.first_seq}"
            elif after.first_seq > before.last_seq + 1:
                yield f"nobody was given the seqs {before.last_seq + 1} to {after.first_seq - 1}"
        if self._writes and self._writes[0].first_seq != 1:
            yield f"the first seq is {self._writes[0].first_seq}"

    def _check_real_time_order(self) -> Iterator[str]:
        first_answered_ns: int | None = None
        for write in reversed(self._writes):
            if first_answered_ns is not None and first_answered_ns < write.begun_ns:
                yield f"seq {write.first_seq} began after a higher one was answered"
            answered_ns = self._answered(write)
            first_answered_ns = answered_ns if first_answered_ns is None else min(first_answered_ns, answered_ns)

    def _check_keys(self) -> Iterator[str]:
        by_key: dict[str, list[Wrote]] = defaultdict(list)
        for write in self._writes:
            if write.key is not None:
                by_key[write.key].append(write)
        for key, writes in by_key.items():
            if len(writes) > 1:
                yield f"key {key} was appended {len(writes)} times"
        for repeat in self._repeats:
            originals = by_key.get(repeat.key or "", [])
            if not originals:
                yield f"key {repeat.key} was deduped, and nobody appended it"
            elif repeat.seqs != originals[0].seqs:
                yield f"key {repeat.key} was appended as {originals[0].seqs} and deduped as {repeat.seqs}"
            elif repeat.ended_ns < originals[0].begun_ns:
                yield f"key {repeat.key} was deduped before it was sent"

    # Reads.

    def _check_pages(self) -> Iterator[str]:
        for read in self._reads:
            where = f"a read of {read.client} after {read.from_seq}"
            seqs = [seq for seq, _, _ in read.records]
            if seqs != sorted(set(seqs)) or (seqs and seqs[0] <= read.from_seq):
                yield f"{where} has the seqs {seqs}"
            if not (max(seqs, default=read.from_seq) <= read.next_from_seq <= read.head_seq):
                yield f"{where} ends at {read.next_from_seq} with the head at {read.head_seq}"
            if read.caught_up != (read.next_from_seq == read.head_seq):
                yield f"{where} says caught_up {read.caught_up} at {read.next_from_seq} of {read.head_seq}"
            if len(seqs) > read.limit or (len(seqs) < read.limit and not read.caught_up):
                yield f"{where} has {len(seqs)} records for a limit of {read.limit}, and is not at the head"
            yield from self._check_records(read, where)
            for seq in read.seqs_missing():
                write = self._write_by_seq.get(seq)
                if write is None or not any(self._may_take(erasure, write, read) for erasure in self._erasures):
                    yield f"{where} went over seq {seq}, which nobody had deleted"

    def _check_records(self, read: Read, where: str) -> Iterator[str]:
        for seq, payload, tag in read.records:
            write = self._write_by_seq.get(seq)
            if write is None:
                yield f"{where} has seq {seq}, which nobody was given"
            elif (payload, tag) != (write.payloads[seq - write.first_seq], write.tag):
                yield f"{where} has another record at seq {seq}: {payload!r}, tag {tag!r}"
            elif read.ended_ns < write.begun_ns:
                yield f"{where} has seq {seq} before it was sent"

    @staticmethod
    def _may_take(erasure: Erased, write: Wrote, read: Read) -> bool:
        return erasure.tag == write.tag and erasure.begun_ns < read.ended_ns and write.begun_ns < erasure.ended_ns

    def _check_freshness(self) -> Iterator[str]:
        """By sweeps: the highest seq answered before a moment, and the highest begun before it."""
        answered = _Highest((self._answered(write), write.last_seq) for write in self._writes)
        begun = _Highest((write.begun_ns, write.last_seq) for write in self._writes)
        for read in self._reads:
            lowest, highest = answered.before(read.begun_ns), begun.before(read.ended_ns)
            if read.head_seq < lowest:
                yield f"{read.client} saw the head at {read.head_seq} after {lowest} was answered"
            if read.head_seq > highest:
                yield f"{read.client} saw the head at {read.head_seq} when {highest} was the last sent"

    def _check_nothing_comes_back(self) -> Iterator[str]:
        gone_ns: dict[int, int] = {}
        evicted_by: list[tuple[int, int]] = []
        for read in self._reads:
            for seq in read.seqs_missing():
                gone_ns[seq] = min(gone_ns.get(seq, read.ended_ns), read.ended_ns)
            if read.gap is not None:
                evicted_by.append((read.ended_ns, read.gap[1]))
        evicted = _Highest(evicted_by)
        for read in self._reads:
            floor = evicted.before(read.begun_ns)
            for seq, _, _ in read.records:
                if gone_ns.get(seq, read.begun_ns) < read.begun_ns or seq <= floor:
                    yield f"{read.client} read seq {seq}, which was gone in an earlier read"

    def _check_deletes(self) -> Iterator[str]:
        by_tag: dict[str, list[Erased]] = defaultdict(list)
        for erasure in self._erasures:
            by_tag[erasure.tag].append(erasure)
        for read in self._reads:
            for seq, _, tag in read.records:
                write = self._write_by_seq.get(seq)
                for erasure in by_tag.get(tag or "", ()):
                    if (
                        write is not None
                        and self._answered(write) < erasure.begun_ns
                        and erasure.ended_ns < read.begun_ns
                    ):
                        yield f"{read.client} read seq {seq}, which {erasure.client} had deleted"
        yield from self._check_delete_counts()

    def _check_delete_counts(self) -> Iterator[str]:
        """Uses the pages of the last reader. Records that a cap removed cannot be counted."""
        pages = [read for read in self._reads if read.client == LAST_READER]
        if not pages or self._cap_records is not None:
            return
        missing = sum(len(list(page.seqs_missing())) for page in pages)
        deleted = sum(erasure.deleted for erasure in self._erasures)
        if missing != deleted:
            yield f"deletes were answered with {deleted} records, and {missing} are missing"

    def _check_numbers_never_fall(self) -> Iterator[str]:
        heads = _Highest((read.ended_ns, read.head_seq) for read in self._reads)
        floors = _Highest((read.ended_ns, read.earliest_seq) for read in self._reads)
        for read in self._reads:
            if read.head_seq < heads.before(read.begun_ns):
                yield f"{read.client} saw the head at {read.head_seq} after it was at {heads.before(read.begun_ns)}"
            if read.earliest_seq < floors.before(read.begun_ns):
                yield f"{read.client} saw earliest_seq fall to {read.earliest_seq}"

    def _check_tombstones(self) -> Iterator[str]:
        for read in self._reads:
            floor = 0 if self._cap_records is None else max(0, read.head_seq - self._cap_records)
            expected = (read.from_seq + 1, floor) if read.from_seq < floor else None
            if read.gap != expected:
                yield f"a read of {read.client} after {read.from_seq} told the gap {read.gap}, not {expected}"


class _Highest:
    """The highest number noted strictly before a moment."""

    def __init__(self, noted: Iterator[tuple[int, int]] | Sequence[tuple[int, int]]) -> None:
        in_order = sorted(noted)
        self._moments_ns = [moment_ns for moment_ns, _ in in_order]
        self._highest: list[int] = []
        for _, number in in_order:
            self._highest.append(max(number, self._highest[-1] if self._highest else 0))

    def before(self, moment_ns: int) -> int:
        place = bisect_left(self._moments_ns, moment_ns)
        return self._highest[place - 1] if place else 0
