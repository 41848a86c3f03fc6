"""Reads of a topic that routers copy into: records that were written to the sources are copied first."""

from collections.abc import Callable
from functools import partial

from topics.server.app import Application
from topics.server.http.exchange import Exchange


def when_up_to_date(app: Application, exchange: Exchange, name: str, then: Callable[[], None]) -> None:
    """Calls `then` when the topic has all copies: nearly always at once."""
    engine = app.open_engine().engine
    if app.is_draining or engine.when_up_to_date(name, partial(app.guarded, exchange, then)):
        then()
