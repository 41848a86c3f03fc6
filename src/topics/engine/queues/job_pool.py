"""Taking jobs out of a queue's pool: returned ones first, lowest seq first, then those that were never delivered.

Owner only, and nothing here waits for a file: where the bytes of a job are not at hand the taking ends, and says what
has to be fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.engine.queues.leases import Lease, LeaseTable
from topics.engine.topic.fetch import Fetch
from topics.errors import FormatError, TopicsError
from topics.formats.record_layout import RecordForm, decode_raw
from topics.formats.records import Record
from topics.limits import DEAD_LETTERS_PER_PASS_MAX, READ_PIECE_BYTES_MIN

if TYPE_CHECKING:
    from topics.engine.topic.topic import Topic

logger = logging.getLogger(__name__)

Slot = bytes | FormatError | None


class Taken:
    """Jobs that are in nobody's hands: the caller hands them out, or moves them, before anybody else looks."""

    __slots__ = ("dying", "fetch", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        # Delivered too often, marked as moving.
        self.dying: list[tuple[Lease, Record]] = []
        # What has to be read before there is more.
        self.fetch: Fetch | None = None


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
    """One taking."""

    def __init__(self, topic: Topic, table: LeaseTable, now_ms: int, bytes_max: int, *, may_wait: bool) -> None:
        self.taken = Taken()
        self._topic = topic
        self._table = table
        self._now_ms = now_ms
        self._budget = bytes_max
        self._may_wait = may_wait

    def take_returned(self, wanted: int) -> bool:
        """Whether the taking goes on behind them."""
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
                table.begin_move(lease)
                taken.dying.append((lease, record))
            else:
                taken.records.append(record)
        return False

    def take_new(self, wanted: int) -> None:
        topic, table, records = self._topic, self._table, self.taken.records
        while len(records) < wanted and self._budget > 0:
            seq = max(table.cursor, topic.first_live)
            if seq > topic.head_seq:
                return
            found = self._read(seq, min(topic.head_seq, seq + wanted - len(records) - 1))
            if found is None:
                return
            form, slots = found
            is_dead = True
            for slot in slots:
                if self._budget <= 0:
                    break
                # After a start, what was delivered before is among them.
                if slot is not None and seq not in table:
                    is_dead = False
                    record = self._record(seq, form, slot)
                    if record is not None:
                        records.append(record)
                seq += 1
            if is_dead:
                # Perhaps one of many: what a power loss took, or a delete.
                seq = topic.next_live(seq) or topic.head_seq + 1
            table.cursor = seq

    def _read(self, seq: int, last_seq: int) -> tuple[RecordForm, Sequence[Slot]] | None:
        """(form, slots); None when the taking has to end before them."""
        may_wait, self._may_wait = self._may_wait, False
        try:
            found = self._topic.job_slots(seq, last_seq, READ_PIECE_BYTES_MIN, may_wait=may_wait)
        except TopicsError:
            if self.taken.records or self.taken.dying:
                # The next one begins with it, and says so.
                return None
            raise
        if isinstance(found, Fetch):
            self.taken.fetch = found
            return None
        return found

    def _record(self, seq: int, form: RecordForm, slot: Slot) -> Record | None:
        """One that cannot be had is out of the way afterwards."""
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
