"""Claims: how jobs come to the nodes that ask for them. See `queues`. Owner only.

What needs the log or a file is answered through `done`, once; what can be told at once is raised instead. Methods named
`…_logged` run while a group of the log completes: see `core`.

The life of a claim: it waits for other claims if the queue has a window (`claim_jitter_ms`), then one *pass* serves all
of them. A pass takes jobs (returned jobs first, then jobs that were never delivered, by seq), deals them out one at a
time in turn, and logs the leases if they are durable. Jobs that were delivered too often go to the dead-letter topic on
the way, and the claims of the pass wait until they are there: the next caller finds them. A claim that got no job and
waits goes into the line of its queue (`claim_line`). When jobs come or come back, the oldest claims of the line enter
the next pass.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from topics.engine.core import Core, Done
from topics.engine.queues.claim_line import ClaimLine
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.job_pool import take_jobs
from topics.engine.queues.jobs import Claim, Claimed
from topics.engine.queues.moves import Moves
from topics.engine.queues.queue_leases import Holding, QueueLeases, bounded_lease_ms, logs_leases, ready_count, table_of
from topics.engine.routers.forwarding import Forwarder
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.leases import Lease, LeaseTable
from topics.engine.topic.topic import Topic
from topics.errors import Closed, TopicNotFound, TopicsError
from topics.formats import control, wal_frame
from topics.formats.records import Record
from topics.formats.wal_frame import FrameType
from topics.limits import READ_BYTES_MAX, RESERVE_LEASE_IDS
from topics.results import Job
from topics.storage.background import Background

logger = logging.getLogger(__name__)


class Claiming:
    def __init__(self, core: Core, leases: QueueLeases, forwarder: Forwarder, moves: Moves, holding: Holding) -> None:
        self._core = core
        self._moves = moves
        self._leases = leases
        self._forwarder = forwarder
        self._dead_letters = DeadLetters(moves)
        self._holding = holding
        # Claims that wait for their window to close, for a reservation of lease ids, or for a file.
        self._windows: dict[Topic, list[Claim]] = {}
        self._reserving: dict[Topic, list[Claim]] = {}
        self._fetching: dict[Topic, list[Claim]] = {}
        # Queues with claims that wait for jobs.
        self._lines: dict[Topic, ClaimLine] = {}
        self._background: Background | None = None

    # Claims.

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
        if self._core.is_closed:
            raise Closed
        topic, table = self._leases.queue(name)
        # Copies of routers into the queue come first.
        self._forwarder.bring_up_to_date(topic)
        wanted_ms = topic.config.lease_ms if lease_ms is None else lease_ms
        claim = Claim(topic, node, max_jobs, bounded_lease_ms(wanted_ms), done, waits=waits)
        claims = [claim]
        line = self._lines.get(topic)
        if line is not None:
            # Claims that came before this one get the jobs that are ready first.
            self._leases.waiters.refresh(topic)
            claims = [*line.take(ready_count(topic, table)), claim]
        if waits:
            self._line(topic).join(claim)
        self._enter(topic, claims)
        return claim

    def cancel(self, claim: Claim) -> None:
        """The jobs of the claim are not wanted any more. It takes no further jobs, and gives back the jobs that its
        caller was not told of."""
        claim.cancel()
        line = self._lines.get(claim.topic)
        if line is not None and claim in line:
            was_in_pass = not line.is_idle(claim)
            self._leave(claim)
            if was_in_pass:
                # The wake that got the claim into the pass is for the next claim of the line now.
                self._look_soon(claim.topic)

    def give_back(self, claim: Claim, jobs: Sequence[Job]) -> None:
        """The caller of an answered claim does not want its jobs: they are ready at once."""
        if jobs and self._core.is_current(claim.topic):
            self._leases.waiters.refresh(claim.topic)
            self._holding.end(claim.topic, table_of(claim.topic), [(job.seq, job.lease_id) for job in jobs])

    def end_wait(self, claim: Claim) -> None:
        """The claim waits no longer: it is answered, without jobs, or by the pass that it is in."""
        claim.stop_waiting()
        line = self._lines.get(claim.topic)
        if line is not None and line.is_idle(claim):
            self._answer(claim, Claimed([], ready_count(claim.topic, table_of(claim.topic))))

    def end_waits(self) -> None:
        """The engine stops: claims that wait for jobs, or for their window to close, are refused."""
        for topic in list(self._windows):
            self._close_window(topic)
        for topic in list(self._lines):
            self._look(topic)

    # The line of claims that wait.

    def _line(self, topic: Topic) -> ClaimLine:
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = ClaimLine(partial(self._look, topic))
            self._leases.waiters.add(topic, line.wake)
        return line

    def _leave(self, claim: Claim) -> None:
        topic = claim.topic
        line = self._lines.get(topic)
        if line is not None:
            line.leave(claim)
            if not line:
                del self._lines[topic]
                self._leases.waiters.remove(topic, line.wake)

    def _look(self, topic: Topic) -> None:
        """Jobs may have come: as many of the waiting claims as jobs are ready get the next pass, the oldest first."""
        line = self._lines.get(topic)
        if line is None:
            return
        line.note_wake()
        refusal = self._refusal(topic)
        if refusal is not None:
            self._fail(line.take(len(line)), refusal)
            return
        self._leases.waiters.refresh(topic)
        self._leases.waiters.add(topic, line.wake)
        claims = line.take(ready_count(topic, table_of(topic)))
        if claims:
            self._enter(topic, claims)

    def _rest(self, topic: Topic, claim: Claim) -> None:
        """A pass had no job for a claim that waits."""
        line = self._lines[topic]
        line.rest(claim)
        if claim.may_have_missed_jobs(line.wake_count, _given_out(table_of(topic))):
            self._look_soon(topic)

    def _look_soon(self, topic: Topic) -> None:
        line = self._lines.get(topic)
        if line is not None and not line.is_due:
            line.note_due()
            self._core.call_after_group(line.wake)

    # Passes.

    def _enter(self, topic: Topic, claims: list[Claim]) -> None:
        """The claims join the window of the queue, open one, or get a pass at once."""
        window = self._windows.get(topic)
        if window is not None:
            window += claims
        elif topic.config.claim_jitter_ms:
            self._windows[topic] = claims
            self._core.runtime.call_later(topic.config.claim_jitter_ms, partial(self._close_window, topic))
        else:
            self._serve_copied(topic, claims)

    def _close_window(self, topic: Topic) -> None:
        # There is no window when the engine has stopped meanwhile.
        self._serve_copied(topic, self._windows.pop(topic, []))

    def _serve_copied(self, topic: Topic, claims: list[Claim]) -> None:
        """A pass, once every record that routers can copy into the queue is there."""
        if (
            self._core.is_closed
            or not self._core.is_current(topic)
            or self._forwarder.when_up_to_date(topic, partial(self._serve, topic, claims))
        ):
            self._serve(topic, claims)

    def _serve(self, topic: Topic, claims: list[Claim], *, may_wait: bool = False) -> None:
        """One pass."""
        claims = [claim for claim in claims if not claim.is_cancelled]
        if not claims:
            return
        table = table_of(topic)
        refusal = self._refusal(topic)
        if refusal is not None:
            self._fail(claims, refusal)
            return
        wanted = sum(claim.max_jobs for claim in claims)
        if table.next_id + wanted > table.ceiling:
            self._reserve(topic, table, claims)
            return
        self._moves.finish(topic)
        try:
            topic.refresh(self._core.now_ms())
            self._leases.waiters.refresh(topic)
            bytes_max = READ_BYTES_MAX * len(claims)
            taken = take_jobs(topic, table, wanted, self._leases.now_ms(), bytes_max, may_wait=may_wait)
        except TopicsError as error:
            self._fail(claims, error)
            return
        if taken.fetch is not None and not taken.records and not taken.dying:
            self._fetch(topic, claims, taken.fetch)
            return
        line = self._lines.get(topic)
        wake_count = 0 if line is None else line.wake_count
        cut_at = _given_out(table) if taken.is_cut else None
        for claim in claims:
            claim.begin_pass(wake_count, cut_at)
            claim.wait_for_one_more()
        _deal(taken.records, claims)
        for claim in claims:
            self._hand_out(topic, table, claim)
        for lease, record in taken.dying:
            for claim in claims:
                claim.wait_for_one_more()
            self._dead_letters.move(topic, lease, record, partial(self._one_more, topic, claims))
        self._leases.changed(topic)
        self._one_more(topic, claims)

    def _refusal(self, topic: Topic) -> TopicsError | None:
        if self._core.is_closed:
            return Closed()
        return None if self._core.is_current(topic) else TopicNotFound(topic.name)

    def _one_more(self, topic: Topic, claims: list[Claim]) -> None:
        """One of the things that these claims waited for has come."""
        table = table_of(topic)
        for claim in claims:
            if not claim.has_one_more():
                continue
            if claim.is_cancelled:
                self._holding.end(topic, table, [(job.seq, job.lease_id) for job in claim.take_jobs()])
            elif claim.waits and not claim.jobs and claim.error is None:
                self._rest(topic, claim)
                continue
            self._answer(claim, claim.error or Claimed(claim.jobs, ready_count(topic, table)))

    def _fail(self, claims: list[Claim], error: TopicsError) -> None:
        for claim in claims:
            self._answer(claim, error)

    def _answer(self, claim: Claim, result: Claimed | TopicsError) -> None:
        self._leave(claim)
        if isinstance(result, TopicsError):
            # The job that the claim did not get is for the next claim of the line.
            self._look_soon(claim.topic)
        self._core.answer(claim.done, result)

    # Files and log.

    def _fetch(self, topic: Topic, claims: list[Claim], fetch: Fetch) -> None:
        """The pass goes on once the bytes of its first job are in memory. Claims that come before that join it."""
        waiting = self._fetching.get(topic)
        if waiting is not None:
            waiting += claims
            return
        self._fetching[topic] = claims
        if fetch.is_cold:
            self._core.cold_pool.run(topic.id, fetch, partial(self._fetched, topic))
            return
        if self._background is None:
            self._background = self._core.runtime.background("claims")
        self._background.run(fetch, partial(self._fetched, topic))

    def _fetched(self, topic: Topic, result: object) -> None:
        waiting = self._fetching.pop(topic)
        if isinstance(result, TopicsError):
            self._fail(waiting, result)
        elif isinstance(result, BaseException):
            logger.error('jobs of queue "%s" cannot be read', topic.name, exc_info=result)
            self._fail(waiting, TopicsError("a job could not be read; see the log of the server"))
        else:
            self._serve(topic, waiting, may_wait=True)

    def close(self) -> None:
        """Not on the owner's turn: the background thread may need the owner to end."""
        if self._background is not None:
            self._background.close()

    def _reserve(self, topic: Topic, table: LeaseTable, claims: list[Claim]) -> None:
        """Syncs that ids below a new ceiling may be given out, then serves the claims that wait for that."""
        waiting = self._reserving.get(topic)
        if waiting is not None:
            waiting += claims
            return
        ceiling = table.next_id + RESERVE_LEASE_IDS
        event = control.Lease("reserved", ceiling=ceiling)
        frame = wal_frame.encode_control(FrameType.LEASE, topic.id, self._core.now_ms(), control.encode(event))
        try:
            self._core.log(topic, frame, partial(self._reservation_logged, topic, ceiling), durable=True)
        except TopicsError as error:
            self._fail(claims, error)
            return
        self._reserving[topic] = claims

    def _reservation_logged(self, topic: Topic, ceiling: int, error: TopicsError | None) -> None:
        waiting = self._reserving.pop(topic)
        if error is not None:
            self._fail(waiting, error)
            return
        table_of(topic).raise_ceiling(ceiling)
        topic.checkpoint.mark_changed()
        self._core.call_after_group(partial(self._serve, topic, waiting))

    def _hand_out(self, topic: Topic, table: LeaseTable, claim: Claim) -> None:
        if not claim.records:
            return
        deadline = self._leases.now_ms() + claim.lease_ms
        logs = logs_leases(topic)
        leases: list[Lease] = []
        # Returned jobs come first in a pass, and after a start they may have higher seqs than others.
        for record in sorted(claim.records):
            lease = table.hand_out(record.seq, claim.node, deadline, held=logs)
            leases.append(lease)
            claim.jobs.append(
                Job(
                    record.seq,
                    record.ts,
                    record.tag,
                    record.data,
                    record.meta,
                    lease.lease_id,
                    deadline,
                    lease.deliveries,
                )
            )
        if logs:
            self._log_claim(topic, claim, leases, deadline)

    def _log_claim(self, topic: Topic, claim: Claim, leases: list[Lease], deadline: int) -> None:
        event = control.Lease(
            "claimed",
            [lease.seq for lease in leases],
            [lease.lease_id for lease in leases],
            [lease.deliveries for lease in leases],
            claim.node,
            deadline,
        )
        claim.wait_for_one_more()
        try:
            self._leases.log(topic, event, partial(self._claim_logged, topic, claim, leases))
        except TopicsError as error:
            self._claim_logged(topic, claim, leases, error)

    def _claim_logged(self, topic: Topic, claim: Claim, leases: list[Lease], error: TopicsError | None) -> None:
        table = table_of(topic)
        for lease in leases:
            if not table.has(lease):
                continue
            if error is None:
                table.let_go(lease)
            else:
                table.take_back(lease)
        claim.fail(error)
        self._leases.changed(topic)
        self._one_more(topic, [claim])


def _deal(records: list[Record], claims: list[Claim]) -> None:
    """Deals the jobs out, one at a time in turn, to every claim that still wants one."""
    hungry = deque(claims)
    for record in records:
        claim = hungry.popleft()
        claim.records.append(record)
        if len(claim.records) < claim.max_jobs:
            hungry.append(claim)


def _given_out(table: LeaseTable) -> tuple[int, int]:
    """Grows with every job that is handed out or becomes a dead letter."""
    return table.next_id, table.dead_lettered
