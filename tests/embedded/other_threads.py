"""Waiting for what another thread does."""

import threading
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool]) -> None:
    """Nothing tells when another thread begins to wait, so this asks again and again."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.001)
