"""Room on the disk of the data directory, for metrics.

A scrape must not wait for a disk that hangs. So it shows the last measurement, and starts the next one on a thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple

from topics.clock import Clock

# A younger measurement is not repeated.
DISK_AGE_MS_MIN: Final = 1000


class DiskRoom(NamedTuple):
    free_bytes: int
    total_bytes: int


class DiskGauge:
    """Loop thread only, except `_measure`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, files: Executor, clock: Clock) -> None:
        self._loop = loop
        self._files = files
        self._clock = clock
        self._measure: Callable[[], tuple[int, int]] | None = None
        self._measured_ms = 0
        self._is_running = False
        # None until it was measured once.
        self._room: DiskRoom | None = None

    async def start(self, measure: Callable[[], tuple[int, int]]) -> None:
        """`measure` returns the free and the total bytes, and may wait for the disk."""
        self._measure = measure
        self._note(await self._loop.run_in_executor(self._files, measure))

    def room(self) -> DiskRoom | None:
        """The last measurement. None while there is none."""
        is_old = self._clock.monotonic_ms() - self._measured_ms >= DISK_AGE_MS_MIN
        if self._measure is not None and is_old and not self._is_running:
            self._is_running = True
            future = self._loop.run_in_executor(self._files, self._measure)
            future.add_done_callback(lambda done: self._note(done.result()))
        return self._room

    def _note(self, measured: tuple[int, int]) -> None:
        self._is_running = False
        self._measured_ms = self._clock.monotonic_ms()
        room = DiskRoom(*measured)
        # A disk without size is one that could not be measured.
        self._room = room if room.total_bytes else None
