"""A topic whose payloads have one type, for programs that block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from topics.client.batching import ProducerOptions
from topics.client.logs import AnyLog, Written
from topics.client.sync.producer import Producer
from topics.client.sync.worker import Worker
from topics.client.typed import Payloads, TypedJob, TypedRecord, leased
from topics.client.working import WorkerOptions
from topics.protocol.page_items import Loss
from topics.results import Extended, Job, NewRecord, Settled, Tombstone

T = TypeVar("T")


class Topic(Generic[T]):
    """A topic of a `Client` or an embedded `Log`, with payloads of one type.

    The type is a dataclass, a `msgspec.Struct`, a `TypedDict`, a pydantic model, or anything else that msgspec knows.
    A payload of another type raises `topics.errors.BadPayload` with its seq.

    >>> orders = topics.Topic(log, "orders", Order)
    >>> orders.append([Order(id=1)])
    >>> for record in orders.read_all(loss="raise"):
    ...     print(record.data.id)
    """

    def __init__(self, log: AnyLog, name: str, payload: type[T]) -> None:
        self.name = name
        self._log = log
        self._payloads = Payloads(name, payload)

    def append(
        self,
        values: Sequence[T],
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> Written:
        """Appends the values: all of them or none. `tag`, `node` and `meta` are the ones of all of them."""
        return self._log.append(self.name, [NewRecord(value, tag, node, meta) for value in values], key=key)

    @overload
    def read_all(self, from_seq: int = 0, *, loss: Literal["raise"]) -> Iterator[TypedRecord[T]]: ...

    @overload
    def read_all(self, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[TypedRecord[T] | Tombstone]: ...

    def read_all(self, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[TypedRecord[T] | Tombstone]:
        """Every live record above `from_seq`, up to the head."""
        for item in self._log.read_all(self.name, from_seq, loss=loss):
            yield self._payloads.item(item)

    def tail(
        self,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> Iterator[TypedRecord[T] | Tombstone]:
        """Every record above `from_seq`, and then the records that are written from now on."""
        for item in self._log.tail(self.name, from_seq, group=group, skip_nodes=skip_nodes, wait_ms=wait_ms):
            yield self._payloads.item(item)

    # Queues.

    def claim(
        self, node: str, *, max_jobs: int = 1, lease_ms: int | None = None, wait_ms: int | None = 0
    ) -> list[TypedJob[T]]:
        """Leases up to `max_jobs` jobs to the node; an empty list when there are none."""
        jobs = self._log.claim(self.name, node, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=wait_ms)
        return [self._payloads.job(job) for job in jobs]

    def ack(self, node: str, jobs: Iterable[TypedJob[T]]) -> Settled:
        """The jobs are done."""
        return self._log.ack(self.name, node, leased(jobs))

    def nack(self, node: str, jobs: Iterable[TypedJob[T]], *, delay_ms: int = 0, reason: str = "") -> Settled:
        """Gives the jobs back."""
        return self._log.nack(self.name, node, leased(jobs), delay_ms=delay_ms, reason=reason)

    def extend(self, node: str, jobs: Iterable[TypedJob[T]], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer."""
        return self._log.extend(self.name, node, leased(jobs), lease_ms=lease_ms)

    def worker(self, **options: Unpack[WorkerOptions]) -> Callable[[Callable[[TypedJob[T]], object]], Worker]:
        """A decorator: the function becomes a `Worker` that handles the jobs of the queue."""

        def decorate(handler: Callable[[TypedJob[T]], object]) -> Worker:
            def handle(job: Job) -> object:
                return handler(self._payloads.job(job))

            return Worker(self._log, self.name, handle, **options)

        return decorate

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Many small writes as few large ones."""
        return Producer(self._log, self.name, **options)
