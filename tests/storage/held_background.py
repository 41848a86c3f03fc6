"""A background that keeps its work until the test says so: what happens meanwhile is what the tests are about."""

from collections import deque
from collections.abc import Callable
from typing import Any


class HeldBackground:
    """Answers to `topics.storage.background.Background`. Work runs in order, one piece per `step`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._begun: deque[tuple[Any, Callable[[Any], None]]] = deque()
        self.is_closed = False

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        assert not self.is_closed
        self._waiting.append((work, done))

    def defer(self, call: Callable[[], None]) -> None:
        call()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def begin(self) -> None:
        """Runs the next piece of work; its owner is not told yet."""
        work, done = self._waiting.popleft()
        result: Any
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as every background: the owner decides what it means
            result = error
        self._begun.append((result, done))

    def end(self) -> None:
        """Tells the owner of the oldest finished piece."""
        result, done = self._begun.popleft()
        done(result)

    def step(self) -> None:
        if not self._begun:
            self.begin()
        self.end()

    def run_all(self) -> None:
        while len(self):
            self.step()

    def close(self) -> None:
        self.run_all()
        self.is_closed = True
