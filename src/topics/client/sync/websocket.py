"""`GET /v0/ws`, for a thread that blocks."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from topics.client.answers import Answer, Refused
from topics.client.http1 import BadAnswer
from topics.client.retrying import Limit, Patience, Tries, Unreachable
from topics.client.sync.connections import Connections
from topics.protocol.ws_message import MESSAGE_BYTES_MAX


class WebSocket:
    """One connection, open in a `with` block. It is not repaired when it breaks: subscriptions end with it."""

    def __init__(self, connections: Connections, patience: Patience) -> None:
        self._connections = connections
        self._patience = patience
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        tries = Tries(self._patience, monotonic(), is_repeatable=True)
        self._socket = self._connections.tried(tries, self._opened)
        return self

    def _opened(self, limit: Limit) -> ClientConnection:
        endpoint = self._connections.endpoint
        try:
            return connect(
                endpoint.websocket_url,
                ssl=self._connections.tls,
                additional_headers=endpoint.token_headers,
                open_timeout=limit.next_s(monotonic()),
                max_size=MESSAGE_BYTES_MAX,
                compression=None,
            ).__enter__()
        except InvalidStatus as error:
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise Refused(Answer(response.status_code, headers, bytes(response.body or b""))) from error
        except InvalidHandshake as error:
            raise BadAnswer(f"it opens no WebSocket: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._socket is not None
        self._socket.__exit__(kind, error, traceback)

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
