"""Readers that wait in a diff: a test goes on once they do."""

import asyncio

from tests.server.running import Running


def wait_for_readers(server: Running, count: int = 1) -> None:
    """Lets the server's loop turn until so many wait."""
    waiting = server.server.app.waiting

    async def turn() -> None:
        while len(waiting) != count:  # noqa: ASYNC110 - nothing is called when a reader begins to wait.
            await asyncio.sleep(0)

    server.call(turn())
