"""Executors in this process: all of a job but Spark."""

from collections.abc import Callable, Sequence
from typing import Any


class InProcess:
    """Does tasks one after the other. `around` may be given instead: it gets the items and what to do with each."""

    def __init__(self, around: Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]] | None = None) -> None:
        self._around = around

    def spread(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        if self._around is not None:
            return self._around(items, work)
        return [work(item) for item in items]

    def core_count(self) -> int:
        return 1
