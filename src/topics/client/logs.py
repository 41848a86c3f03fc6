"""What producers and typed topics need of a log: a server, or a log inside the program. Workers: see `working`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, overload

from topics.client.working import AsyncJobLog, JobLog
from topics.formats.records import Record
from topics.protocol.page_items import Loss
from topics.results import Tombstone


class Written(Protocol):
    """What a write got: the answer of a server, or of a log inside the program."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def head_seq(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def created(self) -> bool: ...
    @property
    def deduped(self) -> bool: ...


class AppendLog(Protocol):
    """A log whose calls block: `topics.Client` or `topics.Log`."""

    def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> Written: ...


class AnyLog(AppendLog, JobLog, Protocol):
    """`topics.Client` or `topics.Log`."""

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> Iterator[Record]: ...
    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> Iterator[Record | Tombstone]: ...
    def tail(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> Iterator[Record | Tombstone]: ...


class AsyncAppendLog(Protocol):
    """A log for asyncio: `topics.AsyncClient` or `topics.AsyncLog`."""

    def append(
        self, topic: str, payloads: Sequence[Any], *, key: str | None = None, create: bool = True
    ) -> Awaitable[Written]: ...


class AnyAsyncLog(AsyncAppendLog, AsyncJobLog, Protocol):
    """`topics.AsyncClient` or `topics.AsyncLog`."""

    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Literal["raise"]) -> AsyncIterator[Record]: ...
    @overload
    def read_all(self, topic: str, from_seq: int = 0, *, loss: Loss = "yield") -> AsyncIterator[Record | Tombstone]: ...
    def tail(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        group: str | None = None,
        skip_nodes: Iterable[str] = (),
        wait_ms: int | None = None,
    ) -> AsyncIterator[Record | Tombstone]: ...
