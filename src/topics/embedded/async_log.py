"""The log inside an asyncio program: `topics.open_async(path)`.

Only the thread of the loop uses the engine, so there are no locks. All writes of one turn of the loop are one write to
the disk, and all writers that wait for a sync share one sync.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

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
from topics.embedded.log import absolute_path, make_batch
from topics.embedded.pages import PageBounds, has_nothing
from topics.embedded.states import RouterState, TopicState, router_state, topic_state
from topics.engine.config import checked_config
from topics.engine.queues.jobs import Claim, Claimed, QueueDepth
from topics.engine.queues.queues import Queues
from topics.engine.queues.redrive import Redriven, RedriveSpec
from topics.engine.runtime import LoopRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.appended import Appended
from topics.engine.topic.fetch import FETCHES_MAX
from topics.engine.topic.reading import Page
from topics.engine.topic.router import Guarantee
from topics.engine.writing.deletion import Deleted
from topics.errors import Closed, TopicsError
from topics.forks import note_open
from topics.formats.records import Record, RecordBatch
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT, READ_LIMIT_MAX, REDRIVE_MS
from topics.protocol.page_items import Loss, check_loss, items_of, records_of
from topics.results import ConfigMembers, Extended, GroupChanged, GroupCursor, Job, Settled, Start, Tombstone
from topics.storage.fs import Fs, RealFs


class AsyncLog:
    """An open data directory, owned by the running loop. It has the methods of `topics.Log`, with the same arguments
    and results.

    Methods that may wait for a disk, a network, a record or a job are awaited. Methods that only look into memory are
    plain functions. A call that is cancelled while it waits leaves nothing behind: a cancelled claim takes no job. A
    write that has begun is not taken back.
    """

    def __init__(self, opened: OpenEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._opened = opened
        self._engine = opened.engine
        self._loop = loop
        # Readers that wait for a record.
        self._waiting: set[asyncio.Future[None]] = set()
        # Work on threads that read files. The files stay open until there is none.
        self._fetches: set[asyncio.Future[None]] = set()
        opened.start()
        note_open(self)

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the directory found and did."""
        return self._opened.report

    @property
    def syncs_total(self) -> int:
        """Number of disk syncs of the log. Many writes share one sync."""
        return sum(shard.stats.fsyncs for shard in self._engine.wal.shards)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, start: Callable[[Callable[[Any], None]], object]) -> Any:
        future = self._loop.create_future()
        start(partial(_resolve, future))
        return await future

    # Topics.

    async def create(self, topic: str, **config: Unpack[ConfigMembers]) -> bool:
        """Creates the topic, or replaces its config. True when the topic is new. Durable on return.

        >>> await log.create("jobs", type="queue", max_deliveries=5, dead_letter="jobs.dead")
        True
        """
        wanted = checked_config(dict(config))
        created: bool = await self._call(lambda done: self._engine.put_topic(topic, wanted, done))
        return created

    async def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Removes the topic and all its records. False when there was no such topic. Durable on return.

        >>> await log.drop("orders.old")
        True
        """
        deleted: bool = await self._call(lambda done: self._engine.delete_topic(topic, if_empty=if_empty, done=done))
        return deleted

    def topics(self) -> list[str]:
        """The names of all topics, sorted.

        >>> log.topics()
        ['jobs', 'orders']
        """
        self._check_open()
        return sorted(self._engine.topics)

    def state(self, topic: str) -> TopicState:
        """The numbers of a topic, its config, and the counters of a queue.

        >>> log.state("jobs").queue
        Counters(ready=3, in_flight=1, dead_lettered=0)
        """
        self._check_open()
        return topic_state(self._engine, topic)

    # Writing.

    def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> asyncio.Future[Appended]:
        """Starts the write at once, so writes happen in the order of the calls. Await the future for the answer.

        >>> (await log.append("orders", [{"id": 1}], key="request-42")).last_seq
        1
        """
        return self.append_batch(topic, make_batch(payloads), key=key, create=create)

    def append_batch(
        self, topic: str, batch: RecordBatch, *, key: str | None = None, create: bool = True
    ) -> asyncio.Future[Appended]:
        """`append` for a batch that is already encoded."""
        future: asyncio.Future[Appended] = self._loop.create_future()
        done = partial(_resolve, future)
        if key is None and create:
            # The most frequent case: a call without keyword arguments is faster.
            self._engine.append(topic, batch, done)
        else:
            self._engine.append(topic, batch, done, key=key, create=create)
        return future

    async def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> Deleted:
        """Removes live records for good: below `before_seq`, with the tag, or with the tag prefix. A record must fulfil
        all given conditions.

        >>> (await log.delete("orders", tag="customer-7")).deleted
        1
        """
        deleted: Deleted = await self._call(
            lambda done: self._engine.delete_records(topic, done, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
        )
        return deleted

    # Reading.

    async def read(
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
        """Records with a seq above `from_seq`, oldest first, as `Log.read` gives them. Other tasks run while a page
        comes from a file, and while the read waits for the next write.

        >>> page = await log.read("orders", from_seq=41, wait_ms=30_000)
        """
        self._check_open()
        bounds = PageBounds(limit, bytes_max, skipped_nodes(skip_nodes))
        if group is not None:
            from_seq = from_seq or self.group(topic, group).seq
        return await self._page(topic, from_seq, bounds, wait_ms)

    async def _page(self, topic: str, from_seq: int, bounds: PageBounds, wait_ms: int | None) -> Page:
        timeout_s = wait_s(wait_ms)
        page = await self._read(topic, from_seq, bounds)
        if wait_ms == 0 or not has_nothing(page):
            return page
        # No other task has run since the read, so no record has come.
        written: asyncio.Future[None] = self._loop.create_future()
        wake = partial(_wake, written)
        self._engine.wait_append(topic, wake)
        self._waiting.add(written)
        try:
            await asyncio.wait((written,), timeout=timeout_s)
        finally:
            self._waiting.discard(written)
            self._engine.cancel_wait(topic, wake)
        return await self._read(topic, from_seq, bounds) if written.done() else page

    async def _read(self, topic: str, from_seq: int, bounds: PageBounds) -> Page:
        """One page. Nothing is awaited between the read and the return."""
        self._check_open()
        await self._wait_for_copies(topic)
        limit, bytes_max, nodes = bounds
        for _ in range(FETCHES_MAX):
            fetch = self._engine.fetch_needed(topic, from_seq, limit, bytes_max)
            if fetch is None:
                break
            await self._run_on_thread(fetch)
            self._check_open()
        return self._engine.read(topic, from_seq, limit=limit, bytes_max=bytes_max, nodes=nodes)

    async def _wait_for_copies(self, topic: str) -> None:
        """Returns when routers have copied into the topic everything that was written to its sources before."""
        if not self._engine.routers:
            return
        copied: asyncio.Future[None] = self._loop.create_future()
        if not self._engine.when_up_to_date(topic, partial(_wake, copied)):
            self._waiting.add(copied)
            try:
                await copied
            finally:
                self._waiting.discard(copied)
            self._check_open()

    async def _run_on_thread(self, fetch: Callable[[], None]) -> None:
        """The thread goes on when this is cancelled, and `close` waits for it."""
        running = self._loop.run_in_executor(None, fetch)
        self._fetches.add(running)
        running.add_done_callback(self._fetch_ended)
        await asyncio.shield(running)

    def _fetch_ended(self, running: asyncio.Future[None]) -> None:
        self._fetches.discard(running)
        if not running.cancelled():
            # Asks for the error, because asyncio logs an error that no task asked for. A cancelled reader does not ask.
            running.exception()

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> AsyncIterator[Record]: ...

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[Record | Tombstone]: ...

    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[Record | Tombstone]:
        """Every live record with a seq above `from_seq`. Other tasks run between pages.

        A `Tombstone` stands where records are lost. With `loss="raise"` it raises `topics.errors.RecordsLost` instead,
        and yields records only.

        >>> async for record in log.read_all("orders", loss="raise"):
        ...     print(record.seq, record.data)
        """
        check_loss(loss)
        return self._pages_items(topic, from_seq, loss)

    async def _pages_items(self, topic: str, from_seq: int, loss: Loss) -> AsyncIterator[Record | Tombstone]:
        while True:
            page = await self.read(topic, from_seq, limit=READ_LIMIT_MAX)
            for item in records_of(page) if loss == "raise" else items_of(page):
                yield item
            if page.caught_up:
                return
            from_seq = page.next_from_seq
            await asyncio.sleep(0)

    def tail(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> AsyncIterator[Record | Tombstone]:
        """Every record with a seq above `from_seq`, and then the records that are written from now on.

        A `Tombstone` stands where records are lost. The iteration ends when no record came for `wait_ms` (None: never),
        and when the log is closed.

        >>> async for item in log.tail("orders", group="billing"):
        ...     print(item)
        """
        bounds = PageBounds(READ_LIMIT_MAX, READ_BYTES_DEFAULT, skipped_nodes(skip_nodes))
        wait_s(wait_ms)
        if group is not None:
            from_seq = from_seq or self.group(topic, group).seq
        return self._follow(topic, from_seq, bounds, wait_ms)

    async def _follow(
        self, topic: str, from_seq: int, bounds: PageBounds, wait_ms: int | None
    ) -> AsyncIterator[Record | Tombstone]:
        while True:
            try:
                page = await self._page(topic, from_seq, bounds, wait_ms)
            except Closed:
                return
            for item in items_of(page):
                yield item
            if wait_ms is not None and has_nothing(page) and page.next_from_seq == from_seq:
                return
            from_seq = page.next_from_seq
            await asyncio.sleep(0)

    # Queues.

    async def claim(
        self,
        topic: str,
        node: str,
        *,
        max_jobs: int = 1,
        lease_ms: int | None = None,
        wait_ms: int | None = 0,
    ) -> list[Job]:
        """Leases up to `max_jobs` jobs of a queue to the node; an empty list when there are none.

        With `wait_ms` the claim waits that long for a job (None: without end). Claims that wait are served in the order
        in which they came. A claim that is cancelled takes no job.

        >>> for job in await log.claim("jobs", "worker-1", max_jobs=10, wait_ms=30_000):
        ...     await log.ack("jobs", "worker-1", [job])
        """
        queues = self._engine.queues
        checked_node(node)
        wanted = checked_max_jobs(max_jobs)
        checked_ms("lease_ms", lease_ms)
        timeout_s = wait_s(wait_ms)
        answered: asyncio.Future[Claimed] = self._loop.create_future()
        claim = queues.claim(topic, node, wanted, lease_ms, partial(_resolve, answered), waits=wait_ms != 0)
        timer = self._loop.call_later(timeout_s, queues.end_wait, claim) if timeout_s else None
        try:
            # Shielded: a cancelled future would not say which jobs the claim had.
            return (await asyncio.shield(answered)).jobs
        except asyncio.CancelledError:
            queues.cancel(claim)
            answered.add_done_callback(lambda done: _give_back(queues, claim, done))
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Settled:
        """The jobs are done: removes them from the queue for good. As durable as a write to the queue on return.

        >>> (await log.ack("jobs", "worker-1", [job])).settled
        1
        """
        checked_node(node)
        seqs, lease_ids = named_jobs(jobs)
        settled: Settled = await self._call(lambda done: self._engine.queues.ack(topic, node, seqs, lease_ids, done))
        return settled

    async def nack(
        self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = ""
    ) -> Settled:
        """Gives the jobs back: another claim gets them at once, or after the delay. The reason is in the meta of a
        job's dead letter.

        >>> (await log.nack("jobs", "worker-1", [job], delay_ms=5000)).settled
        1
        """
        checked_node(node)
        checked_ms("delay_ms", delay_ms)
        seqs, lease_ids = named_jobs(jobs)
        settled: Settled = await self._call(
            lambda done: self._engine.queues.nack(topic, node, seqs, lease_ids, delay_ms, done, reason=reason)
        )
        return settled

    async def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer: for `lease_ms` from now on.

        >>> (await log.extend("jobs", "worker-1", [job], lease_ms=60_000)).deadlines
        {1: 1790000060000}
        """
        checked_node(node)
        checked_ms("lease_ms", lease_ms)
        seqs, lease_ids = named_jobs(jobs)
        extended: Extended = await self._call(
            lambda done: self._engine.queues.extend(topic, node, seqs, lease_ids, lease_ms, done)
        )
        return extended

    async def redrive(
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

        >>> (await log.redrive("jobs", tag_prefix="acme:")).moved
        3
        """
        spec = checked_redrive(
            RedriveSpec(to, tag, tag_prefix, from_ts, to_ts, from_seq, until_seq, limit, rate, REDRIVE_MS, dry_run, key)
        )
        total: Redriven | None = None
        while total is None or total.stopped == "time":
            part: Redriven = await self._redrive(topic, spec)
            total = part if total is None else joined_redrives(spec, total, part)
            spec = rest_of_redrive(spec, part)
        return total

    async def depth(self, topic: str) -> QueueDepth:
        """How many jobs of a queue are ready, leased and delayed, and when the oldest ready job was written.

        >>> (await log.depth("jobs")).oldest_ready_ts
        1790000000000
        """
        self._check_open()
        self._engine.queues.check(topic)
        return self._engine.queues.depth(self._engine.topic(topic))

    async def _redrive(self, topic: str, spec: RedriveSpec) -> Redriven:
        part: Redriven = await self._call(lambda done: self._engine.queues.redrive(topic, spec, done))
        return part

    # Consumer groups.

    async def create_group(self, topic: str, group: str, *, at: int | Start | None = None) -> GroupChanged:
        """Creates a group: a named cursor that the log keeps. With `at` an existing group moves there. Durable on
        return.

        >>> (await log.create_group("orders", "billing", at="head")).created
        True
        """
        changed: GroupChanged = await self._call(lambda done: self._engine.groups.put(topic, group, at, done))
        return changed

    def group(self, topic: str, group: str) -> GroupCursor:
        """Where a group is, and how many seqs it is from the head.

        >>> log.group("orders", "billing").lag
        3
        """
        self._check_open()
        return self._engine.groups.cursor(topic, group)

    def groups(self, topic: str) -> list[GroupCursor]:
        """All groups of a topic, by name.

        >>> [cursor.group for cursor in log.groups("orders")]
        ['billing', 'search']
        """
        self._check_open()
        return self._engine.groups.cursors(topic)

    async def commit(self, topic: str, group: str, seq: int, *, rewind: bool = False) -> GroupChanged:
        """The group is done with everything up to `seq`. As durable as a write to the topic on return.

        >>> (await log.commit("orders", "billing", record.seq)).moved
        True
        """
        changed: GroupChanged = await self._call(
            lambda done: self._engine.groups.commit(topic, group, seq, done, rewind=rewind)
        )
        return changed

    async def drop_group(self, topic: str, group: str) -> bool:
        """Removes a group. False when there was none. Durable on return.

        >>> await log.drop_group("orders", "billing")
        True
        """
        deleted: bool = await self._call(lambda done: self._engine.groups.delete(topic, group, done))
        return deleted

    # Routers.

    async def create_router(
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
        """Copies every record of `source` to `dest` from now on, or only records with the tag or tag prefix. True when
        the router is new. Durable on return.

        >>> await log.create_router("acme-orders", "orders", "acme", tag_prefix="acme:")
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
        created: bool = await self._call(lambda done: self._engine.put_router(router, spec, done))
        return created

    def router(self, router: str) -> RouterState:
        """What a router copies, and how many copies it has made.

        >>> log.router("acme-orders").forwarded_total
        17
        """
        self._check_open()
        return router_state(self._engine, router)

    def routers(self) -> list[RouterState]:
        """All routers, by name.

        >>> [state.router for state in log.routers()]
        ['acme-orders']
        """
        self._check_open()
        return [router_state(self._engine, name) for name in sorted(self._engine.routers)]

    async def drop_router(self, router: str) -> bool:
        """Stops a router; its copies stay. False when there was none. Durable on return.

        >>> await log.drop_router("acme-orders")
        True
        """
        deleted: bool = await self._call(lambda done: self._engine.delete_router(router, done))
        return deleted

    # Files.

    async def checkpoint(self) -> None:
        """Puts all records into segments now. Raises the error when that fails.

        >>> await log.checkpoint()
        """
        self._check_open()
        error = await self._call(self._opened.checkpointer.start)
        if error is not None:
            raise error

    async def seal(self, topic: str) -> None:
        """Puts all records of the topic into sealed segments: files that do not change any more, for programs that read
        files.

        >>> await log.seal("orders")
        """
        self._check_open()
        found = self._engine.topic(topic)
        error = await self._call(lambda done: self._opened.checkpointer.seal(found, done))
        if error is not None:
            raise error

    async def close(self) -> None:
        """Takes a checkpoint and releases the directory. Calls that wait in other tasks end. A second call does
        nothing.

        >>> await log.close()
        """
        if self._engine.is_closed:
            return
        self._engine.stop_writes()
        for waiting in self._waiting:
            _wake(waiting)
        if self._fetches:
            await asyncio.wait(self._fetches)
        try:
            await self._call(self._opened.close)
        finally:
            # Also when the last checkpoint failed: the WAL has every record, and the next start reads it.
            await self._loop.run_in_executor(None, self._opened.release)

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork: the log belongs to the parent, and is closed here."""
        self._engine.refuse_all()
        self._engine.directory.release()

    def _check_open(self) -> None:
        if self._engine.is_closed:
            raise Closed


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _give_back(queues: Queues, claim: Claim, answered: asyncio.Future[Claimed]) -> None:
    """The task that claimed was cancelled: jobs that it was not told of are ready for others."""
    if answered.exception() is None:
        queues.give_back(claim, answered.result().jobs)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    try:
        if isinstance(result, TopicsError):
            future.set_exception(result)
        else:
            future.set_result(result)
    except asyncio.InvalidStateError:
        # The task that waited was cancelled. The write itself is not taken back.
        pass


def open_for_loop(
    path: str | os.PathLike[str],
    loop: asyncio.AbstractEventLoop,
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
    fs: Fs | None = None,
    progress: Callable[[float], None] | None = None,
    owns_process: bool = False,
) -> OpenEngine:
    """Recovers a directory. Any thread may call this; afterwards only the thread of the loop may use the engine.

    `owns_process`: nothing else runs in the process."""
    return open_engine(
        fs or RealFs(),
        absolute_path(path),
        settings=settings or EngineSettings(),
        clock=clock or SystemClock(),
        runtime=LoopRuntime(loop, owns_process=owns_process),
        progress=progress,
    )


class Opening:
    """A log that is about to be opened: await it for the `AsyncLog`, or use it with `async with`."""

    def __init__(self, start: Callable[[asyncio.AbstractEventLoop], OpenEngine]) -> None:
        self._start = start
        self._log: AsyncLog | None = None

    def __await__(self) -> Generator[Any, None, AsyncLog]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncLog:
        self._log = await self._open()
        return self._log

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._log is not None
        await self._log.close()

    async def _open(self) -> AsyncLog:
        """Recovers the directory on a thread, so that other tasks run meanwhile."""
        loop = asyncio.get_running_loop()
        recovery = _Recovery(partial(self._start, loop))
        recovering = loop.run_in_executor(None, recovery.run)
        try:
            await asyncio.shield(recovering)
        except asyncio.CancelledError:
            # The thread goes on. The directory is free when this returns, unless it is cancelled once more: then it is
            # free when the thread ends.
            opened = recovery.abandon()
            ending = recovering if opened is None else loop.run_in_executor(None, opened.release)
            await asyncio.shield(ending)
            raise
        return AsyncLog(recovery.take(), loop)


class _Recovery:
    """Opens a log on a thread. If it is abandoned, the thread releases the log itself."""

    def __init__(self, start: Callable[[], OpenEngine]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._opened: OpenEngine | None = None

    def run(self) -> None:
        """On the thread. Errors of an abandoned recovery concern no caller."""
        try:
            opened = self._start()
        except Exception:
            if self._is_abandoned:
                return
            raise
        with self._lock:
            if not self._is_abandoned:
                self._opened = opened
                return
        opened.release()

    def abandon(self) -> OpenEngine | None:
        """Returns the log if it is open already. The caller must release it."""
        with self._lock:
            self._is_abandoned = True
            return self._opened

    def take(self) -> OpenEngine:
        assert self._opened is not None
        return self._opened


def open_async(
    path: str | os.PathLike[str],
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
    fs: Fs | None = None,
) -> Opening:
    """`topics.open` for asyncio: the log belongs to the running loop.

    >>> async with topics.open_async("./topics-data") as log:
    ...     await log.append("orders", [{"id": 1}])

    `log = await topics.open_async(path)` opens it without a block; then `await log.close()` at the end.
    """

    def start(loop: asyncio.AbstractEventLoop) -> OpenEngine:
        return open_for_loop(path, loop, settings=settings, clock=clock, fs=fs)

    return Opening(start)
