"""SIGINT and SIGTERM for workers: the jobs under way are finished, then the program ends.

rule 1  Only `run` in the main thread takes a signal, and only one for which the program has no handler. A program that
        handles or ignores a signal decides by itself what becomes of its workers.
rule 2  A signal stops every worker that has taken it. The last of them ends the program: the signal meant the program,
        which may do other things beside and after `run`.
rule 3  When the last worker has ended, the signal means again what it meant before.

The program ends by `SystemExit`. With the signal raised again, as uvicorn does it, SIGTERM would end the process before
`with` blocks close what they have open, and records that a `Producer` still holds would be lost.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import Task

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """A signal calls `stop`, which may not block. The block of the last worker then ends with `SystemExit`."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = [handler for number in NUMBERS if (handler := _joined(number, stop))] if is_main else []
    try:
        yield
    finally:
        have_come = [handler.leave(stop) for handler in handlers]
        if any(have_come):
            # The program did what it was told. So its exit status is that of a server after SIGTERM.
            raise SystemExit(0)


class _Handler:
    """The handler of a signal, for all workers that run now. Main thread only."""

    def __init__(self, number: int, before: Any) -> None:
        self._number = number
        self._before = before
        self._process_id = os.getpid()
        self._stops: list[Callable[[], object]] = []
        self._has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._stops or os.getpid() != self._process_id:
            # Another library has put this handler back after the workers had ended, or this is a fork.
            signal.signal(number, self._before)
            signal.raise_signal(number)
            return
        self._has_come = True
        for stop in self._stops:
            stop()

    def join(self, stop: Callable[[], object]) -> None:
        self._stops.append(stop)
        if self._has_come:
            stop()

    def leave(self, stop: Callable[[], object]) -> bool:
        """Whether the program is to end now."""
        self._stops.remove(stop)
        if self._stops:
            return False
        is_replaced = signal.getsignal(self._number) is not self
        if not is_replaced:
            signal.signal(self._number, self._before)
        return self._has_come


def _joined(number: int, stop: Callable[[], object]) -> _Handler | None:
    handler: Any = signal.getsignal(number)
    if _is_default(number, handler):
        handler = _Handler(number, handler)
        signal.signal(number, handler)
    if not isinstance(handler, _Handler):
        return None
    handler.join(stop)
    return handler


def _is_default(number: int, handler: Any) -> bool:
    """Whether the program has no handler of its own."""
    if handler is signal.SIG_DFL:
        return True
    return number == signal.SIGINT and (handler is signal.default_int_handler or main_task() is not None)


def main_task() -> Task[Any] | None:
    """The task that `asyncio.run` cancels at Ctrl+C, if it has the handler for that."""
    # asyncio has no other name for it.
    task: Task[Any] | None = getattr(signal.getsignal(signal.SIGINT), "keywords", {}).get("main_task")
    return task
