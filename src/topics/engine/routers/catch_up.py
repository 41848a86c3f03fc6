"""A wait for copies: what one caller that reads a dest waits for.

The caller gets the copies of every record that was in the source when it asked. Records that are written to the source
meanwhile do not prolong the wait. A dest has one source at most, so the routers upstream of it are a chain: each router
gets its goal when the router before it has reached its own. In a cycle the chain is gone through as often as a record
may be copied.

Owner only. `forwarding` makes the copies.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.engine.topic.router import Router
from topics.engine.topic.topic import Topic
from topics.limits import ROUTER_HOPS_MAX


class CatchUp:
    __slots__ = ("_place", "_routers", "goal_seq", "then")

    def __init__(self, dest: Topic, then: Callable[[], None]) -> None:
        routers, is_cyclic = _upstream(dest)
        self._routers = routers * ROUTER_HOPS_MAX if is_cyclic else routers
        self._place = 0
        # The present router has to come to this seq of its source.
        self.goal_seq = self._routers[0].source.head_seq if self._routers else 0
        # Called once, when every router has come to its goal.
        self.then = then

    @property
    def router(self) -> Router | None:
        """The router that has to go on; None when all of them have reached their goals."""
        return self._routers[self._place] if self._place < len(self._routers) else None

    def next_router(self) -> None:
        """The present router is done, and its copies are published."""
        self._place += 1
        router = self.router
        self.goal_seq = router.source.head_seq if router is not None else 0


def _upstream(dest: Topic) -> tuple[list[Router], bool]:
    """Routers that can lead a record to this topic, the most distant first; and whether they form a cycle."""
    found: dict[Router, None] = {}
    is_cyclic = False
    seen = {dest}
    layer = [dest]
    while layer:
        routers = [router for topic in layer for router in topic.links.routers_in]
        found.update(dict.fromkeys(routers))
        layer = []
        for source in {router.source: None for router in routers}:
            if source in seen:
                is_cyclic = True
            else:
                seen.add(source)
                layer.append(source)
    return list(reversed(found)), is_cyclic
