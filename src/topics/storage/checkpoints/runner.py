"""Runs checkpoint jobs: in a worker process, or on the caller."""

import logging
import os
import threading
from typing import Protocol

from topics.storage.checkpoints.job import Job, JobResult, run_job, split_job
from topics.storage.checkpoints.process import GIVEN_UP, JobFailed, NoWorker, WorkerProcess
from topics.storage.fs import Fs, Lock

logger = logging.getLogger(__name__)


class JobRunner(Protocol):
    def run(self, job: Job) -> JobResult:
        """Blocks until the job is done. Raises `OSError`, `FormatError` or `JobFailed`."""
        ...

    def give_up(self) -> None:
        """Any thread: a job that hangs in another process fails, and every later one."""
        ...

    def close(self) -> None: ...


class InlineRunner:
    """On the caller, through the given file system."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs

    def run(self, job: Job) -> JobResult:
        return run_job(self._fs, job)

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass


class WorkerRunner:
    """Runs jobs in a worker process, so on another core. The process starts with the first job. The last job of a log
    may get a process for each core: a stop is as fast as the machine.

    Where no worker can be started, jobs run on the caller.
    """

    def __init__(self, fs: Fs, lock: Lock) -> None:
        self._lock = lock
        self._processes: list[WorkerProcess] = []
        self._inline = InlineRunner(fs)
        self._is_inline = False
        self._given_up = threading.Event()

    def run(self, job: Job) -> JobResult:
        if self._given_up.is_set():
            raise JobFailed(GIVEN_UP)
        parts = split_job(job, os.cpu_count() or 1)
        if not self._is_inline:
            try:
                self._start(len(parts))
            except NoWorker as error:
                self._is_inline = True
                logger.warning("checkpoints run in this process, which slows down other work: %s", error)
        if self._is_inline:
            return self._inline.run(job)
        processes = self._processes[: len(parts)]
        failures = [process.send_job(part) for process, part in zip(processes, parts, strict=True)]
        # Every reply is taken, also after an error: no worker may still write when this returns.
        replies = [failure or process.take_reply() for process, failure in zip(processes, failures, strict=True)]
        result = JobResult({})
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
            result.touched |= reply.touched
            result.rewritten += reply.rewritten
        return result

    def _start(self, count: int) -> None:
        """At least that many workers. Raises `NoWorker`, `OSError` or `JobFailed`."""
        for process in [process for process in self._processes if process.has_ended()]:
            self._processes.remove(process)
            process.close()
        while len(self._processes) < count:
            self._processes.append(WorkerProcess(self._lock, self._given_up))

    def give_up(self) -> None:
        self._given_up.set()
        for process in list(self._processes):
            process.kill()

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.close()
