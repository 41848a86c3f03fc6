"""The lease table of a queue as both rooms of queues use it: its numbers, its events in the log, and the callers that
wait for jobs. Owner only."""

from __future__ import annotations

from typing import Final

from topics.engine.config import LEASE_MS_MAX, LEASE_MS_MIN
from topics.engine.core import Applied, Core
from topics.engine.queues.job_waiters import JobWaiters
from topics.engine.topic.leases import LeaseTable
from topics.engine.topic.topic import Topic
from topics.errors import NotAQueue
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType

# Jobs that one look for the oldest ready job passes. The next look goes on after them.
_PASSED_JOBS_MAX: Final = 1000


def table_of(topic: Topic) -> LeaseTable:
    assert topic.leases is not None
    return topic.leases


def logs_leases(topic: Topic) -> bool:
    return topic.config.leases_durable and topic.config.durability != "ephemeral"


def ready_count(topic: Topic, table: LeaseTable) -> int:
    return topic.live.count - table.in_flight - table.delayed


def oldest_ready_ts(topic: Topic, table: LeaseTable) -> int | None:
    """When the oldest ready job was written; None if no job is ready. Without a look at every job: the oldest returned
    job, or the first job that was never delivered."""
    if ready_count(topic, table) <= 0:
        return None
    live = topic.live
    seq = live.next_live(max(table.cursor, live.first_live))
    for _ in range(_PASSED_JOBS_MAX):
        if seq is None or seq not in table:
            break
        # After a start, jobs that were delivered before are above the cursor.
        table.advance_cursor(seq + 1)
        seq = live.next_live(seq + 1)
    returned = table.first_returned()
    if returned is not None and (seq is None or returned.seq < seq):
        seq = returned.seq
    if seq is None:
        return None
    if table.oldest[0] != seq:
        table.note_oldest(seq, live.ts_of(seq))
    return table.oldest[1]


def bounded_lease_ms(lease_ms: int) -> int:
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)


class QueueLeases:
    """The lease tables of all queues of an engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.waiters = JobWaiters(core, self.now_ms)
        # How far the time of leases is ahead of the monotonic clock.
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The time of leases: the wall clock's, but a clock that is set back neither prolongs a lease nor brings one
        back. Then this time goes on with the monotonic clock."""
        monotonic_ms = self._core.clock.monotonic_ms()
        self._ahead_ms = max(self._ahead_ms, self._core.now_ms() - monotonic_ms)
        return self._ahead_ms + monotonic_ms

    def queue(self, name: str) -> tuple[Topic, LeaseTable]:
        """Raises when the topic is not a queue, or there is none."""
        topic = self._core.topic(name)
        if topic.leases is None:
            raise NotAQueue(name)
        return topic, topic.leases

    def up_to_date(self, name: str) -> tuple[Topic, LeaseTable]:
        topic, table = self.queue(name)
        topic.refresh(self._core.now_ms())
        self.waiters.refresh(topic)
        return topic, table

    def changed(self, topic: Topic) -> None:
        """The leases of the queue have changed."""
        if logs_leases(topic):
            topic.checkpoint.mark_changed()
        self.waiters.set_timer(topic)

    def log(self, topic: Topic, event: control.Lease, logged: Applied) -> None:
        """Queues an event that names jobs. Raises when nothing was queued."""
        frame = wal_frame.encode_control(
            FrameType.LEASE, topic.id, self._core.now_ms(), control.encode(event), seq=event.seqs[0]
        )
        self._core.log(topic, frame, logged, durable=topic.config.durability == "fsync")
