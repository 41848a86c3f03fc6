"""Work that may block, away from the owner of the state.

One owner (the event loop, or the thread that holds the lock of an embedded log) changes state. Work that can wait for a
disk goes through a `Background`, and the owner gets the result as a call of `done`. The work of one background runs
in order, one piece at a time.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")

Post = Callable[[Callable[[], None]], None]
"""Runs a callback on the owner, soon. May be called from any thread."""


class Background(Protocol):
    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Runs `work`; then `done` on the owner, with the result or with what `work` raised."""
        ...

    def defer(self, call: Callable[[], None]) -> None:
        """Owner only: runs the callback after the results and requests that are already waiting for the owner. Runs
        it at once if there is no event loop."""
        ...

    def close(self) -> None:
        """Finishes what was handed over, then stops."""
        ...

    def abandon(self) -> None:
        """Stops without waiting for what was handed over."""
        ...


class ThreadBackground:
    """One dedicated thread. `fdatasync` and file reads release the interpreter while they wait."""

    def __init__(self, name: str, post: Post, defer: Post | None = None) -> None:
        self._post = post
        self._defer = defer
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def task() -> None:
            result: T | BaseException
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the owner decides what an error means
                result = error
            self._post(lambda: done(result))

        self._queue.put(task)

    def defer(self, call: Callable[[], None]) -> None:
        if self._defer is None:
            call()
        else:
            self._defer(call)

    def _loop(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def abandon(self) -> None:
        self._queue.put(None)

    def close(self) -> None:
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class InlineBackground:
    """Runs work at once on the caller: for tests that count every file-system call, and for recovery."""

    def __init__(self) -> None:
        self._pending: deque[Callable[[], None]] = deque()
        self._running = False

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def task() -> None:
            result: T | BaseException
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the owner decides what an error means
                result = error
            done(result)

        self._pending.append(task)
        if self._running:
            return
        self._running = True
        try:
            while self._pending:
                self._pending.popleft()()
        finally:
            self._running = False

    def defer(self, call: Callable[[], None]) -> None:
        call()

    def close(self) -> None:
        assert not self._pending

    def abandon(self) -> None:
        self._pending.clear()
