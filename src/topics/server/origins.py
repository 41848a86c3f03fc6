"""Requests of web pages: which origins may call the server, and what a browser is told about it.

A browser says which page sends a request: `Origin` is the page's scheme, host and port, `Sec-Fetch-Site` its relation
to the server. A page cannot change these headers. Programs other than browsers send neither.

Rules:
1. A page of the server's own origin may call it, and so may pages of the origins in `TOPICS_CORS_ORIGINS`.
2. Every other request of a page is refused, whatever its method. A page that may not read an answer can still send the
   request, and `GET …/work` alone takes jobs out of a queue.
3. `Sec-Fetch-Site` decides if it is there: behind a proxy `Host` may have another name than the page sees. Browsers
   send it to loopback addresses and over HTTPS. Without it the host and port of `Origin` must be those of `Host`; the
   scheme is free, because a proxy may end TLS.
4. No cookies are used, so no answer allows credentials.
5. A link of any page may open the web console. Its files contain no data, and the page that has the link cannot read
   them, nor show them in a frame.
"""

import re
from typing import Final
from urllib.parse import urlsplit

Headers = tuple[tuple[bytes, bytes], ...]

ANY_ORIGIN: Final = "*"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s/?#@:*\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_EXPOSED: Final = (
    b"access-control-expose-headers",
    b"Retry-After, Topics-Next-Seq, Topics-Head-Seq, Topics-Id, Topics-Epoch, Topics-Gap",
)
PREFLIGHT_HEADERS: Final[Headers] = (
    (b"access-control-allow-methods", b"DELETE, GET, HEAD, POST, PUT"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID",
    ),
    # Two hours: no browser keeps it longer.
    (b"access-control-max-age", b"7200"),
)


def parse_origins(text: str) -> frozenset[str]:
    """The origins of `TOPICS_CORS_ORIGINS` as browsers write them. Raises `ValueError` with the entry that is none."""
    origins: set[str] = set()
    for entry in text.split(","):
        entry = entry.strip().lower()
        match = _ORIGIN.fullmatch(entry)
        if match is not None:
            scheme, host, port = match.groups()
            is_default = port is None or int(port) == _DEFAULT_PORTS.get(scheme)
            origins.add(f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}")
        elif entry == ANY_ORIGIN:
            origins.add(entry)
        elif entry:
            raise ValueError(entry)
    return frozenset(origins)


class OriginGuard:
    """Does not change after it is made."""

    __slots__ = ("_allows_all", "_headers_by_origin")

    def __init__(self, text: str | None) -> None:
        """`text` is the setting `TOPICS_CORS_ORIGINS`."""
        origins = parse_origins(text or "")
        self._allows_all = ANY_ORIGIN in origins
        self._headers_by_origin: dict[bytes, Headers] = {
            origin.encode(): (
                (b"access-control-allow-origin", origin.encode()),
                (b"vary", b"Origin"),
                _EXPOSED,
            )
            for origin in origins - {ANY_ORIGIN}
        }

    def allows(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the request with these headers comes from a page that may send it, or from no page."""
        origin = headers.get(b"origin")
        if origin is not None and self._is_listed(origin):
            return True
        site = headers.get(b"sec-fetch-site", b"none")
        if site != b"none":
            return site == b"same-origin"
        return origin is None or _is_own(origin, headers.get(b"host", b""))

    def is_preflight(self, headers: dict[bytes, bytes]) -> bool:
        """Whether an OPTIONS request is the question of a browser for a page of a listed origin."""
        origin = headers.get(b"origin")
        return origin is not None and b"access-control-request-method" in headers and self._is_listed(origin)

    def response_headers(self, origin: bytes) -> Headers:
        """The headers that let a page of this origin read the answer. No headers for an origin that is not listed."""
        if self._allows_all:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        return self._headers_by_origin.get(origin, ())

    def _is_listed(self, origin: bytes) -> bool:
        return self._allows_all or origin in self._headers_by_origin


def is_navigation(headers: dict[bytes, bytes]) -> bool:
    """Whether the user goes to the address: a link that is followed, in a window or tab of its own."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and b"origin" not in headers
    )


def _is_own(origin: bytes, host: bytes) -> bool:
    """Whether the origin has the host and port of `Host`. Its scheme gives the default port."""
    scheme, _, authority = origin.decode("latin-1").partition("://")
    return bool(authority) and _place(scheme, authority) == _place(scheme, host.decode("latin-1")) != (None, None)


def _place(scheme: str, authority: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(f"//{authority}")
        return parts.hostname, parts.port or _DEFAULT_PORTS.get(scheme)
    except ValueError:
        return None, None
