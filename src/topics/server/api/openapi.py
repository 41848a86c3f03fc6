"""The endpoints of the documents about the server: OpenAPI for its calls, AsyncAPI for its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from topics.server.app import Application
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Endpoint, RouteTable
from topics.server.settings_schema import ServerSettings

MakeText = Callable[[RouteTable, ServerSettings], bytes]


class Documents:
    def __init__(self, app: Application) -> None:
        _Document(app, "openapi", "/v0/openapi.json", _openapi_text)
        _Document(app, "asyncapi", "/v0/asyncapi.json", _asyncapi_text)


class _Document:
    """The document is made in the pool, because that takes a tenth of a second, and kept."""

    def __init__(self, app: Application, name: str, path: str, make_text: MakeText) -> None:
        self._app = app
        self._make_text = make_text
        # Made for the first request: by then the route table has every endpoint.
        self._text = b""
        # Requests that wait until the document is made.
        self._waiting: list[Exchange] = []
        app.follow_settings(self._forget)
        app.routes.add("GET", path, Endpoint(name, self.answer, before_ready=True))

    def _forget(self, _: ServerSettings) -> None:
        """The document states limits."""
        self._text = b""

    def answer(self, exchange: Exchange) -> None:
        if self._text:
            exchange.reply(Response(200, self._text))
            return
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            self._make()

    def _make(self) -> None:
        app = self._app
        future = app.loop.run_in_executor(app.pool, self._make_text, app.routes, app.settings)
        future.add_done_callback(partial(self._made, app.settings))

    def _made(self, settings: ServerSettings, done: asyncio.Future[bytes]) -> None:
        if settings is not self._app.settings:
            self._make()
            return
        waiting, self._waiting = self._waiting, []
        for exchange in waiting:
            self._app.guarded(exchange, partial(self._reply, exchange, done))

    def _reply(self, exchange: Exchange, done: asyncio.Future[bytes]) -> None:
        self._text = done.result()
        exchange.reply(Response(200, self._text))


def _openapi_text(routes: RouteTable, settings: ServerSettings) -> bytes:
    # Not needed by a start: see `late_imports`.
    from topics.server.openapi.document import openapi_document

    return msgspec.json.encode(openapi_document(routes, settings))


def _asyncapi_text(_routes: RouteTable, settings: ServerSettings) -> bytes:
    from topics.server.openapi.streams_document import asyncapi_document

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return msgspec.json.encode(asyncapi_document(f"{host}:{settings.port}"))
