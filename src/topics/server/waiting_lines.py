"""Writes that wait for room in a commit queue: one line for each queue, first come first served.

A write that waits keeps its connection waiting, so there is at most one for each connection. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from topics.server.limits import ROOM_RETRY_MS, WRITES_FROM_LINES_PER_TURN

Try = Callable[[], bool]
"""Tries the write again. False if there is still no room. It is not called again after True."""


class WaitingLines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # By the number of the queue.
        self._lines: dict[int, deque[Try]] = {}

    def __len__(self) -> int:
        """Lines in which a write waits."""
        return len(self._lines)

    def has_line(self, queue: int) -> bool:
        """Whether writes wait for room in this queue. A write that comes now is tried after them."""
        return queue in self._lines

    def add(self, queue: int, try_again: Try) -> None:
        if not self._lines:
            self._loop.call_later(ROOM_RETRY_MS / 1000, self._try_all)
        self._lines.setdefault(queue, deque()).append(try_again)

    def _try_all(self) -> None:
        """Tries the first write of each line. After one that found room the next one is tried, up to the bound of a
        turn."""
        left = WRITES_FROM_LINES_PER_TURN
        for queue, line in list(self._lines.items()):
            while line and left > 0 and line[0]():
                line.popleft()
                left -= 1
            if not line:
                del self._lines[queue]
        if not self._lines:
            return
        if left > 0:
            self._loop.call_later(ROOM_RETRY_MS / 1000, self._try_all)
        else:
            self._loop.call_soon(self._try_all)
