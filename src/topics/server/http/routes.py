"""The route table: which path and method lead to which endpoint, and what a caller needs for it."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from topics.server.auth import ADMIN, READ, WRITE
from topics.server.http.exchange import Exchange
from topics.server.settings_schema import ServerSettings

Handler = Callable[[Exchange], None]


class Place(NamedTuple):
    """Paths with a name in them: `prefix`, the name, and an optional action."""

    prefix: bytes
    parameter: str
    # Scopes that an unknown method or action needs.
    fallback_scopes: int
    # Whether the prefixes of a key limit these names.
    is_guarded: bool = True


PLACES: Final = (
    Place(b"/v0/topics/", "{topic}", WRITE),
    Place(b"/v0/routers/", "{router}", ADMIN),
    Place(b"/v0/watch/", "{wid}", 0, is_guarded=False),
    # The prefixes of a key limit topics, not writers. The endpoints of writers check the topics.
    Place(b"/v0/writers/", "{writer}", WRITE, is_guarded=False),
    # A stream may be named by its number. The endpoints check the name that belongs to it.
    Place(b"/v0/streams/", "{stream}", READ, is_guarded=False),
)


# Parts of actions with a name after them, and the parameter for that name in paths.
NAMED_ACTIONS: Final = {b"groups": b"{group}", b"topics": b"{topic}", b"partitions": b"{partition}"}


class Body(Enum):
    """What an endpoint does with a request body."""

    IGNORED = "ignored"
    REQUIRED = "required"
    # An empty body stands for `{}`, and needs no content type.
    OPTIONAL = "optional"
    # Required. An empty body needs no content type: the endpoint refuses it as empty (400, not 415).
    REFUSED_WHEN_EMPTY = "refused_when_empty"


class Access(Enum):
    """Whether an endpoint needs a key."""

    KEY = "key"
    OPEN = "open"
    # Open, unless the operator requires a key for probes too.
    PROBE = "probe"
    # The endpoint checks the key itself.
    OWN = "own"


class Endpoint(NamedTuple):
    name: str
    handler: Handler
    # The key needs all of these scopes.
    scopes: int = 0
    body: Body = Body.IGNORED
    access: Access = Access.KEY
    # Whether the endpoint answers while the log is being recovered.
    before_ready: bool = False
    # Whether a body may be as large as the settings allow. Other bodies have at most 1 MiB.
    takes_large_body: bool = False
    # Whether the key may be in the query (`token`), for a browser's EventSource, which cannot send headers.
    takes_query_token: bool = False
    # Whether it is a file of the web console. A link of any web page may open it.
    is_page: bool = False


class Match(NamedTuple):
    """The result for a path: endpoints by method (none for an unknown path), and the decoded name in the path."""

    endpoints: dict[bytes, Endpoint]
    # None if the path has no name, or a name that is not UTF-8.
    name: str | None
    has_name: bool
    # Scopes that an unknown method or action needs.
    fallback_scopes: int
    # Whether the prefixes of a key limit the name.
    is_guarded: bool = False
    # The decoded names in the action. None is a name that is not UTF-8.
    inner_names: tuple[str | None, ...] = ()


class Admitted:
    """The endpoint of a known head that passed all checks of a head. It counts as long as the server has the same
    settings."""

    __slots__ = ("before_ready", "handler", "has_plain_json", "inner_names", "name", "route", "settings")

    def __init__(
        self,
        settings: ServerSettings,
        endpoint: Endpoint,
        name: str,
        inner_names: tuple[str, ...],
        *,
        has_plain_json: bool,
    ) -> None:
        self.settings = settings
        self.handler = endpoint.handler
        self.route = endpoint.name
        self.before_ready = endpoint.before_ready
        self.name = name
        self.inner_names = inner_names
        # Type and coding of a body are right: it is JSON and not compressed, or the endpoint ignores it.
        self.has_plain_json = has_plain_json


_NOWHERE: Final = Match({}, None, False, 0)

# Number of paths whose match is remembered. When it is reached, all are forgotten.
_REMEMBERED_MAX: Final = 4096
_REMEMBERED_BYTES_MAX: Final = 512


class RouteTable:
    """Endpoints at fixed paths, and by action at paths with a name."""

    def __init__(self) -> None:
        self._fixed: dict[bytes, Match] = {}
        self._by_action: dict[Place, dict[bytes, dict[bytes, Endpoint]]] = {place: {} for place in PLACES}
        # Files of the web console. They are no part of the API.
        self._pages: dict[bytes, Match] = {}
        self._remembered: dict[bytes, Match] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Adds an endpoint at a fixed path, or at a path such as `/v0/topics/{topic}`, with or without an action."""
        for place, by_action in self._by_action.items():
            if path.startswith(place.prefix.decode() + place.parameter):
                action = path.partition(place.parameter)[2]
                by_action.setdefault(action.removeprefix("/").encode(), {})[method.encode()] = endpoint
                return
        self._fixed.setdefault(path.encode(), Match({}, None, False, 0)).endpoints[method.encode()] = endpoint

    def add_page(self, path: str, endpoint: Endpoint) -> None:
        """Adds a file that a browser gets at a fixed path."""
        assert endpoint.is_page
        self._pages[path.encode()] = Match({b"GET": endpoint}, None, False, 0)

    def endpoints(self) -> Iterator[tuple[str, str, Endpoint]]:
        """Every endpoint of the API with its method and its path, as added."""
        for path, match in self._fixed.items():
            for method, endpoint in match.endpoints.items():
                yield method.decode(), path.decode(), endpoint
        for place, by_action in self._by_action.items():
            for action, endpoints in by_action.items():
                path = place.prefix + place.parameter.encode() + (b"/" + action if action else b"")
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
        for place, by_action in self._by_action.items():
            if path.startswith(place.prefix):
                segment, slash, action = path[len(place.prefix) :].partition(b"/")
                action, inner = _without_names(action)
                endpoints = {} if not segment or (slash and not action) else by_action.get(action, {})
                return Match(
                    endpoints,
                    _decoded_name(segment),
                    True,
                    place.fallback_scopes,
                    place.is_guarded,
                    tuple(map(_decoded_name, inner)),
                )
        return self._fixed.get(path) or self._pages.get(path, _NOWHERE)


def _without_names(action: bytes) -> tuple[bytes, list[bytes]]:
    """Splits an action into the form in which its endpoint was added, and the names in it: `groups/g/commit` gives
    `groups/{group}/commit` and `g`.
    """
    if b"/" not in action:
        return action, []
    parts = action.split(b"/")
    names: list[bytes] = []
    place = 0
    while place + 1 < len(parts):
        parameter = NAMED_ACTIONS.get(parts[place])
        if parameter is None or not parts[place + 1]:
            break
        names.append(parts[place + 1])
        parts[place + 1] = parameter
        place += 2
    return b"/".join(parts), names


def _decoded_name(segment: bytes) -> str | None:
    try:
        return decoded_segment(segment).decode()
    except UnicodeDecodeError:
        return None


def allowed_methods(endpoints: dict[bytes, Endpoint]) -> str:
    methods = {method.decode() for method in endpoints}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def decoded_segment(segment: bytes) -> bytes:
    """A path segment with its escapes decoded. A broken escape stays as it is."""
    return unquote_to_bytes(segment) if b"%" in segment else segment
