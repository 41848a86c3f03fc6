"""The pressure governor: measures how loaded the server is, and decides what to do about it.

Every 100 ms it measures three things: how many topics wait in the ready set, how late the loop is (smoothed, against
5 ms), and how much work waits for a thread of the pool. Each measure is 0 while no client notices the load, and 1 when
every client does. The pressure is the largest of the three. An idle server has a pressure of exactly 0, and takes none
of these steps:

| Pressure | Step |
|---|---|
| > 0.2 | pushes wait up to 20 ms for more records: larger frames, fewer of them |
| > 0.4 | commits wait for more writes, from 0.5 up to 10 ms |
| > 0.8 for a second | until it is below 0.6, routers run one band lower, and topics of the lowest band are not pushed |
| about 1 | a write that finds the commit queue full is refused with a time to come back |

The steps cost latency, never data or order.

`Governor` is pure: it gets samples. `PressureMeter` takes the samples on the loop and calls `act` after each. It rests
when the pressure was 0 and no request came for a second. The next request wakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from topics.server.work_pool import WorkPool

SAMPLE_INTERVAL_MS: Final = 100

# For each measure: the value up to which it counts as 0, and the value from which it counts as 1.
READY_DEPTH_CALM: Final = 1000
READY_DEPTH_FULL: Final = 10_000
LAG_MS_CALM: Final = 5.0
LAG_MS_FULL: Final = 50.0
POOL_WAITING_CALM: Final = 16
POOL_WAITING_FULL: Final = 256
# Share of the newest sample in the smoothed lag: one late turn changes little, a second of late turns does.
LAG_SHARE: Final = 0.2

COALESCE_ABOVE: Final = 0.2
COALESCE_MS_MAX: Final = 20.0
COMMIT_WINDOW_ABOVE: Final = 0.4
COMMIT_WINDOW_MS_MIN: Final = 0.5
COMMIT_WINDOW_MS_MAX: Final = 10.0
STRAINED_ABOVE: Final = 0.8
STRAINED_SAMPLES: Final = 10
RELIEVED_BELOW: Final = 0.6
REFUSE_FROM: Final = 0.99
# Samples in a row without pressure and requests, after which the meter rests.
QUIET_SAMPLES: Final = 10
RETRY_AFTER_MS: Final = 1000
"""The same time as in the header `Retry-After`."""

assert RELIEVED_BELOW < STRAINED_ABOVE < REFUSE_FROM


class Load(NamedTuple):
    """One sample of the load."""

    ready_depth: int = 0
    lag_ms: float = 0.0
    pool_waiting: int = 0


class Governor:
    """The pressure after each sample, and the steps that follow from it."""

    def __init__(self) -> None:
        self.pressure = 0.0
        # The pressure was high for a while, and has not fallen far enough since.
        self.is_strained = False
        self._lag_ms = 0.0
        # Samples in a row above the limit.
        self._high_count = 0

    def note(self, load: Load) -> None:
        self._lag_ms += (max(load.lag_ms, 0.0) - self._lag_ms) * LAG_SHARE
        self.pressure = max(
            _share_between(load.ready_depth, READY_DEPTH_CALM, READY_DEPTH_FULL),
            _share_between(self._lag_ms, LAG_MS_CALM, LAG_MS_FULL),
            _share_between(load.pool_waiting, POOL_WAITING_CALM, POOL_WAITING_FULL),
        )
        self._high_count = self._high_count + 1 if self.pressure > STRAINED_ABOVE else 0
        if self._high_count >= STRAINED_SAMPLES:
            self.is_strained = True
        elif self.pressure < RELIEVED_BELOW:
            self.is_strained = False

    @property
    def coalesce_ms(self) -> float:
        """How long a push waits for more records to go with it."""
        return COALESCE_MS_MAX * _share_between(self.pressure, COALESCE_ABOVE, 1.0)

    @property
    def commit_window_ms(self) -> float:
        """How long a write waits for other writes to be committed with it."""
        if self.pressure <= COMMIT_WINDOW_ABOVE:
            return 0.0
        grown = (COMMIT_WINDOW_MS_MAX - COMMIT_WINDOW_MS_MIN) * _share_between(self.pressure, COMMIT_WINDOW_ABOVE, 1.0)
        return COMMIT_WINDOW_MS_MIN + grown

    @property
    def refuses_writes(self) -> bool:
        """Whether a write that finds the commit queue full is refused. Below this pressure it waits for room."""
        return self.pressure >= REFUSE_FROM


def _share_between(value: float, calm: float, full: float) -> float:
    """0 up to `calm`, 1 from `full` on, linear between them."""
    return min(max((value - calm) / (full - calm), 0.0), 1.0)


class PressureMeter:
    """Takes a sample every 100 ms while the server has something to do. Loop thread only."""

    def __init__(
        self,
        governor: Governor,
        loop: asyncio.AbstractEventLoop,
        pool: WorkPool,
        ready_depth: Callable[[], int],
        act: Callable[[Governor], None],
    ) -> None:
        self._governor = governor
        self._loop = loop
        self._pool = pool
        self._ready_depth = ready_depth
        # Called after each sample.
        self._act = act
        # Set at a request, and cleared by each sample. Requests call `note_request` while it is not set.
        self.has_requests = False
        self._quiet_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def note_request(self) -> None:
        self.has_requests = True
        if self._timer is None and not self._is_stopped:
            self._quiet_count = 0
            self._sample_later()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _sample_later(self) -> None:
        due_at = self._loop.time() + SAMPLE_INTERVAL_MS / 1000
        self._timer = self._loop.call_at(due_at, self._sample, due_at)

    def _sample(self, due_at: float) -> None:
        lag_ms = (self._loop.time() - due_at) * 1000
        self._governor.note(Load(self._ready_depth(), lag_ms, self._pool.waiting_count))
        self._act(self._governor)
        is_quiet = not self.has_requests and self._governor.pressure == 0.0
        self._quiet_count = self._quiet_count + 1 if is_quiet else 0
        self.has_requests = False
        if self._quiet_count < QUIET_SAMPLES:
            self._sample_later()
        else:
            self._timer = None
