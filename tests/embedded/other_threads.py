"""Waiting for what another thread does."""

import threading
from collections.abc import Callable


def threads_of_logs() -> set[threading.Thread]:
    """Threads of other tests and libraries may come and go."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(("topics-", "files"))}


def wait_until(is_so: Callable[[], bool]) -> None:
    """Nothing tells when another thread begins to wait, so this asks again and again."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.001)
