"""The address of a server, and the headers that every request to it has.

No message of this module shows the address, which may contain a password, or the token.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from topics.errors import InvalidRequest

# Checked here: an HTTP parser would show a bad value in its error.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Endpoint(NamedTuple):
    """Where a server is. `head` are the header lines of every request."""

    url: str
    is_tls: bool
    host: str
    port: int
    head: bytes

    @classmethod
    def parse(cls, url: str, token: str | None) -> Endpoint:
        try:
            address = urlsplit(url)
            host, port = address.hostname, address.port
        except ValueError as error:
            raise InvalidRequest("the endpoint must look like http://host:4000") from error
        if address.scheme not in {"http", "https"} or not host:
            raise InvalidRequest("the endpoint must look like http://host:4000")
        if address.username is not None or address.path.rstrip("/") or address.query or address.fragment:
            raise InvalidRequest("the endpoint is http:// or https://, a host and a port, and nothing else")
        if not _TOKEN.fullmatch(address.netloc):
            raise InvalidRequest("the endpoint has characters that no host has")
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidRequest("the token is empty or has characters that no token has, such as a line break")
        is_tls = address.scheme == "https"
        head = f"Host: {address.netloc}\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        return cls(
            f"{address.scheme}://{address.netloc}",
            is_tls,
            host,
            port or (443 if is_tls else 80),
            head.encode("latin-1"),
        )

    @property
    def websocket_url(self) -> str:
        return f"ws{self.url.removeprefix('http')}/v0/ws"

    @property
    def token_headers(self) -> list[tuple[str, str]]:
        """The header with the token, for a library that makes its requests itself."""
        lines = self.head.decode("latin-1").splitlines()
        return [("Authorization", line.partition(": ")[2]) for line in lines if line.startswith("Authorization")]

    def __repr__(self) -> str:
        return f"Endpoint({self.url})"
