"""A cold tier that is slow, hangs or fails when the test says so, and that knows which thread may not wait for it."""

import threading
from collections.abc import Callable
from typing import TypeVar

from topics.errors import ColdUnavailable
from topics.storage.fs import Buffer
from topics.storage.tiers.store import Names, SegmentStore

T = TypeVar("T")


class SlowStore:
    """Answers to `SegmentStore`. Every call takes `delay_s`, waits while the tier hangs, or fails."""

    def __init__(self, inner: SegmentStore) -> None:
        self.inner = inner
        self.address = inner.address
        self.delay_s = 0.0
        self._answers = threading.Event()
        self._answers.set()
        # How many calls still succeed; None: all.
        self.calls_left: int | None = None
        self.calls: list[str] = []
        # The thread that must never wait for the tier, and the calls that it made all the same.
        self.owner: int | None = None
        self.calls_of_owner: list[str] = []
        # Set when a call has begun to hang, and the calls that hang now.
        self.hanging = threading.Event()
        self.calls_hanging: list[str] = []

    def hang(self) -> None:
        self.hanging.clear()
        self._answers.clear()

    def answer(self) -> None:
        """The tier answers again, also the calls that hang."""
        self._answers.set()

    def fail_after(self, calls: int) -> None:
        self.calls_left = calls

    def heal(self) -> None:
        self.calls_left = None
        self.delay_s = 0.0
        self.answer()

    def _call(self, what: str, work: Callable[[], T]) -> T:
        self.calls.append(what)
        if threading.get_ident() == self.owner:
            self.calls_of_owner.append(what)
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        if not self._answers.is_set():
            self.calls_hanging.append(what)
            self.hanging.set()
            self._answers.wait()
            self.calls_hanging.remove(what)
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise ColdUnavailable(f"{self.address}: does not answer")
            self.calls_left -= 1
        return work()

    def put(self, name: str, data: Buffer) -> None:
        self._call(f"put {name}", lambda: self.inner.put(name, data))

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self._call(f"read {name}", lambda: self.inner.read_range(name, offset, size))

    def delete(self, name: str) -> None:
        self._call(f"delete {name}", lambda: self.inner.delete(name))

    def list(self, prefix: str) -> Names:
        return self._call(f"list {prefix}", lambda: self.inner.list(prefix))

    def exists(self, name: str) -> bool:
        return self._call(f"exists {name}", lambda: self.inner.exists(name))

    def size(self, name: str) -> int:
        return self._call(f"size {name}", lambda: self.inner.size(name))

    def close(self) -> None:
        self.inner.close()
