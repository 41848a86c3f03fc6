"""What to do next after an error: the nearest name, or how to reach a server."""

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from topics.cli.remote.contexts import ContextNotFound
from topics.cli.remote.target import Target
from topics.client.retrying import Unreachable
from topics.errors import (
    Forbidden,
    GroupNotFound,
    NotAQueue,
    RouterNotFound,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)

if TYPE_CHECKING:
    from topics.client.sync.client import Client


def explained(error: TopicsError, target: Target, ask: "Callable[[], Client]") -> str:
    """The error and the next step. `ask` gives a client that does not wait long, for the names that there are."""
    message = error.message.rstrip(".")
    match error:
        case Unreachable():
            return _unreachable(error, target)
        case Unauthorized():
            return f"{message}; set TOPICS_KEY, or add a context with the key: topics context add --help"
        case Forbidden():
            return f"{message}; the key that was sent comes with {target.origin}"
        case ContextNotFound():
            return message + nearest(error.name, error.known, "topics context ls")
        case NotAQueue():
            return f"{message}; `topics queue ls` lists the queues"
    detail = error.detail or {}
    topic, group, router = (str(detail.get(member, "")) for member in ("topic", "group", "router"))
    try:
        match error:
            case TopicNotFound():
                return message + nearest(topic, ask().topics(), "topics topic ls")
            case RouterNotFound():
                return message + nearest(router, [one.router for one in ask().routers()], "topics router ls")
            case GroupNotFound():
                names = [one.group for one in ask().groups(topic)]
                return message + nearest(group, names, f"topics group ls {topic}")
    except TopicsError:
        # The names are a help only: the error itself is told.
        pass
    return message


def nearest(name: str, known: Iterable[str], command: str) -> str:
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if found:
        return f'; did you mean "{found[0]}"?'
    return f"; `{command}` lists what there is" if names else "; there is none yet"


def _unreachable(error: TopicsError, target: Target) -> str:
    if isinstance(error.__cause__, ConnectionRefusedError):
        return (
            f"no server listens on {target.url} (from {target.origin}); start one with `topics serve`, "
            "or name yours with --server, TOPICS_URL or `topics context use`"
        )
    return f"{error.message}; the address comes from {target.origin}"
