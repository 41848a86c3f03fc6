"""Which server a command asks, and with which key.

The first of these that is given: `--server`; `--context`; TOPICS_URL; TOPICS_CONTEXT; the context in use; port 4000 of
this machine. A key goes to no other server than the one that it was given with: the key of a context is sent only to
the server of that context.
"""

import os
from typing import Final, NamedTuple

from topics.cli.remote.contexts import Context, Contexts, load_contexts

DEFAULT_URL: Final = "http://127.0.0.1:4000"
_DEFAULT_ORIGIN: Final = "the default"


class Target(NamedTuple):
    """A server. `origin` says for people where the address comes from."""

    url: str
    key: str | None
    ca_file: str | None
    origin: str

    @property
    def is_default(self) -> bool:
        """Nobody has named a server."""
        return self.origin == _DEFAULT_ORIGIN

    def __repr__(self) -> str:
        return f"Target({self.url}, from {self.origin})"


def find_target(server: str | None = None, key: str | None = None, context: str | None = None) -> Target:
    """The server that the flags, the environment and the contexts name. Raises `ContextNotFound`."""
    environment_key = os.environ.get("TOPICS_KEY") or None
    ca_file = os.environ.get("TOPICS_CA_FILE") or None
    if server:
        return Target(server, key or environment_key, ca_file, "--server")
    if context:
        return _of_context(load_contexts(), context, key, "--context")
    if url := os.environ.get("TOPICS_URL"):
        return Target(url, key or environment_key, ca_file, "TOPICS_URL")
    contexts = load_contexts()
    if name := os.environ.get("TOPICS_CONTEXT"):
        return _of_context(contexts, name, key, "TOPICS_CONTEXT")
    if contexts.current:
        return _of_context(contexts, contexts.current, key or environment_key, "the context in use")
    return Target(DEFAULT_URL, key or environment_key, ca_file, _DEFAULT_ORIGIN)


def _of_context(contexts: Contexts, name: str, key: str | None, origin: str) -> Target:
    found: Context = contexts.find(name)
    return Target(found.server, key or found.key or None, found.ca_file or None, f'context "{name}" ({origin})')
