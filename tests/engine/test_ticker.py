"""The ticker: often while work is due soon, once a second else. The tests say when time has passed."""

from topics.engine.runtime import InlineRuntime
from topics.engine.ticker import Ticker
from topics.limits import SLOW_TICK_MS, TICK_MS


class Work:
    """Counts ticks. `left` of them say that more work is due soon."""

    def __init__(self) -> None:
        self.ticks = 0
        self.left = 0

    def tick(self) -> bool:
        self.ticks += 1
        self.left -= 1
        return self.left > 0


def started() -> tuple[InlineRuntime, Ticker, Work]:
    runtime, ticker, work = InlineRuntime(), Ticker(), Work()
    ticker.start(runtime, work.tick)
    pass_ticks(runtime, 1)
    work.ticks = 0
    return runtime, ticker, work


def pass_ticks(runtime: InlineRuntime, count: int) -> None:
    for _ in range(count):
        runtime.pass_time(TICK_MS)


def test_it_ticks_soon_after_the_start() -> None:
    runtime, ticker, work = InlineRuntime(), Ticker(), Work()
    ticker.wake()
    ticker.start(runtime, work.tick)
    runtime.pass_time(TICK_MS)
    assert work.ticks == 1


def test_with_nothing_to_do_it_ticks_once_a_second() -> None:
    runtime, _, work = started()
    pass_ticks(runtime, 10 * SLOW_TICK_MS // TICK_MS)
    assert work.ticks == 10


def test_it_ticks_often_until_no_work_is_due_soon() -> None:
    runtime, ticker, work = started()
    work.left = 5
    ticker.wake()
    ticker.wake()
    pass_ticks(runtime, 4)
    assert work.ticks == 4
    pass_ticks(runtime, 10)
    assert work.ticks == 5


def test_a_slow_tick_that_finds_work_is_followed_by_fast_ones() -> None:
    runtime, _, work = started()
    work.left = 3
    pass_ticks(runtime, SLOW_TICK_MS // TICK_MS + 3)
    assert work.ticks == 3


def test_after_a_stop_it_does_not_tick() -> None:
    runtime, ticker, work = started()
    ticker.wake()
    ticker.stop()
    ticker.wake()
    pass_ticks(runtime, 100)
    assert work.ticks == 0
