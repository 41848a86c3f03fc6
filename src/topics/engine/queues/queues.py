"""Queues: claiming jobs of a topic, and what their holders do with them.

The jobs are the records of the topic; its lease table (`topic.leases`) says which node has which job. `claiming` has
the life of a claim, `queue_leases` the leases and what their holders do. Owner only.

The order of things that survive a crash:

| What | First | Then | A crash in between |
|---|---|---|---|
| ack | the delete is logged | the job goes from memory, the answer | the job is gone, or comes back |
| durable lease, nack, extend | the event is logged | the answer | as after the event, or as before it |
| dead letter, redrive | copies are synced, with a note | the jobs are deleted | a start reads the note, deletes them |
| lease id | a reservation is synced | the first id below it is given out | a start goes on above the reservation |
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import nsmallest
from typing import Final

from topics.engine.core import Core, Done
from topics.engine.queues.claiming import Claiming
from topics.engine.queues.jobs import Claim, Claimed, Counters, LeaseEntry, QueueDepth
from topics.engine.queues.moves import Moves
from topics.engine.queues.queue_leases import Holding, QueueLeases, oldest_ready_ts, ready_count, table_of
from topics.engine.queues.redrive import Redrive, Redriven, RedriveSpec, Redriving
from topics.engine.routers.forwarding import Forwarder
from topics.engine.topic.topic import Topic, Waiter
from topics.engine.writing.append import Appends
from topics.engine.writing.deletion import Deletion
from topics.engine.writing.derived_copies import DerivedCopies
from topics.results import Extended, Job, Settled

# Leases that a list of leases looks at in one step.
_LEASES_PER_STEP: Final = 2000


class Queues:
    """All queues of an engine."""

    def __init__(
        self, core: Core, forwarder: Forwarder, appends: Appends, deletion: Deletion, derived: DerivedCopies
    ) -> None:
        self._core = core
        self._leases = QueueLeases(core)
        self._holding = Holding(core, self._leases, deletion)
        moves = Moves(core, appends, deletion, derived)
        self._claiming = Claiming(core, self._leases, forwarder, moves, self._holding)
        self.redriving = Redriving(core, self._leases, moves)

    def now_ms(self) -> int:
        """The time of leases."""
        return self._leases.now_ms()

    # Looking.

    def counters(self, name: str) -> Counters:
        """The numbers of a queue, up to date."""
        topic, table = self._leases.up_to_date(name)
        return Counters(ready_count(topic, table), table.in_flight, table.dead_lettered)

    def depth(self, topic: Topic) -> QueueDepth:
        """The numbers of a queue as they are: records that have expired may still count. A file is read only for the
        time of the oldest ready job, if that job is another one than at the last call."""
        table = table_of(topic)
        self._leases.waiters.refresh(topic)
        return QueueDepth(
            ready_count(topic, table),
            table.in_flight,
            table.delayed,
            table.dead_lettered,
            oldest_ready_ts(topic, table),
        )

    def in_flight(self, topic: Topic) -> int:
        """How many jobs of the queue are leased."""
        self._leases.waiters.refresh(topic)
        return table_of(topic).in_flight

    def leases(self, name: str, after_seq: int, count: int) -> Generator[None, None, list[LeaseEntry]]:
        """Up to `count` leases of jobs with higher seqs, seqs ascending. In steps, because a queue may have very many
        leases."""
        _, table = self._leases.up_to_date(name)
        jobs = list(table)
        found: list[int] = []
        for start in range(0, len(jobs), _LEASES_PER_STEP):
            if start:
                yield
            part = jobs[start : start + _LEASES_PER_STEP]
            found += [job.seq for job in part if job.seq > after_seq and table.lease_of(job.seq) is not None]
            found = nsmallest(count, found)
        # A lease may have ended between the steps.
        leases = [lease for seq in found if (lease := table.lease_of(seq)) is not None]
        return [LeaseEntry(lease.seq, lease.node, lease.lease_id, lease.until_ms, lease.deliveries) for lease in leases]

    # Redrive: see `redrive`.

    def redrive(self, name: str, spec: RedriveSpec, done: Done[Redriven]) -> Redrive:
        """Moves dead letters of the queue back into it, or jobs of the topic to another queue. `done(Redriven)`."""
        return self.redriving.start(name, spec, done)

    def cancel_redrive(self, run: Redrive) -> None:
        """The answer is not wanted any more: a batch under way is moved, and no other one."""
        self.redriving.cancel(run)

    def live_leases(self, name: str, leases: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The ones of these (seq, lease id) that have not ended."""
        _, table = self._leases.up_to_date(name)
        return [(seq, lease_id) for seq, lease_id in leases if table.current(seq, lease_id) is not None]

    def check(self, name: str) -> None:
        """Raises when the topic is not a queue, or there is none."""
        self._leases.queue(name)

    # Waiting for jobs.

    def wait_jobs(self, name: str, waiter: Waiter) -> None:
        """Calls back once: when jobs came or came back, a lease ended, or the topic did. Then try a claim."""
        topic, _ = self._leases.queue(name)
        self._leases.waiters.add(topic, waiter)

    def cancel_wait(self, name: str, waiter: Waiter) -> None:
        """Also when the waiter was called already, or the topic is gone, or another topic has its name by now."""
        topic = self._core.topics.get(name)
        if topic is not None:
            self._leases.waiters.remove(topic, waiter)

    # Claims: see `claiming`.

    def claim(
        self,
        name: str,
        node: str,
        max_jobs: int,
        lease_ms: int | None,
        done: Done[Claimed],
        *,
        waits: bool = False,
    ) -> Claim:
        """Leases up to `max_jobs` jobs to the node. `done(Claimed)`, at once or when the window closes.

        Without `lease_ms` the lease is as long as the queue's config says. A claim that `waits` is answered when it has
        a job, or by `end_wait`.
        """
        return self._claiming.claim(name, node, max_jobs, lease_ms, done, waits=waits)

    def cancel(self, claim: Claim) -> None:
        """The jobs of the claim are not wanted any more. It takes no further jobs, and gives back the jobs that its
        caller was not told of."""
        self._claiming.cancel(claim)

    def give_back(self, claim: Claim, jobs: Sequence[Job]) -> None:
        """The caller of an answered claim does not want its jobs: they are ready at once."""
        self._claiming.give_back(claim, jobs)

    def end_wait(self, claim: Claim) -> None:
        """The claim waits no longer: it is answered, without jobs, or by the pass that it is in."""
        self._claiming.end_wait(claim)

    def end_waits(self) -> None:
        """The engine stops: claims that wait for jobs, or for their window to close, are refused. Redrives end."""
        self._claiming.end_waits()
        self.redriving.end_waits()

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        self._claiming.close()
        self.redriving.close()

    # Holders: see `queue_leases`. A call names seqs, and for each seq the id of the lease that is meant; None means the
    # lease that the node has. Without ids every seq means that.

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[int | None], done: Done[Settled]
    ) -> None:
        """The jobs are done: deletes them for good. `done(Settled)` once that is logged."""
        self._holding.ack(name, node, seqs, lease_ids, done)

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
        """The jobs are not done: other nodes may have them, at once or after the delay. `done(Settled)`. The reason is
        kept for the dead letter."""
        self._holding.nack(name, node, seqs, lease_ids, delay_ms, done, reason=reason)

    def release(self, name: str, leases: Sequence[tuple[int, int]]) -> None:
        """Ends exactly these leases, (seq, lease id), unless they have ended: their jobs are ready at once."""
        self._holding.release(name, leases)

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
        self._holding.extend(name, node, seqs, lease_ids, lease_ms, done)
