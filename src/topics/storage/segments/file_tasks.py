"""Where a checkpoint job syncs files: on the caller, or on a few threads.

A sync waits for the disk, not for a core, and disks finish several syncs that wait at the same time together: forty
files take 150 ms one after the other and 20 ms on eight threads.

A thread gets small syncs in groups. With many small files, threads would else spend more time on taking the interpreter
from each other than on syncs: a job with 10,000 of them took 44 % of its CPU time for that.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from topics.limits import MIB

# Syncs that may wait for the disk at the same time.
THREADS_MAX: Final = 8
# A group ends with this many pieces of work, or this many bytes to sync.
GROUP_COUNT: Final = 8
GROUP_BYTES: Final = MIB
# Groups that may be under way: each piece of work has a file open.
GROUPS_MAX: Final = 2 * THREADS_MAX

Work = Callable[[], None]
Wait = Callable[[], None]
"""Waits for the end of a piece of work, and raises its error."""


class FileTasks(Protocol):
    def start(self, work: Work, size_bytes: int) -> Wait:
        """Work that syncs so many bytes. It begins soon, and at the latest when it is waited for."""
        ...


class InlineTasks:
    """On the caller, at once: for tests that count every file-system call, and for single segments."""

    def start(self, work: Work, size_bytes: int) -> Wait:
        work()
        return _done


class _Group:
    """Pieces of work that one thread does, one after the other."""

    __slots__ = ("errors", "ran", "size_bytes", "works")

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.size_bytes = 0
        # Set when a thread has got the group.
        self.ran: Future[None] | None = None
        # By the place of the work.
        self.errors: dict[int, BaseException] = {}

    def run(self) -> None:
        for place, work in enumerate(self.works):
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the wait for this work raises it.
                self.errors[place] = error


class ThreadTasks:
    """On threads, in any order. `close` waits for everything that was started."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, "files")
        self._next = _Group()
        self._under_way: deque[Future[None]] = deque()

    def start(self, work: Work, size_bytes: int) -> Wait:
        group = self._next
        place = len(group.works)
        group.works.append(work)
        group.size_bytes += size_bytes
        if len(group.works) >= GROUP_COUNT or group.size_bytes >= GROUP_BYTES:
            self._hand_over()
        return lambda: self._wait(group, place)

    def _hand_over(self) -> None:
        group, self._next = self._next, _Group()
        if len(self._under_way) >= GROUPS_MAX:
            self._under_way.popleft().result()
        group.ran = self._pool.submit(group.run)
        self._under_way.append(group.ran)

    def _wait(self, group: _Group, place: int) -> None:
        if group.ran is None:
            assert group is self._next
            self._hand_over()
        assert group.ran is not None
        group.ran.result()
        if (error := group.errors.get(place)) is not None:
            raise error

    def close(self) -> None:
        if self._next.works:
            self._hand_over()
        self._pool.shutdown()


def _done() -> None:
    pass
