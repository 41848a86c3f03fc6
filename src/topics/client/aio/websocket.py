"""`GET /v0/ws`, for asyncio."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from topics.client.aio.connections import Connections
from topics.client.answers import Answer, Refused
from topics.client.http1 import BadAnswer
from topics.client.retrying import Limit, Patience, Tries, Unreachable
from topics.protocol.ws_message import MESSAGE_BYTES_MAX


class AsyncWebSocket:
    """One connection, open in an `async with` block. It is not repaired when it breaks: subscriptions end with it."""

    def __init__(self, connections: Connections, patience: Patience) -> None:
        self._connections = connections
        self._patience = patience
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        tries = Tries(self._patience, monotonic(), is_repeatable=True)
        self._socket = await self._connections.tried(tries, self._opened)
        return self

    async def _opened(self, limit: Limit) -> ClientConnection:
        endpoint = self._connections.endpoint
        try:
            return await connect(
                endpoint.websocket_url,
                ssl=self._connections.tls,
                additional_headers=endpoint.token_headers,
                open_timeout=limit.next_s(monotonic()),
                max_size=MESSAGE_BYTES_MAX,
                compression=None,
            )
        except InvalidStatus as error:
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise Refused(Answer(response.status_code, headers, bytes(response.body or b""))) from error
        except InvalidHandshake as error:
            raise BadAnswer(f"it opens no WebSocket: {error}") from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._socket is not None
        await self._socket.__aexit__(kind, error, traceback)

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
