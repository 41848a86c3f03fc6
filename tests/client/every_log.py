"""One way to use every kind of log in a test: blocking, asyncio, behind a server, inside the program.

Logs for asyncio run on a loop of their own thread. `Portal` calls them from the thread of the test.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import topics
from tests.server.running import running

T = TypeVar("T")

PATIENCE_S: Final = 60
KINDS: Final = ("client", "async client", "embedded", "async embedded")


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Portal:
    """An object of a loop, with methods that block."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self.thread = thread
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        return self._blocking(attribute) if callable(attribute) else attribute

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            async def run() -> Any:
                made = method(*arguments, **options)
                return await made if inspect.isawaitable(made) else made

            made = self.thread.run(run())
            return self._items(made) if hasattr(made, "__aiter__") else made

        return call

    def _items(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.thread.run(anext(items))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            end: Any = getattr(items, "aclose", None) or items.close
            self.thread.run(end())


@contextmanager
def on_loop(make: Callable[[], Any]) -> Iterator[Portal]:
    """What `make` gives, an async context manager, open on a loop."""
    thread = LoopThread()
    try:

        async def enter() -> Any:
            made = make()
            return await made.__aenter__()

        inner = thread.run(enter())
        try:
            yield Portal(thread, inner)
        finally:
            thread.run(inner.__aexit__(None, None, None))
    finally:
        thread.close()


@contextmanager
def client_of(kind: str, url: str, **options: Any) -> Iterator[Any]:
    """A client of a server: "client" or "async client"."""
    if kind == "client":
        with topics.Client(url, **options) as client:
            yield client
    else:
        with on_loop(lambda: topics.AsyncClient(url, **options)) as portal:
            yield portal


@contextmanager
def websocket_of(client: Any) -> Iterator[Any]:
    """An open WebSocket of a client."""
    made = client.websocket()
    if isinstance(client, Portal):
        portal = Portal(client.thread, made)
        portal.__getattr__("__aenter__")()
        try:
            yield portal
        finally:
            portal.__getattr__("__aexit__")(None, None, None)
    else:
        with made as opened:
            yield opened


@contextmanager
def log_of(kind: str, data_dir: Path) -> Iterator[Any]:
    """An open log of this kind."""
    if kind == "embedded":
        with topics.open(data_dir) as log:
            yield log
    elif kind == "async embedded":
        with on_loop(lambda: topics.open_async(data_dir)) as portal:
            yield portal
    else:
        with running(data_dir) as server, client_of(kind, server.url) as client:
            yield client


@contextmanager
def worker_of(log: Any, queue: str, handler: Callable[[topics.Job], object], **options: Any) -> Iterator[Any]:
    """A worker that runs beside the test."""
    if isinstance(log, Portal):

        async def handle(job: topics.Job) -> object:
            return await asyncio.get_running_loop().run_in_executor(None, handler, job)

        inner = log.inner
        work = Portal(log.thread, log.thread.run(_made(lambda: topics.AsyncWorker(inner, queue, handle, **options))))
        work.__getattr__("__aenter__")()
        try:
            yield work
        finally:
            work.__getattr__("__aexit__")(None, None, None)
    else:
        with topics.Worker(log, queue, handler, **options) as blocking:
            yield blocking


def run_worker(log: Any, queue: str, handler: Callable[[topics.Job], object], **options: Any) -> None:
    """Runs a worker until it ends by itself."""
    if isinstance(log, Portal):

        async def handle(job: topics.Job) -> object:
            return handler(job)

        log.thread.run(topics.AsyncWorker(log.inner, queue, handle, **options).run())
    else:
        topics.Worker(log, queue, handler, **options).run()


async def _made(make: Callable[[], T]) -> T:
    """Makes an object on the loop."""
    return make()


@contextmanager
def producer_of(log: Any, topic: str, **options: Any) -> Iterator[Any]:
    if isinstance(log, Portal):
        inner = log.inner
        made = log.thread.run(_made(lambda: topics.AsyncProducer(inner, topic, **options)))
        portal = Portal(log.thread, made)
        try:
            yield portal
        finally:
            portal.close()
    else:
        with topics.Producer(log, topic, **options) as producer:
            yield producer


def seq_of(log: Any, delivered: Any) -> int:
    """The seq in a future of a producer."""
    if isinstance(log, Portal):

        async def wait() -> int:
            return int(await delivered)

        return log.thread.run(wait())
    return int(delivered.result(PATIENCE_S))


def topic_of(log: Any, name: str, payload: type) -> Any:
    """A topic with typed payloads."""
    if isinstance(log, Portal):
        return Portal(log.thread, topics.AsyncTopic(log.inner, name, payload))
    return topics.Topic(log, name, payload)
