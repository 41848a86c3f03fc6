"""`GET /v0/ws`, for a thread that blocks."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from topics.client.endpoint import Endpoint
from topics.client.retrying import Unreachable

if TYPE_CHECKING:
    import ssl


class WebSocket:
    """One connection, open in a `with` block. It is not repaired when it breaks: subscriptions end with it."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._url = endpoint.url
        self._opening = connect(
            endpoint.websocket_url,
            ssl=tls,
            additional_headers=endpoint.token_headers,
            open_timeout=timeout_s,
            max_size=None,
            compression=None,
        )
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        try:
            self._socket = self._opening.__enter__()
        except (OSError, InvalidHandshake) as error:
            raise Unreachable(f"{self._url} opens no WebSocket: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opening.__exit__(kind, error, traceback)

    def send(self, command: dict[str, Any]) -> None:
        """Sends a command of the contract, such as `{"op": "subscribe", "topic": "orders"}`."""
        assert self._socket is not None
        try:
            self._socket.send(msgspec.json.encode(command).decode())
        except ConnectionClosed as error:
            raise Unreachable(f"the WebSocket is closed: {error}") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message of the server; None if none came in that time."""
        assert self._socket is not None
        try:
            message: dict[str, Any] = msgspec.json.decode(self._socket.recv(timeout_s))
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise Unreachable(f"the WebSocket is closed: {error}") from error
        return message
