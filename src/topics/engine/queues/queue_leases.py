"""The leases of a queue: their numbers, their events in the log, the callers that wait for jobs, and what the holders
of jobs do with them: acks, nacks, releases and longer leases. See `queues`. Owner only.

Methods named `…_logged` run while a group of the log completes: see `core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from topics.engine.config import LEASE_MS_MAX, LEASE_MS_MIN
from topics.engine.core import Applied, Core, Done
from topics.engine.queues.job_waiters import JobWaiters
from topics.engine.topic.leases import Lease, LeaseTable
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import check_unicode
from topics.engine.writing.deletion import Deleted, Deletion
from topics.errors import InvalidRequest, NotAQueue, TopicsError
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType
from topics.limits import DELAY_MS_MAX, NACK_REASON_BYTES_MAX
from topics.results import Extended, Settled

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


class Holding:
    def __init__(self, core: Core, leases: QueueLeases, deletion: Deletion) -> None:
        self._core = core
        self._leases = leases
        self._deletion = deletion

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[int | None], done: Done[Settled]
    ) -> None:
        """The jobs are done: deletes them for good. `done(Settled)` once that is logged.

        A call names seqs, and for each seq the id of the lease that is meant; None means the lease that the node has.
        Without ids every seq means that.
        """
        topic, table = self._leases.up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        if not held:
            self._core.answer(done, Settled(0, skipped, ready_count(topic, table), table.in_flight))
            return
        try:
            self._deletion.delete(
                name, partial(self._acked, topic, held, skipped, done), seqs=[lease.seq for lease in held]
            )
        except TopicsError:
            for lease in held:
                table.let_go(lease)
            raise

    def _acked(
        self,
        topic: Topic,
        held: list[Lease],
        skipped: list[int],
        done: Done[Settled],
        result: Deleted | TopicsError,
    ) -> None:
        if isinstance(result, TopicsError):
            self._return_held(topic, held)
            self._core.answer(done, result)
            return
        table = table_of(topic)
        self._leases.waiters.wake(topic)
        sync_ms = result.sync_ms if topic.config.durability == "fsync" else 0.0
        self._core.answer(done, Settled(len(held), skipped, ready_count(topic, table), table.in_flight, sync_ms))

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int | None],
        delay_ms: int,
        done: Done[Settled],
        *,
        reason: str = "",
    ) -> None:
        """The jobs are not done: other nodes may have them, at once or after the delay. `done(Settled)`."""
        if check_unicode(reason, "reason") > NACK_REASON_BYTES_MAX:
            raise InvalidRequest(f"the reason of a nack has at most {NACK_REASON_BYTES_MAX} bytes")
        topic, table = self._leases.up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        due_ms = self._leases.now_ms() + min(delay_ms, DELAY_MS_MAX) if delay_ms else 0
        self._release_held(topic, held, due_ms, skipped, done, reason)

    def release(self, name: str, leases: Sequence[tuple[int, int]]) -> None:
        """Ends exactly these leases, (seq, lease id), unless they have ended: their jobs are ready at once."""
        topic = self._core.topics.get(name)
        if topic is not None and topic.leases is not None:
            self._leases.waiters.refresh(topic)
            self.end(topic, topic.leases, leases)

    def end(self, topic: Topic, table: LeaseTable, leases: Sequence[tuple[int, int]]) -> None:
        """Ends exactly these leases, (seq, lease id), unless they have ended."""
        held = [lease for seq, lease_id in leases if (lease := table.current(seq, lease_id)) is not None]
        for lease in held:
            table.hold(lease)
        self._release_held(topic, held, 0, [], None)

    def _release_held(
        self,
        topic: Topic,
        held: list[Lease],
        due_ms: int,
        skipped: list[int],
        done: Done[Settled] | None,
        reason: str = "",
    ) -> None:
        logged = partial(self._release_logged, topic, held, due_ms, skipped, done, reason)
        if not held or not logs_leases(topic):
            logged(None, is_logged=False)
            return
        try:
            self._leases.log(topic, _event("released", held, due_ms, reason), logged)
        except TopicsError as error:
            logged(error)

    def _release_logged(
        self,
        topic: Topic,
        held: list[Lease],
        due_ms: int,
        skipped: list[int],
        done: Done[Settled] | None,
        reason: str,
        error: TopicsError | None,
        *,
        is_logged: bool = True,
    ) -> None:
        if error is not None:
            self._return_held(topic, held)
            if done is not None:
                self._core.answer(done, error)
            return
        table = table_of(topic)
        for lease in held:
            if table.has(lease):
                table.release(lease, due_ms, reason)
        self._leases.changed(topic)
        self._leases.waiters.wake(topic)
        if done is not None:
            sync_ms = topic.shard.sync_ms if is_logged and topic.config.durability == "fsync" else 0.0
            self._core.answer(done, Settled(len(held), skipped, ready_count(topic, table), table.in_flight, sync_ms))

    def extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int | None],
        lease_ms: int,
        done: Done[Extended],
    ) -> None:
        """Leases the jobs on, from now on for `lease_ms`. `done(Extended)`."""
        topic, table = self._leases.up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        deadline = self._leases.now_ms() + bounded_lease_ms(lease_ms)
        logged = partial(self._extension_logged, topic, held, skipped, deadline, done)
        if not held or not logs_leases(topic):
            logged(None)
            return
        try:
            self._leases.log(topic, _event("extended", held, deadline), logged)
        except TopicsError as error:
            logged(error)

    def _extension_logged(
        self,
        topic: Topic,
        held: list[Lease],
        skipped: list[int],
        deadline: int,
        done: Done[Extended],
        error: TopicsError | None,
    ) -> None:
        table = table_of(topic)
        for lease in held:
            if table.has(lease):
                table.let_go(lease, deadline if error is None else None)
        self._leases.changed(topic)
        self._core.answer(done, error or Extended({lease.seq: deadline for lease in held}, skipped))

    def _return_held(self, topic: Topic, held: list[Lease]) -> None:
        table = table_of(topic)
        for lease in held:
            if table.has(lease):
                table.release(lease)
        self._leases.changed(topic)
        self._leases.waiters.wake(topic)


def _event(kind: Literal["released", "extended"], held: list[Lease], until_ms: int, reason: str = "") -> control.Lease:
    seqs, lease_ids = [lease.seq for lease in held], [lease.lease_id for lease in held]
    return control.Lease(kind, seqs, lease_ids, until_ms=until_ms, reason=reason)


def _hold(
    table: LeaseTable, node: str, seqs: Sequence[int], lease_ids: Sequence[int | None]
) -> tuple[list[Lease], list[int]]:
    """Holds the leases that the call acts on. Returns them, and the seqs without such a lease. A seq that is named
    twice is acted on once."""
    assert not lease_ids or len(lease_ids) == len(seqs)
    held: list[Lease] = []
    skipped: list[int] = []
    for place, seq in enumerate(seqs):
        lease = table.held_by(seq, node, lease_ids[place] if lease_ids else None)
        if lease is None:
            skipped.append(seq)
        else:
            table.hold(lease)
            held.append(lease)
    return held, skipped
