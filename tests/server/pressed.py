"""A server that has too much to do: at full pressure, with a full commit queue until the test makes room."""

import asyncio

from tests.server.running import Running
from topics.limits import WAL_QUEUE_SUBMISSIONS_MAX
from topics.server.pressure import Load

FULL = Load(ready_depth=1_000_000)


async def press(server: Running) -> None:
    """From now on only the test sets the pressure."""
    server.server._meter.stop()
    server.server.app.governor.note(FULL)
    server.server._apply_pressure(server.server.app.governor)
    for shard in server.server.app.open_engine().engine.wal.shards:
        shard.queue_depth += WAL_QUEUE_SUBMISSIONS_MAX


async def make_room(server: Running) -> None:
    for shard in server.server.app.open_engine().engine.wal.shards:
        shard.queue_depth -= WAL_QUEUE_SUBMISSIONS_MAX


async def wait_refusals(server: Running, count: int) -> None:
    """Waits until the commit queue has refused this many more writes: a write that waits for room tries again and
    again.
    """
    wal = server.server.app.open_engine().engine.wal
    wanted = wal.total_stats().submit_full + count
    while wal.total_stats().submit_full < wanted:  # noqa: ASYNC110 - nothing is called when a write is refused.
        await asyncio.sleep(0)


async def parked_count(server: Running) -> int:
    """Connections with a request that waits for room."""
    return sum(wire.is_parked for wire in server.server._connections.open)


async def wait_parked(server: Running, count: int = 1) -> None:
    while await parked_count(server) != count:  # noqa: ASYNC110 - nothing is called when a request is parked.
        await asyncio.sleep(0)


async def wait_some_parked(server: Running, count: int) -> None:
    """Waits until at least this many connections have a request that waits."""
    while await parked_count(server) < count:  # noqa: ASYNC110 - nothing is called when a request is parked.
        await asyncio.sleep(0)
