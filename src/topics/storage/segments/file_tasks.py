"""Where a checkpoint job writes and syncs files: on the caller, or on a few threads.

A sync waits for the disk, not for a core, and disks finish several syncs that wait at the same time together: forty
files take 150 ms one after the other and 20 ms on eight threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

# Syncs that may wait for the disk at the same time.
THREADS_MAX: Final = 8

Wait = Callable[[], None]
"""Waits for the end of a piece of work, and raises its error."""


class FileTasks(Protocol):
    def start(self, work: Callable[[], None]) -> Wait: ...


class InlineTasks:
    """On the caller, at once: for tests that count every file-system call, and for single segments."""

    def start(self, work: Callable[[], None]) -> Wait:
        work()
        return _done


class ThreadTasks:
    """On threads, in any order. `close` waits for everything that was started."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, "files")

    def start(self, work: Callable[[], None]) -> Wait:
        return self._pool.submit(work).result

    def close(self) -> None:
        self._pool.shutdown()


def _done() -> None:
    pass
