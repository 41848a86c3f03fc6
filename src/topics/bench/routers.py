"""How much later a live reader gets a record that came through routers than a reader of the source.

A chain of topics, each fed by a router from the one before it. One SSE stream watches the first topic, another one the
last. Both are in this process, the server is another one. Writes come one at a time, so nothing else is under way.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

import uvloop

from topics.bench.live import Client
from topics.bench.load_client import TimedStream, connect, stamped, until
from topics.bench.processes import Process
from topics.bench.report import Row
from topics.bench.setting import Setting

HOPS: Sequence[int] = (1, 2, 4)


def measure(setting: Setting) -> list[Row]:
    writes = max(3, setting.count(500))
    rows: list[Row] = []
    with setting.server() as server:
        for hops in HOPS:
            latency = uvloop.run(_chain(server, hops, writes))
            what = f"routers: {hops} hop{'s' if hops > 1 else ''} to a live reader"
            rows.append(Row(f"{what}, p50", latency.p50_ms, "ms", ceiling=1 if hops == 1 else None))
            rows.append(Row(f"{what}, p99", latency.p99_ms, "ms"))
    return rows


@dataclass(frozen=True, slots=True)
class HopLatency:
    p50_ms: float
    p99_ms: float


async def _chain(server: Process, hops: int, writes: int) -> HopLatency:
    client = await Client(server.port).open()
    topics = [f"chain-{hops}-{place}" for place in range(hops + 1)]
    for source, dest in pairwise(topics):
        await client.request("PUT", f"/v0/routers/{dest}", json.dumps({"source": source, "dest": dest}).encode())
    direct_ns: list[int] = []
    routed_ns: list[int] = []
    direct = await _watch(client, server, topics[0], direct_ns)
    routed = await _watch(client, server, topics[-1], routed_ns)
    for number in range(1, writes + 2):
        await client.request("POST", f"/v0/topics/{topics[0]}", stamped())
        await until(lambda: min(len(direct_ns), len(routed_ns)) >= number, server)  # noqa: B023 - awaited in the same round.
    for watcher in (direct, routed):
        watcher.transport.abort()
    client.close()
    # The first write also waits for the streams to open.
    added_ms = [(there - here) / 1e6 for here, there in zip(direct_ns[1:], routed_ns[1:], strict=True)]
    return HopLatency(median(added_ms), quantiles(added_ms, n=100, method="inclusive")[-1])


async def _watch(client: Client, server: Process, topic: str, latencies_ns: list[int]) -> TimedStream:
    session = await client.request("POST", "/v0/watch", json.dumps({"topics": {topic: {}}}).encode())
    watcher = TimedStream(session["stream_url"], latencies_ns)
    await connect(server, [watcher])
    return watcher
