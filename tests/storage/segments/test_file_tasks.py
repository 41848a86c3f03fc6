"""Work on files: at once on the caller, or on threads."""

import threading

import pytest

from topics.storage.segments.file_tasks import GROUP_BYTES, GROUP_COUNT, GROUPS_MAX, InlineTasks, ThreadTasks


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_inline_work_is_done_when_start_returns() -> None:
    done: list[int] = []
    InlineTasks().start(lambda: done.append(1), 1)()
    assert done == [1]


def test_large_work_on_threads_begins_at_once_and_runs_at_the_same_time() -> None:
    tasks = ThreadTasks()
    both = threading.Barrier(2, timeout=30)
    waits = [tasks.start(lambda: both.wait() and None, GROUP_BYTES) for _ in range(2)]
    for wait in waits:
        wait()
    tasks.close()


def test_the_error_of_work_on_a_thread_is_raised_by_its_wait() -> None:
    tasks = ThreadTasks()
    wait = tasks.start(fail, 1)
    with pytest.raises(OSError, match="No space left"):
        wait()
    tasks.close()


def test_close_waits_for_all_work() -> None:
    tasks = ThreadTasks()
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(30)
        done.set()

    tasks.start(work, 1)
    timer = threading.Timer(0.01, go.set)
    timer.start()
    tasks.close()
    timer.join()
    assert done.is_set()


def test_small_work_is_done_in_groups_each_on_one_thread() -> None:
    tasks = ThreadTasks()
    threads: list[int] = []
    waits = [tasks.start(lambda: threads.append(threading.get_ident()), 1) for _ in range(GROUP_COUNT)]
    for wait in waits:
        wait()
    assert len(threads) == GROUP_COUNT
    assert len(set(threads)) == 1
    tasks.close()


def test_work_of_a_group_that_is_not_full_begins_when_it_is_waited_for() -> None:
    tasks = ThreadTasks()
    done: list[int] = []
    waits = [tasks.start(lambda number=number: done.append(number), 1) for number in range(3)]  # type: ignore[misc]
    assert done == []
    waits[2]()
    assert done == [0, 1, 2]
    waits[0]()
    tasks.close()


def test_an_error_of_one_work_is_raised_by_no_other_wait_of_its_group() -> None:
    tasks = ThreadTasks()
    done: list[int] = []
    before, failed, after = (tasks.start(work, 1) for work in (lambda: done.append(1), fail, lambda: done.append(2)))
    before()
    after()
    with pytest.raises(OSError, match="No space left"):
        failed()
    assert done == [1, 2]
    tasks.close()


def test_no_more_work_is_under_way_than_files_may_be_open() -> None:
    tasks = ThreadTasks()
    go, started = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        go.wait(30)

    def start_many() -> None:
        for _ in range((GROUPS_MAX + 2) * GROUP_COUNT):
            tasks.start(work, 1)
            started.release()

    caller = threading.Thread(target=start_many)
    caller.start()
    # The work that begins one group too many waits for the oldest group.
    for _ in range((GROUPS_MAX + 1) * GROUP_COUNT - 1):
        assert started.acquire(timeout=30)
    assert not started.acquire(timeout=0.2)
    go.set()
    caller.join()
    tasks.close()
