"""The log inside an asyncio program: `topics.open_async(path)`.

Only the thread of the loop uses the engine, so there are no locks. All writes of one turn of the loop are one write to
the disk, and all writers that wait for a sync share one sync.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from topics.clock import Clock, SystemClock
from topics.embedded.log import TopicState, absolute_path, make_batch, topic_state
from topics.engine.config import checked_config
from topics.engine.runtime import LoopRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.page import Page
from topics.engine.topic.write import Appended
from topics.engine.writing.deletion import Deleted
from topics.errors import Closed, TopicsError
from topics.formats.records import Record, RecordBatch
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT
from topics.storage.fs import Fs, RealFs


class AsyncLog:
    """An open data directory, owned by the running loop. It has the same methods as `topics.Log`."""

    def __init__(self, opened: OpenEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._opened = opened
        self._engine = opened.engine
        self._loop = loop
        opened.start()

    @property
    def recovery(self) -> RecoveryReport:
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

    async def _call(self, start: Callable[[Callable[[Any], None]], None]) -> Any:
        future = self._loop.create_future()
        start(partial(_resolve, future))
        return await future

    async def create(self, topic: str, **config: Any) -> bool:
        wanted = checked_config(config)
        created: bool = await self._call(lambda done: self._engine.put_topic(topic, wanted, done))
        return created

    async def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        deleted: bool = await self._call(lambda done: self._engine.delete_topic(topic, if_empty=if_empty, done=done))
        return deleted

    def topics(self) -> list[str]:
        self._check_open()
        return sorted(self._engine.topics)

    def state(self, topic: str) -> TopicState:
        self._check_open()
        return topic_state(self._engine, topic)

    def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> asyncio.Future[Appended]:
        """Starts the write at once, so writes happen in the order of the calls. Await the future for the answer."""
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

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = READ_LIMIT_DEFAULT,
        bytes_max: int = READ_BYTES_DEFAULT,
        skip_nodes: Iterable[str] = (),
    ) -> Page:
        """Never waits for writers. A page that is not in memory is read from its file, and the loop waits for that."""
        self._check_open()
        nodes = frozenset(node.encode() for node in skip_nodes) or None
        fetch = self._engine.fetch_needed(topic, from_seq, limit, bytes_max)
        if fetch is not None and fetch.is_cold:
            fetch()
        return self._engine.read(topic, from_seq, limit=limit, bytes_max=bytes_max, nodes=nodes)

    async def records(self, topic: str, from_seq: int = 0) -> AsyncIterator[Record]:
        """Every live record with a seq above `from_seq`. Other tasks run between pages."""
        while True:
            page = self.read(topic, from_seq, limit=1000)
            for record in page.records:
                yield record
            if page.caught_up:
                return
            from_seq = page.next_from_seq
            await asyncio.sleep(0)

    async def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> Deleted:
        deleted: Deleted = await self._call(
            lambda done: self._engine.delete_records(topic, done, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
        )
        return deleted

    async def checkpoint(self) -> None:
        error = await self._call(self._opened.checkpointer.start)
        if error is not None:
            raise error

    async def close(self) -> None:
        if self._engine.is_closed:
            return
        try:
            await self._call(self._opened.close)
        finally:
            # Also when the last checkpoint failed: the WAL has every record, and the next start reads it.
            await self._loop.run_in_executor(None, self._opened.release)

    def _check_open(self) -> None:
        if self._engine.is_closed:
            raise Closed


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
) -> OpenEngine:
    """Recovers a directory. Any thread may call this; afterwards only the thread of the loop may use the engine."""
    return open_engine(
        fs or RealFs(),
        absolute_path(path),
        settings=settings or EngineSettings(),
        clock=clock or SystemClock(),
        runtime=LoopRuntime(loop),
        progress=progress,
    )


async def open_async(
    path: str | os.PathLike[str],
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
    fs: Fs | None = None,
) -> AsyncLog:
    """`topics.open` for asyncio: the log belongs to the running loop."""
    loop = asyncio.get_running_loop()
    return AsyncLog(open_for_loop(path, loop, settings=settings, clock=clock, fs=fs), loop)
