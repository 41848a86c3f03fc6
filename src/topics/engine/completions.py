"""Answers of the engine, delivered when the group that made them true has ended.

The engine's rooms change their state while a group of the log completes. A callback of a caller that ran in the middle
of that could call the engine and find it half changed. So nothing in the engine calls a caller's `done`: it goes into
this queue with its result, and the queue is emptied where the engine may be called again. A callback may therefore call
any method of the engine.

Owner only.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from topics.errors import TopicsError

T = TypeVar("T")

Done: TypeAlias = Callable[[T | TopicsError], None]
"""Called once with the result of a call, or with the error. It may call the engine."""

# Marks a callback that is called without a result.
_NO_RESULT: Final = object()


class Completions:
    """Callbacks with their results, in the order in which the results became true."""

    __slots__ = ("_is_delivering", "_queue")

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[..., None], Any]] = deque()
        self._is_delivering = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_delivering(self) -> bool:
        return self._is_delivering

    def add(self, done: Done[T], result: T | TopicsError) -> None:
        self._queue.append((done, result))

    def add_call(self, call: Callable[[], None]) -> None:
        """A step that goes on with the engine, or a waiter."""
        self._queue.append((call, _NO_RESULT))

    def deliver(self) -> None:
        """Calls what is queued, also what the callbacks add. Does nothing inside a callback: the outer call goes on."""
        if self._is_delivering:
            return
        queue = self._queue
        self._is_delivering = True
        try:
            while queue:
                call, result = queue.popleft()
                if result is _NO_RESULT:
                    call()
                else:
                    call(result)
        finally:
            self._is_delivering = False
