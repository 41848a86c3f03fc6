"""What a worker needs of a log, and what it decides: names, leases, and what becomes of a job that failed. Pure."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypedDict, runtime_checkable
from uuid import uuid4

from topics.client.retrying import ClientClosed
from topics.errors import (
    Closed,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    Throttled,
    TopicNotFound,
    TopicsError,
)
from topics.results import Extended, Job, Settled

LEASE_MS_DEFAULT: Final = 30_000
RETRY_DELAY_MS_FIRST: Final = 1_000
RETRY_DELAY_MS_MAX: Final = 300_000
REASON_CHARACTERS_MAX: Final = 500
# How long a worker waits for jobs before it looks whether it should stop.
LOOK_S: Final = 0.25

RetryDelay = Callable[[Job, Exception], int]


class JobLog(Protocol):
    """A log whose calls block: `topics.Client` or `topics.Log`."""

    def claim(
        self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None, wait_ms: int | None = 0
    ) -> list[Job]: ...
    def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Settled: ...
    def nack(
        self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = ""
    ) -> Settled: ...
    def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Extended: ...


class AsyncJobLog(Protocol):
    """A log for asyncio: `topics.AsyncClient` or `topics.AsyncLog`."""

    def claim(
        self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None, wait_ms: int | None = 0
    ) -> Awaitable[list[Job]]: ...
    def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Awaitable[Settled]: ...
    def nack(
        self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0, reason: str = ""
    ) -> Awaitable[Settled]: ...
    def extend(self, topic: str, node: str, jobs: Iterable[Job | int], *, lease_ms: int) -> Awaitable[Extended]: ...


class PushedJobs(Protocol):
    """An open stream of jobs."""

    def take(self, timeout_s: float) -> list[Job] | None: ...
    def close(self) -> None: ...


@runtime_checkable
class PushesJobs(Protocol):
    """A log that pushes jobs."""

    def work(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> PushedJobs: ...
    def with_options(self, *, retries: int | None = None) -> PushesJobs: ...


class AsyncPushedJobs(Protocol):
    def take(self, timeout_s: float) -> Awaitable[list[Job] | None]: ...
    def close(self) -> Awaitable[None]: ...


@runtime_checkable
class AsyncPushesJobs(Protocol):
    def work(
        self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None
    ) -> Awaitable[AsyncPushedJobs]: ...
    def with_options(self, *, retries: int | None = None) -> AsyncPushesJobs: ...


class WorkerOptions(TypedDict, total=False):
    """See `WorkerSettings`."""

    concurrency: int
    node: str | None
    lease_ms: int
    retry_delay_ms: int | RetryDelay | None
    push: bool
    tracing: bool
    handle_signals: bool


class WorkerSettings(NamedTuple):
    """How a worker works.

    `concurrency` jobs are worked on at a time. A job is leased for `lease_ms`, and again while the work on it goes on.
    `node` names the worker; the default is a new name. `retry_delay_ms` says how long a failed job waits: a number, or
    a function of the job and the error; by default a second after the first delivery, then twice as long each time, up
    to five minutes. `push=False` claims jobs instead of letting the server push them. `tracing` continues the trace of
    the writer of a job. `handle_signals=False` leaves SIGINT and SIGTERM alone in `run`.
    """

    concurrency: int
    node: str
    lease_ms: int
    retry_delay_ms: int | RetryDelay | None
    push: bool
    tracing: bool
    handle_signals: bool

    @classmethod
    def of(cls, options: WorkerOptions) -> WorkerSettings:
        made = cls(
            options.get("concurrency", 1),
            options.get("node") or _new_name(),
            options.get("lease_ms", LEASE_MS_DEFAULT),
            options.get("retry_delay_ms"),
            options.get("push", True),
            options.get("tracing", False),
            options.get("handle_signals", True),
        )
        if made.concurrency < 1:
            raise InvalidRequest("concurrency is at least 1")
        if made.lease_ms < 100:
            raise InvalidRequest("lease_ms is at least 100")
        return made

    @property
    def extend_every_s(self) -> float:
        """Two extensions may fail before a lease ends."""
        return self.lease_ms / 3000

    def delay_ms(self, job: Job, error: Exception) -> int:
        """How long a job waits that failed with this error."""
        wanted = self.retry_delay_ms
        if wanted is None:
            return min(RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_FIRST << min(max(job.deliveries, 1) - 1, 16))
        return wanted if isinstance(wanted, int) else wanted(job, error)


def _new_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid4().hex[:8]}"


def reason_of(error: Exception) -> str:
    """Why a job failed, for the people who look at it later."""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


def is_end_of(log: JobLog | AsyncJobLog, error: TopicsError) -> bool:
    """Whether the program has closed the log. A server that answers `Closed` stops, and may be started again."""
    is_server = isinstance(log, PushesJobs | AsyncPushesJobs)
    return isinstance(error, ClientClosed if is_server else Closed)


def must_claim(error: TopicsError) -> bool:
    """Whether a log that cannot push jobs now can still be asked for them."""
    if isinstance(error, TopicNotFound):
        return False
    return isinstance(error, NotFound | MethodNotAllowed | NotAcceptable | Throttled)
