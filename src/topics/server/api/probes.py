"""Endpoints for operators: health, readiness, metrics, and the rights of a key."""

from __future__ import annotations

from typing import Final

from topics.errors import Closed, NotReady
from topics.protocol.response_body import AccessRights, Health, Ready
from topics.server.app import Application
from topics.server.auth import READ, scope_names
from topics.server.http.exchange import Exchange, Response
from topics.server.http.routes import Access, Endpoint
from topics.server.metrics import SERIES_TOPICS_MAX, Snapshot, cold_figures, collect, render_json, render_prometheus
from topics.server.process_figures import process_figures
from topics.server.streams.figures import listener_figures, with_engine_figures
from topics.version import VERSION

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
# What this server can do beyond the first contract.
FEATURES: Final = ["manifest", "frames", "stage", "replace", "seal", "redrive", "capture"]


class ProbesApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        for path in ("/v0/health", "/healthz"):
            add("GET", path, Endpoint("health", self.health, access=Access.PROBE, before_ready=True))
        for path in ("/v0/ready", "/readyz"):
            add("GET", path, Endpoint("ready", self.ready, access=Access.PROBE, before_ready=True))
        add("GET", "/v0/metrics", Endpoint("metrics", self.metrics, READ, before_ready=True))
        add("GET", "/v0/access", Endpoint("access", self.access, before_ready=True))

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

    def access(self, exchange: Exchange) -> None:
        key = exchange.key
        assert key is not None
        exchange.answer(
            AccessRights(
                needs_key=self._app.has_keys,
                scopes=scope_names(key.scopes),
                prefixes=list(key.prefixes),
            )
        )

    def metrics(self, exchange: Exchange) -> None:
        key = exchange.key
        assert key is not None
        app = self._app
        as_json = b"application/json" in exchange.headers.get(b"accept", b"")
        opened = app.opened
        snapshot = collect(
            None if opened is None else opened.engine,
            app.counters,
            version=VERSION,
            recovery_progress=app.replay_progress,
            may_name=key.may_name,
            rows_max=0 if as_json else SERIES_TOPICS_MAX,
            disk=app.disk.room(),
            backlog_bytes=0 if app.opened is None else app.opened.backlog_bytes,
        )
        streams, system = app.streams, app.streams.system
        figures = listener_figures(streams) if streams.is_on else None
        snapshot = snapshot._replace(streams=figures)
        is_whole = opened is not None and not as_json
        if opened is not None and is_whole:
            snapshot = snapshot._replace(cold=cold_figures(opened))
        if system is None and not is_whole:
            exchange.reply(_rendered(snapshot, as_json=as_json))
            return

        def render() -> Response:
            whole = snapshot
            if system is not None and figures is not None:
                rows_max = 0 if as_json else SERIES_TOPICS_MAX
                whole = whole._replace(streams=with_engine_figures(figures, system, key.may_name, rows_max))
            if is_whole:
                whole = whole._replace(process=process_figures())
            return _rendered(whole, as_json=as_json)

        future = app.loop.run_in_executor(app.pool, render)
        future.add_done_callback(lambda done: app.guarded(exchange, lambda: exchange.reply(done.result())))


def _rendered(snapshot: Snapshot, *, as_json: bool) -> Response:
    if as_json:
        return Response(200, render_json(snapshot))
    return Response(200, render_prometheus(snapshot), PROMETHEUS)
