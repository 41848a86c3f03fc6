"""Runs checkpoint jobs: in a worker process, or on the caller."""

import logging
import os
import subprocess
import sys
from struct import Struct
from typing import IO, Final, Protocol

import msgspec

from topics.storage.checkpoints.job import Job, JobResult, run_job, split_job
from topics.storage.fs import Fs, Lock

logger = logging.getLogger(__name__)

LENGTH: Final = Struct("<Q")
WORKER_MODULE: Final = "topics.storage.checkpoints.worker"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(JobResult).decode


class JobFailed(Exception):
    """The worker refused the job, or died. The next checkpoint begins again from the last noted positions."""


class JobRefusal(msgspec.Struct, array_like=True):
    """Why the worker could not do a job. `errno` is 0 unless a system call failed."""

    message: str
    errno: int = 0
    path: str = ""


class JobRunner(Protocol):
    def run(self, job: Job) -> JobResult:
        """Blocks until the job is done. Raises `OSError`, `FormatError` or `JobFailed`."""
        ...

    def close(self) -> None: ...


_decode_refusal: Final = msgspec.msgpack.Decoder(JobRefusal).decode


class InlineRunner:
    """On the caller, through the given file system."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs

    def run(self, job: Job) -> JobResult:
        return run_job(self._fs, job)

    def close(self) -> None:
        pass


class WorkerRunner:
    """Runs jobs in a worker process, so on another core. The process starts with the first job. The last job of a log
    may get a process for each core: a stop is as fast as the machine.

    The worker inherits the directory's lock, so that no other server can open the directory while the worker still
    writes. It ends with its parent: at the end of its input, and by a signal if the system has one for that.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, job: Job) -> JobResult:
        parts = split_job(job, os.cpu_count() or 1)
        for process in [process for process in self._processes if process.poll() is not None]:
            self._processes.remove(process)
            _bury(process)
        while len(self._processes) < len(parts):
            self._processes.append(self._start())
        processes = self._processes[: len(parts)]
        failures = [self._send(process, part) for process, part in zip(processes, parts, strict=True)]
        # Every reply is taken, also after an error: no worker may still write when this returns.
        replies = [failure or self._receive(process) for process, failure in zip(processes, failures, strict=True)]
        result = JobResult({})
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
            result.touched |= reply.touched
            result.rewritten += reply.rewritten
        return result

    def _send(self, process: subprocess.Popen[bytes], job: Job) -> JobFailed | None:
        assert process.stdin is not None
        try:
            send(process.stdin, _encode(job))
        except BrokenPipeError:
            return self._died(process)
        return None

    def _receive(self, process: subprocess.Popen[bytes]) -> JobResult | JobFailed | OSError:
        assert process.stdout is not None
        try:
            reply = receive(process.stdout)
        except EOFError:
            return self._died(process)
        if reply[:1] == b"!":
            refusal = _decode_refusal(reply[1:])
            if refusal.errno:
                return OSError(refusal.errno, refusal.message, refusal.path)
            return JobFailed(refusal.message)
        return _decode_reply(reply[1:])

    def _died(self, process: subprocess.Popen[bytes]) -> JobFailed:
        self._processes.remove(process)
        return JobFailed(f"the checkpoint worker died with status {_bury(process)}")

    def _start(self) -> subprocess.Popen[bytes]:
        descriptor = self._lock.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", WORKER_MODULE, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=() if descriptor < 0 else (descriptor,),
            # Ctrl-C interrupts the parent only. The parent ends the worker after the last checkpoint.
            start_new_session=True,
        )

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.communicate()


def _bury(process: subprocess.Popen[bytes]) -> int:
    """Closes the pipes of a dead worker and returns its exit status. Unsent bytes are dropped."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:
            pass
    return process.wait()


def send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """One message. Raises `EOFError` when the other side is gone."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    message = pipe.read(length)
    if len(message) < length:
        raise EOFError
    return message
