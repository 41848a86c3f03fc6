"""A worker on threads: jobs of a queue, each given to a function.

rule 1  A job is acked after the function has returned, and never before. So a job is done at least once, whatever dies.
rule 2  A job whose function raised is given back with the reason, after a delay. The queue moves it to its dead letters
        when it was delivered too often.
rule 3  While the function runs, the lease of its job is extended. If that fails, others may get the job; the function
        goes on, and its ack does nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import monotonic
from types import TracebackType
from typing import Self, Unpack

from topics.client.retrying import backoff_s
from topics.client.signals import stopped_by_signals
from topics.client.tracing import job_span, require
from topics.client.working import (
    LOOK_S,
    JobLog,
    PushedJobs,
    PushesJobs,
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

Handler = Callable[[Job], object]


class Worker:
    """Works on the jobs of a queue, with threads. `run` blocks until `stop`; in a `with` block it runs beside.

    >>> def resize(job: topics.Job) -> None:
    ...     print(job.data)
    >>> topics.Worker(client, "jobs", resize, concurrency=4).run()

    The log is a `Client` or an embedded `Log`. Options: see `WorkerSettings`. `done_count` and `failed_count` count
    jobs of this worker.
    """

    def __init__(self, log: JobLog, queue: str, handler: Handler, **options: Unpack[WorkerOptions]) -> None:
        self.settings: WorkerSettings = WorkerSettings.of(options)
        if self.settings.tracing:
            require()
        self.queue = queue
        self.done_count: int = 0
        self.failed_count: int = 0
        self._log = log
        self._handler = handler
        # A plain flag, which every wait looks at soon: a handler of a signal may set it, and may not wait for a lock.
        self._is_stopping = False
        self._lock = threading.Condition()
        # Jobs whose function runs or waits for a thread, by lease.
        self._held: dict[int, Job] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __call__(self, job: Job) -> object:
        """The function itself, for tests of it."""
        return self._handler(job)

    @property
    def node(self) -> str:
        return self.settings.node

    # Life.

    def run(self) -> None:
        """Works until `stop`, or until the log is closed. Jobs that are under way are finished first.

        In the main thread SIGTERM and SIGINT (Ctrl+C) end the program when the jobs under way are finished: `run`
        raises `SystemExit(0)`, so `with` and `finally` blocks run. A signal that the program handles is left to its
        handler, which may call `stop`. With `handle_signals=False` both signals are left alone.

        Raises an error that no retry will mend, such as `TopicNotFound`.
        """
        with stopped_by_signals(self.stop) if self.settings.handle_signals else nullcontext():
            self._run()

    def _run(self) -> None:
        with ThreadPoolExecutor(self.settings.concurrency, "topics-job") as pool:
            keeper = threading.Thread(target=self._keep_leases, name="topics-leases", daemon=True)
            keeper.start()
            source = _Source(self._log, self.queue, self.settings)
            try:
                self._work(source, pool)
                self._wait_for_jobs()
            finally:
                self.stop()
                with self._lock:
                    self._lock.notify_all()
                source.close()
                keeper.join()

    def stop(self) -> None:
        """No new job is begun. `run` returns when the jobs that are under way are finished.

        Any thread may call it, and a handler of a signal.
        """
        self._is_stopping = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run_beside, name="topics-worker")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run_beside(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the outer edge of the thread; raised where the block ends
            self._failure = error

    # Jobs.

    def _work(self, source: _Source, pool: ThreadPoolExecutor) -> None:
        failures = 0
        while (free := self._free()) > 0:
            try:
                jobs = source.take(free)
                failures = 0
            except TopicsError as error:
                if is_end_of(self._log, error):
                    return
                if not error.retriable:
                    raise
                logger.warning('no jobs of "%s" for now: %s', self.queue, error)
                self._pause(backoff_s(failures))
                failures += 1
                continue
            for job in jobs:
                with self._lock:
                    self._held[job.lease_id] = job
                pool.submit(self._do, job)

    def _pause(self, seconds: float) -> None:
        end_s = monotonic() + seconds
        with self._lock:
            while not self._is_stopping and (left_s := end_s - monotonic()) > 0:
                self._lock.wait(min(left_s, LOOK_S))

    def _free(self) -> int:
        """Waits until a job may be begun. How many; 0 when the worker stops."""
        with self._lock:
            while not self._is_stopping and len(self._held) >= self.settings.concurrency:
                self._lock.wait(LOOK_S)
            return 0 if self._is_stopping else self.settings.concurrency - len(self._held)

    def _wait_for_jobs(self) -> None:
        with self._lock:
            while self._held:
                self._lock.wait(LOOK_S)

    def _do(self, job: Job) -> None:
        try:
            if self._is_stopping:
                self._log.nack(self.queue, self.node, [job])
                return
            try:
                with job_span(self.queue, job) if self.settings.tracing else nullcontext():
                    self._handler(job)
            except Exception as error:  # noqa: BLE001 - the edge between the worker and its function
                self._give_back(job, error)
            else:
                self._settle(job)
        except TopicsError as error:
            logger.warning('job %d of "%s" will be delivered again: %s', job.seq, self.queue, error)
        except Exception:
            # A function of the caller, such as `retry_delay_ms`, has a bug. The lease of the job ends by itself.
            logger.exception('job %d of "%s" will be delivered again', job.seq, self.queue)
        finally:
            with self._lock:
                del self._held[job.lease_id]
                self._lock.notify_all()

    def _settle(self, job: Job) -> None:
        if self._log.ack(self.queue, self.node, [job]).settled:
            with self._lock:
                self.done_count += 1
        else:
            logger.warning('job %d of "%s" was not leased any more when it was done', job.seq, self.queue)

    def _give_back(self, job: Job, error: Exception) -> None:
        with self._lock:
            self.failed_count += 1
        delay_ms = self.settings.delay_ms(job, error)
        logger.warning(
            'job %d of "%s" failed (delivery %d): %s', job.seq, self.queue, job.deliveries, error, exc_info=error
        )
        self._log.nack(self.queue, self.node, [job], delay_ms=delay_ms, reason=reason_of(error))

    def _keep_leases(self) -> None:
        """Extends the leases of the jobs that are under way, until the last one is done."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._is_stopping and not self._held, self.settings.extend_every_s)
                held = list(self._held.values())
            if self._is_stopping and not held:
                return
            for start in range(0, len(held), CLAIM_JOBS_MAX):
                self._extend(held[start : start + CLAIM_JOBS_MAX])

    def _extend(self, jobs: list[Job]) -> None:
        try:
            lost = self._log.extend(self.queue, self.node, jobs, lease_ms=self.settings.lease_ms).skipped
        except TopicsError as error:
            logger.warning('leases of "%s" were not extended: %s', self.queue, error)
            return
        with self._lock:
            lost = [job.seq for job in jobs if job.seq in lost and job.lease_id in self._held]
        if lost:
            logger.warning('jobs %s of "%s" are not leased any more: others may get them', lost, self.queue)


class _Source:
    """Where the jobs come from: the server pushes them, or they are claimed."""

    def __init__(self, log: JobLog, queue: str, settings: WorkerSettings) -> None:
        self._log = log
        self._queue = queue
        self._settings = settings
        # The worker itself tries again, and claims where jobs cannot be pushed.
        self._pusher = log.with_options(retries=0) if settings.push and isinstance(log, PushesJobs) else None
        self._stream: PushedJobs | None = None

    def take(self, free: int) -> list[Job]:
        """Jobs, at once or after a short wait; perhaps none."""
        if self._pusher is None:
            return self._claim(free)
        if self._stream is None:
            try:
                self._stream = self._pusher.work(
                    self._queue,
                    self._settings.node,
                    max_jobs=self._settings.concurrency,
                    lease_ms=self._settings.lease_ms,
                )
            except TopicsError as error:
                if not must_claim(error):
                    raise
                return self._claim(free)
        try:
            jobs = self._stream.take(LOOK_S)
        except TopicsError:
            self.close()
            raise
        if jobs is None:
            self.close()
        return jobs or []

    def _claim(self, free: int) -> list[Job]:
        settings = self._settings
        return self._log.claim(
            self._queue,
            settings.node,
            max_jobs=min(free, CLAIM_JOBS_MAX),
            lease_ms=settings.lease_ms,
            wait_ms=round(LOOK_S * 1000),
        )

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def worker(log: JobLog, queue: str, **options: Unpack[WorkerOptions]) -> Callable[[Handler], Worker]:
    """A decorator: the function becomes a `Worker` of the queue.

    >>> @topics.worker(log, "jobs", concurrency=4)
    ... def resize(job: topics.Job) -> None:
    ...     print(job.data)
    >>> resize.run()
    """

    def decorate(handler: Handler) -> Worker:
        return Worker(log, queue, handler, **options)

    return decorate
