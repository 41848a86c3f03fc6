"""Names for the shell's completion: of topics, queues, routers, groups, streams and contexts.

A completion must not disturb: the server has half a second, and what goes wrong gives no names.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from topics.cli.remote.contexts import load_contexts
from topics.cli.remote.target import find_target

if TYPE_CHECKING:
    from topics.client.sync.client import Client

TIMEOUT_S: Final = 0.5


def complete_contexts(incomplete: str) -> list[str]:
    try:
        return [name for name in sorted(load_contexts().by_name) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - the outer edge of a completion
        return []


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, lambda client: client.topics(incomplete))


def complete_queues(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, lambda client: [one.topic for one in client.topic_list(incomplete) if one.type == "queue"])


def complete_routers(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, lambda client: [one.router for one in client.routers(incomplete)])


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups of the topic that is already given."""
    topic = str(ctx.params.get("topic") or "")
    return _names(ctx, lambda client: [one.group for one in client.groups(topic) if one.group.startswith(incomplete)])


def complete_streams(ctx: typer.Context, incomplete: str) -> list[str]:
    """Streams, and the topics of the one that is given or the only one that fits: `orders`, `orders/events`."""

    def find(client: "Client") -> list[str]:
        stream, slash, topic = incomplete.partition("/")
        names = [stream] if slash else [one.name for one in client.streams(stream)]
        inner = client.stream(names[0]).topics if len(names) == 1 else []
        paths = [f"{names[0]}/{one.name}" for one in inner if one.name.startswith(topic)]
        return paths if slash else names + paths

    return _names(ctx, find)


def _names(ctx: typer.Context, find: "Callable[[Client], Iterable[str]]") -> list[str]:
    try:
        from topics.client.sync.client import Client

        target = find_target(*(ctx.params.get(name) for name in ("server", "key", "context")))
        with Client(
            target.url,
            token=target.key,
            ca_file=target.ca_file,
            timeout_s=TIMEOUT_S,
            deadline_s=TIMEOUT_S,
            retries=0,
        ) as client:
            return list(find(client))
    except Exception:  # noqa: BLE001 - the outer edge of a completion
        return []
