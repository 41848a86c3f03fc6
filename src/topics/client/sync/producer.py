"""Many small writes as few large ones, on threads. `client.batching` has the rules."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from time import monotonic
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import uuid4

from topics.client.batching import Batches, Entry, ProducerOptions, ProducerSettings, encoded
from topics.client.logs import AppendLog
from topics.errors import Closed, TopicsError
from topics.results import NewRecord


class Producer:
    """Writes to one topic in batches. `append` gives a future with the seq of the record.

    Any thread may call it. The log is a `Client` or an embedded `Log`. Options: see `ProducerSettings`.

    >>> with topics.Producer(client, "orders", linger_ms=5) as producer:
    ...     delivered = [producer.append({"id": number}) for number in range(1000)]
    >>> delivered[0].result()
    1
    """

    def __init__(self, log: AppendLog, topic: str, **options: Unpack[ProducerOptions]) -> None:
        self._log = log
        self._topic = topic
        settings = ProducerSettings.of(options)
        self._batches: Batches[Future[int]] = Batches(settings)
        self._changed = threading.Condition()
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._send, name=f"topics-producer-{number}", daemon=True)
            for number in range(settings.max_in_flight)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def append(self, payload: Any, *, tag: str | None = None, node: str | None = None, meta: Any = None) -> Future[int]:
        """Adds a record. The future has its seq when it is as durable as the topic's config asks for.

        Waits while too much waits. Raises `InvalidRequest` for a payload that is no JSON, and `Closed`.
        """
        record, size_bytes = encoded(NewRecord(payload, tag, node, meta))
        future: Future[int] = Future()
        # A future that runs cannot be cancelled: its record may be on its way.
        future.set_running_or_notify_cancel()
        with self._changed:
            while not self._is_closing and not self._batches.has_room(size_bytes):
                self._changed.wait()
            if self._is_closing:
                raise Closed
            self._batches.add(Entry(record, size_bytes, monotonic(), future))
            self._changed.notify_all()
        return future

    def flush(self) -> None:
        """Returns when every record that was added before is answered. Errors are in the futures."""
        with self._changed:
            self._batches.flush()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._batches.is_idle)

    def close(self) -> None:
        """Sends what waits, and ends. A second call does nothing."""
        with self._changed:
            self._is_closing = True
            self._batches.flush()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while (batch := self._next()) is not None:
            try:
                first_seq = self._log.append(self._topic, [entry.record for entry in batch], key=uuid4().hex).first_seq
            except TopicsError as error:
                for entry in batch:
                    entry.future.set_exception(error)
            else:
                for place, entry in enumerate(batch):
                    entry.future.set_result(first_seq + place)
            with self._changed:
                self._batches.landed()
                self._changed.notify_all()

    def _next(self) -> list[Entry[Future[int]]] | None:
        """Waits for a batch that is due. None at the end."""
        with self._changed:
            while True:
                due_in_s = self._batches.due_in_s(monotonic())
                if due_in_s == 0.0:
                    batch = self._batches.take()
                    self._changed.notify_all()
                    return batch
                if self._is_closing and due_in_s is None:
                    return None
                self._changed.wait(due_in_s)
