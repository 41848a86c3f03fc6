"""The rules for all answers that the clients of a live run got, however often the server was killed.

Rules of a log, for each of its readers: 1. Records come in order, each once, with the payload that was written. A seq
that is skipped was deleted. 2. A gap begins at the reader's cursor. Only a cap, age or the trim of a source make a gap.
The gap covers only records above the cap at that moment, or records that are old enough. 3. A record that was deleted
before a stream was requested is not in the stream. 4. Every reader gets to the last record. Rules of a copy: it has the
records that pass the filter, in order, once. A seq has the same record for all readers, at all times. Rules of a topic
that is deleted and created again: a reader gets each instance from its start, or from a cursor that may belong to it.
Rules of a queue: 5. A lease id is given out once. A lease of a job is granted when all earlier leases of the job have
ended. 6. The delivery count of a job rises by one with each delivery. It rises by more only if an answer was lost. 7.
An ack counts only for the last lease, and at most once. After it the job is not delivered again. 8. A lease that has
not ended can be acked, also in the next process if leases are durable. 9. At the end each job is acked or is a dead
letter, and not both. No job is left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.process.live_load import (
    AGING,
    CACHED,
    CAP_RECORDS,
    CAPPED,
    COPIES,
    COPY_ALL,
    COPY_BLUE,
    COPY_CAPPED,
    COPY_ERASED,
    COPY_RED,
    ERASED,
    QUEUES,
    RENEWED,
    SYNCED,
    TTL_MS,
    Deleted,
    Ledger,
)
from tests.process.live_queue import Delivery, QueueLedger, Settlement
from tests.process.live_readers import Seen

# Streams only: the first read of a topic reports no other reason.
LATE: Final = "from_seq_too_old"
REASONS: Final = {CAPPED: {"cap", LATE}, AGING: {"ttl", LATE}, COPY_CAPPED: {"source_trim", LATE}}
# How far the time of leases, which never goes back, may be ahead of the wall clock of the test.
CLOCK_MS: Final = 20
# The source of a copy whose records have the same seqs as in the source.
SAME_SEQS: Final = {COPY_ALL: SYNCED, COPY_CAPPED: CAPPED}


class LogJudge:
    """`copies` are the copies as they were read at the end: seq and payload."""

    def __init__(self, ledger: Ledger, copies: dict[str, list[tuple[int, str]]]) -> None:
        self._ledger = ledger
        self._payloads = {
            topic: {seq: written.payload for seq, written in records.items()}
            for topic, records in ledger.records.items()
        }
        for copy, records in copies.items():
            source = SAME_SEQS.get(copy)
            self._payloads[copy] = dict(records) if source is None else self._payloads.get(source, {})
        self._copies = copies
        self._red = {seq for seq, written in ledger.records[ERASED].items() if written.tag == "red"}

    # What one reader received.

    def faults_of(self, reader: str, seen: Sequence[Seen], heads: dict[str, int] | None = None) -> Iterator[str]:
        """`heads` are the seqs that the reader must have reached; None for a reader that stopped earlier."""
        at: dict[str, int] = defaultdict(int)
        for one in seen:
            if one.topic == RENEWED:
                continue
            where = f"{one.topic}: {reader} at {at[one.topic]}"
            yield from (
                self._gap_faults(where, at[one.topic], one) if one.reason else self._faults(where, at[one.topic], one)
            )
            at[one.topic] = one.to_seq
        for topic, head_seq in (heads or {}).items():
            if at[topic] != head_seq:
                yield f"{topic}: {reader} came to {at[topic]} of {head_seq}"

    def _faults(self, where: str, at: int, seen: Seen) -> Iterator[str]:
        seqs = [seq for seq, _ in seen.records]
        if seqs != sorted(set(seqs)) or seqs[0] <= at or seen.from_seq < at or seen.to_seq < seqs[-1]:
            yield f"{where} got {seqs}, from {seen.from_seq} to {seen.to_seq}"
        payloads = self._payloads[seen.topic]
        for seq, payload in seen.records:
            if payloads.get(seq) != payload:
                yield f"{where} got {payload!r} as {seq}, which is {payloads.get(seq)!r}"
        missing = set(range(at + 1, seen.to_seq + 1)) - set(seqs)
        if seen.topic == ERASED:
            missing -= self._red
            yield from self._returned(where, seen)
        if missing:
            yield f"{where} was not given {sorted(missing)}"

    def _returned(self, where: str, seen: Seen) -> Iterator[str]:
        for seq, _ in seen.records:
            if seq in self._red and any(self._has_taken(delete, seq, seen) for delete in self._ledger.deletes):
                yield f"{where} was given {seq}, which had been deleted"

    def _has_taken(self, delete: Deleted, seq: int, seen: Seen) -> bool:
        written_ns = self._ledger.records[ERASED][seq].ended_ns
        return written_ns < delete.begun_ns and delete.ended_ns < seen.opened_ns

    def _gap_faults(self, where: str, at: int, gap: Seen) -> Iterator[str]:
        if gap.reason not in REASONS.get(gap.topic, set()) or gap.from_seq != at:
            yield f"{where} was told of a gap from {gap.from_seq + 1} to {gap.to_seq}, reason {gap.reason}"
        if gap.topic == CAPPED and gap.to_seq != gap.head_seq - CAP_RECORDS:
            yield f"{where} was told of a gap to {gap.to_seq} with the head at {gap.head_seq}"
        if gap.topic == AGING:
            last = self._ledger.records[AGING].get(gap.to_seq)
            if last is None or gap.at_ms - last.begun_ms <= TTL_MS:
                yield f"{where} was told that {gap.to_seq} is too old: {last}, now {gap.at_ms}"

    # Records that every reader must have.

    def faults_of_newest(self, seen: Sequence[Seen], topic: str, answered_seq: int) -> Iterator[str]:
        """A reader that began after `answered_seq` was answered and read to the head."""
        if max((one.to_seq for one in seen), default=0) < answered_seq:
            yield f"{topic}: {answered_seq} was answered, and is not there"

    def faults_of_copies(self) -> Iterator[str]:
        logs = self._ledger.records
        sources = {topic: [logs[topic][seq] for seq in sorted(logs[topic])] for topic in (SYNCED, CACHED, ERASED)}
        expected = {
            COPY_ALL: [written.payload for written in sources[SYNCED]],
            COPY_RED: [written.payload for written in sources[CACHED] if written.tag == "red"],
            COPY_BLUE: [written.payload for written in sources[SYNCED] if written.tag == "blue"],
        }
        for topic, payloads in expected.items():
            found = [payload for _, payload in self._copies[topic]]
            yield from _difference(topic, payloads, found)
        yield from self._erased_copy_faults([written.payload for written in sources[ERASED]])
        for topic in COPIES:
            seqs = [seq for seq, _ in self._copies[topic]]
            if seqs != list(range(seqs[0] if seqs else 1, (seqs[0] if seqs else 1) + len(seqs))):
                yield f"{topic}: it has holes"

    def _erased_copy_faults(self, payloads: list[str]) -> Iterator[str]:
        """The copy has all records, in order, except records that were deleted before they were copied."""
        found = [payload for _, payload in self._copies[COPY_ERASED]]
        red = {written.payload for written in self._ledger.records[ERASED].values() if written.tag == "red"}
        yield from _difference(COPY_ERASED, [text for text in payloads if text not in red or text in set(found)], found)

    # A topic that is created again.

    def faults_of_renewed(self, reader: str, seen: Sequence[Seen]) -> Iterator[str]:
        instance, at, was_told = 0, 0, False
        for one in seen:
            if one.topic != RENEWED:
                continue
            if one.reason:
                if one.reason not in ("recreated", LATE) or one.from_seq != 0:
                    yield f"{RENEWED}: {reader} in instance {instance} was told of {one}"
                at, was_told = 0, True
                continue
            for seq, payload in one.records:
                of_instance = int(payload.partition(" ")[0])
                written = self._ledger.renewed[of_instance]
                if not 1 <= seq <= len(written) or written[seq - 1] != payload:
                    yield f"{RENEWED}: {reader} got {payload!r} as {seq}"
                if of_instance < instance or (was_told and of_instance == instance):
                    yield f"{RENEWED}: {reader} got {payload!r} after instance {instance}"
                if seq != at + 1 and not (of_instance > instance and seq == 1):
                    yield f"{RENEWED}: {reader} at {at} of {instance} got {seq} of {of_instance}"
                instance, at, was_told = of_instance, seq, False


def _difference(topic: str, expected: list[str], found: list[str]) -> Iterator[str]:
    if expected == found:
        return
    place = next(
        (place for place, (want, have) in enumerate(zip(expected, found, strict=False)) if want != have),
        min(len(expected), len(found)),
    )
    lost, twice = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    yield (
        f"{topic}: {len(found)} of {len(expected)} records; at place {place}"
        f" {found[place : place + 2]} and not {expected[place : place + 2]};"
        f" lost {sorted(lost)[:3]}, too many {sorted(twice)[:3]}"
    )


class QueueJudge:
    """One queue. `dead` are the dead letters of all queues, as records."""

    def __init__(self, queue: str, ledger: Ledger, notes: QueueLedger, dead: Sequence[dict[str, Any]]) -> None:
        config = QUEUES[queue]
        self._queue = queue
        self._is_durable = config.get("leases_durable", False)
        self._deliveries_max = config.get("max_deliveries", 0)
        self._jobs = ledger.records[queue]
        self._notes = notes
        self._deliveries = sorted(
            (delivery for delivery in notes.deliveries if delivery.queue == queue),
            key=lambda delivery: delivery.lease_id,
        )
        self._by_seq: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in self._deliveries:
            self._by_seq[delivery.seq].append(delivery)
        self._settlements: dict[tuple[int, int], list[Settlement]] = defaultdict(list)
        for settlement in notes.settlements:
            if settlement.queue == queue:
                self._settlements[settlement.seq, settlement.lease_id].append(settlement)
        self._dead = [letter for letter in dead if letter["meta"]["$dead_letter_from"] == queue]

    def faults(self) -> Iterator[str]:
        for fault in (
            *self._lease_id_faults(),
            *self._job_faults(),
            *self._overlaps(),
            *self._count_faults(),
            *self._ack_faults(),
            *self._refusal_faults(),
            *self._end_faults(),
        ):
            yield f"{self._queue}: {fault}"

    def _of(self, delivery: Delivery, deed: str) -> list[Settlement]:
        return [one for one in self._settlements[delivery.seq, delivery.lease_id] if one.deed == deed]

    def _lease_id_faults(self) -> Iterator[str]:
        for before, after in pairwise(self._deliveries):
            if before.lease_id == after.lease_id:
                yield f"lease {after.lease_id:x} was given out for {before.seq} and for {after.seq}"
            if after.granted_ms < before.granted_ms:
                yield f"lease {after.lease_id:x} was granted before lease {before.lease_id:x}"

    def _job_faults(self) -> Iterator[str]:
        for delivery in self._deliveries:
            job = self._jobs.get(delivery.seq)
            if job is None or job.payload != delivery.payload:
                yield f"{delivery.payload!r} was delivered as {delivery.seq}, which is {job}"

    def _overlaps(self) -> Iterator[str]:
        for deliveries in self._by_seq.values():
            for before, after in pairwise(deliveries):
                if after.granted_ms <= self._deadline_ms(before) and not self._may_be_released(before, after):
                    yield f"job {after.seq} has a new lease before the last one was over: {before}, {after}"

    def _deadline_ms(self, delivery: Delivery) -> int:
        """The end of a lease as far as it is known: an extension without an answer may have happened or not."""
        extensions = self._of(delivery, "extend")
        deadlines = [one.deadline_ms for one in extensions if one.deadline_ms is not None]
        is_unknown = any(one.acted is None for one in extensions)
        last_ms = deadlines[-1] if deadlines else delivery.deadline_ms
        return min(last_ms, delivery.deadline_ms) if is_unknown else last_ms

    def _may_be_released(self, delivery: Delivery, by: Delivery) -> bool:
        if any(one.acted is not False and one.begun_ns < by.ended_ns for one in self._of(delivery, "nack")):
            return True
        if not self._is_durable and by.generation != delivery.generation:
            return True
        return self._may_be_hung_up(delivery, by.ended_ns)

    def _may_be_hung_up(self, delivery: Delivery, before_ns: int) -> bool:
        """Whether the worker ended the stream of the lease before that moment, or a stopping process did."""
        if delivery.stream is None:
            return False
        closed_ns = self._notes.closed_ns.get(delivery.stream)
        return delivery.generation in self._notes.stopped or (closed_ns is not None and closed_ns < before_ns)

    def _count_faults(self) -> Iterator[str]:
        skipped = 0
        for deliveries in self._by_seq.values():
            known = 0
            generation = 0
            for delivery in deliveries:
                if not self._is_durable and delivery.generation != generation:
                    known = 0
                generation = delivery.generation
                if delivery.deliveries <= known:
                    yield f"job {delivery.seq} was delivered for the {delivery.deliveries}. time after {known}"
                if self._deliveries_max and delivery.deliveries > self._deliveries_max:
                    yield f"job {delivery.seq} was delivered for the {delivery.deliveries}. time"
                skipped += delivery.deliveries - known - 1
                known = delivery.deliveries
        if skipped > self._notes.maybe_unseen[self._queue]:
            yield f"{skipped} deliveries were counted that no worker got, {self._notes.maybe_unseen} may have been lost"

    def _ack_faults(self) -> Iterator[str]:
        for seq, deliveries in self._by_seq.items():
            acks = [one for delivery in deliveries for one in self._of(delivery, "ack") if one.acted]
            if len(acks) > 1:
                yield f"job {seq} was acked {len(acks)} times: {acks}"
            if acks and acks[0].lease_id != deliveries[-1].lease_id:
                yield f"job {seq} was acked by {acks[0]} and delivered again: {deliveries[-1]}"

    def _refusal_faults(self) -> Iterator[str]:
        """A refused ack of a lease that, as far as it is known, had not ended."""
        for delivery in self._deliveries:
            acks = self._of(delivery, "ack")
            if not acks or acks[0].acted is not False:
                continue
            ack = acks[0]
            is_over = ack.ended_ms + CLOCK_MS > self._deadline_ms(delivery)
            is_given_back = any(one.acted is not False for one in self._of(delivery, "nack"))
            is_forgotten = not self._is_durable and ack.generation != delivery.generation
            if not (is_over or is_given_back or is_forgotten or self._may_be_hung_up(delivery, ack.ended_ns)):
                yield f"an ack was refused though its lease was not over: {delivery}, {ack}"

    def _end_faults(self) -> Iterator[str]:
        dead = Counter(int(letter["meta"]["$dead_letter_src_seq"]) for letter in self._dead)
        yield from (f"job {seq} is {count} dead letters" for seq, count in dead.items() if count > 1)
        for letter in self._dead:
            seq = int(letter["meta"]["$dead_letter_src_seq"])
            if seq not in self._jobs or self._jobs[seq].payload != letter["data"]:
                yield f"the dead letter {letter} is of another job"
        acks = [one for ones in self._settlements.values() for one in ones if one.deed == "ack"]
        acked, maybe = {one.seq for one in acks if one.acted}, {one.seq for one in acks if one.acted is None}
        yield from (f"job {seq} was acked and is a dead letter" for seq in sorted(acked & dead.keys()))
        gone = self._jobs.keys() - acked - dead.keys() - maybe
        yield from (f"job {seq} is gone without an ack" for seq in sorted(gone))

    # Numbers for the summary.

    @property
    def dead_count(self) -> int:
        return len(self._dead)

    @property
    def acked_count(self) -> int:
        return sum(bool(one.acted) for ones in self._settlements.values() for one in ones if one.deed == "ack")

    @property
    def refused_count(self) -> int:
        return sum(one.acted is False for ones in self._settlements.values() for one in ones if one.deed == "ack")

    @property
    def delivered_count(self) -> int:
        return len(self._deliveries)
