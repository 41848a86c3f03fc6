"""Queues: claiming jobs of a topic, and what their holders do with them (log-semantics.md §14).

The jobs are the records of the topic; who has which of them is in its lease table (`leases`). Owner only. As in
`engine`, nothing here waits: what needs the log or a file is answered through `done`, once, and what can be told at
once is raised instead.

The life of a claim: it waits for others if the queue has a window (`claim_jitter_ms`), then one *pass* serves all that
came. A pass takes jobs (returned ones first, then never delivered ones by seq), deals them out one at a time in turn,
and logs the leases if they are durable. Jobs that were delivered too often go to the dead-letter topic on the way, and
the claims of the pass wait until they are there: who asks next finds them.

The order of things that survive a crash:

| What | First | Then | A crash in between |
|---|---|---|---|
| ack | the delete is logged | the job goes from memory, the answer | the job is gone, or comes back |
| durable lease, nack, extend | the event is logged | the answer | as after the event, or as before it |
| dead letter | the copy is appended, with a note | the job is deleted | a start reads the note and deletes the job |
| lease id | a reservation is synced | the first id below it is given out | a start goes on above the reservation |
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.engine.config import LEASE_MS_MAX, LEASE_MS_MIN
from topics.engine.queues.dead_letter import dead_letter_batch
from topics.engine.queues.job_pool import take_jobs
from topics.engine.queues.leases import Lease, LeaseTable
from topics.engine.topic.fetch import Fetch
from topics.errors import Closed, NotAQueue, TopicNotFound, TopicsError
from topics.formats import control, wal_frame
from topics.formats.records import Record
from topics.formats.wal_frame import FrameType
from topics.limits import (
    DELAY_MS_MAX,
    READ_BYTES_MAX,
    RESERVE_LEASE_IDS,
)
from topics.storage.background import Background

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic.topic import Topic, Waiter

logger = logging.getLogger(__name__)

Done = Callable[[Any], None]

_NOBODY: Final[dict[Any, Any]] = {}


class Job(NamedTuple):
    """A job and its lease. `data` and `meta` are JSON text; `deadline` is the last millisecond of the lease."""

    seq: int
    ts: int
    tag: str | None
    data: bytes
    meta: bytes | None
    lease_id: int
    deadline: int
    deliveries: int


class Claimed(NamedTuple):
    """Jobs by seq, and how many are ready after the pass."""

    jobs: list[Job]
    ready: int


class Settled(NamedTuple):
    """How many jobs were acked or nacked, and which seqs were not: in the order of the call."""

    settled: int
    skipped: list[int]
    ready: int
    in_flight: int
    # How long the log's sync took; 0.0 unless there was one.
    sync_ms: float = 0.0


class Extended(NamedTuple):
    """New deadlines by seq, and which seqs got none."""

    deadlines: dict[int, int]
    skipped: list[int]


class Counters(NamedTuple):
    ready: int
    in_flight: int
    dead_lettered: int


class Claim:
    """One claimer, until it is answered. Set `is_cancelled` when nobody wants the jobs any more."""

    __slots__ = ("_done", "_missing", "error", "is_cancelled", "jobs", "lease_ms", "max_jobs", "node", "records")

    def __init__(self, node: str, max_jobs: int, lease_ms: int, done: Done) -> None:
        self.node = node
        self.max_jobs = max_jobs
        self.lease_ms = lease_ms
        self._done = done
        # What the pass dealt out to it, then the same with leases.
        self.records: list[Record] = []
        self.jobs: list[Job] = []
        self.error: TopicsError | None = None
        self.is_cancelled = False
        # What the answer still waits for.
        self._missing = 0

    def wait_for_one_more(self) -> None:
        self._missing += 1

    def has_one_more(self) -> bool:
        """Whether that was the last thing the answer waited for."""
        self._missing -= 1
        return self._missing == 0

    def answer(self, result: Claimed | TopicsError) -> None:
        self._done(result)


class Queues:
    """All queues of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Claims that wait for their window to close, for a reservation of lease ids, or for a file.
        self._windows: dict[Topic, list[Claim]] = {}
        self._reserving: dict[Topic, list[Claim]] = {}
        self._fetching: dict[Topic, list[Claim]] = {}
        # Who wants to know when there is something to claim, and whether a timer is set for them.
        self._waiters: dict[Topic, dict[Waiter, Waiter]] = {}
        self._timers: dict[Topic, int] = {}
        self._reader: Background | None = None
        # How far the time of leases is ahead of the monotonic clock.
        self._ahead_ms = 0

    # Time.

    def now_ms(self) -> int:
        """The time of leases: that of the wall, but a clock that is set back neither prolongs a lease nor brings one
        back. Then time goes on as it would have without that."""
        monotonic_ms = self._engine.clock.monotonic_ms()
        self._ahead_ms = max(self._ahead_ms, self._engine.now_ms() - monotonic_ms)
        return self._ahead_ms + monotonic_ms

    # What there is.

    def counters(self, name: str) -> Counters:
        """Numbers of a queue, up to date."""
        topic, table = self._up_to_date(name)
        return Counters(_ready(topic, table), table.in_flight, table.dead_lettered)

    def depth(self, topic: Topic) -> tuple[int, int]:
        """(ready, in flight) without looking into files: what has expired may still count."""
        table = topic.leases
        assert table is not None
        self._refresh(topic, table)
        return _ready(topic, table), table.in_flight

    def live_leases(self, name: str, leases: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of these (seq, lease id) that have not ended."""
        _, table = self._up_to_date(name)
        return [(seq, lease_id) for seq, lease_id in leases if table.current(seq, lease_id) is not None]

    def _queue(self, name: str) -> tuple[Topic, LeaseTable]:
        topic = self._engine.topic(name)
        if topic.leases is None:
            raise NotAQueue(name)
        return topic, topic.leases

    def check(self, name: str) -> None:
        """Raises what every call on something that is no queue raises."""
        self._queue(name)

    def _up_to_date(self, name: str) -> tuple[Topic, LeaseTable]:
        topic, table = self._queue(name)
        topic.refresh(self._engine.now_ms())
        self._refresh(topic, table)
        return topic, table

    def _refresh(self, topic: Topic, table: LeaseTable) -> None:
        if table.refresh(self.now_ms()):
            self._wake(topic)

    # Waiting for jobs.

    def wait_jobs(self, name: str, callback: Waiter) -> None:
        """Calls back once: when jobs came or came back, a lease ended, or the topic did. Then try a claim.

        The callback must not call the queue itself: it schedules that.
        """
        topic, _ = self._queue(name)

        def published() -> None:
            self._drop_waiter(topic, callback)
            callback()

        self.cancel_wait(name, callback)
        self._waiters.setdefault(topic, {})[callback] = published
        self._engine.wait_append(name, published)
        self._set_timer(topic)

    def cancel_wait(self, name: str, callback: Waiter) -> None:
        """Also when it was called already, or the topic is gone, or is another one by now."""
        topic = self._engine.topics.get(name)
        if topic is not None:
            published = self._drop_waiter(topic, callback)
            if published is not None:
                self._engine.cancel_wait(name, published)

    def _drop_waiter(self, topic: Topic, callback: Waiter) -> Waiter | None:
        waiters = self._waiters.get(topic)
        if waiters is None:
            return None
        published = waiters.pop(callback, None)
        if not waiters:
            del self._waiters[topic]
        return published

    def _wake(self, topic: Topic) -> None:
        for callback, published in self._waiters.pop(topic, _NOBODY).items():
            topic.waiters.discard(published)
            callback()

    def _set_timer(self, topic: Topic) -> None:
        """For those who wait: leases and delays end without anybody's doing."""
        assert topic.leases is not None
        due_ms = topic.leases.next_change_ms
        if topic not in self._waiters or due_ms is None or self._timers.get(topic, due_ms + 1) <= due_ms:
            return
        self._timers[topic] = due_ms

        def due() -> None:
            if self._timers.get(topic) == due_ms:
                del self._timers[topic]
            if topic in self._waiters and topic.leases is not None:
                self._refresh(topic, topic.leases)
                self._set_timer(topic)

        self._engine.runtime.call_later(max(due_ms - self.now_ms(), 1), due)

    def _changed(self, topic: Topic) -> None:
        """Something about its leases is another way now."""
        if self._logs_leases(topic):
            topic.encoded = None
        if topic in self._waiters:
            self._set_timer(topic)

    # Claiming.

    def claim(self, name: str, node: str, max_jobs: int, lease_ms: int | None, done: Done) -> Claim:
        """Leases up to `max_jobs` jobs to the node. `done(Claimed)`, at once or when the window closes.

        Without `lease_ms` the queue's own counts.
        """
        if self._engine.closed:
            raise Closed
        topic, _ = self._queue(name)
        # What routers copy into it comes first.
        self._engine.bring_up_to_date(name)
        config = topic.config
        wanted_ms = config.lease_ms if lease_ms is None else lease_ms
        claim = Claim(node, max_jobs, _lease_ms(wanted_ms), done)
        window = self._windows.get(topic)
        if window is not None:
            window.append(claim)
        elif config.claim_jitter_ms:
            self._windows[topic] = [claim]
            self._engine.runtime.call_later(config.claim_jitter_ms, partial(self._close_window, topic))
        else:
            self._serve_copied(topic, [claim])
        return claim

    def _close_window(self, topic: Topic) -> None:
        self._serve_copied(topic, self._windows.pop(topic))

    def _serve_copied(self, topic: Topic, claims: list[Claim]) -> None:
        """A pass, once everything that routers can copy into the queue is there."""
        if self._engine.bring_up_to_date(topic.name):
            self._serve(topic, claims)
            return
        again = partial(self._serve_copied, topic, claims)
        # Called back half way through a group: the rest comes in a turn of its own.
        self._engine.wait_copies(lambda: self._engine.runtime.call_later(0, again))

    def _serve(self, topic: Topic, claims: list[Claim], *, may_wait: bool = False) -> None:
        """One pass."""
        claims = [claim for claim in claims if not claim.is_cancelled]
        if not claims:
            return
        table = topic.leases
        assert table is not None
        refusal = self._refusal(topic)
        if refusal is not None:
            _fail(claims, refusal)
            return
        wanted = sum(claim.max_jobs for claim in claims)
        if table.next_id + wanted > table.ceiling:
            self._reserve(topic, table, claims)
            return
        self._finish_moves(topic, table)
        try:
            topic.refresh(self._engine.now_ms())
            self._refresh(topic, table)
            taken = take_jobs(topic, table, wanted, self.now_ms(), READ_BYTES_MAX * len(claims), may_wait=may_wait)
        except TopicsError as error:
            _fail(claims, error)
            return
        if taken.fetch is not None and not taken.records and not taken.dying:
            self._fetch(topic, claims, taken.fetch)
            return
        for claim in claims:
            claim.wait_for_one_more()
        _deal(taken.records, claims)
        for claim in claims:
            self._hand_out(topic, table, claim)
        for lease, record in taken.dying:
            self._move(topic, table, lease, record, claims)
        self._changed(topic)
        self._one_more(topic, claims)

    def _refusal(self, topic: Topic) -> TopicsError | None:
        if self._engine.closed:
            return Closed()
        return None if self._engine.topics.get(topic.name) is topic else TopicNotFound(topic.name)

    def _one_more(self, topic: Topic, claims: list[Claim]) -> None:
        """Something these claims waited for has come."""
        table = topic.leases
        assert table is not None
        for claim in claims:
            if not claim.has_one_more():
                continue
            if claim.is_cancelled:
                self._release(topic, table, [(job.seq, job.lease_id) for job in claim.jobs])
                claim.jobs = []
            claim.answer(claim.error or Claimed(claim.jobs, _ready(topic, table)))

    # Files and log.

    def _fetch(self, topic: Topic, claims: list[Claim], fetch: Fetch) -> None:
        """The pass goes on once the bytes of its first job are at hand. Claims that come meanwhile join it."""
        waiting = self._fetching.get(topic)
        if waiting is not None:
            waiting += claims
            return
        self._fetching[topic] = claims
        if self._reader is None:
            self._reader = self._engine.runtime.background("claims")

        def fetched(result: object) -> None:
            waiting = self._fetching.pop(topic)
            if isinstance(result, TopicsError):
                _fail(waiting, result)
            elif isinstance(result, BaseException):
                logger.error('jobs of queue "%s" cannot be read', topic.name, exc_info=result)
                _fail(waiting, TopicsError("a job could not be read; see the log of the server"))
            else:
                self._serve(topic, waiting, may_wait=True)

        self._reader.run(fetch, fetched)

    def close(self) -> None:
        """Not on the owner's turn: its thread may need it to end."""
        if self._reader is not None:
            self._reader.close()

    def _logs_leases(self, topic: Topic) -> bool:
        return topic.config.leases_durable and topic.config.durability != "ephemeral"

    def _log(self, topic: Topic, event: control.Lease, done: Callable[[TopicsError | None], None]) -> None:
        frame = wal_frame.encode_control(
            FrameType.LEASE, topic.id, self._engine.now_ms(), control.encode(event), seq=event.seqs[0]
        )
        topic.shard.submit(frame, 1, durable=topic.config.durability == "fsync", done=done)
        self._engine.flush_soon()

    def _reserve(self, topic: Topic, table: LeaseTable, claims: list[Claim]) -> None:
        """Syncs that ids up to a new ceiling may be given out, then serves who waits for that."""
        waiting = self._reserving.get(topic)
        if waiting is not None:
            waiting += claims
            return
        ceiling = table.next_id + RESERVE_LEASE_IDS
        event = control.Lease("reserved", ceiling=ceiling)
        frame = wal_frame.encode_control(FrameType.LEASE, topic.id, self._engine.now_ms(), control.encode(event))

        def reserved(error: TopicsError | None) -> None:
            waiting = self._reserving.pop(topic)
            if error is not None:
                _fail(waiting, error)
                return
            table.ceiling = ceiling
            topic.encoded = None
            self._serve(topic, waiting)

        try:
            topic.shard.submit(frame, 1, durable=True, done=reserved)
        except TopicsError as error:
            _fail(claims, error)
            return
        self._reserving[topic] = claims
        self._engine.flush_soon()

    def _hand_out(self, topic: Topic, table: LeaseTable, claim: Claim) -> None:
        if not claim.records:
            return
        deadline = self.now_ms() + claim.lease_ms
        logs = self._logs_leases(topic)
        leases: list[Lease] = []
        # Returned jobs come first in a pass, and may lie behind others after a start.
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
            self._log_claim(topic, table, claim, leases, deadline)

    def _log_claim(self, topic: Topic, table: LeaseTable, claim: Claim, leases: list[Lease], deadline: int) -> None:
        event = control.Lease(
            "claimed",
            [lease.seq for lease in leases],
            [lease.lease_id for lease in leases],
            [lease.deliveries for lease in leases],
            claim.node,
            deadline,
        )

        def logged(error: TopicsError | None) -> None:
            for lease in leases:
                if not table.has(lease):
                    continue
                if error is None:
                    table.let_go(lease)
                else:
                    table.take_back(lease)
            claim.error = error
            self._changed(topic)
            self._one_more(topic, [claim])

        claim.wait_for_one_more()
        try:
            self._log(topic, event, logged)
        except TopicsError as error:
            logged(error)

    # Dead letters.

    def _move(self, topic: Topic, table: LeaseTable, lease: Lease, record: Record, claims: list[Claim]) -> None:
        """To the dead-letter topic, then out of the queue."""
        config = topic.config
        name = config.dead_letter
        assert name is not None
        for claim in claims:
            claim.wait_for_one_more()

        def appended(result: object) -> None:
            if not isinstance(result, TopicsError):
                table.moved.add(record.seq)
                topic.encoded = None
                self._delete_moved(topic, table, [record.seq], partial(self._one_more, topic, claims))
                return
            logger.warning(
                'job %d of queue "%s" stays: its dead letter cannot be written: %s', record.seq, topic.name, result
            )
            if table.has(lease):
                table.give_up_move(lease)
            self._one_more(topic, claims)

        try:
            self._engine.append(
                name,
                dead_letter_batch(record, topic.name, config.max_deliveries),
                appended,
                create=True,
                dead_letter=control.DeadLetter(topic.id, record.seq, record.ts),
            )
        except TopicsError as error:
            appended(error)

    def _finish_moves(self, topic: Topic, table: LeaseTable) -> None:
        """Tries those again whose deletion could not be logged."""
        stuck = sorted(table.stuck)
        table.stuck.clear()
        if stuck:
            self._delete_moved(topic, table, stuck, _ignore)

    def _delete_moved(self, topic: Topic, table: LeaseTable, seqs: list[int], then: Callable[[], None]) -> None:
        def deleted(result: object) -> None:
            if isinstance(result, TopicsError):
                logger.warning('dead letters of queue "%s" are not deleted yet: %s', topic.name, result)
                # Not given out again: the dead-letter topic has them.
                table.stuck.update(seq for seq in seqs if seq in table)
            else:
                table.dead_lettered += len(seqs)
            then()

        refusal = self._refusal(topic)
        try:
            if refusal is not None:
                raise refusal
            self._engine.delete_records(topic.name, deleted, seqs=seqs)
        except TopicsError as error:
            deleted(error)

    # What holders do.

    def ack(self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[int | None], done: Done) -> None:
        """The jobs are done: deletes them for good. `done(Settled)` once that is logged.

        Each call names seqs, and for each the id of the lease that is meant, None for whichever the node has; no ids
        at all are as good as None for each.
        """
        topic, table = self._up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        if not held:
            done(Settled(0, skipped, _ready(topic, table), table.in_flight))
            return

        def deleted(result: object) -> None:
            if isinstance(result, TopicsError):
                self._return_held(topic, table, held)
                done(result)
                return
            self._wake(topic)
            sync_ms = topic.shard.sync_ms if topic.config.durability == "fsync" else 0.0
            done(Settled(len(held), skipped, _ready(topic, table), table.in_flight, sync_ms))

        try:
            self._engine.delete_records(name, deleted, seqs=[lease.seq for lease in held])
        except TopicsError:
            for lease in held:
                table.let_go(lease)
            raise

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int | None],
        delay_ms: int,
        done: Done,
    ) -> None:
        """The jobs are not done: others may have them, at once or after the delay. `done(Settled)`."""
        topic, table = self._up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        due_ms = self.now_ms() + min(delay_ms, DELAY_MS_MAX) if delay_ms else 0

        def released(error: TopicsError | None, sync_ms: float) -> None:
            done(error or Settled(len(held), skipped, _ready(topic, table), table.in_flight, sync_ms))

        self._release_held(topic, table, held, due_ms, released)

    def release(self, name: str, leases: Sequence[tuple[int, int]]) -> None:
        """Ends exactly these leases, (seq, lease id), as far as they have not ended: their jobs are ready at once."""
        topic = self._engine.topics.get(name)
        if topic is not None and topic.leases is not None:
            self._refresh(topic, topic.leases)
            self._release(topic, topic.leases, leases)

    def _release(self, topic: Topic, table: LeaseTable, leases: Sequence[tuple[int, int]]) -> None:
        held = [lease for seq, lease_id in leases if (lease := table.current(seq, lease_id)) is not None]
        for lease in held:
            table.hold(lease)
        self._release_held(topic, table, held, 0, _ignore)

    def _release_held(
        self,
        topic: Topic,
        table: LeaseTable,
        held: list[Lease],
        due_ms: int,
        done: Callable[[TopicsError | None, float], None],
    ) -> None:
        def logged(error: TopicsError | None) -> None:
            if error is not None:
                self._return_held(topic, table, held)
                done(error, 0.0)
                return
            for lease in held:
                if table.has(lease):
                    table.release(lease, due_ms)
            self._changed(topic)
            self._wake(topic)
            done(None, topic.shard.sync_ms if logs and topic.config.durability == "fsync" else 0.0)

        logs = bool(held) and self._logs_leases(topic)
        if not logs:
            logged(None)
            return
        try:
            self._log(topic, _event("released", held, due_ms), logged)
        except TopicsError as error:
            logged(error)

    def extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int | None],
        lease_ms: int,
        done: Done,
    ) -> None:
        """Leases the jobs on, from now on for `lease_ms`. `done(Extended)`."""
        topic, table = self._up_to_date(name)
        held, skipped = _hold(table, node, seqs, lease_ids)
        deadline = self.now_ms() + _lease_ms(lease_ms)

        def logged(error: TopicsError | None) -> None:
            for lease in held:
                if table.has(lease):
                    table.let_go(lease, deadline if error is None else None)
            self._changed(topic)
            done(error or Extended({lease.seq: deadline for lease in held}, skipped))

        if not held or not self._logs_leases(topic):
            logged(None)
            return
        try:
            self._log(topic, _event("extended", held, deadline), logged)
        except TopicsError as error:
            logged(error)

    def _return_held(self, topic: Topic, table: LeaseTable, held: list[Lease]) -> None:
        for lease in held:
            if table.has(lease):
                table.release(lease)
        self._changed(topic)
        self._wake(topic)


def replay_lease(table: LeaseTable, event: control.Lease) -> None:
    """A logged event, read again."""
    table.ceiling = max(table.ceiling, event.ceiling)
    pairs = zip(event.seqs, event.lease_ids, strict=False)
    if event.event == "claimed":
        for (seq, lease_id), deliveries in zip(pairs, event.deliveries, strict=False):
            table.replay_claimed(seq, lease_id, event.node, event.until_ms, deliveries)
    elif event.event == "extended":
        for seq, lease_id in pairs:
            table.replay_extended(seq, lease_id, event.until_ms)
    elif event.event == "released":
        for seq, lease_id in pairs:
            table.replay_released(seq, lease_id, event.until_ms)


def _event(kind: Any, held: list[Lease], until_ms: int) -> control.Lease:
    return control.Lease(kind, [lease.seq for lease in held], [lease.lease_id for lease in held], until_ms=until_ms)


def _hold(
    table: LeaseTable, node: str, seqs: Sequence[int], lease_ids: Sequence[int | None]
) -> tuple[list[Lease], list[int]]:
    """Leases that the call acts on, held, and the seqs it does not. A seq that is named twice is acted on once."""
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


def _deal(records: list[Record], claims: list[Claim]) -> None:
    """One job at a time in turn, to everybody who still wants one."""
    if len(claims) == 1:
        claims[0].records = records
        return
    hungry = deque(claims)
    for record in records:
        claim = hungry.popleft()
        claim.records.append(record)
        if len(claim.records) < claim.max_jobs:
            hungry.append(claim)


def _fail(claims: list[Claim], error: TopicsError) -> None:
    for claim in claims:
        claim.answer(error)


def _ready(topic: Topic, table: LeaseTable) -> int:
    return topic.count - table.in_flight - table.delayed


def _lease_ms(lease_ms: int) -> int:
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)


def _ignore(*_: object) -> None:
    pass
