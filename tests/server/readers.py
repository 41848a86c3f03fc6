"""Lets a test wait until readers wait in a diff."""

import asyncio

from tests.server.running import Running


def wait_for_readers(server: Running, count: int = 1) -> None:
    """Lets the server's loop turn until this many readers wait."""
    waiting = server.server.app.waiting

    async def turn() -> None:
        while len(waiting) != count:  # noqa: ASYNC110 - nothing is called when a reader begins to wait.
            await asyncio.sleep(0)

    server.call(turn())
