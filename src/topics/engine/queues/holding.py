"""What the holders of jobs do with them: acks, nacks, releases and longer leases. See `queues`. Owner only.

Methods named `…_logged` run while a group of the log completes: see `core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from topics.engine.completions import Done
from topics.engine.core import Core
from topics.engine.queues.queue_leases import QueueLeases, bounded_lease_ms, logs_leases, ready_count, table_of
from topics.engine.topic.leases import Lease, LeaseTable
from topics.engine.topic.topic import Topic
from topics.engine.writing.append import check_unicode
from topics.engine.writing.deletion import Deleted, Deletion
from topics.errors import InvalidRequest, TopicsError
from topics.formats import control
from topics.limits import DELAY_MS_MAX, NACK_REASON_BYTES_MAX
from topics.results import Extended, Settled


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
