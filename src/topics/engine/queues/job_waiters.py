"""Callers that wait for jobs of a queue: woken by a publication, a returned job, or a lease or delay that ends. Owner
only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.engine.core import Core
from topics.engine.topic.topic import Topic, Waiter


class JobWaiters:
    def __init__(self, core: Core, now_ms: Callable[[], int]) -> None:
        self._core = core
        # The time of leases.
        self._now_ms = now_ms
        # Waiter -> what the topic calls when records are published, by topic.
        self._waiters: dict[Topic, dict[Waiter, Waiter]] = {}
        # When a timer is due, by topic.
        self._timers: dict[Topic, int] = {}

    def add(self, topic: Topic, waiter: Waiter) -> None:
        self.remove(topic, waiter)
        published = partial(self._published, topic, waiter)
        self._waiters.setdefault(topic, {})[waiter] = published
        topic.add_waiter(published)
        self.set_timer(topic)

    def remove(self, topic: Topic, waiter: Waiter) -> None:
        published = self._drop(topic, waiter)
        if published is not None:
            topic.remove_waiter(published)

    def _published(self, topic: Topic, waiter: Waiter) -> None:
        self._drop(topic, waiter)
        waiter()

    def _drop(self, topic: Topic, waiter: Waiter) -> Waiter | None:
        waiters = self._waiters.get(topic)
        if waiters is None:
            return None
        published = waiters.pop(waiter, None)
        if not waiters:
            del self._waiters[topic]
        return published

    def wake(self, topic: Topic) -> None:
        """Calls every waiter, once the group has ended."""
        for waiter, published in self._waiters.pop(topic, {}).items():
            topic.remove_waiter(published)
            self._core.call_after_group(waiter)

    def refresh(self, topic: Topic) -> None:
        """Ends the leases and delays whose time is over."""
        assert topic.leases is not None
        if topic.leases.refresh(self._now_ms()):
            self.wake(topic)

    def set_timer(self, topic: Topic) -> None:
        """A lease or delay ends without a call: waiters need a timer for it."""
        assert topic.leases is not None
        due_ms = topic.leases.next_change_ms
        if topic not in self._waiters or due_ms is None or self._timers.get(topic, due_ms + 1) <= due_ms:
            return
        self._timers[topic] = due_ms
        self._core.runtime.call_later(max(due_ms - self._now_ms(), 1), partial(self._due, topic, due_ms))

    def _due(self, topic: Topic, due_ms: int) -> None:
        if self._timers.get(topic) == due_ms:
            del self._timers[topic]
        if topic in self._waiters:
            self.refresh(topic)
            self.set_timer(topic)
