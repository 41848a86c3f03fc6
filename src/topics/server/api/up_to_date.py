"""Reads of a topic that routers copy into: records that were written to the sources are copied first."""

from collections.abc import Callable
from functools import partial

from topics.server.app import Application
from topics.server.http.exchange import Exchange


def when_up_to_date(app: Application, exchange: Exchange, name: str, then: Callable[[], None]) -> None:
    """Calls `then` when the topic has all copies: nearly always at once."""
    engine = app.open_engine().engine
    if engine.bring_up_to_date(name) or app.is_draining:
        then()
        return
    go_on = partial(app.guarded, exchange, partial(when_up_to_date, app, exchange, name, then))
    # The engine calls this half way through a group, so the check waits for the next turn of the loop.
    engine.wait_copies(partial(_soon, app, go_on))


def _soon(app: Application, go_on: Callable[[], None]) -> None:
    app.loop.call_soon(go_on)
