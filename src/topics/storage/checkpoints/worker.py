"""The checkpoint worker: `python -m topics.storage.checkpoints.worker`, jobs in on stdin, results on stdout."""

import ctypes
import gc
import os
import signal
import sys
from typing import Final

import msgspec

from topics.errors import TopicsError
from topics.interpreter import require_asserts
from topics.storage.checkpoints.job import Job, JobResult, run_job
from topics.storage.checkpoints.process import JobRefusal, receive, say_hello, send
from topics.storage.fs import RealFs
from topics.storage.segments.file_tasks import ThreadTasks

_PR_SET_PDEATHSIG: Final = 1
_SWITCH_S: Final = 0.0005


def _die_with_parent() -> None:
    """Asks for a signal when the parent dies, if the system has that. The end of stdin ends the worker too, but
    later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if len(sys.argv) > 1 and os.getppid() != int(sys.argv[1]):
        # The parent died before the request. No process waits for the result of a job any more.
        sys.exit(1)


def _run(fs: RealFs, job: Job) -> JobResult:
    tasks = ThreadTasks()
    try:
        return run_job(fs, job, tasks)
    finally:
        # Also after an error: nothing is written any more when the parent gets the reply.
        tasks.close()


def main() -> None:
    _die_with_parent()
    require_asserts()
    # A job makes millions of short-lived tuples and no cycles. The garbage collector would cost a fifth of it.
    gc.disable()
    # Threads that wait for a sync soon get the interpreter back: the loop that makes segments rarely leaves it.
    sys.setswitchinterval(_SWITCH_S)
    fs = RealFs()
    # Only replies may go into the pipe: whatever is printed goes to stderr.
    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    say_hello(replies)
    decode = msgspec.msgpack.Decoder(Job).decode
    encode = msgspec.msgpack.Encoder().encode
    while True:
        try:
            message = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = b"=" + encode(_run(fs, decode(message)))
        except OSError as error:
            reply = b"!" + encode(JobRefusal(error.strerror or str(error), error.errno or 0, error.filename or ""))
        except TopicsError as error:
            reply = b"!" + encode(JobRefusal(str(error)))
        try:
            send(replies, reply)
        except BrokenPipeError:
            return
        gc.collect()


if __name__ == "__main__":
    main()
