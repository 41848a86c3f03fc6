"""The log inside a Python program, without a server: `topics.open(path)`.

Safe to use from several threads. One lock guards the engine. No thread holds the lock while it waits for a disk sync.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from topics.clock import Clock, SystemClock
from topics.engine.config import TopicConfig, checked_config
from topics.engine.engine import Engine
from topics.engine.runtime import LockRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.page import Page
from topics.engine.topic.write import Appended
from topics.engine.writing.deletion import Deleted
from topics.engine.writing.intake import NewRecord, batch_of_payloads, batch_of_records
from topics.errors import Closed, Overloaded, TopicsError
from topics.formats.records import Record, RecordBatch
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT, TICK_MS
from topics.storage.fs import Fs, RealFs

T = TypeVar("T")


class TopicState(msgspec.Struct, frozen=True):
    """The numbers of a topic at one moment."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    size_bytes: int
    config: TopicConfig
    last_write_ts: int | None
    last_read_ts: int | None

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


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
    """An open data directory. `topics.open` returns one. Close it, or use it as a context manager."""

    def __init__(self, opened: OpenEngine, runtime: LockRuntime) -> None:
        self._engine: Engine = opened.engine
        self._opened = opened
        self._runtime = runtime
        self._lock = runtime.lock
        self._stop = threading.Event()
        with self._lock:
            opened.start()

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

    def _call(self, start: Callable[[_Call], None]) -> Any:
        """Runs one engine call and waits for its answer outside the lock."""
        call = _Call()
        with self._lock:
            start(call)
            self._engine.flush()
            if call.result is None:
                call.event = threading.Event()
        if call.event is not None:
            call.event.wait()
        result = call.result
        if isinstance(result, TopicsError):
            raise result
        return result

    # Topics.

    def create(self, topic: str, **config: Any) -> bool:
        """Creates the topic, or replaces its config. True when the topic is new. Durable on return.

        Config members as in the HTTP contract: `durability` ("ephemeral", "memory", "disk", "fsync"), `ttl_ms`,
        `cap_records`, `cap_bytes`, `discard` ("old", "reject"), `idempotency_window_ms`, …
        """
        wanted = checked_config(config)
        created: bool = self._call(lambda call: self._engine.put_topic(topic, wanted, lambda r: call(_boxed(r))))[0]
        return created

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Removes the topic and all its records. False when there was no such topic. Durable on return."""
        deleted: bool = self._call(
            lambda call: self._engine.delete_topic(topic, if_empty=if_empty, done=lambda r: call(_boxed(r)))
        )[0]
        return deleted

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._lock:
            self._check_open()
            return sorted(self._engine.topics)

    def state(self, topic: str) -> TopicState:
        with self._lock:
            self._check_open()
            return topic_state(self._engine, topic)

    # Records.

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

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = READ_LIMIT_DEFAULT,
        bytes_max: int = READ_BYTES_DEFAULT,
        skip_nodes: Iterable[str] = (),
    ) -> Page:
        """Records with a seq above `from_seq`, oldest first. Go on with `page.next_from_seq` until `page.caught_up`.

        Records that retention or a power loss took are not skipped silently: `page.tombstone` names their range.
        """
        nodes = frozenset(node.encode() for node in skip_nodes) or None
        for is_last in (False, False, True):
            with self._lock:
                self._check_open()
                fetch = None if is_last else self._engine.fetch_needed(topic, from_seq, limit, bytes_max)
                if fetch is None or not fetch.is_cold:
                    return self._engine.read(topic, from_seq, limit=limit, bytes_max=bytes_max, nodes=nodes)
            # The caller waits for the cold tier, without the lock.
            fetch()
        raise AssertionError("the last try reads")

    def records(self, topic: str, from_seq: int = 0) -> Iterator[Record]:
        """Every live record with a seq above `from_seq`, up to the head at the time of the last page."""
        while True:
            page = self.read(topic, from_seq, limit=1000)
            yield from page.records
            if page.caught_up:
                return
            from_seq = page.next_from_seq

    def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> Deleted:
        """Removes live records for good: below `before_seq`, with the tag, or with the tag prefix. A record must fulfil
        all given conditions."""
        deleted: Deleted = self._call(
            lambda call: self._engine.delete_records(topic, call, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
        )
        return deleted

    def checkpoint(self) -> None:
        """Puts all records into segments now. Raises the error when that fails."""

        def start(call: _Call) -> None:
            self._check_open()
            self._opened.checkpointer.start(lambda result: call(_boxed(result)))

        error = self._call(start)[0]
        if error is not None:
            raise error

    def close(self) -> None:
        """Takes a checkpoint and releases the directory. A second call does nothing."""
        with self._lock:
            if self._engine.is_closed:
                return
            self._engine.stop_writes()
        self._stop.set()
        try:
            self._call(lambda call: self._opened.close(lambda r: call(_boxed(r))))
        finally:
            # Also when the last checkpoint failed: the WAL has every record, and the next start reads it.
            self._opened.release()
            self._runtime.close()

    def _check_open(self) -> None:
        if self._engine.is_closed:
            raise Closed


def _boxed(result: T) -> tuple[T] | TopicsError:
    """The result in a tuple, because `_call` takes None for "no result yet"."""
    return result if isinstance(result, TopicsError) else (result,)


def topic_state(engine: Engine, name: str) -> TopicState:
    found = engine.topic(name)
    engine.bring_up_to_date(name)
    found.refresh(engine.now_ms())
    return TopicState(
        found.name,
        found.head_seq,
        found.earliest_seq,
        found.count,
        found.size_bytes,
        found.config,
        found.writes.last_write_ts,
        found.last_read_ts,
    )


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
