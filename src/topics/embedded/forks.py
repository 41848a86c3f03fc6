"""A process that was forked from one with an open log: the log belongs to the parent alone.

Both processes would write the same files. So in the child every open log is closed, without touching a file, and the
child lets go of the lock of the directory: the parent decides when the directory is free.
"""

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class OpenLog(Protocol):
    def leave_to_parent(self) -> None:
        """This process is a child: the log is closed here, and stays open in the parent."""
        ...


_open_logs: WeakSet[OpenLog] = WeakSet()


def note_open(log: OpenLog) -> None:
    """From here on a forked child has this log closed."""
    _watch_forks()
    _open_logs.add(log)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_leave_all)


def _leave_all() -> None:
    for log in list(_open_logs):
        log.leave_to_parent()
    _open_logs.clear()
