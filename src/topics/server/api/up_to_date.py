"""Reads of a topic that routers feed: what was written to their sources is copied first (http-api.md §11.2)."""

from collections.abc import Callable
from functools import partial

from topics.server.app import Application
from topics.server.http.exchange import Exchange


def when_up_to_date(app: Application, exchange: Exchange, name: str, then: Callable[[], None]) -> None:
    """Calls `then` when copies that are on their way into the topic have come: nearly always at once."""
    engine = app.open_engine().engine
    if engine.bring_up_to_date(name) or app.is_draining:
        then()
        return
    go_on = partial(app.guarded, exchange, partial(when_up_to_date, app, exchange, name, then))
    # The engine is half way through a group when it says so: look in a turn of our own.
    engine.wait_copies(lambda: _soon(app, go_on))


def _soon(app: Application, go_on: Callable[[], None]) -> None:
    app.loop.call_soon(go_on)
