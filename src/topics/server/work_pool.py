"""A pool of threads that knows how much work waits for a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkPool(ThreadPoolExecutor):
    def __init__(self, threads: int, thread_name_prefix: str) -> None:
        super().__init__(threads, thread_name_prefix=thread_name_prefix)
        self._threads_max = threads
        # Work that was submitted and is not done. The threads change it, so it has a lock.
        self._under_way_count = 0
        self._count_lock = Lock()

    @property
    def waiting_count(self) -> int:
        """Submitted work that no thread has begun."""
        return max(self._under_way_count - self._threads_max, 0)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        with self._count_lock:
            self._under_way_count += 1
        future.add_done_callback(self._note_done)
        return future

    def _note_done(self, _future: Future[T]) -> None:
        with self._count_lock:
            self._under_way_count -= 1
