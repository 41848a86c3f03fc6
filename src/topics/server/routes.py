"""Which path and method is which endpoint, and what a caller needs for it (http-api.md §§2, 4.3, 20)."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from topics.server.auth import WRITE
from topics.server.exchange import Exchange

Handler = Callable[[Exchange], None]

TOPICS_PREFIX: Final = b"/v0/topics/"


class Body(Enum):
    """What an endpoint does with a request body."""

    IGNORED = "ignored"
    REQUIRED = "required"
    # An empty one stands for `{}`, whatever its type.
    OPTIONAL = "optional"


class Access(Enum):
    """Whether an endpoint needs a key."""

    KEY = "key"
    OPEN = "open"
    # Open unless the operator wants a key for probes too.
    PROBE = "probe"


class Endpoint(NamedTuple):
    name: str
    handler: Handler
    # All of these scopes are needed.
    scopes: int = 0
    body: Body = Body.IGNORED
    access: Access = Access.KEY
    # Answers also while the log is being recovered.
    before_ready: bool = False


class Match(NamedTuple):
    """What a path leads to: endpoints by method (none for an unknown path), and the name in it, decoded."""

    endpoints: dict[bytes, Endpoint]
    # None where the path has no name, or one that is not UTF-8.
    name: str | None
    has_name: bool
    # Scopes that an unknown method or sub-path needs.
    fallback_scopes: int


_NOWHERE: Final = Match({}, None, False, 0)

# Paths whose match is remembered. Whoever asks for others all the time gets them matched anew.
_REMEMBERED_MAX: Final = 4096
_REMEMBERED_BYTES_MAX: Final = 512


class RouteTable:
    """Endpoints at fixed paths, and below a topic's name by action."""

    def __init__(self) -> None:
        self._fixed: dict[bytes, Match] = {}
        self._by_action: dict[bytes, dict[bytes, Endpoint]] = {}
        self._remembered: dict[bytes, Match] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """A path is fixed, or `/v0/topics/{topic}` with an action behind it or not."""
        prefix, name, action = path.partition("{topic}")
        if name:
            assert prefix.encode() == TOPICS_PREFIX
            self._by_action.setdefault(action.removeprefix("/").encode(), {})[method.encode()] = endpoint
        else:
            self._fixed.setdefault(path.encode(), Match({}, None, False, 0)).endpoints[method.encode()] = endpoint

    def endpoints(self) -> Iterator[tuple[str, str, Endpoint]]:
        """Every endpoint with its method, and its path as it was added."""
        for path, match in self._fixed.items():
            for method, endpoint in match.endpoints.items():
                yield method.decode(), path.decode(), endpoint
        for action, endpoints in self._by_action.items():
            path = TOPICS_PREFIX + b"{topic}" + (b"/" + action if action else b"")
            for method, endpoint in endpoints.items():
                yield method.decode(), path.decode(), endpoint

    def match(self, path: bytes) -> Match:
        match = self._remembered.get(path)
        if match is None:
            match = self._match(path)
            if len(path) <= _REMEMBERED_BYTES_MAX:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[path] = match
        return match

    def _match(self, path: bytes) -> Match:
        if not path.startswith(TOPICS_PREFIX):
            return self._fixed.get(path, _NOWHERE)
        segment, slash, action = path[len(TOPICS_PREFIX) :].partition(b"/")
        try:
            name = decoded_segment(segment).decode()
        except UnicodeDecodeError:
            name = None
        endpoints = {} if not segment or (slash and not action) else self._by_action.get(action, {})
        return Match(endpoints, name, True, WRITE)


def allowed_methods(endpoints: dict[bytes, Endpoint]) -> str:
    methods = {method.decode() for method in endpoints}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def decoded_segment(segment: bytes) -> bytes:
    """A path segment with its escapes resolved; a broken escape stays as it is."""
    return unquote_to_bytes(segment) if b"%" in segment else segment
