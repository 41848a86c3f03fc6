"""The room on the disk in metrics: a scrape never waits for the disk."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from topics.server.disk_gauge import DISK_AGE_MS_MIN, DiskGauge, DiskRoom
from topics.testing.clock import ManualClock


class SlowDisk:
    """Hangs from the second measurement on, until `goes_on` is set."""

    def __init__(self) -> None:
        self.measured = 0
        self.goes_on = threading.Event()

    def measure(self) -> tuple[int, int]:
        self.measured += 1
        if self.measured > 1:
            self.goes_on.wait()
        return 100 - self.measured, 100


async def show_while_hanging() -> None:
    clock, disk = ManualClock(), SlowDisk()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as files:
        gauge = DiskGauge(loop, files, clock)
        assert gauge.room() is None
        await gauge.start(disk.measure)
        assert gauge.room() == DiskRoom(99, 100)
        assert disk.measured == 1, "a young measurement is not repeated"
        clock.advance(DISK_AGE_MS_MIN)
        assert gauge.room() == DiskRoom(99, 100)
        assert gauge.room() == DiskRoom(99, 100)
        disk.goes_on.set()
        # Behind the measurement: the pool has one thread.
        await loop.run_in_executor(files, lambda: None)
        assert gauge.room() == DiskRoom(98, 100)
        assert disk.measured == 2, "one measurement at a time"


def test_the_last_measurement_is_shown_while_the_next_one_hangs() -> None:
    asyncio.run(show_while_hanging())


async def show_nothing() -> None:
    with ThreadPoolExecutor(1) as files:
        gauge = DiskGauge(asyncio.get_running_loop(), files, ManualClock())
        await gauge.start(lambda: (0, 0))
        assert gauge.room() is None


def test_a_disk_that_cannot_be_measured_has_no_room_to_show() -> None:
    asyncio.run(show_nothing())
