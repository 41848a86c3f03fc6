"""The endpoint that opens WebSockets. The modules of WebSockets are imported with the first one (`late_imports`)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from topics.errors import InvalidRequest
from topics.server.api.appending import Appender
from topics.server.app import Application
from topics.server.http.connections import ConnectionSet, upgrade
from topics.server.http.exchange import Exchange
from topics.server.http.routes import Endpoint

if TYPE_CHECKING:
    from topics.server.http.websocket import WebSocketConnection


class WebSocketApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._appender = Appender(app)
        app.routes.add("GET", "/v0/ws", Endpoint("ws", self.open))

    def open(self, exchange: Exchange) -> None:
        """Needs a key and no scope: each command checks its scope."""
        upgrade(exchange, partial(self._connection, exchange))

    def _connection(
        self, exchange: Exchange, connections: ConnectionSet, transport: asyncio.Transport
    ) -> WebSocketConnection:
        from topics.server.api.ws_commands import WsSession
        from topics.server.http.websocket import WebSocketConnection

        answer = _handshake(exchange)
        key = exchange.key
        assert key is not None
        self._app.open_streams.check(key)
        return WebSocketConnection(connections, transport, answer, partial(WsSession, self._app, self._appender, key))


def _handshake(exchange: Exchange) -> bytes:
    """The answer that accepts the upgrade. The connection has checked that the request asks for one."""
    from websockets.datastructures import Headers
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

    headers = Headers(Connection="Upgrade", Upgrade="websocket")
    for name in ("Sec-WebSocket-Key", "Sec-WebSocket-Version"):
        value = exchange.headers.get(name.lower().encode())
        if value is not None:
            headers[name] = value.decode("latin-1")
    handshake = ServerProtocol()
    response = handshake.accept(Request("/v0/ws", headers))
    if response.status_code != 101:
        raise InvalidRequest(f"the request does not open a WebSocket of version 13: {handshake.handshake_exc}")
    return response.serialize()
