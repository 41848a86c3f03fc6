"""A checkpoint worker, as seen from its parent.

A message is its length and its bytes. The worker first writes `MAGIC` and, as a message, its version. Then it takes
jobs, and answers each with `=` and the result, or with `!` and a refusal.
"""

import errno
import logging
import os
import select
import subprocess
import threading
from struct import Struct
from typing import IO, Final

import msgspec

from topics.interpreter import NoInterpreter, module_command
from topics.limits import MIB
from topics.storage.checkpoints.job import Job, JobResult
from topics.storage.fs import Lock
from topics.version import VERSION

logger = logging.getLogger(__name__)

LENGTH: Final = Struct("<Q")
MAGIC: Final = b"\0topics\1"
WORKER_MODULE: Final = "topics.storage.checkpoints.worker"
# How long a new worker may be silent until it says hello, and how long an idle one may take until it ends.
START_MS_MAX: Final = 30_000
END_S_MAX: Final = 10.0
GIVEN_UP: Final = "the log stops, and the checkpoint worker did not end its job in time"
# How often a wait for the worker looks whether the wait was given up.
_LOOK_MS: Final = 100
# `os.read` makes room for all that it may read.
_READ_BYTES_MAX: Final = MIB
# Errors of a start that another attempt would meet again.
_CANNOT_START: Final = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR})


class JobFailed(Exception):
    """The worker refused the job, or died. The next checkpoint begins again from the last noted positions."""


class NoWorker(Exception):
    """This program cannot start a worker. Another attempt would fail, too."""


class JobRefusal(msgspec.Struct, array_like=True):
    """Why the worker could not do a job. `errno` is 0 unless a system call failed."""

    message: str
    errno: int = 0
    path: str = ""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_result: Final = msgspec.msgpack.Decoder(JobResult).decode
_decode_refusal: Final = msgspec.msgpack.Decoder(JobRefusal).decode


class WorkerProcess:
    """One worker, ready for jobs.

    It inherits the directory's lock, so that no other server can open the directory while the worker still writes. It
    ends with its parent: at the end of its input, and by a signal if the system has one for that.
    """

    def __init__(self, lock: Lock, given_up: threading.Event) -> None:
        """Raises `NoWorker`, `OSError`, or `JobFailed` when `given_up` is set before the worker is ready."""
        self._given_up = given_up
        descriptor = lock.fileno()
        try:
            self._process = subprocess.Popen(
                module_command(WORKER_MODULE, str(os.getpid())),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Read when the worker has died. A worker that lives writes nothing there.
                stderr=subprocess.PIPE,
                pass_fds=() if descriptor < 0 else (descriptor,),
                # Ctrl-C interrupts the parent only. The parent ends the worker after the last checkpoint.
                start_new_session=True,
            )
        except NoInterpreter as error:
            raise NoWorker(str(error)) from error
        except OSError as error:
            if error.errno in _CANNOT_START:
                raise NoWorker(str(error)) from error
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        # A worker that hangs must not hang its parent: see `_wait`.
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            self._take_hello()
        except BaseException:
            self.kill()
            self.close()
            raise

    def _take_hello(self) -> None:
        try:
            head = self._read(len(MAGIC), START_MS_MAX)
            if head != MAGIC:
                raise NoWorker(f"the checkpoint worker began with {head!r}: another program wrote to its output")
            version = self._receive(START_MS_MAX).decode()
        except EOFError:
            raise NoWorker(self._last_words()) from None
        except TimeoutError:
            raise NoWorker(f"the checkpoint worker was not ready after {START_MS_MAX} ms") from None
        if version != VERSION:
            raise NoWorker(f"topics {version} was installed while this program runs {VERSION}; restart the program")

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        assert self._process.stdin is not None
        return self._process.stdin.closed or self._process.poll() is not None

    def send_job(self, job: Job) -> JobFailed | None:
        message = _encode(job)
        try:
            self._write(LENGTH.pack(len(message)))
            self._write(message)
        except BrokenPipeError:
            return self._died()
        except JobFailed as error:
            return error
        return None

    def take_reply(self) -> JobResult | JobFailed | OSError:
        try:
            reply = self._receive()
        except EOFError:
            return self._died()
        except JobFailed as error:
            return error
        if reply[:1] == b"!":
            refusal = _decode_refusal(reply[1:])
            if refusal.errno:
                return OSError(refusal.errno, refusal.message, refusal.path)
            return JobFailed(refusal.message)
        return _decode_result(reply[1:])

    def _receive(self, silence_ms_max: int | None = None) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, silence_ms_max))
        return self._read(length, silence_ms_max)

    def _read(self, count: int, silence_ms_max: int | None = None) -> bytes:
        """Exactly that many bytes. Raises `EOFError` when the worker has closed its output."""
        data = bytearray()
        while len(data) < count:
            self._wait(self._out, select.POLLIN, silence_ms_max)
            part = os.read(self._out, min(count - len(data), _READ_BYTES_MAX))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._wait(self._in, select.POLLOUT)
            left = left[os.write(self._in, left) :]

    def _wait(self, descriptor: int, event: int, ms_max: int | None = None) -> None:
        """Until the pipe is ready. Raises `TimeoutError`, or `JobFailed` when the wait was given up."""
        poll = select.poll()
        poll.register(descriptor, event)
        waited_ms = 0
        while not poll.poll(_LOOK_MS):
            if self._given_up.is_set():
                raise JobFailed(GIVEN_UP)
            waited_ms += _LOOK_MS
            if ms_max is not None and waited_ms >= ms_max:
                raise TimeoutError

    def kill(self) -> None:
        """Any thread. A process that waits for a dead disk ends later."""
        self._process.kill()

    def _died(self) -> JobFailed:
        return JobFailed(GIVEN_UP if self._given_up.is_set() else self._last_words())

    def _last_words(self) -> str:
        """Why the worker closed its pipes: its exit status, and the last line that it wrote to stderr."""
        status, said = self._end()
        if said:
            logger.error("the checkpoint worker wrote to stderr:\n%s", said)
        last_line = said.rpartition("\n")[2]
        return f"the checkpoint worker died with status {status}" + (f": {last_line}" if last_line else "")

    def close(self) -> None:
        """Ends the worker. One that cannot be killed keeps the directory locked until it ends."""
        status, _ = self._end()
        if status is None:
            logger.error("the checkpoint worker %d hangs; the data directory is locked until it ends", self.pid)

    def _end(self) -> tuple[int | None, str]:
        """The exit status, None if there is none yet, and what the worker wrote to stderr."""
        _close(self._process.stdin)
        try:
            status: int | None = self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            try:
                status = self._process.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                status = None
        assert self._process.stderr is not None
        said = b"" if status is None or self._process.stderr.closed else self._process.stderr.read()
        _close(self._process.stdout)
        _close(self._process.stderr)
        return status, said.decode(errors="replace").strip()


def _close(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    try:
        pipe.close()
    except BrokenPipeError:
        pass


# The worker's side.


def say_hello(pipe: IO[bytes]) -> None:
    pipe.write(MAGIC)
    send(pipe, VERSION.encode())


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
