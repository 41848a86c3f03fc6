"""Endpoints for operators: health, readiness, metrics."""

from __future__ import annotations

from typing import Final

from topics.errors import Closed, NotReady
from topics.protocol.response_body import Health, Ready
from topics.server.app import Application
from topics.server.auth import READ
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Access, Endpoint
from topics.server.metrics import SERIES_TOPICS_MAX, all_ready, collect, render_json, render_prometheus
from topics.version import VERSION

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
# What this server can do beyond the first contract.
FEATURES: Final = ["manifest", "frames", "stage", "replace", "seal"]


class ProbesApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        for path in ("/v0/health", "/healthz"):
            add("GET", path, Endpoint("health", self.health, access=Access.PROBE, before_ready=True))
        for path in ("/v0/ready", "/readyz"):
            add("GET", path, Endpoint("ready", self.ready, access=Access.PROBE, before_ready=True))
        add("GET", "/v0/metrics", Endpoint("metrics", self.metrics, READ, before_ready=True))

    def health(self, exchange: Exchange) -> None:
        uptime_ms = self._app.counters.uptime_ms()
        exchange.answer(Health(status="ok", version=VERSION, uptime_ms=uptime_ms, features=FEATURES))

    def ready(self, exchange: Exchange) -> None:
        opened = self._app.opened
        if opened is None:
            raise NotReady(self._app.replay_progress)
        if self._app.is_draining:
            raise Closed
        failure = opened.engine.wal.failure()
        if failure is not None:
            raise failure
        exchange.answer(Ready(status="ready", wal_replay_complete=True, topics=len(opened.engine.topics)))

    def metrics(self, exchange: Exchange) -> None:
        key = exchange.key
        assert key is not None
        app = self._app
        as_json = b"application/json" in exchange.headers.get(b"accept", b"")
        engine = None if app.opened is None else app.opened.engine
        snapshot = collect(
            engine,
            app.counters,
            version=VERSION,
            recovery_progress=app.replay_progress,
            may_name=key.may_name,
            queue_depth=all_ready if engine is None else engine.queues.depth,
            rows_max=0 if as_json else SERIES_TOPICS_MAX,
        )
        if as_json:
            exchange.reply(Response(200, render_json(snapshot)))
        else:
            exchange.reply(Response(200, render_prometheus(snapshot), PROMETHEUS))
