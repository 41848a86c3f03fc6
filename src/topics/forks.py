"""A process that was forked from one with open logs or connections: they belong to the parent alone.

Both processes would write the same files, or the same sockets. So in the child every open log is closed, without
touching a file, and lets go of the lock of the directory: the parent decides when the directory is free. The sockets of
connections lead nowhere in the child, and it makes connections of its own.
"""

import os
import socket
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    def leave_to_parent(self) -> None:
        """This process is a child: from here on it has no part in what stays open in the parent."""
        ...


_open: WeakSet[Inherited] = WeakSet()


def note_open(one: Inherited) -> None:
    """From here on a forked child leaves this to its parent."""
    _watch_forks()
    _open.add(one)


def lead_nowhere(descriptor: int) -> None:
    """The descriptor of a socket stays open, and is no longer that of the parent: its connection looks broken.

    Closing it is not enough: its number would soon be that of another file, and what closes the socket later, such as
    the garbage collector, would close that file. Left as it is, the socket could be shut down from here, or be taken
    out of the epoll set that an event loop of the child has in common with that of the parent.
    """
    broken, other = socket.socketpair()
    other.close()
    with broken:
        os.dup2(broken.fileno(), descriptor, inheritable=False)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_leave_all)


def _leave_all() -> None:
    for one in list(_open):
        one.leave_to_parent()
    _open.clear()
