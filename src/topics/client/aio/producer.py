"""Many small writes as few large ones, for asyncio. `client.batching` has the rules."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import uuid4

from topics.client.batching import Batches, Entry, ProducerOptions, ProducerSettings, encoded
from topics.client.logs import AsyncAppendLog
from topics.errors import Closed, TopicsError
from topics.results import NewRecord


class AsyncProducer:
    """Writes to one topic in batches. `append` gives a future with the seq of the record.

    The log is an `AsyncClient` or an embedded `AsyncLog`. Options: see `ProducerSettings`.

    >>> async with topics.AsyncProducer(client, "orders", linger_ms=5) as producer:
    ...     delivered = [await producer.append({"id": number}) for number in range(1000)]
    >>> await delivered[0]
    1
    """

    def __init__(self, log: AsyncAppendLog, topic: str, **options: Unpack[ProducerOptions]) -> None:
        self._log = log
        self._topic = topic
        settings = ProducerSettings.of(options)
        self._batches: Batches[asyncio.Future[int]] = Batches(settings)
        self._changed = asyncio.Condition()
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._task_count = settings.max_in_flight

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def append(
        self, payload: Any, *, tag: str | None = None, node: str | None = None, meta: Any = None
    ) -> asyncio.Future[int]:
        """Adds a record. The future has its seq when it is as durable as the topic's config asks for.

        Waits while too much waits. Raises `InvalidRequest` for a payload that is no JSON, and `Closed`.
        """
        record, size_bytes = encoded(NewRecord(payload, tag, node, meta))
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closing or self._batches.has_room(size_bytes))
            if self._is_closing:
                raise Closed
            if not self._tasks:
                self._tasks = [asyncio.create_task(self._send()) for _ in range(self._task_count)]
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._batches.add(Entry(record, size_bytes, monotonic(), future))
            self._changed.notify_all()
        return future

    async def flush(self) -> None:
        """Returns when every record that was added before is answered. Errors are in the futures."""
        async with self._changed:
            self._batches.flush()
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._batches.is_idle)

    async def close(self) -> None:
        """Sends what waits, and ends. A second call does nothing."""
        async with self._changed:
            self._is_closing = True
            self._batches.flush()
            self._changed.notify_all()
        await asyncio.gather(*self._tasks)

    async def _send(self) -> None:
        while (batch := await self._next()) is not None:
            try:
                records = [entry.record for entry in batch]
                first_seq = (await self._log.append(self._topic, records, key=uuid4().hex)).first_seq
            except TopicsError as error:
                for entry in batch:
                    if not entry.future.done():
                        entry.future.set_exception(error)
            else:
                for place, entry in enumerate(batch):
                    if not entry.future.done():
                        entry.future.set_result(first_seq + place)
            async with self._changed:
                self._batches.landed()
                self._changed.notify_all()

    async def _next(self) -> list[Entry[asyncio.Future[int]]] | None:
        """Waits for a batch that is due. None at the end."""
        async with self._changed:
            while True:
                due_in_s = self._batches.due_in_s(monotonic())
                if due_in_s == 0.0:
                    batch = self._batches.take()
                    self._changed.notify_all()
                    return batch
                if self._is_closing and due_in_s is None:
                    return None
                try:
                    async with asyncio.timeout(due_in_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
