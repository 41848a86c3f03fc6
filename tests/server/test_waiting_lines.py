"""Lines of writes that wait for room. The tests turn the loop."""

from collections import deque
from collections.abc import Callable

from topics.server.limits import WRITES_FROM_LINES_PER_TURN
from topics.server.waiting_lines import WaitingLines


class TurnedLoop:
    """As much of a loop as the lines need. A turn makes the calls that were asked for before it."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def turn(self) -> int:
        """Returns how many calls were made."""
        calls, self._calls = self._calls, []
        for call in calls:
            call()
        return len(calls)


class Queue:
    """A queue with some room, and the writes that found it."""

    def __init__(self, lines: WaitingLines, number: int) -> None:
        self._lines = lines
        self._number = number
        self.room = 0
        self.taken: deque[int] = deque()

    def wait(self, write: int) -> None:
        self._lines.add(self._number, lambda: self._try(write))

    def _try(self, write: int) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.taken.append(write)
        return True


def made() -> tuple[TurnedLoop, WaitingLines, Queue, Queue]:
    loop = TurnedLoop()
    lines = WaitingLines(loop)  # type: ignore[arg-type]
    return loop, lines, Queue(lines, 0), Queue(lines, 1)


def test_without_writes_that_wait_nothing_is_asked_of_the_loop() -> None:
    loop, lines, queue, _ = made()
    assert loop.turn() == 0
    queue.wait(1)
    queue.room = 1
    assert (loop.turn(), len(lines)) == (1, 0)
    assert loop.turn() == 0


def test_writes_are_served_in_the_order_in_which_they_came_as_far_as_there_is_room() -> None:
    loop, lines, queue, _ = made()
    for write in range(5):
        queue.wait(write)
    loop.turn()
    assert not queue.taken
    queue.room = 2
    loop.turn()
    queue.wait(5)
    assert list(queue.taken) == [0, 1]
    assert lines.has_line(0)
    queue.room = 10
    loop.turn()
    assert list(queue.taken) == [0, 1, 2, 3, 4, 5]
    assert not lines.has_line(0)


def test_a_queue_without_room_holds_up_no_other_queue() -> None:
    loop, lines, full, other = made()
    full.wait(1)
    other.wait(2)
    other.room = 1
    loop.turn()
    assert list(other.taken) == [2]
    assert (lines.has_line(0), lines.has_line(1)) == (True, False)


def test_one_turn_takes_a_bounded_number_of_writes() -> None:
    loop, _, queue, _ = made()
    count = 2 * WRITES_FROM_LINES_PER_TURN + 1
    for write in range(count):
        queue.wait(write)
    queue.room = count
    counts = []
    while loop.turn():
        counts.append(len(queue.taken))
    assert counts == [WRITES_FROM_LINES_PER_TURN, 2 * WRITES_FROM_LINES_PER_TURN, count]
