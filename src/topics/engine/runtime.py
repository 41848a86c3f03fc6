"""How an engine meets the program around it: which thread owns its state, and how background work comes back.

`InlineRuntime` does everything on the caller, so that a test can count and interrupt every step. `LockRuntime` is for
embedded use: the owner is the thread that holds the lock. `LoopRuntime` is for asyncio: the owner is the loop's thread.
"""

import asyncio
import gc
import heapq
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from topics.clock import SystemClock
from topics.storage.background import Background, InlineBackground, ThreadBackground
from topics.storage.cold_pool import ColdPool, InlineColdPool, ThreadColdPool

# A client that is answered in one turn of the loop sends its next request within the next few turns.
DEFER_TURNS: Final = 4


Turn = Callable[[Callable[[], None]], None]
"""Runs a callback as one turn of the owner."""


class Runtime(Protocol):
    def use_turns(self, run_turn: Turn) -> None:
        """The engine says how a callback that comes back to the owner is run."""
        ...

    def background(self, name: str) -> Background:
        """A new line of background work; its results come back on the owner."""
        ...

    def cold_pool(self, call_ms_max: int) -> ColdPool:
        """New threads that wait for the cold tier; their results come back on the owner."""
        ...

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Frames or answers were queued: `flush` must run at the end of the owner's turn, or soon after it."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Owner only: calls back once, in the next turn. Requests that have arrived meanwhile get their turn too."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Owner only: calls back once, in a separate turn."""
        ...

    def note_checkpoint(self, *, is_running: bool) -> None:
        """Owner only: a checkpoint begins, or has ended."""
        ...


class InlineRuntime:
    """Everything at once, on the caller. The caller flushes, begins the next turn (`take_turn`), and says when time has
    passed. Background work runs inside the call that hands it over, so its answers are delivered by the next flush."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        # (milliseconds to go, callback), in the order in which they were asked for.
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._run_turn: Turn = _run

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return InlineBackground()

    def cold_pool(self, call_ms_max: int) -> ColdPool:
        return InlineColdPool()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        pass

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def take_turn(self) -> bool:
        """Runs the oldest call that waits for the next turn. False when no call waits."""
        if not self._soon:
            return False
        self._run_turn(self._soon.popleft())
        return True

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._later.append((delay_ms, callback))

    def note_checkpoint(self, *, is_running: bool) -> None:
        pass

    def pass_time(self, ms: int) -> None:
        """Calls the callbacks that are due by then, the earliest first."""
        later, self._later = self._later, []
        due = sorted((entry for entry in later if entry[0] <= ms), key=lambda entry: entry[0])
        self._later += [(delay_ms - ms, callback) for delay_ms, callback in later if delay_ms > ms]
        for _, callback in due:
            self._run_turn(callback)


class LockRuntime:
    """The owner is the thread that holds `lock`. Background work and delayed calls take the lock to come back."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._timer = _TimerThread(self._post)
        self._flush: Callable[[], None] | None = None
        self._run_turn: Turn = _run

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return ThreadBackground(f"topics-{name}", self._post)

    def cold_pool(self, call_ms_max: int) -> ColdPool:
        return ThreadColdPool(self._post, call_ms_max=call_ms_max)

    def _post(self, callback: Callable[[], None]) -> None:
        with self.lock:
            self._run_turn(callback)
            if self._flush is not None:
                self._flush()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        # The thread that holds the lock flushes before it releases the lock: see `_post` and `topics.embedded.log`.
        self._flush = flush

    def call_soon(self, callback: Callable[[], None]) -> None:
        # On another thread: the thread of the caller goes on with its own work.
        self._timer.call_later(0, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._timer.call_later(delay_ms, callback)

    def note_checkpoint(self, *, is_running: bool) -> None:
        # The garbage collector belongs to the program.
        pass

    def close(self) -> None:
        """Delayed calls that are not due yet are dropped. The caller does not hold the lock: a call may need it."""
        self._timer.close()


class _TimerThread:
    """Makes delayed calls. The thread starts with the first call, and sleeps until a call is due."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        # Threads sleep by the clock of the system, also where the engine has another one.
        self._clock = SystemClock()
        # (time of the call, number of the call, callback): a heap. Calls of the same time are made in order.
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        with self._changed:
            if self._is_closed:
                return
            call = (self._clock.monotonic_ms() + delay_ms, next(self._numbers), callback)
            heapq.heappush(self._calls, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="topics-timer", daemon=True)
                self._thread.start()
            elif self._calls[0] is call:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed:
                    if not self._calls:
                        self._changed.wait()
                        continue
                    wait_ms = self._calls[0][0] - self._clock.monotonic_ms()
                    if wait_ms <= 0:
                        break
                    self._changed.wait(wait_ms / 1000)
                if self._is_closed:
                    return
                callback = heapq.heappop(self._calls)[2]
            self._post(callback)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class LoopRuntime:
    """The owner is the thread of a running asyncio loop: one flush per turn, all writes of it in one group."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, owns_process: bool = False) -> None:
        self._loop = loop
        # Whether nothing else runs in the process, so that its garbage collector may be stopped.
        self._owns_process = owns_process
        self._collector_was_on = False
        self._flush: Callable[[], None] | None = None
        self._run_turn: Turn = _run
        # How long a group waits for more writes to join it. Under load it saves writes and syncs; acks come later,
        # never before the commit.
        self.commit_window_ms = 0.0

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return ThreadBackground(f"topics-{name}", self._post, self._defer)

    def cold_pool(self, call_ms_max: int) -> ColdPool:
        return ThreadColdPool(self._post, call_ms_max=call_ms_max)

    def _defer(self, call: Callable[[], None], turns: int = DEFER_TURNS) -> None:
        """Calls back some turns later: each turn takes in the requests that have arrived by then."""
        if turns == 0:
            call()
        else:
            self._loop.call_soon(self._defer, call, turns - 1)

    def _post(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._run_turn, callback)
        except RuntimeError:
            # The loop is closed: no caller waits any more.
            if not self._loop.is_closed():
                raise

    def flush_soon(self, flush: Callable[[], None]) -> None:
        if self._flush is None:
            self._flush = flush
            if self.commit_window_ms:
                self._loop.call_later(self.commit_window_ms / 1000, self._run_flush)
            else:
                self._loop.call_soon(self._run_flush)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(self._run_turn, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, self._run_turn, callback)

    def note_checkpoint(self, *, is_running: bool) -> None:
        """A checkpoint makes some twenty objects for each topic and keeps them until it ends. That many new objects
        would make the garbage collector visit all objects of the process, within one turn: 150 ms with 5000 topics."""
        if is_running:
            self._collector_was_on = self._owns_process and gc.isenabled()
            if self._collector_was_on:
                gc.disable()
        elif self._collector_was_on:
            gc.enable()

    def _run_flush(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            flush()


def _run(callback: Callable[[], None]) -> None:
    callback()
