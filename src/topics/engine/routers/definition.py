"""What a router may be: its name, its two topics, and the graph that all routers make. Pure."""

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

from topics.engine.names import check_topic_name
from topics.engine.topic.router import RouterSpec
from topics.errors import InvalidRequest

ROUTER_NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}"
_NAME: Final = re.compile(ROUTER_NAME_PATTERN)


def check_router_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} is not a router name: 1 to 255 letters, digits and . _ : > - with a letter or digit first"
        )


def check_endpoints(spec: RouterSpec) -> None:
    check_topic_name(spec.source)
    check_topic_name(spec.dest)
    if spec.source == spec.dest:
        raise InvalidRequest("source and dest of a router must be two different topics")


def closed_cycle(source: str, dest: str, edges: Iterable[tuple[str, str]]) -> list[str] | None:
    """The cycle that an edge from `source` to `dest` closes: names from source to source, or None."""
    after: dict[str, list[str]] = {}
    for tail, head in edges:
        after.setdefault(tail, []).append(head)
    came_from: dict[str, str] = {dest: source}
    waiting = deque([dest])
    while waiting:
        name = waiting.popleft()
        if name == source:
            path = [source]
            step = came_from[source]
            while step != source:
                path.append(step)
                step = came_from[step]
            return [source, *reversed(path[1:]), source]
        for following in after.get(name, ()):
            if following not in came_from:
                came_from[following] = name
                waiting.append(following)
    return None
