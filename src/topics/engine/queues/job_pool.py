"""Taking jobs out of a queue: returned jobs first, lowest seq first, then jobs that were never delivered.

Owner only, and nothing here waits for a file: at a job whose bytes are not in memory the taking ends, and says what has
to be fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from topics.engine.topic.fetch import Fetch
from topics.engine.topic.leases import Lease, LeaseTable
from topics.engine.topic.topic import Topic
from topics.errors import FormatError, TopicsError
from topics.formats.record_layout import RecordForm, decode_raw
from topics.formats.records import Record
from topics.limits import DEAD_LETTERS_PER_PASS_MAX, READ_PIECE_BYTES_MIN

logger = logging.getLogger(__name__)

Slot = bytes | FormatError | None


class Taken:
    """Jobs that are taken and not leased yet: the caller hands them out, or moves them, in the same call."""

    __slots__ = ("dying", "fetch", "is_cut", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        # Jobs that were delivered too often, marked as moving.
        self.dying: list[tuple[Lease, Record]] = []
        # What has to be brought into memory before more jobs can be taken.
        self.fetch: Fetch | None = None
        # Whether the taking ended before it had looked at every ready job.
        self.is_cut = True


def take_jobs(
    topic: Topic, table: LeaseTable, wanted: int, now_ms: int, bytes_max: int, *, may_wait: bool = False
) -> Taken:
    """Up to `wanted` jobs, fewer when their bytes are many or not at hand. Raises when the first cannot be read.

    With `may_wait` the first of them is read wherever it is: it was fetched before.
    """
    pool = _Pool(topic, table, now_ms, bytes_max, may_wait=may_wait)
    if pool.take_returned(wanted):
        pool.take_new(wanted)
    return pool.taken


class _Pool:
    """One call of `take_jobs`."""

    def __init__(self, topic: Topic, table: LeaseTable, now_ms: int, bytes_max: int, *, may_wait: bool) -> None:
        self.taken = Taken()
        self._topic = topic
        self._table = table
        self._now_ms = now_ms
        self._budget = bytes_max
        self._may_wait = may_wait

    def take_returned(self, wanted: int) -> bool:
        """Takes returned jobs; whether the taking goes on with new ones."""
        table, taken = self._table, self.taken
        config = self._topic.config
        deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        while len(taken.records) < wanted and self._budget > 0:
            lease = table.first_returned()
            if lease is None:
                return True
            is_dying = 0 < deliveries_max <= lease.deliveries
            if is_dying and len(taken.dying) == DEAD_LETTERS_PER_PASS_MAX:
                return False
            found = self._read(lease.seq, lease.seq)
            if found is None:
                return False
            table.take_first_returned()
            record = self._record(lease.seq, found[0], found[1][0])
            if record is None:
                continue
            if is_dying:
                table.begin_move(lease.seq)
                taken.dying.append((lease, record))
            else:
                taken.records.append(record)
        return False

    def take_new(self, wanted: int) -> None:
        topic, table, records = self._topic, self._table, self.taken.records
        while len(records) < wanted and self._budget > 0:
            seq = max(table.cursor, topic.live.first_live)
            if seq > topic.head_seq:
                self.taken.is_cut = False
                return
            found = self._read(seq, min(topic.head_seq, seq + wanted - len(records) - 1))
            if found is None:
                return
            form, slots = found
            is_dead = True
            for slot in slots:
                if self._budget <= 0:
                    break
                # After a start, jobs that were delivered before are among them.
                if slot is not None and seq not in table:
                    is_dead = False
                    record = self._record(seq, form, slot)
                    if record is not None:
                        records.append(record)
                seq += 1
            if is_dead:
                # Perhaps the first of many dead slots: a power loss or a delete took the records.
                seq = topic.live.next_live(seq) or topic.head_seq + 1
            table.advance_cursor(seq)

    def _read(self, seq: int, last_seq: int) -> tuple[RecordForm, Sequence[Slot]] | None:
        """(form, slots); None when the taking ends here."""
        may_wait, self._may_wait = self._may_wait, False
        try:
            found = self._topic.job_slots(seq, last_seq, READ_PIECE_BYTES_MIN, may_wait=may_wait)
        except TopicsError:
            if self.taken.records or self.taken.dying:
                # The next taking begins here, and raises the error.
                return None
            raise
        if isinstance(found, Fetch):
            self.taken.fetch = found
            return None
        return found

    def _record(self, seq: int, form: RecordForm, slot: Slot) -> Record | None:
        """The record of a job. A job that is dead or damaged does not block others: it is forgotten, or delayed."""
        if slot is None:
            self._table.forget(seq)
            return None
        if isinstance(slot, FormatError):
            queue = self._topic
            logger.error(
                'job %d of queue "%s" is damaged (%s) and cannot be delivered; run `topics verify`',
                seq,
                queue.name,
                slot.message,
            )
            self._table.put_off(seq, self._now_ms + queue.config.lease_ms)
            return None
        record = decode_raw(slot, form)
        self._budget -= len(record.data) + (0 if record.meta is None else len(record.meta))
        return record
