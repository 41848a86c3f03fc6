"""The log inside a Python program, without a server: `topics.open(path)`.

Safe to use from several threads. One lock guards the engine. No thread holds the lock while it waits: for a disk sync,
for records, for jobs, or for bytes of a file that are not in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload

from topics.clock import Clock, SystemClock
from topics.embedded.arguments import (
    checked_max_jobs,
    checked_ms,
    checked_node,
    checked_redrive,
    checked_router,
    joined_redrives,
    named_jobs,
    rest_of_redrive,
    skipped_nodes,
    wait_s,
)
from topics.embedded.pages import PageBounds, has_nothing
from topics.embedded.states import RouterState, TopicState, router_state, topic_state
from topics.engine.config import checked_config
from topics.engine.engine import Engine
from topics.engine.queues.jobs import Claim, Claimed, QueueDepth
from topics.engine.queues.redrive import Redriven, RedriveSpec
from topics.engine.runtime import LockRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.appended import Appended
from topics.engine.topic.fetch import FETCHES_MAX
from topics.engine.topic.reading import Page
from topics.engine.topic.router import Guarantee
from topics.engine.writing.deletion import Deleted
from topics.engine.writing.intake import batch_of_payloads, batch_of_records
from topics.errors import Closed, Overloaded, TopicsError
from topics.forks import note_open
from topics.formats.records import Record, RecordBatch
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT, READ_LIMIT_MAX, REDRIVE_MS, TICK_MS
from topics.protocol.page_items import Loss, check_loss, items_of, records_of
from topics.results import ConfigMembers, Extended, GroupChanged, GroupCursor, Job, NewRecord, Settled, Start, Tombstone
from topics.storage.fs import Fs, RealFs

T = TypeVar("T")

SIGNAL_LOOK_S: Final = 1.0


class _Call:
    """A `done` callback that keeps its result. The event is made only when the result is not there at once."""

    __slots__ = ("event", "result")

    def __init__(self) -> None:
        self.result: Any = None
        self.event: threading.Event | None = None

    def __call__(self, result: Any) -> None:
        self.result = result
        if self.event is not None:
            self.event.set()


class Log:
    """An open data directory. `topics.open` returns one. Close it, or use it as a context manager.

    Any number of threads may use it. A call that waits blocks its own thread only, and raises `topics.errors.Closed`
    when another thread closes the log. Errors are the classes of `topics.errors`.
    """

    def __init__(self, opened: OpenEngine, runtime: LockRuntime) -> None:
        self._engine: Engine = opened.engine
        self._opened = opened
        self._runtime = runtime
        self._lock = runtime.lock
        # Events of threads that wait for a record.
        self._waiting: set[threading.Event] = set()
        # Threads that read files outside the lock. The files stay open until there are none.
        self._fetch_count = 0
        self._fetch_ended = threading.Condition(self._lock)
        self._stop = threading.Event()
        with self._lock:
            opened.start()
        note_open(self)

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the directory found and did."""
        return self._opened.report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, start: Callable[[_Call], object]) -> Any:
        """Runs one engine call and waits for its answer outside the lock."""
        call = _Call()
        with self._lock:
            start(call)
            self._engine.flush()
            if call.result is None:
                call.event = threading.Event()
        if call.event is not None:
            call.event.wait()
        return _result(call)

    # Topics.

    def create(self, topic: str, **config: Unpack[ConfigMembers]) -> bool:
        """Creates the topic, or replaces its config. True when the topic is new. Durable on return.

        Config members as in the HTTP contract: `type` ("log", "queue"), `durability` ("ephemeral", "memory", "disk",
        "fsync"), `ttl_ms`, `cap_records`, `cap_bytes`, `discard` ("old", "reject"), `idempotency_window_ms`,
        `lease_ms`, `max_deliveries`, `dead_letter`, …

        >>> log.create("jobs", type="queue", max_deliveries=5, dead_letter="jobs.dead")
        True
        """
        wanted = checked_config(dict(config))
        created: bool = self._call(lambda call: self._engine.put_topic(topic, wanted, lambda r: call(_boxed(r))))[0]
        return created

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Removes the topic and all its records. False when there was no such topic. Durable on return.

        >>> log.drop("orders.old")
        True
        """
        deleted: bool = self._call(
            lambda call: self._engine.delete_topic(topic, if_empty=if_empty, done=lambda r: call(_boxed(r)))
        )[0]
        return deleted

    def topics(self) -> list[str]:
        """The names of all topics, sorted.

        >>> log.topics()
        ['jobs', 'orders']
        """
        with self._lock:
            self._check_open()
            return sorted(self._engine.topics)

    def state(self, topic: str) -> TopicState:
        """The numbers of a topic, its config, and the counters of a queue.

        >>> log.state("jobs").queue
        Counters(ready=3, in_flight=1, dead_lettered=0)
        """
        with self._lock:
            self._check_open()
            return topic_state(self._engine, topic)

    # Writing.

    def append(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        key: str | None = None,
        create: bool = True,
    ) -> Appended:
        """Appends one record per payload: all of them or none, with consecutive seqs.

        A payload is any value that can be written as JSON, or JSON text as `bytes`, which is kept byte for byte. A
        `NewRecord` adds a tag, node or meta. Returns when the write is as durable as the topic's config asks for. `key`
        makes a retry safe: within the topic's window a second write with the same key appends nothing and gets the
        answer of the first write.

        >>> log.append("orders", [{"id": 1}, topics.NewRecord({"id": 2}, tag="customer-7")], key="request-42").last_seq
        2
        """
        return self.append_batch(topic, make_batch(payloads), key=key, create=create)

    def append_batch(self, topic: str, batch: RecordBatch, *, key: str | None = None, create: bool = True) -> Appended:
        """`append` for a batch that is already encoded. Waits while writers outrun the checkpoints."""
        while True:
            try:
                appended: Appended = self._call(
                    lambda call: self._engine.append(topic, batch, call, key=key, create=create)
                )
                return appended
            except Overloaded:
                self._stop.wait(TICK_MS / 1000)

    def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> Deleted:
        """Removes live records for good: below `before_seq`, with the tag, or with the tag prefix. A record must fulfil
        all given conditions.

        >>> log.delete("orders", tag="customer-7").deleted
        1
        """
        deleted: Deleted = self._call(
            lambda call: self._engine.delete_records(topic, call, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
        )
        return deleted

    # Reading.

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = READ_LIMIT_DEFAULT,
        bytes_max: int = READ_BYTES_DEFAULT,
        skip_nodes: Iterable[str] = (),
        group: str | None = None,
        wait_ms: int | None = 0,
    ) -> Page:
        """Records with a seq above `from_seq`, oldest first. Go on with `page.next_from_seq` until `page.caught_up`.

        Records that retention or a power loss took are not skipped silently: `page.tombstone` names their range. With
        `group`, and without `from_seq`, the page begins after the cursor of the group. With `wait_ms` a read that finds
        nothing waits that long for the next write to the topic (None: without end).

        >>> page = log.read("orders", from_seq=41, wait_ms=30_000)
        >>> [record.seq for record in page.records], page.tombstone
        ([42, 43], None)
        """
        bounds = PageBounds(limit, bytes_max, skipped_nodes(skip_nodes))
        if group is not None:
            from_seq = from_seq or self.group(topic, group).seq
        return self._page(topic, from_seq, bounds, wait_ms)

    def _page(self, topic: str, from_seq: int, bounds: PageBounds, wait_ms: int | None) -> Page:
        timeout_s = wait_s(wait_ms)
        if wait_ms == 0:
            return self._read(topic, from_seq, bounds)
        written = threading.Event()
        page = self._read(topic, from_seq, bounds, written)
        if not has_nothing(page):
            return page
        try:
            was_written = _wait(written, timeout_s)
        finally:
            self._stop_waiting(topic, written)
        return self._read(topic, from_seq, bounds) if was_written else page

    def _read(self, topic: str, from_seq: int, bounds: PageBounds, written: threading.Event | None = None) -> Page:
        """One page. If it has nothing, `written` is set when the topic has more, or the log is closed."""
        engine = self._engine
        limit, bytes_max, nodes = bounds
        self._wait_for_copies(topic)
        fetches_left = FETCHES_MAX
        while True:
            with self._lock:
                self._check_open()
                fetch = engine.fetch_needed(topic, from_seq, limit, bytes_max) if fetches_left else None
                if fetch is None:
                    page = engine.read(topic, from_seq, limit=limit, bytes_max=bytes_max, nodes=nodes)
                    if written is not None and has_nothing(page):
                        engine.wait_append(topic, written.set)
                        self._waiting.add(written)
                    return page
                self._fetch_count += 1
            try:
                fetch()
                fetches_left -= 1
            finally:
                with self._lock:
                    self._fetch_count -= 1
                    self._fetch_ended.notify_all()

    def _wait_for_copies(self, topic: str) -> None:
        """Returns when routers have copied into the topic everything that was written to its sources before."""
        engine = self._engine
        if not engine.routers:
            return
        copied = threading.Event()
        with self._lock:
            self._check_open()
            is_copied = engine.when_up_to_date(topic, copied.set)
            engine.flush()
            if is_copied:
                return
            self._waiting.add(copied)
        copied.wait()
        with self._lock:
            self._waiting.discard(copied)

    def _stop_waiting(self, topic: str, written: threading.Event) -> None:
        with self._lock:
            self._waiting.discard(written)
            self._engine.cancel_wait(topic, written.set)

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> Iterator[Record]: ...

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[Record | Tombstone]: ...

    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[Record | Tombstone]:
        """Every live record with a seq above `from_seq`, up to the head at the time of the last page.

        Where records are lost (retention, a power loss) it yields a `Tombstone` with their range in their place. With
        `loss="raise"` it raises `topics.errors.RecordsLost` instead, and yields records only. Deleted records are not
        lost: they are passed over.

        >>> for item in log.read_all("orders"):
        ...     if isinstance(item, topics.Tombstone):
        ...         print("lost:", item.gap_from, "to", item.gap_to, item.reason)
        ...     else:
        ...         print(item.seq, item.data)
        """
        check_loss(loss)
        return self._pages_items(topic, from_seq, loss)

    def _pages_items(self, topic: str, from_seq: int, loss: Loss) -> Iterator[Record | Tombstone]:
        while True:
            page = self.read(topic, from_seq, limit=READ_LIMIT_MAX)
            yield from records_of(page) if loss == "raise" else items_of(page)
            if page.caught_up:
                return
            from_seq = page.next_from_seq

    def tail(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> Iterator[Record | Tombstone]:
        """Every record with a seq above `from_seq`, and then the records that are written from now on.

        A `Tombstone` stands where records are lost. With `group`, and without `from_seq`, it begins after the cursor of
        the group; commit what is done with `commit`. The iteration ends when no record came for `wait_ms` (None:
        never), and when the log is closed. It blocks the thread that iterates, and no other.

        >>> for item in log.tail("orders", log.state("orders").head_seq):
        ...     print(item)
        """
        bounds = PageBounds(READ_LIMIT_MAX, READ_BYTES_DEFAULT, skipped_nodes(skip_nodes))
        wait_s(wait_ms)
        if group is not None:
            from_seq = from_seq or self.group(topic, group).seq
        return self._follow(topic, from_seq, bounds, wait_ms)

    def _follow(
        self, topic: str, from_seq: int, bounds: PageBounds, wait_ms: int | None
    ) -> Iterator[Record | Tombstone]:
        while True:
            try:
                page = self._page(topic, from_seq, bounds, wait_ms)
            except Closed:
                return
            yield from items_of(page)
            if wait_ms is not None and has_nothing(page) and page.next_from_seq == from_seq:
                return
            from_seq = page.next_from_seq

    # Queues.

    def claim(
        self,
        topic: str,
        node: str,
        *,
        max_jobs: int = 1,
        lease_ms: int | None = None,
        wait_ms: int | None = 0,
    ) -> list[Job]:
        """Leases up to `max_jobs` jobs of a queue to the node; an empty list when there are none.

        No other claim gets these jobs until `ack`, `nack`, or the end of the lease (`lease_ms`, or what the queue's
        config says). With `wait_ms` the claim waits that long for a job (None: without end). Claims that wait are
        served in the order in which they came. A claim that is interrupted takes no job.

        >>> for job in log.claim("jobs", "worker-1", max_jobs=10, wait_ms=30_000):
        ...     print(job.seq, job.data, job.deliveries)
        ...     log.ack("jobs", "worker-1", [job])
        """
        queues = self._engine.queues
        checked_node(node)
        wanted = checked_max_jobs(max_jobs)
        checked_ms("lease_ms", lease_ms)
        timeout_s = wait_s(wait_ms)
        call = _Call()
        claim: Claim | None = None
        try:
            with self._lock:
                claim = queues.claim(topic, node, wanted, lease_ms, call, waits=wait_ms != 0)
                self._engine.flush()
                if call.result is None:
                    call.event = threading.Event()
            if call.event is not None and not _wait(call.event, timeout_s if wait_ms else None):
                with self._lock:
                    queues.end_wait(claim)
                    self._engine.flush()
                # The claim may be in the middle of a pass. The pass answers it.
                _wait(call.event, None)
        except BaseException:
            if claim is not None:
                self._abandon(claim, call)
            raise
        claimed: Claimed = _result(call)
        return claimed.jobs

    def _abandon(self, claim: Claim, call: _Call) -> None:
        """The thread was interrupted while it waited: jobs that it was not told of are ready for others."""
        with self._lock:
            self._engine.queues.cancel(claim)
            if isinstance(call.result, Claimed):
                self._engine.queues.give_back(claim, call.result.jobs)
            self._engine.flush()

    def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Settled:
        """The jobs are done: removes them from the queue for good. As durable as a write to the queue on return.

        A job counts only while its lease runs: an expired one is in `skipped` of the answer. A seq instead of a job
        means whichever lease the node has on it.

        >>> log.ack("jobs", "worker-1", [job])
        Settled(settled=1, skipped=[], ready=2, in_flight=0, sync_ms=0.0)
        """
        checked_node(node)
        seqs, lease_ids = named_jobs(jobs)
        settled: Settled = self._call(lambda call: self._engine.queues.ack(topic, node, seqs, lease_ids, call))
        return settled

    def nack(self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = "") -> Settled:
        """Gives the jobs back: another claim gets them at once, or after the delay. The reason is in the meta of a
        job's dead letter.

        >>> log.nack("jobs", "worker-1", [job], delay_ms=5000).settled
        1
        """
        checked_node(node)
        checked_ms("delay_ms", delay_ms)
        seqs, lease_ids = named_jobs(jobs)
        settled: Settled = self._call(
            lambda call: self._engine.queues.nack(topic, node, seqs, lease_ids, delay_ms, call, reason=reason)
        )
        return settled

    def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer: for `lease_ms` from now on.

        >>> log.extend("jobs", "worker-1", [job], lease_ms=60_000).deadlines
        {1: 1790000060000}
        """
        checked_node(node)
        checked_ms("lease_ms", lease_ms)
        seqs, lease_ids = named_jobs(jobs)
        extended: Extended = self._call(
            lambda call: self._engine.queues.extend(topic, node, seqs, lease_ids, lease_ms, call)
        )
        return extended

    def redrive(
        self,
        topic: str,
        *,
        to: str | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        from_ts: int = 0,
        to_ts: int | None = None,
        from_seq: int = 0,
        until_seq: int | None = None,
        limit: int = 0,
        rate: int = 0,
        dry_run: bool = False,
        key: str | None = None,
    ) -> Redriven:
        """Moves the dead letters of a queue back into it, or with `to` the jobs of the topic to another queue.

        After a crash each job is in one of the two topics, and only in one: then call it again. `limit` is the number
        of jobs at most, `rate` the number of jobs a second; 0 = no limit. Only jobs with the tag or tag prefix, with a
        time from `from_ts` to before `to_ts`, and with a seq above `from_seq` up to `until_seq` (None = the head now).
        With a `key`, a repeat counts the jobs that were moved before towards `limit`. Returns when all is moved.

        >>> log.redrive("jobs", tag_prefix="acme:").moved
        3
        """
        spec = checked_redrive(
            RedriveSpec(to, tag, tag_prefix, from_ts, to_ts, from_seq, until_seq, limit, rate, REDRIVE_MS, dry_run, key)
        )
        total: Redriven | None = None
        while total is None or total.stopped == "time":
            part: Redriven = self._redrive(topic, spec)
            total = part if total is None else joined_redrives(spec, total, part)
            spec = rest_of_redrive(spec, part)
        return total

    def depth(self, topic: str) -> QueueDepth:
        """How many jobs of a queue are ready, leased and delayed, and when the oldest ready job was written.

        >>> log.depth("jobs").oldest_ready_ts
        1790000000000
        """
        with self._lock:
            self._check_open()
            self._engine.queues.check(topic)
            return self._engine.queues.depth(self._engine.topic(topic))

    def _redrive(self, topic: str, spec: RedriveSpec) -> Redriven:
        part: Redriven = self._call(lambda call: self._engine.queues.redrive(topic, spec, call))
        return part

    # Consumer groups.

    def create_group(self, topic: str, group: str, *, at: int | Start | None = None) -> GroupChanged:
        """Creates a group: a named cursor that the log keeps. With `at` an existing group moves there.

        `at` is the last seq that is done, "start" or "head". A new group begins at the start. Durable on return.

        >>> log.create_group("orders", "billing", at="head").created
        True
        """
        changed: GroupChanged = self._call(lambda call: self._engine.groups.put(topic, group, at, call))
        return changed

    def group(self, topic: str, group: str) -> GroupCursor:
        """Where a group is, and how many seqs it is from the head.

        >>> log.group("orders", "billing").lag
        3
        """
        with self._lock:
            self._check_open()
            return self._engine.groups.cursor(topic, group)

    def groups(self, topic: str) -> list[GroupCursor]:
        """All groups of a topic, by name.

        >>> [cursor.group for cursor in log.groups("orders")]
        ['billing', 'search']
        """
        with self._lock:
            self._check_open()
            return self._engine.groups.cursors(topic)

    def commit(self, topic: str, group: str, seq: int, *, rewind: bool = False) -> GroupChanged:
        """The group is done with everything up to `seq`. As durable as a write to the topic on return.

        A lower seq than before changes nothing, unless `rewind` is set.

        >>> log.commit("orders", "billing", record.seq).moved
        True
        """
        changed: GroupChanged = self._call(
            lambda call: self._engine.groups.commit(topic, group, seq, call, rewind=rewind)
        )
        return changed

    def drop_group(self, topic: str, group: str) -> bool:
        """Removes a group. False when there was none. Durable on return.

        >>> log.drop_group("orders", "billing")
        True
        """
        deleted: bool = self._call(lambda call: self._engine.groups.delete(topic, group, lambda r: call(_boxed(r))))[0]
        return deleted

    # Routers.

    def create_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        tag: str | None = None,
        tag_prefix: str | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
        create_dest: bool = True,
    ) -> bool:
        """Copies every record of `source` to `dest` from now on, or only records with the tag or tag prefix. Replaces a
        router of the same name. True when the router is new. Durable on return.

        >>> log.create_router("acme-orders", "orders", "acme", tag_prefix="acme:")
        True
        """
        spec = checked_router(
            router,
            source,
            dest,
            tag=tag,
            tag_prefix=tag_prefix,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            allow_cycle=allow_cycle,
            guarantee=guarantee,
            create_dest=create_dest,
        )
        created: bool = self._call(lambda call: self._engine.put_router(router, spec, lambda r: call(_boxed(r))))[0]
        return created

    def router(self, router: str) -> RouterState:
        """What a router copies, and how many copies it has made.

        >>> log.router("acme-orders").forwarded_total
        17
        """
        with self._lock:
            self._check_open()
            return router_state(self._engine, router)

    def routers(self) -> list[RouterState]:
        """All routers, by name.

        >>> [state.router for state in log.routers()]
        ['acme-orders']
        """
        with self._lock:
            self._check_open()
            return [router_state(self._engine, name) for name in sorted(self._engine.routers)]

    def drop_router(self, router: str) -> bool:
        """Stops a router; its copies stay. False when there was none. Durable on return.

        >>> log.drop_router("acme-orders")
        True
        """
        deleted: bool = self._call(lambda call: self._engine.delete_router(router, lambda r: call(_boxed(r))))[0]
        return deleted

    # Files.

    def checkpoint(self) -> None:
        """Puts all records into segments now. Raises the error when that fails.

        >>> log.checkpoint()
        """

        def start(call: _Call) -> None:
            self._check_open()
            self._opened.checkpointer.start(lambda result: call(_boxed(result)))

        error = self._call(start)[0]
        if error is not None:
            raise error

    def seal(self, topic: str) -> None:
        """Puts all records of the topic into sealed segments: files that do not change any more, for programs that read
        files.

        >>> log.seal("orders")
        """

        def start(call: _Call) -> None:
            self._check_open()
            self._opened.checkpointer.seal(self._engine.topic(topic), lambda result: call(_boxed(result)))

        error = self._call(start)[0]
        if error is not None:
            raise error

    def close(self) -> None:
        """Takes a checkpoint and releases the directory. Calls that wait in other threads end. A second call does
        nothing.

        >>> log.close()
        """
        with self._lock:
            if self._engine.is_closed:
                return
            self._engine.stop_writes()
            self._engine.flush()
            for event in self._waiting:
                event.set()
            while self._fetch_count:
                self._fetch_ended.wait()
        self._stop.set()
        try:
            self._call(lambda call: self._opened.close(lambda r: call(_boxed(r))))
        finally:
            # Also when the last checkpoint failed: the WAL has every record, and the next start reads it.
            self._opened.release()
            self._runtime.close()

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork: the log belongs to the parent, and is closed here."""
        # Another thread of the parent may have held the lock. That thread does not exist here.
        self._lock = threading.RLock()
        self._engine.refuse_all()
        self._engine.directory.release()

    def _check_open(self) -> None:
        if self._engine.is_closed:
            raise Closed


def _wait(event: threading.Event, timeout_s: float | None) -> bool:
    """Waits until the event is set, or the time is over.

    A signal that comes right before a thread sleeps, or that another thread gets, does not wake it. So the main thread,
    which runs the handlers of signals, looks for them every second.
    """
    if threading.current_thread() is not threading.main_thread():
        return event.wait(timeout_s)
    deadline_s = inf if timeout_s is None else monotonic() + timeout_s
    while not event.wait(min(SIGNAL_LOOK_S, max(0.0, deadline_s - monotonic()))):
        if monotonic() >= deadline_s:
            return False
    return True


def _result(call: _Call) -> Any:
    if isinstance(call.result, TopicsError):
        raise call.result
    return call.result


def _boxed(result: T) -> tuple[T] | TopicsError:
    """The result in a tuple, because `_call` takes None for "no result yet"."""
    return result if isinstance(result, TopicsError) else (result,)


def make_batch(payloads: Sequence[Any]) -> RecordBatch:
    """The payloads of a caller, checked and encoded."""
    kinds = list(map(type, payloads))
    if NewRecord in kinds:
        return batch_of_records(payload if type(payload) is NewRecord else NewRecord(payload) for payload in payloads)
    return batch_of_payloads(payloads)


def absolute_path(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.fspath(path))


def open_log(
    path: str | os.PathLike[str],
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
    fs: Fs | None = None,
) -> Log:
    """Opens (or creates) the data directory at `path` and recovers it. Exported as `topics.open`.

    Raises `StartRefused` with the reason when the directory is locked, damaged, unreadable, or from a newer
    version. The directory is not changed then.

    >>> with topics.open("./topics-data") as log:
    ...     log.append("orders", [{"id": 1}])
    """
    runtime = LockRuntime()
    opened = open_engine(
        fs or RealFs(),
        absolute_path(path),
        settings=settings or EngineSettings(),
        clock=clock or SystemClock(),
        runtime=runtime,
    )
    return Log(opened, runtime)
