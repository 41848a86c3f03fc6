"""`--curl`: the request of a command as a line for a shell. Nothing is sent."""

import shlex
from typing import NoReturn, TypeVar

from topics.client.calls import Call
from topics.client.retrying import Limit
from topics.client.sync.client import Client
from topics.client.sync.connections import Connections

T = TypeVar("T")


class CurlShown(Exception):
    """The command has told its request. `line` is it."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


def curl_line(url: str, call: Call[T], *, has_key: bool) -> str:
    """The key is named by its variable, never shown."""
    line = _request(url, call.method, call.target, call.body, has_key=has_key)
    if call.target.partition("?")[0] != "/v0/watch":
        return line
    # The answer says where the stream is.
    find = r"""sed 's/.*"stream_url":"\([^"]*\)".*/\1/'"""
    return f'curl -sSN{_key(has_key=has_key)} "{url}$({line} | {find})"'


def _request(url: str, method: str, target: str, body: bytes | None, *, has_key: bool) -> str:
    line = "curl -sS"
    if method != ("GET" if body is None else "POST"):
        line += f" -X {method}"
    line += f" {shlex.quote(url + target)}{_key(has_key=has_key)}"
    if body is not None:
        line += f" -H 'Content-Type: application/json' -d {shlex.quote(body.decode('utf-8', 'backslashreplace'))}"
    return line


def _key(*, has_key: bool) -> str:
    return ' -H "Authorization: Bearer $TOPICS_KEY"' if has_key else ""


class _ShownConnections(Connections):
    """Takes requests and raises `CurlShown` for the first."""

    def ask_once(self, call: Call[T], limit: Limit) -> NoReturn:
        raise CurlShown(curl_line(self.endpoint.url, call, has_key=bool(self.endpoint.token_headers)))

    def stream_once(self, target: str, limit: Limit) -> NoReturn:
        has_key = bool(self.endpoint.token_headers)
        line = _request(self.endpoint.url, "GET", target, None, has_key=has_key)
        raise CurlShown(line.replace("curl -sS", "curl -sSN", 1))


class CurlClient(Client):
    """A client whose first call raises `CurlShown`."""

    def __init__(self, url: str, token: str | None) -> None:
        super().__init__(url, token=token)
        self._connections = _ShownConnections(self._connections.endpoint, None)
