"""How much later a live reader gets a record that came through routers than a reader of the source.

A chain of topics, each fed by a router from the one before it. One SSE stream watches the first topic, another one the
last. Both are in this process, the server is another one. Writes come one at a time, so nothing else is under way.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from time import monotonic_ns

import uvloop

from topics.bench.http import running_server
from topics.bench.live import Client, Watcher, until

HOPS: Sequence[int] = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class HopLatency:
    hops: int
    p50_ms: float
    p99_ms: float


def measure(directory: str, *, writes: int) -> list[HopLatency]:
    """`writes` is the number of writes for each length of the chain."""
    return uvloop.run(_measure(directory, writes))


async def _measure(directory: str, writes: int) -> list[HopLatency]:
    loop = asyncio.get_running_loop()
    server = running_server(directory)
    port, _ = await loop.run_in_executor(None, server.__enter__)
    try:
        return [await _chain(port, hops, writes) for hops in HOPS]
    finally:
        await loop.run_in_executor(None, server.__exit__, None, None, None)


async def _chain(port: int, hops: int, writes: int) -> HopLatency:
    client = await Client(port).open()
    topics = [f"chain-{hops}-{place}" for place in range(hops + 1)]
    for source, dest in pairwise(topics):
        await client.request("PUT", f"/v0/routers/{dest}", json.dumps({"source": source, "dest": dest}).encode())
    direct_ns: list[int] = []
    routed_ns: list[int] = []
    direct = await _watch(client, port, topics[0], direct_ns)
    routed = await _watch(client, port, topics[-1], routed_ns)
    for number in range(1, writes + 2):
        await client.request(
            "POST", f"/v0/topics/{topics[0]}", b'{"records":[{"data":{"sent_ns":%d}}]}' % monotonic_ns()
        )
        await until(lambda: min(len(direct_ns), len(routed_ns)) >= number)  # noqa: B023 - awaited in the same round.
    for watcher in (direct, routed):
        watcher.transport.abort()
    client.close()
    # The first write also waits for the streams to open.
    added_ms = [(there - here) / 1e6 for here, there in zip(direct_ns[1:], routed_ns[1:], strict=True)]
    return HopLatency(hops, median(added_ms), quantiles(added_ms, n=100, method="inclusive")[-1])


async def _watch(client: Client, port: int, topic: str, latencies_ns: list[int]) -> Watcher:
    session = await client.request("POST", "/v0/watch", json.dumps({"topics": {topic: {}}}).encode())
    watcher = Watcher(session["stream_url"], latencies_ns)
    await asyncio.get_running_loop().create_connection(lambda: watcher, "127.0.0.1", port)
    return watcher
