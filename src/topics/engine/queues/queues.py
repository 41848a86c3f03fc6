"""Queues: claiming jobs of a topic, and what their holders do with them.

The jobs are the records of the topic; its lease table (`topic.leases`) says which node has which job. `claiming` has
the life of a claim, `holding` what holders do, `queue_leases` what both use. Owner only.

The order of things that survive a crash:

| What | First | Then | A crash in between |
|---|---|---|---|
| ack | the delete is logged | the job goes from memory, the answer | the job is gone, or comes back |
| durable lease, nack, extend | the event is logged | the answer | as after the event, or as before it |
| dead letter | the copy is appended, with a note | the job is deleted | a start reads the note and deletes the job |
| lease id | a reservation is synced | the first id below it is given out | a start goes on above the reservation |
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.engine.completions import Done
from topics.engine.core import Core
from topics.engine.queues.claiming import Claiming
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.holding import Holding
from topics.engine.queues.jobs import Claim, Claimed, Counters, Extended, Job, Settled
from topics.engine.queues.queue_leases import QueueLeases, ready_count, table_of
from topics.engine.routers.forwarding import Forwarder
from topics.engine.topic.topic import Topic, Waiter
from topics.engine.writing.append import Appends
from topics.engine.writing.deletion import Deletion


class Queues:
    """All queues of an engine."""

    def __init__(self, core: Core, forwarder: Forwarder, appends: Appends, deletion: Deletion) -> None:
        self._core = core
        self._leases = QueueLeases(core)
        self._holding = Holding(core, self._leases, deletion)
        dead_letters = DeadLetters(core, appends, deletion)
        self._claiming = Claiming(core, self._leases, forwarder, dead_letters, self._holding)

    def now_ms(self) -> int:
        """The time of leases."""
        return self._leases.now_ms()

    # Looking.

    def counters(self, name: str) -> Counters:
        """The numbers of a queue, up to date."""
        topic, table = self._leases.up_to_date(name)
        return Counters(ready_count(topic, table), table.in_flight, table.dead_lettered)

    def depth(self, topic: Topic) -> tuple[int, int]:
        """(ready, in flight) without looking into files: records that have expired may still count."""
        table = table_of(topic)
        self._leases.waiters.refresh(topic)
        return ready_count(topic, table), table.in_flight

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
        """The engine stops: claims that wait for jobs, or for their window to close, are refused."""
        self._claiming.end_waits()

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        self._claiming.close()

    # Holders: see `holding`. A call names seqs, and for each seq the id of the lease that is meant; None means the
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
    ) -> None:
        """The jobs are not done: other nodes may have them, at once or after the delay. `done(Settled)`."""
        self._holding.nack(name, node, seqs, lease_ids, delay_ms, done)

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
