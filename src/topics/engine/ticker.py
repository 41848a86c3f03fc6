"""When the regular work of an engine runs: often while some of it is due soon, else once a second.

An engine with nothing to do sleeps. So each part that will have work soon says so (`wake`), and a tick says whether
more work is due soon. The slow tick is for work that no part announces, such as a checkpoint after a minute. Owner
only.
"""

from collections.abc import Callable

from topics.engine.runtime import Runtime
from topics.limits import SLOW_TICK_MS, TICK_MS


class Ticker:
    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._tick: Callable[[], bool]
        # Whether a fast tick is due.
        self._is_awake = False

    def start(self, runtime: Runtime, tick: Callable[[], bool]) -> None:
        """From here on `tick` is called. It returns whether it must be called again soon."""
        self._runtime = runtime
        self._tick = tick
        self._is_awake = False
        self.wake()
        runtime.call_later(SLOW_TICK_MS, self._slow_tick)

    def stop(self) -> None:
        self._runtime = None

    def wake(self) -> None:
        """Something will be due soon: there is a tick after `TICK_MS`."""
        if not self._is_awake and self._runtime is not None:
            self._is_awake = True
            self._runtime.call_later(TICK_MS, self._fast_tick)

    def _fast_tick(self) -> None:
        if self._runtime is not None:
            self._is_awake = False
            if self._tick():
                self.wake()

    def _slow_tick(self) -> None:
        if self._runtime is not None:
            if not self._is_awake and self._tick():
                self.wake()
            self._runtime.call_later(SLOW_TICK_MS, self._slow_tick)
