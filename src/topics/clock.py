"""Time as a value: all code that needs the time asks a `Clock`.

A wall clock may jump. Records must not expire by the million because of one bad NTP answer. So `SystemClock` compares
the wall clock with the boot clock, which cannot be set, and believes a forward step of more than an hour only after
the step has lasted ten minutes. Steps back are passed on; topics never let `ts` decrease.
"""

import logging
import time
from typing import Final, Protocol

logger = logging.getLogger(__name__)

FORWARD_STEP_MS_MAX: Final = 3_600_000
FORWARD_STEP_BELIEVED_AFTER_MS: Final = 600_000
# Linux: also counts the time in suspend. macOS has no clock of that name.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Never steps; for deadlines and ages inside one process."""
        ...


class SystemClock:
    """The machine's clock, guarded against one large forward step."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - self.monotonic_ms()
        self._doubted_since_ms: int | None = None

    def now_ms(self) -> int:
        wall_ms = time.time_ns() // 1_000_000
        boot_ms = time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000
        step_ms = wall_ms - boot_ms - self._offset_ms
        if step_ms <= FORWARD_STEP_MS_MAX:
            # Small drift and steps back become the new normal.
            self._offset_ms += step_ms
            self._doubted_since_ms = None
            return wall_ms
        return self._doubt(wall_ms, boot_ms, step_ms)

    def _doubt(self, wall_ms: int, boot_ms: int, step_ms: int) -> int:
        if self._doubted_since_ms is None:
            self._doubted_since_ms = boot_ms
            logger.warning("the wall clock jumped %d ms ahead; ignored for ten minutes", step_ms)
        if boot_ms - self._doubted_since_ms >= FORWARD_STEP_BELIEVED_AFTER_MS:
            self._offset_ms = wall_ms - boot_ms
            self._doubted_since_ms = None
            return wall_ms
        return boot_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000
