"""`topics.AsyncClient`: a server, for asyncio. It has the methods of `topics.Client`, with the same arguments and
results."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from topics.client import calls
from topics.client import tracing as traces
from topics.client.aio.connections import Connections
from topics.client.aio.following import follow
from topics.client.aio.work_stream import AsyncWorkStream
from topics.client.answers import Frames, Page, StreamRecord
from topics.client.calls import FRAMES_BYTES_DEFAULT, STREAM_PAGE_BYTES_DEFAULT, Call, Guarantee, PartOfEpoch
from topics.client.endpoint import Endpoint
from topics.client.following import Following, Seen, item_of
from topics.client.redriving import Redrive
from topics.client.retrying import LongWait, Patience
from topics.client.tls import tls_context
from topics.formats.records import Record
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT, READ_LIMIT_MAX
from topics.protocol import response_body as wire
from topics.protocol import stream_body
from topics.protocol.page_items import Loss, check_loss, items_of, records_of
from topics.protocol.request_body import LONG_POLL_MS_MAX
from topics.results import (
    ConfigMembers,
    Extended,
    GroupChanged,
    GroupCursor,
    Job,
    Settled,
    Start,
    Tombstone,
)

if TYPE_CHECKING:
    import ssl

    import pyarrow as pa  # type: ignore[import-untyped]

    from topics.client.aio.producer import AsyncProducer
    from topics.client.aio.topic import AsyncTopic
    from topics.client.aio.websocket import AsyncWebSocket
    from topics.client.aio.worker import AsyncHandler, AsyncWorker
    from topics.client.batching import ProducerOptions
    from topics.client.working import WorkerOptions

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:4000"

logger: logging.Logger = logging.getLogger("topics.client")


class AsyncClient:
    """A server, for asyncio. Any number of tasks of one loop may use it. Close it, or use it as a context manager.

    Every call is repeated when that is safe and may help: writes carry an idempotency key. `timeout_s` is how long the
    connection may be silent in one try, `deadline_s` how long a call may take with all its tries, whatever the server
    sends; `with_options` changes both for some calls. Errors are the classes of `topics.errors`; `topics.Unreachable`
    says that the server does not answer.

    >>> async with topics.AsyncClient("http://localhost:4000", token="…") as client:
    ...     await client.append("orders", [{"id": 1}])
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        deadline_s: float | None = 60.0,
        retries: int = 7,
        throttle_wait_s: float = 0.0,
        tracing: bool = False,
        on_warning: Callable[[str], None] = logger.warning,
    ) -> None:
        endpoint = Endpoint.parse(url, token)
        self._connections = Connections(endpoint, tls_context(endpoint, tls, ca_file))
        self._patience = Patience(timeout_s, deadline_s, retries, throttle_wait_s)
        self._tracing = tracing
        if tracing:
            traces.require()
        self._on_warning = on_warning

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def close(self) -> None:
        """Closes the connections. A tail, watch or worker of another task ends.

        >>> await client.close()
        """
        self._connections.close()

    @property
    def url(self) -> str:
        return self._connections.endpoint.url

    def with_options(
        self, *, timeout_s: float | None = None, deadline_s: float | None = None, retries: int | None = None
    ) -> AsyncClient:
        """The same client, on the same connections, with other patience.

        >>> await client.with_options(deadline_s=2).append("orders", [{"id": 1}])
        """
        other = copy.copy(self)
        other._patience = self._patience.changed(timeout_s, deadline_s, retries)
        return other

    async def _ask(self, call: Call[T], ends_s: float = inf) -> T:
        return await self._connections.ask(call, self._patience, ends_s)

    def _warn(self, what: str, warnings: object) -> None:
        for warning in warnings if isinstance(warnings, list) else ():
            self._on_warning(f"{what}: {warning}")

    # Topics.

    async def create(self, topic: str, **config: Unpack[ConfigMembers]) -> bool:
        """Creates the topic, or replaces its config. True when the topic is new. Durable on return.

        Members that the server does not know, or that cannot do what they say, are told to `on_warning` of the client,
        which logs them.

        >>> await client.create("jobs", type="queue", max_deliveries=5, dead_letter="jobs.dead")
        True
        """
        answer = await self._ask(calls.put_topic(topic, config))
        self._warn(f'config of topic "{topic}"', answer.warnings)
        return answer.created

    async def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Removes the topic and all its records. False when there was no such topic. Durable on return.

        After a lost answer the repeated call returns False.

        >>> await client.drop("orders.old")
        True
        """
        return (await self._ask(calls.delete_topic(topic, if_empty=if_empty))).deleted

    async def topics(self, prefix: str = "") -> list[str]:
        """The names of all topics that begin with the prefix, sorted.

        >>> await client.topics()
        ['jobs', 'orders']
        """
        ends_s = self._patience.ends_s(monotonic())
        return [entry.topic async for entry in self._topic_entries(prefix, ends_s)]

    def topic_list(self, prefix: str = "") -> AsyncIterator[wire.TopicEntry]:
        """The topics that begin with the prefix, with their numbers, sorted by name. Pages are fetched as needed.

        >>> [(entry.topic, entry.count) async for entry in client.topic_list("orders")]
        [('orders', 17)]
        """
        return self._topic_entries(prefix)

    async def _topic_entries(self, prefix: str, ends_s: float = inf) -> AsyncIterator[wire.TopicEntry]:
        cursor: str | None = None
        while True:
            page = await self._ask(calls.list_topics(prefix, cursor), ends_s)
            for entry in page.topics:
                yield entry
            if not isinstance(page.next_cursor, str):
                return
            cursor = page.next_cursor

    async def state(self, topic: str) -> wire.TopicState:
        """The numbers of a topic, its config, and the counters of a queue.

        >>> (await client.state("orders")).head_seq
        17
        """
        return await self._ask(calls.get_topic(topic))

    # Writing.

    async def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> wire.Appended:
        """Appends one record per payload: all of them or none, with consecutive seqs.

        A payload is any value that can be written as JSON (a dict, a dataclass, a Struct, …), or JSON text as `bytes`,
        which is kept byte for byte. A `NewRecord` adds a tag, node or meta. Without a `key` the client makes one, so
        that its own retries never append twice. Give a `key` to repeat the call yourself.

        >>> (await client.append("orders", [{"id": 1}, topics.NewRecord({"id": 2}, tag="customer-7")])).last_seq
        2
        """
        if self._tracing:
            payloads = traces.traced_payloads(payloads)
        return await self.append_encoded(topic, calls.records_text(payloads), key=key, create=create)

    async def append_encoded(
        self, topic: str, records: bytes, *, key: str | None = None, create: bool = True
    ) -> wire.Appended:
        """`append` for a JSON array of records in the form of the HTTP contract, for programs that build it faster.

        >>> (await client.append_encoded("orders", b'[{"data":{"id":1},"tag":"customer-7"}]')).count
        1
        """
        return await self._ask(calls.append(topic, records, key, create=create))

    async def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> wire.Deleted:
        """Removes live records for good: below `before_seq`, with the tag, or with the tag prefix. A record must fulfil
        all given conditions. After a lost answer the repeated call counts only what was left.

        >>> (await client.delete("orders", tag="customer-7")).deleted
        1
        """
        return await self._ask(calls.delete(topic, before_seq, tag, tag_prefix))

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
        """Records with a seq above `from_seq`, oldest first. Go on with `page.next_from_seq` until `page.caught_up`.

        `page.tombstone` names records that are lost. With `group`, and without `from_seq`, the page begins after the
        cursor of the group. With `wait_ms` a read that finds nothing waits that long for the next write to the topic
        (None: without end). A page without records is no error.

        >>> page = await client.read("orders", from_seq=41, wait_ms=30_000)
        >>> [record.seq for record in page.records], page.tombstone
        ([42, 43], None)
        """
        nodes = calls.nodes_of(skip_nodes) or ()
        wait = LongWait(wait_ms, monotonic(), LONG_POLL_MS_MAX)
        ends_s = self._patience.ends_s(monotonic(), wait_ms)
        while True:
            piece_ms = wait.next_ms(monotonic())
            page = await self._ask(
                calls.diff(
                    topic,
                    from_seq,
                    limit=limit,
                    bytes_max=bytes_max,
                    skip_nodes=nodes,
                    group=group,
                    wait_ms=piece_ms,
                ),
                ends_s,
            )
            if page.records or page.tombstone is not None or not page.caught_up or not piece_ms:
                return page
            from_seq = page.next_from_seq

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> AsyncIterator[Record]: ...

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[Record | Tombstone]: ...

    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[Record | Tombstone]:
        """Every live record with a seq above `from_seq`, up to the head at the time of the last page.

        Where records are lost it yields a `Tombstone` with their range. With `loss="raise"` it raises
        `topics.errors.RecordsLost` instead, and yields records only.

        >>> async for record in client.read_all("orders", loss="raise"):
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

        The server pushes them. After a broken connection or a restart of the server the tail goes on with the next
        record, for as long as that takes. A `Tombstone` stands where records are lost. With `group`, and without
        `from_seq`, it begins after the cursor of the group; commit what is done with `commit`. The iteration ends when
        no record came for `wait_ms` (None: never), and when the client is closed. Then, with `wait_ms`, a server that
        does not answer is an error. Raises `TopicNotFound` when the topic is deleted.

        >>> async for item in client.tail("orders"):
        ...     print(item)
        """
        nodes = calls.nodes_of(skip_nodes) or ()
        return self._tail(topic, from_seq, group, nodes, wait_ms)

    async def _tail(
        self, topic: str, from_seq: int, group: str | None, skip_nodes: Iterable[str], wait_ms: int | None
    ) -> AsyncIterator[Record | Tombstone]:
        if group is not None:
            from_seq = from_seq or (await self.group(topic, group)).seq
        following = Following({topic: from_seq}, skip_nodes=skip_nodes)
        async for seen in follow(self._connections, self._patience, following, wait_ms):
            yield item_of(seen)

    def watch(
        self,
        topics: Iterable[str] | Mapping[str, int | Literal["head"]],
        *,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> AsyncIterator[Seen]:
        """What `tail` gives, for many topics at once: (topic, item).

        A name that ends in `*` is a pattern, also for topics that are created later. A mapping says where each topic
        begins: the last seq that is done, or "head". An item is a `Record`, a `Tombstone`, or a `TopicGone` when a
        topic is deleted.

        >>> async for topic, item in client.watch(["orders", "audit.*"]):
        ...     print(topic, item)
        """
        begin = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
        return follow(self._connections, self._patience, Following(begin, skip_nodes=skip_nodes), wait_ms)

    async def read_arrow(self, topic: str, from_seq: int = 0, *, loss: Loss = "raise") -> pa.Table:
        """All records above `from_seq` as an Arrow table: seq, ts, node, tag, data, meta. Needs `pyarrow`.

        `.to_pandas()` and `polars.from_arrow(…)` make data frames of it. Lost records raise `RecordsLost`; with
        `loss="yield"` they are left out, and the table's metadata counts them (`topics.lost_records`).

        >>> (await client.read_arrow("orders")).to_pandas()
        """
        from topics.client.arrow import table_of

        return table_of([item async for item in self.read_all(topic, from_seq, loss=loss)])

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

        With `wait_ms` the claim waits that long for a job (None: without end).

        >>> for job in await client.claim("jobs", "worker-1", max_jobs=10, wait_ms=30_000):
        ...     await client.ack("jobs", "worker-1", [job])
        """
        wait = LongWait(wait_ms, monotonic(), LONG_POLL_MS_MAX)
        ends_s = self._patience.ends_s(monotonic(), wait_ms)
        while True:
            piece_ms = wait.next_ms(monotonic())
            call = calls.claim(topic, node, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=piece_ms)
            jobs = await self._ask(call, ends_s)
            if jobs or not piece_ms:
                return jobs

    async def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Settled:
        """The jobs are done: removes them from the queue for good. As durable as a write to the queue on return.

        A job counts only while its lease runs: an expired one is in `skipped`. After a lost answer the repeated call
        also lists jobs there that the first one acked.

        >>> (await client.ack("jobs", "worker-1", [job])).settled
        1
        """
        return await self._ask(calls.ack(topic, node, jobs))

    async def nack(
        self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = ""
    ) -> Settled:
        """Gives the jobs back: another claim gets them at once, or after the delay. `reason` says why.

        >>> (await client.nack("jobs", "worker-1", [job], delay_ms=5000, reason="no disk space")).settled
        1
        """
        return await self._ask(calls.nack(topic, node, jobs, delay_ms, reason))

    async def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer: for `lease_ms` from now on.

        >>> (await client.extend("jobs", "worker-1", [job], lease_ms=60_000)).deadlines
        {1: 1790000060000}
        """
        return await self._ask(calls.extend(topic, node, jobs, lease_ms))

    async def work(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> AsyncWorkStream:
        """A stream of jobs that the server pushes, up to `max_jobs` leases at a time. An `AsyncWorker` uses it.

        When the stream ends, jobs of it that are not acked are ready for others at once.

        >>> async with await client.work("jobs", "worker-1") as jobs:
        ...     async for job in jobs:
        ...         await client.ack("jobs", "worker-1", [job])
        """
        target = calls.work_target(topic, node, max_jobs=max_jobs, lease_ms=lease_ms)
        return AsyncWorkStream(await self._connections.stream(target, self._patience))

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
    ) -> wire.Redriven:
        """Moves the dead letters of a queue back into it, or with `to` the jobs of the topic to another queue.

        After a crash each job is in one of the two topics, and only in one: then call it again. `limit` is the number
        of jobs at most, `rate` the number of jobs a second; 0 = no limit. Only jobs with the tag or tag prefix, with a
        time from `from_ts` to before `to_ts`, and with a seq above `from_seq` up to `until_seq` (None = the head now).
        With a `key`, a repeat counts the jobs that were moved before towards `limit`. Returns when all is moved.

        >>> (await client.redrive("jobs", tag_prefix="acme:")).moved
        3
        """
        redrive = Redrive(
            topic,
            to=to,
            tag=tag,
            tag_prefix=tag_prefix,
            from_ts=from_ts,
            to_ts=to_ts,
            from_seq=from_seq,
            until_seq=until_seq,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            key=key,
        )
        while True:
            done = redrive.answered(await self._ask(redrive.next()))
            if done is not None:
                return done

    async def depth(self, topic: str) -> wire.QueueState:
        """How many jobs of a queue are ready, leased, delayed and dead, how old the oldest ready one is, and the first
        leases.

        >>> (await client.depth("jobs")).oldest_ready_age_ms
        1200
        """
        return await self._ask(calls.get_queue(topic, None))

    async def leases(self, topic: str) -> AsyncIterator[wire.QueueLease]:
        """Every lease of a queue: job, node and deadline.

        >>> [(lease.seq, lease.node) async for lease in client.leases("jobs")]
        [(7, 'worker-1')]
        """
        cursor: str | None = None
        while True:
            page = await self._ask(calls.get_queue(topic, cursor))
            for lease in page.leases:
                yield lease
            if not isinstance(page.next_cursor, str):
                return
            cursor = page.next_cursor

    def worker(self, topic: str, **options: Unpack[WorkerOptions]) -> Callable[[AsyncHandler], AsyncWorker]:
        """A decorator: the coroutine function becomes an `AsyncWorker` of the queue. Options as there.

        >>> @client.worker("jobs", concurrency=4)
        ... async def resize(job: topics.Job) -> None:
        ...     print(job.data)
        >>> await resize.run()
        """
        from topics.client.aio.worker import async_worker

        return async_worker(self, topic, **options)

    # Consumer groups.

    async def create_group(self, topic: str, group: str, *, at: int | Start | None = None) -> GroupChanged:
        """Creates a group: a named cursor that the server keeps. With `at` an existing group moves there.

        `at` is the last seq that is done, "start" or "head". A new group begins at the start. Durable on return.

        >>> (await client.create_group("orders", "billing", at="head")).created
        True
        """
        return await self._ask(calls.put_group(topic, group, at))

    async def group(self, topic: str, group: str) -> GroupCursor:
        """Where a group is, and how many seqs it is from the head.

        >>> (await client.group("orders", "billing")).lag
        3
        """
        return await self._ask(calls.get_group(topic, group))

    async def groups(self, topic: str) -> list[GroupCursor]:
        """All groups of a topic, by name.

        >>> [cursor.group for cursor in await client.groups("orders")]
        ['billing', 'search']
        """
        return await self._ask(calls.list_groups(topic))

    async def commit(self, topic: str, group: str, seq: int, *, rewind: bool = False) -> GroupChanged:
        """The group is done with everything up to `seq`. As durable as a write to the topic on return.

        A lower seq than before changes nothing, unless `rewind` is set.

        >>> (await client.commit("orders", "billing", record.seq)).moved
        True
        """
        return await self._ask(calls.commit_group(topic, group, seq, rewind=rewind))

    async def drop_group(self, topic: str, group: str) -> bool:
        """Removes a group. False when there was none. Durable on return.

        >>> await client.drop_group("orders", "billing")
        True
        """
        return (await self._ask(calls.delete_group(topic, group))).deleted

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
        """Copies every record of `source` to `dest` from now on, or only records with the tag or tag prefix. Replaces a
        router of the same name. True when the router is new. Durable on return.

        >>> await client.create_router("acme-orders", "orders", "acme", tag_prefix="acme:")
        True
        """
        answer = await self._ask(
            calls.put_router(
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
        )
        self._warn(f'router "{router}"', answer.warnings)
        return answer.created

    async def router(self, router: str) -> wire.Router:
        """What a router copies, and how many copies it has made.

        >>> (await client.router("acme-orders")).forwarded_total
        17
        """
        return await self._ask(calls.get_router(router))

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[wire.RouterEntry]:
        """All routers that begin with the prefix, by name; only those from `source` or to `dest` if given.

        >>> [state.router for state in await client.routers()]
        ['acme-orders']
        """
        ends_s = self._patience.ends_s(monotonic())
        found: list[wire.RouterEntry] = []
        cursor: str | None = None
        while True:
            page = await self._ask(calls.list_routers(prefix, source, dest, cursor), ends_s)
            found += page.routers
            if not isinstance(page.next_cursor, str):
                return found
            cursor = page.next_cursor

    async def drop_router(self, router: str) -> bool:
        """Stops a router; its copies stay. False when there was none. Durable on return.

        >>> await client.drop_router("acme-orders")
        True
        """
        return (await self._ask(calls.delete_router(router))).deleted

    # Typed payloads, many small writes.

    def topic(self, topic: str, payload: type[T]) -> AsyncTopic[T]:
        """The topic, with payloads of one type.

        >>> orders = client.topic("orders", Order)
        >>> await orders.append([Order(id=1)])
        """
        from topics.client.aio.topic import AsyncTopic

        return AsyncTopic(self, topic, payload)

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """Many small writes as few large ones. Options as in `AsyncProducer`.

        >>> async with client.producer("orders", linger_ms=5) as producer:
        ...     delivered = await producer.append({"id": 1})
        >>> await delivered
        1
        """
        from topics.client.aio.producer import AsyncProducer

        return AsyncProducer(self, topic, **options)

    # Files.

    async def seal(self, topic: str) -> wire.TopicSealed:
        """Puts all records that are written so far into sealed segments: files that do not change any more.

        >>> (await client.seal("orders")).sealed_seq
        17
        """
        return await self._ask(calls.seal(topic))

    async def manifest(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        to_seq: int | None = None,
        from_ts: int = 0,
        to_ts: int | None = None,
        pin_ms: int = 0,
    ) -> bytes:
        """The manifest of a topic's files as JSON text: readers of files decode it into a type of their own.

        >>> msgspec.json.decode(await client.manifest("orders"))["segments"]
        """
        return await self._ask(
            calls.manifest(topic, from_seq=from_seq, to_seq=to_seq, from_ts=from_ts, to_ts=to_ts, pin_ms=pin_ms)
        )

    async def capture(self, *, pin_ms: int = 0) -> wire.LogCapture:
        """The whole log at one moment, for a backup. The key must be for any name. `pin_ms` keeps its files meanwhile.

        >>> (await client.capture()).store_id
        """
        return await self._ask(calls.capture(pin_ms=pin_ms))

    async def frames(self, topic: str, first_seq: int, last_seq: int, max_bytes: int = FRAMES_BYTES_DEFAULT) -> Frames:
        """Records from `first_seq` to `last_seq` as frames of segments. The answer may end earlier.

        >>> (await client.frames("orders", 1, 100)).next_seq
        18
        """
        return await self._ask(calls.frames(topic, first_seq, last_seq, max_bytes))

    async def replace_segment(
        self, *, topic_id: int, epoch: int, first_seq: int, expect_digest: str, data: str, idx: str
    ) -> wire.SegmentReplaced:
        """Replaces the files of a segment by the files with these names in the folder `staging`. Never sent twice.

        >>> await client.replace_segment(topic_id=1, epoch=1, first_seq=1, expect_digest="…", data="a", idx="b")
        """
        return await self._ask(
            calls.replace_segment(
                topic_id=topic_id, epoch=epoch, first_seq=first_seq, expect_digest=expect_digest, data=data, idx=idx
            )
        )

    # Streams: the partitioned engine, for reading. Clients of Apache Iggy write.

    async def streams(self, prefix: str = "") -> AsyncIterator[stream_body.StreamEntry]:
        """The streams whose names begin with `prefix`.

        >>> [stream.name async for stream in client.streams()]
        ['orders']
        """
        cursor: str | None = None
        while True:
            page = await self._ask(calls.list_streams(prefix, cursor))
            for stream in page.streams:
                yield stream
            cursor = page.next_cursor if isinstance(page.next_cursor, str) else None
            if cursor is None:
                return

    async def stream(self, stream: str | int) -> stream_body.StreamState:
        """A stream, by name or number, and its topics.

        >>> (await client.stream("orders")).topics[0].name
        'events'
        """
        return await self._ask(calls.get_stream(stream))

    async def stream_topic(self, stream: str | int, topic: str | int) -> stream_body.StreamTopicState:
        """A topic of a stream, its partitions and its groups.

        >>> (await client.stream_topic("orders", "events")).partitions[0].end_offset
        2
        """
        return await self._ask(calls.get_stream_topic(stream, topic))

    async def stream_partition(
        self, stream: str | int, topic: str | int, partition: int
    ) -> stream_body.StreamPartitionState:
        """A partition of a topic of a stream.

        >>> (await client.stream_partition("orders", "events", 0)).messages
        2
        """
        return await self._ask(calls.get_stream_partition(stream, topic, partition))

    async def stream_messages(
        self,
        stream: str | int,
        topic: str | int,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_us: int | None = None,
        count: int = 256,
    ) -> stream_body.StreamMessages:
        """Messages of a partition from `offset`, or from the first one that is not older than `timestamp_us`. The next
        page begins at `next_offset`. No offset is stored.

        >>> (await client.stream_messages("orders", "events", 0, offset=0)).messages[0].payload
        {'id': 42}
        """
        return await self._ask(
            calls.get_stream_messages(stream, topic, partition, offset=offset, timestamp_us=timestamp_us, count=count)
        )

    async def read_stream(
        self,
        stream: str | int,
        topic: str | int,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_us: int | None = None,
        page_bytes: int = STREAM_PAGE_BYTES_DEFAULT,
    ) -> AsyncIterator[StreamRecord]:
        """All messages of a partition that are there now, page by page, with their payloads as they were sent. The
        first one is at `offset`, or not older than `timestamp_us`, or the oldest one.

        >>> [record.payload async for record in client.read_stream("orders", "events", 0)]
        [b'{"id":42}', b'second']
        """
        end_offset: int | None = None
        while True:
            page = await self._ask(calls.read_stream(stream, topic, partition, offset, timestamp_us, page_bytes))
            end_offset = page.end_offset if end_offset is None else end_offset
            for record in page.records:
                yield record
            offset, timestamp_us = page.next_offset, None
            if not page.records or offset >= end_offset:
                return

    # Staged writes.

    async def stage(self, topic: str, chunk: bytes) -> wire.ChunkStaged:
        """Stages a chunk of records. `chunk` is the JSON text of the contract's body.

        >>> await client.stage("orders", b'{"writer":"w","epoch":1,"part":0,"attempt":0,"chunk":0,"records":[…]}')
        """
        return await self._ask(calls.stage(topic, chunk))

    async def commit_epoch(
        self, writer: str, epoch: int, topic: str, parts: Sequence[PartOfEpoch]
    ) -> wire.EpochCommitted:
        """Appends the staged records of an epoch: all of them or none, and once.

        >>> await client.commit_epoch("w", 1, "orders", [PartOfEpoch(part=0, attempt=0, chunks=1, records=1)])
        """
        return await self._ask(calls.commit_epoch(writer, epoch, topic, parts))

    async def writer(self, writer: str) -> wire.WriterEpochs:
        """The epochs that a writer has committed.

        >>> [(done.topic, done.epoch) for done in (await client.writer("w")).topics]
        [('orders', 1)]
        """
        return await self._ask(calls.get_writer(writer))

    async def abort_epoch(self, writer: str, epoch: int) -> wire.EpochAborted:
        """Drops the staged records of an epoch.

        >>> (await client.abort_epoch("w", 2)).dropped
        0
        """
        return await self._ask(calls.abort_epoch(writer, epoch))

    # Operations.

    async def health(self) -> wire.Health:
        """The version of the server, how long it runs, and what it can do.

        >>> (await client.health()).features
        """
        return await self._ask(calls.health())

    async def ready(self) -> wire.Ready:
        """Returns when the server takes requests; waits for a server that starts, as long as the client's patience.

        >>> (await client.ready()).topics
        2
        """
        return await self._ask(calls.ready())

    async def access(self) -> wire.AccessRights:
        """What the key of this client may do.

        >>> (await client.access()).scopes
        """
        return await self._ask(calls.access())

    async def metrics(self) -> str:
        """The numbers of the server, as text for Prometheus.

        >>> print(await client.metrics())
        """
        return await self._ask(calls.metrics())

    async def config(self) -> wire.ServerConfig:
        """Every setting of the server, its value, and where it comes from. Keys are counted, not shown.

        >>> [(one.name, one.origin) for one in (await client.config()).settings if one.origin != "default"]
        [('port', 'environment TOPICS_PORT')]
        """
        return await self._ask(calls.get_config())

    async def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of the server.

        >>> (await client.openapi())["info"]["version"]
        """
        return await self._ask(calls.openapi())

    async def asyncapi(self) -> dict[str, Any]:
        """The AsyncAPI document of the server: the messages of its streams.

        >>> (await client.asyncapi())["info"]["version"]
        """
        return await self._ask(calls.asyncapi())

    def websocket(self) -> AsyncWebSocket:
        """A WebSocket to the server: send the commands of the contract, receive its messages.

        >>> async with client.websocket() as socket:
        ...     await socket.send({"op": "subscribe", "topic": "orders"})
        ...     print(await socket.receive())
        """
        from topics.client.aio.websocket import AsyncWebSocket

        return AsyncWebSocket(self._connections, self._patience)
