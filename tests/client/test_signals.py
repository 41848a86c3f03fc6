"""SIGTERM and SIGINT in programs with workers. Each program is a process of its own and gets real signals.

It has an embedded log with a queue `q`. The function of a job prints `begun`, then waits for a byte on stdin. So
signals come in the middle of a job.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Final

import pytest

import topics

PATIENCE_S: Final = 60

BLOCKING: Final = """\
import os, signal, sys, threading
import topics

def tell(line):
    print(line, flush=True)

def on_sigterm(number, frame):
    tell("the program got SIGTERM")

def work(job):
    tell("begun")
    os.read(0, 1)
    tell("done")

with topics.open(sys.argv[1]) as log:
    worker = topics.Worker(log, "q", work)
    try:
        BODY
    finally:
        tell("closing")
"""

ASYNCIO: Final = """\
import asyncio, os, signal, sys
import topics

def tell(line):
    print(line, flush=True)

def on_sigterm(*_):
    tell("the program got SIGTERM")

async def a_byte():
    await asyncio.get_running_loop().run_in_executor(None, os.read, 0, 1)

has_begun = asyncio.Event()

async def work(job):
    tell("begun")
    has_begun.set()
    await a_byte()
    tell("done")

async def other_work():
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(10):  # An end that takes several turns of the loop.
            await asyncio.sleep(0)
        tell("the other work has ended")

async def main():
    loop = asyncio.get_running_loop()
    async with await topics.open_async(sys.argv[1]) as log:
        worker = topics.AsyncWorker(log, "q", work)
        try:
            BODY
        finally:
            await asyncio.sleep(0)
            tell("closing")

asyncio.run(main())
"""

RUN: Final = {BLOCKING: "worker.run()", ASYNCIO: "await worker.run()"}
READ_A_BYTE: Final = {BLOCKING: "os.read(0, 1)", ASYNCIO: "await a_byte()"}
BOTH: Final = pytest.mark.parametrize("frame", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])


class Program:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def expect(self, *lines: str) -> None:
        """Waits for the next lines that it prints."""
        assert self._process.stdout is not None
        for line in lines:
            assert self._process.stdout.readline() == line + "\n"

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def let_go_on(self, count: int = 1) -> None:
        """For each job, and each other reader of a byte."""
        assert self._process.stdin is not None
        self._process.stdin.write("!" * count)
        self._process.stdin.flush()

    def end(self) -> tuple[list[str], str, int]:
        """What it prints until its end to stdout and stderr, and its exit status."""
        printed, errors = self._process.communicate(timeout=PATIENCE_S)
        return printed.splitlines(), errors, self._process.returncode


@contextmanager
def running(frame: str, body: str, data: Path, *, jobs: int = 1) -> Iterator[Program]:
    with topics.open(data) as log:
        log.create("q", type="queue")
        log.append("q", list(range(jobs)))
    margin = next(line.removesuffix("BODY") for line in frame.splitlines() if line.endswith("BODY"))
    code = frame.replace(f"{margin}BODY\n", indent(body, margin) + "\n")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, data], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def jobs_left(data: Path) -> int:
    with topics.open(data) as log:
        return log.state("q").count


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_in_order_when_the_jobs_under_way_are_done(
    frame: str, number: int, tmp_path: Path
) -> None:
    with running(frame, f'{RUN[frame]}\ntell("went on")', tmp_path, jobs=2) as program:
        program.expect("begun")
        program.send(number)
        # A parent may pass on the signal that the terminal has sent to both. That is no reason to break off a job.
        program.send(number)
        program.let_go_on()
        assert program.end() == (["done", "closing"], "", 0)
    assert jobs_left(tmp_path) == 1


INSTALLS: Final = pytest.mark.parametrize(
    ("frame", "install"),
    [
        (BLOCKING, "signal.signal(signal.SIGTERM, {})"),
        (ASYNCIO, "signal.signal(signal.SIGTERM, {})"),
        (ASYNCIO, "loop.add_signal_handler(signal.SIGTERM, {})"),
    ],
    ids=["blocking", "asyncio, signal.signal", "asyncio, add_signal_handler"],
)


@INSTALLS
def test_a_program_with_a_handler_gets_its_signal_at_once_and_the_worker_goes_on(
    frame: str, install: str, tmp_path: Path
) -> None:
    with running(frame, f"{install.format('on_sigterm')}\n{RUN[frame]}", tmp_path, jobs=2) as program:
        program.expect("begun")
        for _ in range(2):
            program.send(signal.SIGTERM)
            program.expect("the program got SIGTERM")
        program.let_go_on()
        program.expect("done", "begun")
        # For Ctrl+C it has no handler.
        program.send(signal.SIGINT)
        program.let_go_on()
        assert program.end() == (["done", "closing"], "", 0)


@INSTALLS
def test_a_handler_of_the_program_may_stop_the_worker_and_stays_in_place(
    frame: str, install: str, tmp_path: Path
) -> None:
    body = f"""\
def stop(*_):
    tell("the program got SIGTERM")
    worker.stop()
{install.format("stop")}
{RUN[frame]}
tell("went on")
{READ_A_BYTE[frame]}"""
    with running(frame, body, tmp_path, jobs=2) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        program.expect("the program got SIGTERM")
        program.let_go_on()
        program.expect("done", "went on")
        program.send(signal.SIGTERM)
        program.expect("the program got SIGTERM")
        program.let_go_on()
        assert program.end() == (["closing"], "", 0)
    assert jobs_left(tmp_path) == 1


@BOTH
def test_a_signal_that_the_program_ignores_stays_ignored(frame: str, tmp_path: Path) -> None:
    with running(frame, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{RUN[frame]}", tmp_path, jobs=2) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        program.let_go_on()
        program.expect("done", "begun")


@pytest.mark.parametrize("install", ["signal.signal", "loop.add_signal_handler"])
def test_a_handler_that_the_program_sets_while_the_worker_runs_stays_in_place(install: str, tmp_path: Path) -> None:
    body = f"""\
task = asyncio.create_task(worker.run())
await has_begun.wait()
{install}(signal.SIGTERM, on_sigterm)
worker.stop()
tell("set")
await task
tell("went on")
await a_byte()"""
    with running(ASYNCIO, body, tmp_path) as program:
        program.expect("begun", "set")
        program.let_go_on()
        program.expect("done", "went on")
        program.send(signal.SIGTERM)
        program.expect("the program got SIGTERM")
        program.let_go_on()
        assert program.end() == (["closing"], "", 0)


def test_two_workers_of_one_loop_both_stop_and_then_the_signal_has_its_former_effect(tmp_path: Path) -> None:
    frame = ASYNCIO.replace(
        "asyncio.run(main())",
        'try:\n    asyncio.run(main())\nexcept SystemExit:\n    tell("over")\n    os.read(0, 1)',
    )
    body = 'other = topics.AsyncWorker(log, "q", work)\nawait asyncio.gather(worker.run(), other.run())'
    with running(frame, body, tmp_path, jobs=3) as program:
        program.expect("begun", "begun")
        program.send(signal.SIGTERM)
        program.let_go_on(2)
        program.expect("done", "done", "closing", "over")
        program.send(signal.SIGTERM)
        assert program.end() == ([], "", -signal.SIGTERM)
    assert jobs_left(tmp_path) == 1


def test_a_worker_that_starts_after_the_signal_stops_with_the_others(tmp_path: Path) -> None:
    body = """\
may_end = asyncio.Event()
async def hold(job):
    tell("begun")
    await may_end.wait()
    tell("done")
first = asyncio.create_task(topics.AsyncWorker(log, "q", hold).run())
await a_byte()
await topics.AsyncWorker(log, "q", hold).run()
tell("the second worker has ended")
may_end.set()
await first"""
    with running(ASYNCIO, body, tmp_path, jobs=2) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        program.let_go_on()
        assert program.end() == (["the second worker has ended", "done", "closing"], "", 0)
    assert jobs_left(tmp_path) == 1


@pytest.mark.parametrize(
    "body",
    [
        "await asyncio.gather(worker.run(), *others)",
        "async with asyncio.TaskGroup() as group:\n    [group.create_task(work) for work in (worker.run(), *others)]",
        "task = asyncio.create_task(worker.run())\nawait asyncio.gather(*others)",
    ],
    ids=["gather", "TaskGroup", "create_task"],
)
def test_a_signal_ends_the_other_tasks_of_the_program_in_order_too(body: str, tmp_path: Path) -> None:
    with running(ASYNCIO, f"others = [other_work() for _ in range(8)]\n{body}", tmp_path) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        program.let_go_on()
        printed, errors, status = program.end()
    assert (sorted(printed), errors, status) == (["closing", "done", *["the other work has ended"] * 8], "", 0)
    assert jobs_left(tmp_path) == 0


@pytest.mark.parametrize(
    ("frame", "body"),
    [
        (ASYNCIO, "signal.signal(signal.SIGINT, on_sigterm)\nawait worker.run()"),
        (ASYNCIO.replace("asyncio.run(", "asyncio.new_event_loop().run_until_complete("), "await worker.run()"),
    ],
    ids=["another handler for Ctrl+C", "a loop without asyncio.run"],
)
def test_a_signal_ends_a_program_in_order_whose_main_task_is_not_known(frame: str, body: str, tmp_path: Path) -> None:
    with running(frame, body, tmp_path) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        program.let_go_on()
        assert program.end() == (["done", "closing"], "", 0)


@pytest.mark.parametrize(
    ("frame", "body"),
    [
        (BLOCKING, 'topics.Worker(log, "q", work, handle_signals=False).run()'),
        (ASYNCIO, 'await topics.AsyncWorker(log, "q", work, handle_signals=False).run()'),
        (BLOCKING, "with worker:\n    threading.Event().wait()"),
        (ASYNCIO, "async with worker:\n    await asyncio.Event().wait()"),
        (BLOCKING, "thread = threading.Thread(target=worker.run)\nthread.start()\nthread.join()"),
    ],
    ids=["blocking, option", "asyncio, option", "blocking, beside", "asyncio, beside", "in a thread"],
)
def test_a_worker_that_is_not_the_program_leaves_signals_alone(frame: str, body: str, tmp_path: Path) -> None:
    with running(frame, body, tmp_path) as program:
        program.expect("begun")
        program.send(signal.SIGTERM)
        assert program.end() == ([], "", -signal.SIGTERM)


@BOTH
def test_a_worker_that_ends_by_itself_leaves_the_handlers_as_they_were(frame: str, tmp_path: Path) -> None:
    body = f"""\
numbers = (signal.SIGINT, signal.SIGTERM)
before = [signal.getsignal(number) for number in numbers]
worker.stop()
{RUN[frame]}
tell(before == [signal.getsignal(number) for number in numbers])"""
    with running(frame, body, tmp_path) as program:
        assert program.end() == (["True", "closing"], "", 0)


def test_a_signal_is_not_lost_when_a_library_puts_the_handler_back_after_the_worker_has_ended(tmp_path: Path) -> None:
    body = """\
task = asyncio.create_task(worker.run())
await has_begun.wait()
found = signal.signal(signal.SIGTERM, on_sigterm)
worker.stop()
await task
signal.signal(signal.SIGTERM, found)
tell("put back")
await a_byte()"""
    with running(ASYNCIO, body, tmp_path) as program:
        program.expect("begun")
        program.let_go_on()
        program.expect("done", "put back")
        program.send(signal.SIGTERM)
        assert program.end() == ([], "", -signal.SIGTERM)


def test_a_process_that_a_job_has_forked_ends_at_sigterm(tmp_path: Path) -> None:
    body = """\
def fork(job):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")
        while True:
            signal.pause()
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    worker.stop()
worker = topics.Worker(log, "q", fork)
worker.run()"""
    with running(BLOCKING, body, tmp_path) as program:
        assert program.end() == ([str(-signal.SIGTERM), "closing"], "", 0)
