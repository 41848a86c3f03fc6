"""The endpoint of the OpenAPI document."""

from __future__ import annotations

import msgspec

from topics.server.app import Application
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Endpoint
from topics.server.settings_schema import ServerSettings


class OpenApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        # Made by the first request: by then the route table has every endpoint.
        self._text = b""
        app.follow_settings(self._forget)
        app.routes.add("GET", "/v0/openapi.json", Endpoint("openapi", self.document, before_ready=True))

    def _forget(self, _: ServerSettings) -> None:
        """The document states limits."""
        self._text = b""

    def document(self, exchange: Exchange) -> None:
        if not self._text:
            # Not needed by a start: see `late_imports`.
            from topics.server.openapi.document import openapi_document

            self._text = msgspec.json.encode(openapi_document(self._app.routes, self._app.settings))
        exchange.reply(Response(200, self._text))
