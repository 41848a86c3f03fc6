"""A worker for asyncio: jobs of a queue, each given to a coroutine function. The rules are those of `sync.worker`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, Unpack

from topics.client.retrying import backoff_s
from topics.client.signals import main_task, stopped_by_signals
from topics.client.tracing import job_span, require
from topics.client.working import (
    LOOK_S,
    AsyncJobLog,
    AsyncPushedJobs,
    AsyncPushesJobs,
    WorkerOptions,
    WorkerSettings,
    is_end_of,
    must_claim,
    reason_of,
)
from topics.errors import TopicsError
from topics.limits import CLAIM_JOBS_MAX
from topics.results import Job

logger: logging.Logger = logging.getLogger("topics.worker")

AsyncHandler = Callable[[Job], Awaitable[object]]


class AsyncWorker:
    """Works on the jobs of a queue, with tasks. `run` returns after `stop`; in an `async with` block it runs beside.

    >>> async def resize(job: topics.Job) -> None:
    ...     print(job.data)
    >>> await topics.AsyncWorker(client, "jobs", resize, concurrency=4).run()

    The log is an `AsyncClient` or an embedded `AsyncLog`. Options: see `WorkerSettings`. `done_count` and
    `failed_count` count jobs of this worker. A worker that is cancelled cancels its jobs and gives them back.
    """

    def __init__(self, log: AsyncJobLog, queue: str, handler: AsyncHandler, **options: Unpack[WorkerOptions]) -> None:
        self.settings: WorkerSettings = WorkerSettings.of(options)
        if self.settings.tracing:
            require()
        self.queue = queue
        self.done_count: int = 0
        self.failed_count: int = 0
        self._log = log
        self._handler = handler
        self._stopping = asyncio.Event()
        # Jobs that are under way, by task.
        self._held: dict[asyncio.Task[None], Job] = {}
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, job: Job) -> object:
        """The function itself, for tests of it."""
        return await self._handler(job)

    @property
    def node(self) -> str:
        return self.settings.node

    # Life.

    async def run(self) -> None:
        """Works until `stop`, or until the log is closed. Jobs that are under way are finished first.

        In the main thread SIGTERM and SIGINT (Ctrl+C) end the program when the jobs under way are finished, those of
        other workers too. The main task is cancelled, and `asyncio.run` raises `SystemExit(0)`, so `with` and `finally`
        blocks run. A signal that the program handles is left to its handler, which may call `stop`. With
        `handle_signals=False` both signals are left alone.

        Raises an error that no retry will mend, such as `TopicNotFound`.
        """
        async with _stopped_by_signals(self) if self.settings.handle_signals else nullcontext():
            await self._run()

    async def _run(self) -> None:
        keeper = asyncio.create_task(self._keep_leases())
        source = _Source(self._log, self.queue, self.settings)
        try:
            await self._work(source)
            while self._held:
                await asyncio.wait(self._held)
        finally:
            self.stop()
            for task in list(self._held):
                task.cancel()
            await asyncio.gather(*self._held, return_exceptions=True)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await source.close()

    def stop(self) -> None:
        """No new job is begun. `run` returns when the jobs that are under way are finished."""
        self._stopping.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        assert self._task is not None
        await self._task

    # Jobs.

    async def _work(self, source: _Source) -> None:
        failures = 0
        while (free := await self._free()) > 0:
            try:
                jobs = await source.take(free)
                failures = 0
            except TopicsError as error:
                if is_end_of(self._log, error):
                    return
                if not error.retriable:
                    raise
                logger.warning('no jobs of "%s" for now: %s', self.queue, error)
                await self._pause(backoff_s(failures))
                failures += 1
                continue
            for job in jobs:
                task = asyncio.create_task(self._do(job))
                self._held[task] = job
                task.add_done_callback(self._held.pop)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _free(self) -> int:
        """Waits until a job may be begun. How many; 0 when the worker stops."""
        while not self._stopping.is_set() and len(self._held) >= self.settings.concurrency:
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait([*self._held, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
        return 0 if self._stopping.is_set() else self.settings.concurrency - len(self._held)

    async def _do(self, job: Job) -> None:
        try:
            try:
                with job_span(self.queue, job) if self.settings.tracing else nullcontext():
                    await self._handler(job)
            except Exception as error:  # noqa: BLE001 - the edge between the worker and its function
                await self._give_back(job, error)
            except asyncio.CancelledError:
                await self._log.nack(self.queue, self.node, [job])
                raise
            else:
                await self._settle(job)
        except TopicsError as error:
            logger.warning('job %d of "%s" will be delivered again: %s', job.seq, self.queue, error)
        except Exception:
            # A function of the caller, such as `retry_delay_ms`, has a bug. The lease of the job ends by itself.
            logger.exception('job %d of "%s" will be delivered again', job.seq, self.queue)

    async def _settle(self, job: Job) -> None:
        if (await self._log.ack(self.queue, self.node, [job])).settled:
            self.done_count += 1
        else:
            logger.warning('job %d of "%s" was not leased any more when it was done', job.seq, self.queue)

    async def _give_back(self, job: Job, error: Exception) -> None:
        self.failed_count += 1
        delay_ms = self.settings.delay_ms(job, error)
        logger.warning(
            'job %d of "%s" failed (delivery %d): %s', job.seq, self.queue, job.deliveries, error, exc_info=error
        )
        await self._log.nack(self.queue, self.node, [job], delay_ms=delay_ms, reason=reason_of(error))

    async def _keep_leases(self) -> None:
        """Extends the leases of the jobs that are under way."""
        while True:
            await asyncio.sleep(self.settings.extend_every_s)
            held = list(self._held.values())
            for start in range(0, len(held), CLAIM_JOBS_MAX):
                await self._extend(held[start : start + CLAIM_JOBS_MAX])

    async def _extend(self, jobs: list[Job]) -> None:
        try:
            answer = await self._log.extend(self.queue, self.node, jobs, lease_ms=self.settings.lease_ms)
        except TopicsError as error:
            logger.warning('leases of "%s" were not extended: %s', self.queue, error)
            return
        held = {job.lease_id for job in self._held.values()}
        if lost := [job.seq for job in jobs if job.seq in answer.skipped and job.lease_id in held]:
            logger.warning('jobs %s of "%s" are not leased any more: others may get them', lost, self.queue)


class _Source:
    """Where the jobs come from: the server pushes them, or they are claimed."""

    def __init__(self, log: AsyncJobLog, queue: str, settings: WorkerSettings) -> None:
        self._log = log
        self._queue = queue
        self._settings = settings
        # The worker itself tries again, and claims where jobs cannot be pushed.
        self._pusher = log.with_options(retries=0) if settings.push and isinstance(log, AsyncPushesJobs) else None
        self._stream: AsyncPushedJobs | None = None

    async def take(self, free: int) -> list[Job]:
        """Jobs, at once or after a short wait; perhaps none."""
        if self._pusher is None:
            return await self._claim(free)
        if self._stream is None:
            try:
                self._stream = await self._pusher.work(
                    self._queue,
                    self._settings.node,
                    max_jobs=self._settings.concurrency,
                    lease_ms=self._settings.lease_ms,
                )
            except TopicsError as error:
                if not must_claim(error):
                    raise
                return await self._claim(free)
        try:
            jobs = await self._stream.take(LOOK_S)
        except TopicsError:
            await self.close()
            raise
        if jobs is None:
            await self.close()
        return jobs or []

    async def _claim(self, free: int) -> list[Job]:
        settings = self._settings
        return await self._log.claim(
            self._queue,
            settings.node,
            max_jobs=min(free, CLAIM_JOBS_MAX),
            lease_ms=settings.lease_ms,
            wait_ms=round(LOOK_S * 1000),
        )

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


@asynccontextmanager
async def _stopped_by_signals(worker: AsyncWorker) -> AsyncIterator[None]:
    """`SystemExit` out of a task ends the loop before other tasks have ended. So the program ends as `asyncio.run` ends
    one at Ctrl+C: the main task is cancelled, and the loop raises the error when that task has ended.
    """
    loop = asyncio.get_running_loop()
    try:
        with stopped_by_signals(partial(loop.call_soon_threadsafe, worker.stop)):
            # A worker that starts after the signal is stopped here, before it can begin a job.
            await asyncio.sleep(0)
            yield
    except SystemExit as end:
        if (main := main_task()) is None:
            raise
        main.add_done_callback(partial(_raise, end))
        main.cancel()
        await loop.create_future()


def _raise(error: BaseException, _task: object) -> NoReturn:
    raise error


def async_worker(
    log: AsyncJobLog, queue: str, **options: Unpack[WorkerOptions]
) -> Callable[[AsyncHandler], AsyncWorker]:
    """A decorator: the coroutine function becomes an `AsyncWorker` of the queue.

    >>> @topics.async_worker(log, "jobs", concurrency=4)
    ... async def resize(job: topics.Job) -> None:
    ...     print(job.data)
    >>> await resize.run()
    """

    def decorate(handler: AsyncHandler) -> AsyncWorker:
        return AsyncWorker(log, queue, handler, **options)

    return decorate
