"""Names that a key may not see: they are checked in requests, and taken out of answers.

A key with prefixes is told no name outside of them. `names_hidden` counts the names that were left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.errors import (
    Forbidden,
    GroupNotFound,
    RouterCycle,
    RouterNotFound,
    TopicExistsIncompatible,
    TopicNotFound,
    TopicsError,
)
from topics.server.auth import Key

# These errors name only what the caller sent.
_NAMES_AS_SENT: Final = (Forbidden, TopicNotFound, RouterNotFound, GroupNotFound)
# The members of a detail that hold a name of a topic or a router.
_NAME_MEMBERS: Final = ("topic", "router", "existing_source", "existing_dest")


def check_topics(key: Key, topics: Iterable[str]) -> None:
    """Refuses a key that is not for all of these topics, which the caller named."""
    if key.prefixes:
        for topic in topics:
            if not key.may_name(topic):
                raise Forbidden(f'the key is not for the topic "{topic}"', {"topic": topic})


def error_told(error: TopicsError, key: Key | None) -> TopicsError:
    """The error as the caller may read it: without names that its key may not see."""
    detail = error.detail
    if key is None or not key.prefixes or detail is None or isinstance(error, _NAMES_AS_SENT):
        return error
    cycle = detail.get("cycle")
    named = {str(detail[member]) for member in _NAME_MEMBERS if member in detail}
    named.update(map(str, cycle) if isinstance(cycle, list) else ())
    hidden = {name for name in named if not key.may_name(name)}
    if not hidden:
        return error
    shown = {name: value for name, value in detail.items() if name not in _NAME_MEMBERS or value not in hidden}
    if isinstance(cycle, list):
        shown["cycle"] = [name for name in cycle if name not in hidden]
    shown["names_hidden"] = len(hidden)
    told = type(error).__new__(type(error))
    TopicsError.__init__(told, _message(error, len(hidden)), shown)
    return told


def _message(error: TopicsError, hidden_count: int) -> str:
    topics = "1 topic" if hidden_count == 1 else f"{hidden_count} topics"
    if isinstance(error, RouterCycle):
        return f"the router would close a cycle through {topics} that the key may not name"
    if isinstance(error, TopicExistsIncompatible):
        return f"the router has other endpoints already, {topics} that the key may not name among them: delete it first"
    return f"the request failed at {topics} that the key may not name: {error.code}"
