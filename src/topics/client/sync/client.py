"""`topics.Client`: a server, for programs that block. It has the methods of the embedded `topics.Log`, and the rest of
the HTTP contract."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from topics.client import calls
from topics.client import tracing as traces
from topics.client.answers import Frames, Page, StreamRecord
from topics.client.calls import FRAMES_BYTES_DEFAULT, STREAM_PAGE_BYTES_DEFAULT, Call, Guarantee, PartOfEpoch
from topics.client.endpoint import Endpoint
from topics.client.following import Following, Seen, item_of
from topics.client.redriving import Redrive
from topics.client.retrying import LongWait, Patience
from topics.client.sync.connections import Connections
from topics.client.sync.following import follow
from topics.client.sync.work_stream import WorkStream
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

    from topics.client.batching import ProducerOptions
    from topics.client.sync.producer import Producer
    from topics.client.sync.topic import Topic
    from topics.client.sync.websocket import WebSocket
    from topics.client.sync.worker import Handler, Worker
    from topics.client.working import WorkerOptions

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:4000"

logger: logging.Logger = logging.getLogger("topics.client")


class Client:
    """A server. Any number of threads may use it. Close it, or use it as a context manager.

    Every call is repeated when that is safe and may help: writes carry an idempotency key. `timeout_s` is how long the
    connection may be silent in one try, `deadline_s` how long a call may take with all its tries, whatever the server
    sends; `with_options` changes both for some calls. Errors are the classes of `topics.errors`; `topics.Unreachable`
    says that the server does not answer.

    >>> with topics.Client("http://localhost:4000", token="…") as client:
    ...     client.append("orders", [{"id": 1}])
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def close(self) -> None:
        """Closes the connections. A tail, watch or worker of another thread ends.

        >>> client.close()
        """
        self._connections.close()

    @property
    def url(self) -> str:
        return self._connections.endpoint.url

    def with_options(
        self, *, timeout_s: float | None = None, deadline_s: float | None = None, retries: int | None = None
    ) -> Client:
        """The same client, on the same connections, with other patience.

        >>> client.with_options(deadline_s=2).append("orders", [{"id": 1}])
        """
        other = copy.copy(self)
        other._patience = self._patience.changed(timeout_s, deadline_s, retries)
        return other

    def _ask(self, call: Call[T], ends_s: float = inf) -> T:
        return self._connections.ask(call, self._patience, ends_s)

    def _warn(self, what: str, warnings: object) -> None:
        for warning in warnings if isinstance(warnings, list) else ():
            self._on_warning(f"{what}: {warning}")

    # Topics.

    def create(self, topic: str, **config: Unpack[ConfigMembers]) -> bool:
        """Creates the topic, or replaces its config. True when the topic is new. Durable on return.

        Members that the server does not know, or that cannot do what they say, are told to `on_warning` of the client,
        which logs them.

        >>> client.create("jobs", type="queue", max_deliveries=5, dead_letter="jobs.dead")
        True
        """
        answer = self._ask(calls.put_topic(topic, config))
        self._warn(f'config of topic "{topic}"', answer.warnings)
        return answer.created

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Removes the topic and all its records. False when there was no such topic. Durable on return.

        After a lost answer the repeated call returns False.

        >>> client.drop("orders.old")
        True
        """
        return self._ask(calls.delete_topic(topic, if_empty=if_empty)).deleted

    def topics(self, prefix: str = "") -> list[str]:
        """The names of all topics that begin with the prefix, sorted.

        >>> client.topics()
        ['jobs', 'orders']
        """
        ends_s = self._patience.ends_s(monotonic())
        return [entry.topic for entry in self._topic_entries(prefix, ends_s)]

    def topic_list(self, prefix: str = "") -> Iterator[wire.TopicEntry]:
        """The topics that begin with the prefix, with their numbers, sorted by name. Pages are fetched as needed.

        >>> [(entry.topic, entry.count) for entry in client.topic_list("orders")]
        [('orders', 17)]
        """
        return self._topic_entries(prefix)

    def _topic_entries(self, prefix: str, ends_s: float = inf) -> Iterator[wire.TopicEntry]:
        cursor: str | None = None
        while True:
            page = self._ask(calls.list_topics(prefix, cursor), ends_s)
            yield from page.topics
            if not isinstance(page.next_cursor, str):
                return
            cursor = page.next_cursor

    def state(self, topic: str) -> wire.TopicState:
        """The numbers of a topic, its config, and the counters of a queue.

        >>> client.state("orders").head_seq
        17
        """
        return self._ask(calls.get_topic(topic))

    # Writing.

    def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> wire.Appended:
        """Appends one record per payload: all of them or none, with consecutive seqs.

        A payload is any value that can be written as JSON (a dict, a dataclass, a Struct, …), or JSON text as `bytes`,
        which is kept byte for byte. A `NewRecord` adds a tag, node or meta. Without a `key` the client makes one, so
        that its own retries never append twice. Give a `key` to repeat the call yourself.

        >>> client.append("orders", [{"id": 1}, topics.NewRecord({"id": 2}, tag="customer-7")]).last_seq
        2
        """
        if self._tracing:
            payloads = traces.traced_payloads(payloads)
        return self.append_encoded(topic, calls.records_text(payloads), key=key, create=create)

    def append_encoded(
        self, topic: str, records: bytes, *, key: str | None = None, create: bool = True
    ) -> wire.Appended:
        """`append` for a JSON array of records in the form of the HTTP contract, for programs that build it faster.

        >>> client.append_encoded("orders", b'[{"data":{"id":1},"tag":"customer-7"}]').count
        1
        """
        return self._ask(calls.append(topic, records, key, create=create))

    def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> wire.Deleted:
        """Removes live records for good: below `before_seq`, with the tag, or with the tag prefix. A record must fulfil
        all given conditions. After a lost answer the repeated call counts only what was left.

        >>> client.delete("orders", tag="customer-7").deleted
        1
        """
        return self._ask(calls.delete(topic, before_seq, tag, tag_prefix))

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

        `page.tombstone` names records that are lost. With `group`, and without `from_seq`, the page begins after the
        cursor of the group. With `wait_ms` a read that finds nothing waits that long for the next write to the topic
        (None: without end). A page without records is no error.

        >>> page = client.read("orders", from_seq=41, wait_ms=30_000)
        >>> [record.seq for record in page.records], page.tombstone
        ([42, 43], None)
        """
        nodes = calls.nodes_of(skip_nodes) or ()
        wait = LongWait(wait_ms, monotonic(), LONG_POLL_MS_MAX)
        ends_s = self._patience.ends_s(monotonic(), wait_ms)
        while True:
            piece_ms = wait.next_ms(monotonic())
            page = self._ask(
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
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> Iterator[Record]: ...

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[Record | Tombstone]: ...

    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[Record | Tombstone]:
        """Every live record with a seq above `from_seq`, up to the head at the time of the last page.

        Where records are lost it yields a `Tombstone` with their range. With `loss="raise"` it raises
        `topics.errors.RecordsLost` instead, and yields records only.

        >>> for record in client.read_all("orders", loss="raise"):
        ...     print(record.seq, record.data)
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

        The server pushes them. After a broken connection or a restart of the server the tail goes on with the next
        record, for as long as that takes. A `Tombstone` stands where records are lost. With `group`, and without
        `from_seq`, it begins after the cursor of the group; commit what is done with `commit`. The iteration ends when
        no record came for `wait_ms` (None: never), and when the client is closed. Then, with `wait_ms`, a server that
        does not answer is an error. Raises `TopicNotFound` when the topic is deleted.

        >>> for item in client.tail("orders", client.state("orders").head_seq):
        ...     print(item)
        """
        if group is not None:
            from_seq = from_seq or self.group(topic, group).seq
        following = Following({topic: from_seq}, skip_nodes=skip_nodes)
        return self._tail(following, wait_ms)

    def _tail(self, following: Following, wait_ms: int | None) -> Iterator[Record | Tombstone]:
        for seen in follow(self._connections, self._patience, following, wait_ms):
            yield item_of(seen)

    def watch(
        self,
        topics: Iterable[str] | Mapping[str, int | Literal["head"]],
        *,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> Iterator[Seen]:
        """What `tail` gives, for many topics at once: (topic, item).

        A name that ends in `*` is a pattern, also for topics that are created later. A mapping says where each topic
        begins: the last seq that is done, or "head". An item is a `Record`, a `Tombstone`, or a `TopicGone` when a
        topic is deleted.

        >>> for topic, item in client.watch(["orders", "audit.*"]):
        ...     print(topic, item)
        """
        begin = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
        return follow(self._connections, self._patience, Following(begin, skip_nodes=skip_nodes), wait_ms)

    def read_arrow(self, topic: str, from_seq: int = 0, *, loss: Loss = "raise") -> pa.Table:
        """All records above `from_seq` as an Arrow table: seq, ts, node, tag, data, meta. Needs `pyarrow`.

        `.to_pandas()` and `polars.from_arrow(…)` make data frames of it. Lost records raise `RecordsLost`; with
        `loss="yield"` they are left out, and the table's metadata counts them (`topics.lost_records`).

        >>> client.read_arrow("orders").to_pandas()
        """
        from topics.client.arrow import table_of

        return table_of(self.read_all(topic, from_seq, loss=loss))

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

        With `wait_ms` the claim waits that long for a job (None: without end).

        >>> for job in client.claim("jobs", "worker-1", max_jobs=10, wait_ms=30_000):
        ...     client.ack("jobs", "worker-1", [job])
        """
        wait = LongWait(wait_ms, monotonic(), LONG_POLL_MS_MAX)
        ends_s = self._patience.ends_s(monotonic(), wait_ms)
        while True:
            piece_ms = wait.next_ms(monotonic())
            call = calls.claim(topic, node, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=piece_ms)
            jobs = self._ask(call, ends_s)
            if jobs or not piece_ms:
                return jobs

    def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Settled:
        """The jobs are done: removes them from the queue for good. As durable as a write to the queue on return.

        A job counts only while its lease runs: an expired one is in `skipped`. After a lost answer the repeated call
        also lists jobs there that the first one acked.

        >>> client.ack("jobs", "worker-1", [job]).settled
        1
        """
        return self._ask(calls.ack(topic, node, jobs))

    def nack(self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = "") -> Settled:
        """Gives the jobs back: another claim gets them at once, or after the delay. `reason` says why.

        >>> client.nack("jobs", "worker-1", [job], delay_ms=5000, reason="no disk space").settled
        1
        """
        return self._ask(calls.nack(topic, node, jobs, delay_ms, reason))

    def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer: for `lease_ms` from now on.

        >>> client.extend("jobs", "worker-1", [job], lease_ms=60_000).deadlines
        {1: 1790000060000}
        """
        return self._ask(calls.extend(topic, node, jobs, lease_ms))

    def work(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> WorkStream:
        """A stream of jobs that the server pushes, up to `max_jobs` leases at a time. A `Worker` uses it.

        When the stream ends, jobs of it that are not acked are ready for others at once.

        >>> with client.work("jobs", "worker-1") as jobs:
        ...     for job in jobs:
        ...         client.ack("jobs", "worker-1", [job])
        """
        target = calls.work_target(topic, node, max_jobs=max_jobs, lease_ms=lease_ms)
        return WorkStream(self._connections.stream(target, self._patience))

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
    ) -> wire.Redriven:
        """Moves the dead letters of a queue back into it, or with `to` the jobs of the topic to another queue.

        After a crash each job is in one of the two topics, and only in one: then call it again. `limit` is the number
        of jobs at most, `rate` the number of jobs a second; 0 = no limit. Only jobs with the tag or tag prefix, with a
        time from `from_ts` to before `to_ts`, and with a seq above `from_seq` up to `until_seq` (None = the head now).
        With a `key`, a repeat counts the jobs that were moved before towards `limit`. Returns when all is moved.

        >>> client.redrive("jobs", tag_prefix="acme:").moved
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
            done = redrive.answered(self._ask(redrive.next()))
            if done is not None:
                return done

    def depth(self, topic: str) -> wire.QueueState:
        """How many jobs of a queue are ready, leased, delayed and dead, how old the oldest ready one is, and the first
        leases.

        >>> client.depth("jobs").oldest_ready_age_ms
        1200
        """
        return self._ask(calls.get_queue(topic, None))

    def leases(self, topic: str) -> Iterator[wire.QueueLease]:
        """Every lease of a queue: job, node and deadline.

        >>> [(lease.seq, lease.node) for lease in client.leases("jobs")]
        [(7, 'worker-1')]
        """
        cursor: str | None = None
        while True:
            page = self._ask(calls.get_queue(topic, cursor))
            yield from page.leases
            if not isinstance(page.next_cursor, str):
                return
            cursor = page.next_cursor

    def worker(self, topic: str, **options: Unpack[WorkerOptions]) -> Callable[[Handler], Worker]:
        """A decorator: the function becomes a `Worker` of the queue. Options as there.

        >>> @client.worker("jobs", concurrency=4)
        ... def resize(job: topics.Job) -> None:
        ...     print(job.data)
        >>> resize.run()
        """
        from topics.client.sync.worker import worker

        return worker(self, topic, **options)

    # Consumer groups.

    def create_group(self, topic: str, group: str, *, at: int | Start | None = None) -> GroupChanged:
        """Creates a group: a named cursor that the server keeps. With `at` an existing group moves there.

        `at` is the last seq that is done, "start" or "head". A new group begins at the start. Durable on return.

        >>> client.create_group("orders", "billing", at="head").created
        True
        """
        return self._ask(calls.put_group(topic, group, at))

    def group(self, topic: str, group: str) -> GroupCursor:
        """Where a group is, and how many seqs it is from the head.

        >>> client.group("orders", "billing").lag
        3
        """
        return self._ask(calls.get_group(topic, group))

    def groups(self, topic: str) -> list[GroupCursor]:
        """All groups of a topic, by name.

        >>> [cursor.group for cursor in client.groups("orders")]
        ['billing', 'search']
        """
        return self._ask(calls.list_groups(topic))

    def commit(self, topic: str, group: str, seq: int, *, rewind: bool = False) -> GroupChanged:
        """The group is done with everything up to `seq`. As durable as a write to the topic on return.

        A lower seq than before changes nothing, unless `rewind` is set.

        >>> client.commit("orders", "billing", record.seq).moved
        True
        """
        return self._ask(calls.commit_group(topic, group, seq, rewind=rewind))

    def drop_group(self, topic: str, group: str) -> bool:
        """Removes a group. False when there was none. Durable on return.

        >>> client.drop_group("orders", "billing")
        True
        """
        return self._ask(calls.delete_group(topic, group)).deleted

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

        >>> client.create_router("acme-orders", "orders", "acme", tag_prefix="acme:")
        True
        """
        answer = self._ask(
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

    def router(self, router: str) -> wire.Router:
        """What a router copies, and how many copies it has made.

        >>> client.router("acme-orders").forwarded_total
        17
        """
        return self._ask(calls.get_router(router))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[wire.RouterEntry]:
        """All routers that begin with the prefix, by name; only those from `source` or to `dest` if given.

        >>> [state.router for state in client.routers()]
        ['acme-orders']
        """
        ends_s = self._patience.ends_s(monotonic())
        found: list[wire.RouterEntry] = []
        cursor: str | None = None
        while True:
            page = self._ask(calls.list_routers(prefix, source, dest, cursor), ends_s)
            found += page.routers
            if not isinstance(page.next_cursor, str):
                return found
            cursor = page.next_cursor

    def drop_router(self, router: str) -> bool:
        """Stops a router; its copies stay. False when there was none. Durable on return.

        >>> client.drop_router("acme-orders")
        True
        """
        return self._ask(calls.delete_router(router)).deleted

    # Typed payloads, many small writes.

    def topic(self, topic: str, payload: type[T]) -> Topic[T]:
        """The topic, with payloads of one type.

        >>> orders = client.topic("orders", Order)
        >>> orders.append([Order(id=1)])
        """
        from topics.client.sync.topic import Topic

        return Topic(self, topic, payload)

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        """Many small writes as few large ones. Options as in `Producer`.

        >>> with client.producer("orders", linger_ms=5) as producer:
        ...     delivered = producer.append({"id": 1})
        >>> delivered.result()
        1
        """
        from topics.client.sync.producer import Producer

        return Producer(self, topic, **options)

    # Files.

    def seal(self, topic: str) -> wire.TopicSealed:
        """Puts all records that are written so far into sealed segments: files that do not change any more.

        >>> client.seal("orders").sealed_seq
        17
        """
        return self._ask(calls.seal(topic))

    def manifest(
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

        >>> msgspec.json.decode(client.manifest("orders"))["segments"]
        """
        return self._ask(
            calls.manifest(topic, from_seq=from_seq, to_seq=to_seq, from_ts=from_ts, to_ts=to_ts, pin_ms=pin_ms)
        )

    def capture(self, *, pin_ms: int = 0) -> wire.LogCapture:
        """The whole log at one moment, for a backup. The key must be for any name. `pin_ms` keeps its files meanwhile.

        >>> client.capture().store_id
        """
        return self._ask(calls.capture(pin_ms=pin_ms))

    def frames(self, topic: str, first_seq: int, last_seq: int, max_bytes: int = FRAMES_BYTES_DEFAULT) -> Frames:
        """Records from `first_seq` to `last_seq` as frames of segments. The answer may end earlier.

        >>> client.frames("orders", 1, 100).next_seq
        18
        """
        return self._ask(calls.frames(topic, first_seq, last_seq, max_bytes))

    def replace_segment(
        self, *, topic_id: int, epoch: int, first_seq: int, expect_digest: str, data: str, idx: str
    ) -> wire.SegmentReplaced:
        """Replaces the files of a segment by the files with these names in the folder `staging`. Never sent twice.

        >>> client.replace_segment(topic_id=1, epoch=1, first_seq=1, expect_digest="…", data="a.data", idx="a.idx")
        """
        return self._ask(
            calls.replace_segment(
                topic_id=topic_id, epoch=epoch, first_seq=first_seq, expect_digest=expect_digest, data=data, idx=idx
            )
        )

    # Streams: the partitioned engine, for reading. Clients of Apache Iggy write.

    def streams(self, prefix: str = "") -> Iterator[stream_body.StreamEntry]:
        """The streams whose names begin with `prefix`.

        >>> [stream.name for stream in client.streams()]
        ['orders']
        """
        cursor: str | None = None
        while True:
            page = self._ask(calls.list_streams(prefix, cursor))
            yield from page.streams
            cursor = page.next_cursor if isinstance(page.next_cursor, str) else None
            if cursor is None:
                return

    def stream(self, stream: str | int) -> stream_body.StreamState:
        """A stream, by name or number, and its topics.

        >>> client.stream("orders").topics[0].name
        'events'
        """
        return self._ask(calls.get_stream(stream))

    def stream_topic(self, stream: str | int, topic: str | int) -> stream_body.StreamTopicState:
        """A topic of a stream, its partitions and its groups.

        >>> client.stream_topic("orders", "events").partitions[0].end_offset
        2
        """
        return self._ask(calls.get_stream_topic(stream, topic))

    def stream_partition(self, stream: str | int, topic: str | int, partition: int) -> stream_body.StreamPartitionState:
        """A partition of a topic of a stream.

        >>> client.stream_partition("orders", "events", 0).messages
        2
        """
        return self._ask(calls.get_stream_partition(stream, topic, partition))

    def stream_messages(
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

        >>> client.stream_messages("orders", "events", 0, offset=0).messages[0].payload
        {'id': 42}
        """
        return self._ask(
            calls.get_stream_messages(stream, topic, partition, offset=offset, timestamp_us=timestamp_us, count=count)
        )

    def read_stream(
        self,
        stream: str | int,
        topic: str | int,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_us: int | None = None,
        page_bytes: int = STREAM_PAGE_BYTES_DEFAULT,
    ) -> Iterator[StreamRecord]:
        """All messages of a partition that are there now, page by page, with their payloads as they were sent. The
        first one is at `offset`, or not older than `timestamp_us`, or the oldest one.

        >>> [record.payload for record in client.read_stream("orders", "events", 0)]
        [b'{"id":42}', b'second']
        """
        end_offset: int | None = None
        while True:
            page = self._ask(calls.read_stream(stream, topic, partition, offset, timestamp_us, page_bytes))
            end_offset = page.end_offset if end_offset is None else end_offset
            yield from page.records
            offset, timestamp_us = page.next_offset, None
            if not page.records or offset >= end_offset:
                return

    # Staged writes.

    def stage(self, topic: str, chunk: bytes) -> wire.ChunkStaged:
        """Stages a chunk of records. `chunk` is the JSON text of the contract's body.

        >>> client.stage("orders", b'{"writer":"w","epoch":1,"part":0,"attempt":0,"chunk":0,"records":[{"data":1}]}')
        """
        return self._ask(calls.stage(topic, chunk))

    def commit_epoch(self, writer: str, epoch: int, topic: str, parts: Sequence[PartOfEpoch]) -> wire.EpochCommitted:
        """Appends the staged records of an epoch: all of them or none, and once.

        >>> client.commit_epoch("w", 1, "orders", [PartOfEpoch(part=0, attempt=0, chunks=1, records=1)])
        """
        return self._ask(calls.commit_epoch(writer, epoch, topic, parts))

    def writer(self, writer: str) -> wire.WriterEpochs:
        """The epochs that a writer has committed.

        >>> [(done.topic, done.epoch) for done in client.writer("w").topics]
        [('orders', 1)]
        """
        return self._ask(calls.get_writer(writer))

    def abort_epoch(self, writer: str, epoch: int) -> wire.EpochAborted:
        """Drops the staged records of an epoch.

        >>> client.abort_epoch("w", 2).dropped
        0
        """
        return self._ask(calls.abort_epoch(writer, epoch))

    # Operations.

    def health(self) -> wire.Health:
        """The version of the server, how long it runs, and what it can do.

        >>> client.health().features
        """
        return self._ask(calls.health())

    def ready(self) -> wire.Ready:
        """Returns when the server takes requests; waits for a server that starts, as long as the client's patience.

        >>> client.ready().topics
        2
        """
        return self._ask(calls.ready())

    def access(self) -> wire.AccessRights:
        """What the key of this client may do.

        >>> client.access().scopes
        """
        return self._ask(calls.access())

    def metrics(self) -> str:
        """The numbers of the server, as text for Prometheus.

        >>> print(client.metrics())
        """
        return self._ask(calls.metrics())

    def config(self) -> wire.ServerConfig:
        """Every setting of the server, its value, and where it comes from. Keys are counted, not shown.

        >>> [(one.name, one.origin) for one in client.config().settings if one.origin != "default"]
        [('port', 'environment TOPICS_PORT')]
        """
        return self._ask(calls.get_config())

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of the server.

        >>> client.openapi()["info"]["version"]
        """
        return self._ask(calls.openapi())

    def asyncapi(self) -> dict[str, Any]:
        """The AsyncAPI document of the server: the messages of its streams.

        >>> client.asyncapi()["info"]["version"]
        """
        return self._ask(calls.asyncapi())

    def websocket(self) -> WebSocket:
        """A WebSocket to the server: send the commands of the contract, receive its messages.

        >>> with client.websocket() as socket:
        ...     socket.send({"op": "subscribe", "topic": "orders"})
        ...     print(socket.receive())
        """
        from topics.client.sync.websocket import WebSocket

        return WebSocket(self._connections, self._patience)
