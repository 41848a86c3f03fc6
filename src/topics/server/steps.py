"""Long work in steps: between the steps of one client's work the loop serves the other clients.

A thread would not help: a parser that works on 64 MiB keeps the interpreter's lock, and the loop waits for it in any
thread. So long work is a generator that pauses every few milliseconds. In one turn of the loop all works together get
a short time, one step of each in turn. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, Final, TypeVar

from topics.errors import Closed

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in steps: the result comes with the end. A step takes a few milliseconds at most."""

# How long all works together may take in one turn of the loop, but for the end of the last step.
TURN_S: Final = 0.002


class StepRunner:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._works: deque[tuple[Steps[Any], Callable[[Callable[[], Any]], None]]] = deque()
        self._turn_is_due = False

    def run(self, steps: Steps[T], done: Callable[[Callable[[], T]], None]) -> None:
        """Runs the steps in later turns of the loop; then calls `done` with a function that returns the result, or
        raises what the steps raised."""
        self._works.append((steps, done))
        self._take_turn()

    def _take_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        until_s = perf_counter() + TURN_S
        works = self._works
        while works:
            steps, done = works[0]
            try:
                next(steps)
            except StopIteration as end:
                works.popleft()
                done(_given(end.value))
            except Exception as error:  # noqa: BLE001 - `done` decides what an error means.
                works.popleft()
                done(_raised(error))
            else:
                works.rotate(-1)
            if perf_counter() >= until_s:
                break
        if works:
            self._take_turn()


def while_wanted(steps: Steps[T], is_wanted: Callable[[], bool]) -> Steps[T]:
    """The same steps, up to their end. They end with `Closed` as soon as the result is not wanted any more."""
    while is_wanted():
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield
    steps.close()
    raise Closed


def _given(value: T) -> Callable[[], T]:
    return lambda: value


def _raised(error: Exception) -> Callable[[], Any]:
    def result() -> Any:
        raise error

    return result
