"""`GET /v0/ws`, for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from topics.client.endpoint import Endpoint
from topics.client.retrying import Unreachable

if TYPE_CHECKING:
    import ssl


class AsyncWebSocket:
    """One connection, open in an `async with` block. It is not repaired when it breaks: subscriptions end with it."""

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

    async def __aenter__(self) -> Self:
        try:
            self._socket = await self._opening.__aenter__()
        except (OSError, InvalidHandshake) as error:
            raise Unreachable(f"{self._url} opens no WebSocket: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opening.__aexit__(kind, error, traceback)

    async def send(self, command: dict[str, Any]) -> None:
        """Sends a command of the contract, such as `{"op": "subscribe", "topic": "orders"}`."""
        assert self._socket is not None
        try:
            await self._socket.send(msgspec.json.encode(command).decode())
        except ConnectionClosed as error:
            raise Unreachable(f"the WebSocket is closed: {error}") from error

    async def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message of the server; None if none came in that time."""
        assert self._socket is not None
        try:
            async with asyncio.timeout(timeout_s):
                message: dict[str, Any] = msgspec.json.decode(await self._socket.recv())
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise Unreachable(f"the WebSocket is closed: {error}") from error
        return message
