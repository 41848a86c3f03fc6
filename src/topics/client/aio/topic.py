"""A topic whose payloads have one type, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from topics.client.aio.producer import AsyncProducer
from topics.client.aio.worker import AsyncWorker
from topics.client.batching import ProducerOptions
from topics.client.logs import AnyAsyncLog, Written
from topics.client.typed import Payloads, TypedJob, TypedRecord, leased
from topics.client.working import WorkerOptions
from topics.protocol.page_items import Loss
from topics.results import Extended, Job, NewRecord, Settled, Tombstone

T = TypeVar("T")


class AsyncTopic(Generic[T]):
    """A topic of an `AsyncClient` or an embedded `AsyncLog`, with payloads of one type.

    The type is a dataclass, a `msgspec.Struct`, a `TypedDict`, a pydantic model, or anything else that msgspec knows.
    A payload of another type raises `topics.errors.BadPayload` with its seq.

    >>> orders = topics.AsyncTopic(log, "orders", Order)
    >>> await orders.append([Order(id=1)])
    >>> async for record in orders.read_all(loss="raise"):
    ...     print(record.data.id)
    """

    def __init__(self, log: AnyAsyncLog, name: str, payload: type[T]) -> None:
        self.name = name
        self._log = log
        self._payloads = Payloads(name, payload)

    async def append(
        self,
        values: Sequence[T],
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> Written:
        """Appends the values: all of them or none. `tag`, `node` and `meta` are the ones of all of them."""
        return await self._log.append(self.name, [NewRecord(value, tag, node, meta) for value in values], key=key)

    @overload
    def read_all(self, from_seq: int = 0, *, loss: Literal["raise"]) -> AsyncIterator[TypedRecord[T]]: ...

    @overload
    def read_all(self, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[TypedRecord[T] | Tombstone]: ...

    async def read_all(self, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[TypedRecord[T] | Tombstone]:
        """Every live record above `from_seq`, up to the head."""
        async for item in self._log.read_all(self.name, from_seq, loss=loss):
            yield self._payloads.item(item)

    async def tail(
        self,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> AsyncIterator[TypedRecord[T] | Tombstone]:
        """Every record above `from_seq`, and then the records that are written from now on."""
        async for item in self._log.tail(self.name, from_seq, group=group, skip_nodes=skip_nodes, wait_ms=wait_ms):
            yield self._payloads.item(item)

    # Queues.

    async def claim(
        self, node: str, *, max_jobs: int = 1, lease_ms: int | None = None, wait_ms: int | None = 0
    ) -> list[TypedJob[T]]:
        """Leases up to `max_jobs` jobs to the node; an empty list when there are none."""
        jobs = await self._log.claim(self.name, node, max_jobs=max_jobs, lease_ms=lease_ms, wait_ms=wait_ms)
        return [self._payloads.job(job) for job in jobs]

    async def ack(self, node: str, jobs: Iterable[TypedJob[T]]) -> Settled:
        """The jobs are done."""
        return await self._log.ack(self.name, node, leased(jobs))

    async def nack(self, node: str, jobs: Iterable[TypedJob[T]], *, delay_ms: int = 0, reason: str = "") -> Settled:
        """Gives the jobs back."""
        return await self._log.nack(self.name, node, leased(jobs), delay_ms=delay_ms, reason=reason)

    async def extend(self, node: str, jobs: Iterable[TypedJob[T]], *, lease_ms: int) -> Extended:
        """Leases the jobs for longer."""
        return await self._log.extend(self.name, node, leased(jobs), lease_ms=lease_ms)

    def worker(
        self, **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[[TypedJob[T]], Awaitable[object]]], AsyncWorker]:
        """A decorator: the function becomes an `AsyncWorker` that handles the jobs of the queue."""

        def decorate(handler: Callable[[TypedJob[T]], Awaitable[object]]) -> AsyncWorker:
            async def handle(job: Job) -> object:
                return await handler(self._payloads.job(job))

            return AsyncWorker(self._log, self.name, handle, **options)

        return decorate

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """Many small writes as few large ones."""
        return AsyncProducer(self._log, self.name, **options)
