"""Threads for requests that may wait."""

import asyncio
import threading
from collections.abc import Callable

from topics.server.event_loop import new_event_loop
from topics.server.streams.work_threads import WorkThreads


async def results_of(threads_max: int, works: list[Callable[[], str]]) -> list[str]:
    """The results, in the order in which the loop gets them."""
    threads: WorkThreads[str] = WorkThreads(asyncio.get_running_loop(), threads_max, "work")
    found: list[str] = []
    is_done = asyncio.Event()

    def done(result: str) -> None:
        assert threading.current_thread() is threading.main_thread()
        found.append(result)
        if len(found) == len(works):
            is_done.set()

    for work in works:
        threads.run(work, done)
    await is_done.wait()
    threads.shutdown()
    return found


def thread_name() -> str:
    return threading.current_thread().name


def test_one_thread_does_all_work_in_its_order() -> None:
    works = [lambda number=number: f"{number} {thread_name()}" for number in range(100)]
    assert asyncio.run(results_of(1, works)) == [f"{number} work_0" for number in range(100)]


def test_work_that_waits_leaves_the_other_threads_free() -> None:
    """Each piece of work but the last waits for the last one."""
    is_last = threading.Event()

    def wait() -> str:
        is_last.wait()
        return thread_name()

    def end() -> str:
        is_last.set()
        return thread_name()

    assert sorted(asyncio.run(results_of(3, [wait, wait, end]))) == ["work_0", "work_1", "work_2"]


def test_work_after_the_end_of_the_loop_has_nobody_to_tell() -> None:
    is_closed = threading.Event()
    loop = new_event_loop()
    threads: WorkThreads[bool] = WorkThreads(loop, 1, "late")
    threads.run(is_closed.wait, lambda _: None)
    loop.close()
    is_closed.set()
    threads.shutdown()
    assert not any(thread.name.startswith("late") for thread in threading.enumerate())
