"""The threads that wait for the cold tier. Nothing else waits for it, so an outage takes these threads and no others.

Calls belong to *lines*, one for each topic. Lines take turns, and one line gets only some of the threads: the readers
of one topic do not keep the calls of other topics waiting. Threads, waiting calls and the time of a call are bounded.
A call beyond a bound fails with `ColdBusy`.

A thread that hangs in a call keeps its place among the threads until the call returns. Its caller is answered in
time all the same. All threads are daemons, and nothing joins them: a process ends while they hang.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from topics.clock import Clock, SystemClock
from topics.errors import ColdBusy
from topics.limits import (
    COLD_CALL_MS_MAX,
    COLD_THREADS_MAX,
    COLD_THREADS_PER_TOPIC_MAX,
    COLD_WAITING_MAX,
    COLD_WAITING_PER_TOPIC_MAX,
)
from topics.storage.background import InlineBackground, Post

T = TypeVar("T")

CLOSED: Final = "the log is being closed"


class ColdPool(Protocol):
    def run(self, line: int, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Runs `work` on one of the threads; then `done` on the owner, with the result or with the error. Calls of one
        line may run at the same time."""
        ...

    def close(self) -> None:
        """Fails the calls that are under way, and waits for none of them."""
        ...


class InlineColdPool:
    """Runs work at once on the caller, for tests that count every call of the tier."""

    def __init__(self) -> None:
        self._background = InlineBackground()

    def run(self, line: int, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._background.run(work, done)

    def close(self) -> None:
        self._background.abandon()


class _Call:
    __slots__ = ("deadline_ms", "done", "is_answered", "line", "work")

    def __init__(self, line: int, work: Callable[[], Any], done: Callable[[Any], None], deadline_ms: int) -> None:
        self.line = line
        self.work = work
        self.done = done
        self.deadline_ms = deadline_ms
        self.is_answered = False


class ThreadColdPool:
    def __init__(
        self,
        post: Post,
        *,
        clock: Clock | None = None,
        threads_max: int = COLD_THREADS_MAX,
        threads_per_line_max: int = COLD_THREADS_PER_TOPIC_MAX,
        waiting_max: int = COLD_WAITING_MAX,
        waiting_per_line_max: int = COLD_WAITING_PER_TOPIC_MAX,
        call_ms_max: int = COLD_CALL_MS_MAX,
    ) -> None:
        self._post = post
        self._clock = clock or SystemClock()
        self._threads_max = threads_max
        self._threads_per_line_max = threads_per_line_max
        self._waiting_max = waiting_max
        self._waiting_per_line_max = waiting_per_line_max
        self._call_ms_max = call_ms_max
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._has_deadline = threading.Condition(self._lock)
        # Waiting calls by line. The first line has the next turn.
        self._lines: dict[int, deque[_Call]] = {}
        self._waiting_count = 0
        # Line -> number of threads that work for it.
        self._busy: dict[int, int] = {}
        self._threads_count = 0
        self._idle_count = 0
        # Calls that are not answered, in the order of their deadlines.
        self._open: deque[_Call] = deque()
        self._watches = False
        self._is_closed = False

    def run(self, line: int, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        with self._lock:
            refusal = self._refusal(line)
            if refusal is None:
                self._add(_Call(line, work, done, self._clock.monotonic_ms() + self._call_ms_max))
                return
        self._post(lambda: done(refusal))

    def _refusal(self, line: int) -> ColdBusy | None:
        if self._is_closed:
            return ColdBusy(CLOSED)
        waiting = self._lines.get(line)
        if self._waiting_count >= self._waiting_max or (
            waiting is not None and len(waiting) >= self._waiting_per_line_max
        ):
            return ColdBusy("too many calls wait for the cold tier; try again later")
        return None

    # With the lock held.

    def _add(self, call: _Call) -> None:
        self._lines.setdefault(call.line, deque()).append(call)
        self._waiting_count += 1
        self._open.append(call)
        if not self._watches:
            self._watches = True
            threading.Thread(target=self._watch, name="topics-cold-deadlines", daemon=True).start()
        elif len(self._open) == 1:
            self._has_deadline.notify()
        if self._idle_count:
            self._has_work.notify()
        elif self._threads_count < self._threads_max:
            self._threads_count += 1
            name = f"topics-cold-{self._threads_count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _take(self) -> _Call | None:
        """The next call of the first line that may have one more thread. The line then goes to the end."""
        for line, calls in self._lines.items():
            if self._busy.get(line, 0) >= self._threads_per_line_max:
                continue
            call = calls.popleft()
            self._waiting_count -= 1
            del self._lines[line]
            if calls:
                self._lines[line] = calls
            if call.is_answered:
                return self._take()
            self._busy[line] = self._busy.get(line, 0) + 1
            return call
        return None

    def _free(self, line: int) -> None:
        self._busy[line] -= 1
        if not self._busy[line]:
            del self._busy[line]
        if self._lines and self._idle_count:
            # A call of this line may have waited for the thread.
            self._has_work.notify()

    # On the threads.

    def _work(self) -> None:
        while True:
            with self._lock:
                while (call := self._take()) is None:
                    if self._is_closed:
                        return
                    self._idle_count += 1
                    self._has_work.wait()
                    self._idle_count -= 1
            result: object
            try:
                result = call.work()
            except BaseException as error:  # noqa: BLE001 - the owner decides what an error means
                result = error
            with self._lock:
                self._free(call.line)
            self._answer(call, result)

    def _answer(self, call: _Call, result: object) -> None:
        with self._lock:
            if call.is_answered:
                return
            call.is_answered = True
        self._post(lambda: call.done(result))

    def _watch(self) -> None:
        """Fails every call that is not done in time."""
        while True:
            with self._lock:
                while self._open and self._open[0].is_answered:
                    self._open.popleft()
                if self._is_closed:
                    return
                if not self._open:
                    self._has_deadline.wait()
                    continue
                left_ms = self._open[0].deadline_ms - self._clock.monotonic_ms()
                if left_ms > 0:
                    self._has_deadline.wait(left_ms / 1000)
                    continue
                late = self._open.popleft()
            seconds = self._call_ms_max / 1000
            self._answer(late, ColdBusy(f"the cold tier did not answer within {seconds:g} seconds"))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            left = list(self._open)
            self._open.clear()
            self._lines.clear()
            self._waiting_count = 0
            self._has_work.notify_all()
            self._has_deadline.notify_all()
        for call in left:
            self._answer(call, ColdBusy(CLOSED))
