"""The worker process: it does jobs, the server survives its death, and it ends with its parent."""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from tests.storage.segments.segment_bench import NOW_MS
from tests.storage.wal.wal_bench import frame
from topics.formats.snapshot import WalPosition
from topics.interpreter import module_command
from topics.storage import layout
from topics.storage.checkpoints import process as worker_process
from topics.storage.checkpoints.job import PART_FRAMES_MIN, Job, ShardRange, TopicWork, run_job, split_job
from topics.storage.checkpoints.process import WORKER_MODULE, JobFailed, WorkerProcess, receive, say_hello, send
from topics.storage.checkpoints.runner import InlineRunner, WorkerRunner
from topics.storage.fs import RealFs
from topics.storage.wal.wal import shard_index
from topics.testing.fake_disk import FakeDisk


def make_job(root: str, *, count: int = 2, after_seq: int = 0) -> Job:
    start = WalPosition(1, 1, 0)
    stop = WalPosition(count + 1, 1, 0)
    return Job(
        root,
        NOW_MS,
        [ShardRange(f"{root}/wal", start, stop)],
        [TopicWork(1, after_seq, count, 1, [], None)],
        [],
        1000,
        1 << 20,
        0,
    )


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A data directory with a WAL of two records."""
    directory = tmp_path / "wal"
    directory.mkdir()
    (directory / layout.wal_name(1)).write_bytes((frame(1) + frame(2)).ljust(4096, b"\0"))
    return str(tmp_path)


@pytest.fixture
def runner(root: str) -> Iterator[WorkerRunner]:
    lock = RealFs().lock(f"{root}/{layout.LOCK}")
    assert lock is not None
    runner = WorkerRunner(RealFs(), lock)
    yield runner
    runner.close()
    lock.release()


def pid_of(runner: WorkerRunner) -> int:
    (process,) = runner._processes
    return process.pid


def kill(process: WorkerProcess) -> None:
    """Returns when the process has ended."""
    descriptor = os.pidfd_open(process.pid)
    process.kill()
    assert wait_for_end(descriptor)
    os.close(descriptor)


def test_a_worker_does_the_job_and_stays_for_the_next(root: str, runner: WorkerRunner) -> None:
    result = runner.run(make_job(root))
    (state,) = result.touched[1]
    assert (state.first_seq, state.last_seq, state.live_count) == (1, 2, 2)
    assert (Path(layout.topic_directory(root, 1)) / "seg-0000000000000001.data").stat().st_size == state.data_bytes
    pid = pid_of(runner)
    assert runner.run(make_job(root)).touched[1] == [state], "the same job again"
    assert pid_of(runner) == pid


def test_a_worker_that_was_killed_fails_its_job_and_the_next_one_gets_another(root: str, runner: WorkerRunner) -> None:
    runner.run(make_job(root))
    (process,) = runner._processes
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    # Not reaped by `run`'s own look at it before the job is sent: the death is met while it is under way.
    process.has_ended = lambda: False  # type: ignore[method-assign]
    with pytest.raises(JobFailed, match="died with status -9"):
        runner.run(make_job(root))
    del process.has_ended
    assert runner.run(make_job(root)).touched[1][0].live_count == 2
    assert pid_of(runner) != process.pid


def test_a_worker_that_died_between_two_jobs_is_replaced_without_a_word(root: str, runner: WorkerRunner) -> None:
    runner.run(make_job(root))
    (process,) = runner._processes
    kill(process)
    assert runner.run(make_job(root)).touched[1][0].live_count == 2
    assert pid_of(runner) != process.pid


def test_a_worker_says_why_it_cannot_do_the_job_and_lives_on(root: str, runner: WorkerRunner) -> None:
    (Path(root) / "topics").write_bytes(b"in the way")
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        runner.run(make_job(root))
    pid = pid_of(runner)
    (Path(root) / "topics").unlink()
    assert runner.run(make_job(root)).touched[1][0].live_count == 2
    assert pid_of(runner) == pid


def test_a_damaged_log_fails_the_job_by_name(root: str, runner: WorkerRunner) -> None:
    with pytest.raises(JobFailed, match=r"wal-0000000000000001\.log"):
        runner.run(make_job(root, count=3))


def test_closing_ends_the_worker(root: str) -> None:
    lock = RealFs().lock(f"{root}/{layout.LOCK}")
    assert lock is not None
    runner = WorkerRunner(RealFs(), lock)
    runner.close()
    runner.run(make_job(root))
    descriptor = os.pidfd_open(pid_of(runner))
    runner.close()
    assert wait_for_end(descriptor)
    os.close(descriptor)
    lock.release()


PARENT = """
import sys
sys.path[:0] = sys.argv[2:]
from topics.storage.fs import RealFs
from topics.storage.checkpoints.runner import WorkerRunner
from tests.storage.checkpoints.test_runner import make_job, pid_of

root = sys.argv[1]
runner = WorkerRunner(RealFs(), RealFs().lock(root + "/.topics.lock"))
runner.run(make_job(root))
print(pid_of(runner), flush=True)
sys.stdin.read()
"""


def test_a_worker_holds_the_lock_and_ends_with_its_parent(root: str) -> None:
    """No other server opens the directory while the worker of a killed one still writes."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, root, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    descriptor = os.pidfd_open(worker)
    try:
        os.kill(worker, signal.SIGSTOP)
        assert RealFs().lock(f"{root}/{layout.LOCK}") is None
        # A stopped process is not asked about the end of its input, but does not survive its parent's death.
        parent.kill()
        parent.communicate()
        assert wait_for_end(descriptor)
    finally:
        os.close(descriptor)
    lock = RealFs().lock(f"{root}/{layout.LOCK}")
    assert lock is not None
    lock.release()


def wait_for_end(pid_descriptor: int) -> bool:
    return bool(select.select([pid_descriptor], [], [], 30)[0])


def test_a_worker_whose_input_ends_stops(root: str) -> None:
    worker = subprocess.run(module_command(WORKER_MODULE), input=b"", capture_output=True, check=False)
    hello = BytesIO()
    say_hello(hello)
    assert (worker.returncode, worker.stdout, worker.stderr) == (0, hello.getvalue(), b"")


def test_an_inline_runner_does_the_same_on_the_caller() -> None:
    disk = FakeDisk()
    disk.makedirs("/data/wal")
    disk.replace("/data/wal/wal-0000000000000001.log", frame(1) + frame(2))
    runner = InlineRunner(disk)
    assert runner.run(make_job("/data")).touched[1][0].live_count == 2
    runner.close()


def test_messages_come_whole_or_not_at_all() -> None:
    pipe = BytesIO()
    for message in (b"", b"one", bytes(70_000)):
        send(pipe, message)
    whole = pipe.getvalue()
    pipe.seek(0)
    assert [receive(pipe), receive(pipe), len(receive(pipe))] == [b"", b"one", 70_000]
    for end in (0, 3, 7, len(whole) - 1):
        cut = BytesIO(whole[-70_008:][:end] if end < 8 else whole[-70_008:-1])
        with pytest.raises(EOFError):
            receive(cut)


# --- the last job of a log ----------------------------------------------------------------------------------------


def last_job(root: str, *, count: int) -> Job:
    """Two shards with records of four topics."""
    shards = []
    topics = []
    for shard in (0, 1):
        directory = Path(root) / f"wal-{shard}"
        directory.mkdir(exist_ok=True)
        ids = [topic_id for topic_id in range(1, 20) if shard_index(topic_id, 2) == shard][:2]
        frames = [frame(seq, topic_id=topic_id) for seq in range(1, count // 2 + 1) for topic_id in ids]
        (directory / layout.wal_name(1)).write_bytes(b"".join(frames))
        shards.append(ShardRange(str(directory), WalPosition(1, 1, 0), WalPosition(len(frames) + 1, 1, 0)))
        topics += [TopicWork(topic_id, 0, count // 2, 1, [], None) for topic_id in ids]
    return Job(root, NOW_MS, shards, topics, [], 1000, 1 << 20, 0, is_last=True)


def test_the_last_job_runs_in_a_process_for_each_core(
    root: str, runner: WorkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.storage.checkpoints.job.PART_FRAMES_MIN", 10)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    job = last_job(root, count=20)
    parts = split_job(job, 2)
    assert [len(part.topics) for part in parts] == [2, 2]
    result = runner.run(job)
    assert len(runner._processes) == 2
    assert {topic_id: states[0].live_count for topic_id, states in result.touched.items()} == {
        work.id: 10 for work in job.topics
    }
    assert result == run_job(RealFs(), job), "the same as in one process"


def test_a_worker_that_died_before_the_last_job_is_replaced(
    root: str, runner: WorkerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.storage.checkpoints.job.PART_FRAMES_MIN", 10)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    job = last_job(root, count=20)
    runner.run(job)
    kill(runner._processes[1])
    assert len(runner.run(job).touched) == 4


def test_a_small_job_and_a_job_that_is_not_the_last_stay_whole(root: str) -> None:
    job = last_job(root, count=20)
    assert split_job(job, 8) == [job]
    assert PART_FRAMES_MIN > 20


# --- where the worker does not start --------------------------------------------------------------------------------


def fake_python(folder: Path, script: str, *, name: str = "python3") -> str:
    """A program that is called like a Python."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def run_inline(root: str, caplog: pytest.LogCaptureFixture) -> str:
    """Two jobs that no worker does. Returns the one warning about it."""
    lock = RealFs().lock(f"{root}/{layout.LOCK}")
    assert lock is not None
    runner = WorkerRunner(RealFs(), lock)
    for _ in range(2):
        assert runner.run(make_job(root)).touched[1][0].live_count == 2
    assert runner._processes == []
    runner.close()
    lock.release()
    # A server of other tests may take a checkpoint meanwhile, on its own thread.
    mine = [each for each in caplog.records if each.thread == threading.get_ident()]
    (warning,) = [each for each in mine if each.levelno == logging.WARNING]
    return warning.getMessage().removeprefix("checkpoints run in this process, which slows down other work: ")


@pytest.mark.parametrize("name", ["uwsgi", "app.exe", ""])
def test_a_program_that_is_no_python_is_not_started_as_one(
    root: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In uWSGI and frozen programs `sys.executable` is the program: it would start itself."""
    program = fake_python(Path(root), f"touch {root}/started", name=name) if name else ""
    monkeypatch.setattr(sys, "executable", program)
    assert run_inline(root, caplog) == f"sys.executable is not a Python interpreter: {program!r}"
    assert not (Path(root) / "started").exists()


def test_a_frozen_program_is_not_started_again(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert run_inline(root, caplog) == f"sys.executable is not a Python interpreter: {sys.executable!r}"


def test_after_an_upgrade_of_the_package_the_running_program_takes_no_worker_of_the_new_version(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = worker_process.VERSION
    monkeypatch.setattr(worker_process, "VERSION", "0.0.1")
    expected = f"topics {installed} was installed while this program runs 0.0.1; restart the program"
    assert run_inline(root, caplog) == expected


def test_a_python_that_is_gone_is_named(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program whose environment was removed while it runs."""
    monkeypatch.setattr(sys, "executable", f"{root}/bin/python3")
    assert run_inline(root, caplog) == f"[Errno 2] No such file or directory: '{root}/bin/python3'"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'No module named topics' >&2; exit 1",
            "the checkpoint worker died with status 1: No module named topics",
        ),
        ("exit 3", "the checkpoint worker died with status 3"),
        (
            "echo 'Hello, world'; cat",
            "the checkpoint worker began with b'Hello, w': another program wrote to its output",
        ),
        ("cat", "the checkpoint worker was not ready after 100 ms"),
    ],
)
def test_a_worker_that_does_not_start_says_why(
    root: str, script: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(Path(root), script))
    if script == "cat":
        monkeypatch.setattr(worker_process, "START_MS_MAX", 100)
    assert run_inline(root, caplog) == reason


EMBEDDING = """
import topics

with topics.open("data") as log:
    log.append("orders", [1, 2])
    log.checkpoint()
    log.append("orders", [3])
"""


def test_files_in_the_current_directory_are_not_taken_for_modules(tmp_path: Path) -> None:
    for name in ("queue", "msgspec", "types", "topics", "logging", "struct"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__)\nraise SystemExit(7)\n")
    program = subprocess.run(
        [sys.executable, "-P", "-c", EMBEDDING], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (program.returncode, program.stderr) == (0, "")
    assert not (tmp_path / "imported").exists()
    assert list((tmp_path / "data" / "topics").glob("*/seg-*.data"))


# --- a worker that hangs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_be_killed", [True, False])
def test_a_job_that_hangs_is_given_up(
    root: str, runner: WorkerRunner, can_be_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a dead disk does not even end when it is killed. Its parent stops all the same, and the
    directory stays locked: the process may still write."""
    runner.run(make_job(root))
    (process,) = runner._processes
    descriptor = os.pidfd_open(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    if not can_be_killed:
        monkeypatch.setattr(process, "kill", lambda: None)
        monkeypatch.setattr(worker_process, "END_S_MAX", 0.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, make_job(root))
        runner.give_up()
        with pytest.raises(JobFailed, match="the log stops"):
            running.result()
    with pytest.raises(JobFailed, match="the log stops"):
        runner.run(make_job(root))
    runner.close()
    runner._lock.release()
    lock = RealFs().lock(f"{root}/{layout.LOCK}")
    assert (lock is not None) == can_be_killed
    if lock is not None:
        lock.release()
    else:
        os.kill(process.pid, signal.SIGKILL)
        process._process.wait()
    assert wait_for_end(descriptor)
    os.close(descriptor)
