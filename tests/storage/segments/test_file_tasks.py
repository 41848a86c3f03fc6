"""Work on files: at once on the caller, or on threads."""

import threading

import pytest

from topics.storage.segments.file_tasks import InlineTasks, ThreadTasks


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_inline_work_is_done_when_start_returns() -> None:
    done: list[int] = []
    InlineTasks().start(lambda: done.append(1))()
    assert done == [1]


def test_work_on_threads_runs_at_the_same_time() -> None:
    tasks = ThreadTasks()
    both = threading.Barrier(2, timeout=30)
    waits = [tasks.start(lambda: both.wait() and None), tasks.start(lambda: both.wait() and None)]
    for wait in waits:
        wait()
    tasks.close()


def test_the_error_of_work_on_a_thread_is_raised_by_its_wait() -> None:
    tasks = ThreadTasks()
    wait = tasks.start(fail)
    with pytest.raises(OSError, match="No space left"):
        wait()
    tasks.close()


def test_close_waits_for_all_work() -> None:
    tasks = ThreadTasks()
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(30)
        done.set()

    tasks.start(work)
    timer = threading.Timer(0.01, go.set)
    timer.start()
    tasks.close()
    timer.join()
    assert done.is_set()
