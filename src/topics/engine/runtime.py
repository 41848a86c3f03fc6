"""How an engine meets the program around it: which thread owns its state, and how background work comes back.

`InlineRuntime` does everything on the caller, so that a test can count and interrupt every step. `LockRuntime` is for
embedded use: the owner is the thread that holds the lock. `LoopRuntime` is for asyncio: the owner is the loop's thread.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Protocol

from topics.storage.background import Background, InlineBackground, ThreadBackground

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

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Frames or answers were queued: `flush` must run at the end of the owner's turn, or soon after it."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Calls back on the owner, once, in a separate turn."""
        ...


class InlineRuntime:
    """Everything at once, on the caller. The caller flushes, and says when time has passed. Background work runs inside
    the call that hands it over, so its answers are delivered by the next flush."""

    def __init__(self) -> None:
        # (milliseconds to go, callback), in the order in which they were asked for.
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._run_turn: Turn = _run

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return InlineBackground()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        pass

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._later.append((delay_ms, callback))

    def pass_time(self, ms: int) -> None:
        """Calls the callbacks that are due by then, the earliest first."""
        later, self._later = self._later, []
        due = sorted((entry for entry in later if entry[0] <= ms), key=lambda entry: entry[0])
        self._later += [(delay_ms - ms, callback) for delay_ms, callback in later if delay_ms > ms]
        for _, callback in due:
            self._run_turn(callback)


class LockRuntime:
    """The owner is the thread that holds `lock`. Background work takes the lock to come back."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._timers: set[threading.Timer] = set()
        self._flush: Callable[[], None] | None = None
        self._run_turn: Turn = _run

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return ThreadBackground(f"topics-{name}", self._post)

    def _post(self, callback: Callable[[], None]) -> None:
        with self.lock:
            self._run_turn(callback)
            if self._flush is not None:
                self._flush()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        # The thread that holds the lock flushes before it releases the lock: see `_post` and `topics.embedded.log`.
        self._flush = flush

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            self._post(callback)

        timer = threading.Timer(delay_ms / 1000, fire)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def end_timers(self) -> None:
        """The log is closed: nothing is called any more. Not by the thread that holds the lock: a timer may need it."""
        for timer in list(self._timers):
            timer.cancel()
            timer.join()
        self._timers.clear()


class LoopRuntime:
    """The owner is the thread of a running asyncio loop: one flush per turn, all writes of it in one group."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flush: Callable[[], None] | None = None
        self._run_turn: Turn = _run
        # How long a group waits for more writes to join it. Under load it saves writes and syncs; acks come later,
        # never before the commit.
        self.commit_window_ms = 0.0

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def background(self, name: str) -> Background:
        return ThreadBackground(f"topics-{name}", self._post, self._defer)

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

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, self._run_turn, callback)

    def _run_flush(self) -> None:
        flush, self._flush = self._flush, None
        if flush is not None:
            flush()


def _run(callback: Callable[[], None]) -> None:
    callback()
