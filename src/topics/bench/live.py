"""Live delivery, queues, routers and many topics over HTTP. This process is the client, another process is the server.

A write carries its send time, on the clock that all processes of a machine share.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import monotonic_ns, perf_counter, sleep
from typing import Any, Final, cast

import uvloop

from topics.bench.http import resident_mib, running_server, wake_ups
from topics.bench.storage import payloads

_SENT_NS: Final = re.compile(rb'"sent_ns":(\d+)')
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class FanOut:
    watchers: int
    p50_ms: float
    ack_p50_ms: float
    deliveries_per_s: float


@dataclass(frozen=True, slots=True)
class LiveResult:
    few: FanOut
    many: FanOut
    ack_alone_p50_ms: float
    jobs_per_s: float
    router_p50_ms: float
    ack_plain_p50_ms: float
    ack_routed_p50_ms: float
    records_per_s_many_topics: float


class Client:
    """One keep-alive connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        return self

    async def request(self, method: str, path: str, body: bytes = b"") -> Any:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(_HEAD_END)
        length = int(re.search(rb"content-length: (\d+)", answer)[1])  # type: ignore[index]
        text = await self._reader.readexactly(length)
        assert answer[9:10] == b"2", text
        return json.loads(text)

    def close(self) -> None:
        self._writer.close()


class Watcher(asyncio.Protocol):
    """An SSE stream that notes the age of each record when it arrives."""

    def __init__(self, path: str, latencies_ns: list[int]) -> None:
        self._path = path
        self._latencies_ns = latencies_ns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.transport.write(f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        self._latencies_ns += [now_ns - int(sent) for sent in _SENT_NS.findall(data)]


def measure(directory: str, *, seconds: float, many: int) -> LiveResult:
    return uvloop.run(_measure(directory, seconds, many))


async def _measure(directory: str, seconds: float, many: int) -> LiveResult:
    loop = asyncio.get_running_loop()
    server = running_server(directory)
    port, _ = await loop.run_in_executor(None, server.__enter__)
    try:
        alone = median(await _paced_acks(port, "alone", 10, seconds))
        few = await _fan_out(port, "few", max(1, many // 10), seconds)
        most = await _fan_out(port, "many", many, seconds)
        jobs = await _jobs(port, seconds)
        router_ms, plain_ms, routed_ms = await _routers(port, seconds)
        topics = await _many_topics(port, 5 * many, seconds)
        return LiveResult(few, most, alone, jobs, router_ms, plain_ms, routed_ms, topics)
    finally:
        await loop.run_in_executor(None, server.__exit__, None, None, None)


def _stamped() -> bytes:
    return b'{"records":[{"data":{"sent_ns":%d}}]}' % monotonic_ns()


async def _paced_acks(port: int, topic: str, per_second: int, seconds: float) -> list[float]:
    """How long each of some evenly spaced writes took, in ms."""
    client = await Client(port).open()
    took: list[float] = []
    for _ in range(max(3, round(per_second * seconds))):
        began = perf_counter()
        await client.request("POST", f"/v0/topics/{topic}", _stamped())
        took.append((perf_counter() - began) * 1000)
        await asyncio.sleep(max(0.0, 1 / per_second - (perf_counter() - began)))
    client.close()
    return took


async def _fan_out(port: int, topic: str, watchers: int, seconds: float) -> FanOut:
    loop = asyncio.get_running_loop()
    client = await Client(port).open()
    await client.request("PUT", f"/v0/topics/{topic}")
    latencies_ns: list[int] = []
    wanted = json.dumps({"topics": {topic: {"tail": True}}}).encode()
    streams: list[Watcher] = []
    for _ in range(watchers):
        session = await client.request("POST", "/v0/watch", wanted)
        watcher = Watcher(session["stream_url"], latencies_ns)
        await loop.create_connection(lambda watcher=watcher: watcher, "127.0.0.1", port)  # type: ignore[misc]
        streams.append(watcher)
    await client.request("POST", f"/v0/topics/{topic}", _stamped())
    await until(lambda: len(latencies_ns) >= watchers)
    latencies_ns.clear()
    acks = await _paced_acks(port, topic, 10, seconds)
    await until(lambda: len(latencies_ns) >= watchers * len(acks))
    p50_ms = median(latencies_ns) / 1e6
    # Then as fast as one writer gets answers: the figure is the number of records that arrive per second.
    latencies_ns.clear()
    began, writes = perf_counter(), 0
    while perf_counter() - began < seconds:
        await client.request("POST", f"/v0/topics/{topic}", _stamped())
        writes += 1
    await until(lambda: len(latencies_ns) >= watchers * writes)
    rate = len(latencies_ns) / (perf_counter() - began)
    for watcher in streams:
        watcher.transport.abort()
    client.close()
    return FanOut(watchers, p50_ms, median(acks), rate)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = perf_counter() + 60
    while not is_so():
        assert perf_counter() < deadline, "records did not arrive"
        await asyncio.sleep(0.001)


async def _gathered(count: int, work: Callable[[int], Awaitable[int]]) -> float:
    """The work of all workers together, per second."""
    began = perf_counter()
    done = await asyncio.gather(*(work(number) for number in range(count)))
    return sum(done) / (perf_counter() - began)


async def _jobs(port: int, seconds: float) -> float:
    """Jobs per second through 50 workers, which claim and ack eight jobs at a time."""
    client = await Client(port).open()
    await client.request("PUT", "/v0/topics/jobs", b'{"type":"queue"}')
    batch = b'{"records":[%b]}' % b",".join(b'{"data":%b}' % payload for payload in payloads(1000))
    for _ in range(max(1, round(30 * seconds))):
        await client.request("POST", "/v0/topics/jobs?return_seqs=false", batch)
    client.close()

    async def worker(number: int) -> int:
        client = await Client(port).open()
        claim = b'{"node":"w%d","max":8}' % number
        done = 0
        while True:
            claimed = (await client.request("POST", "/v0/topics/jobs/claim", claim))["claimed"]
            if not claimed:
                client.close()
                return done
            ack = {
                "node": f"w{number}",
                "seqs": [job["$seq"] for job in claimed],
                "lease_ids": [job["lease_id"] for job in claimed],
            }
            done += (await client.request("POST", "/v0/topics/jobs/ack", json.dumps(ack).encode()))["acked"]

    return await _gathered(50, worker)


async def _routers(port: int, seconds: float) -> tuple[float, float, float]:
    """Medians: ms until a copy is seen beyond the ack, ack ms of a plain source, ack ms of a source with 50 routers."""
    client = await Client(port).open()
    plain = median(await _paced_acks(port, "plain", 100, seconds))
    for number in range(50):
        spec = json.dumps({"source": "routed", "dest": f"copy-{number}"}).encode()
        await client.request("PUT", f"/v0/routers/r{number}", spec)
    routed = median(await _paced_acks(port, "routed", 100, seconds))
    added: list[float] = []
    for _ in range(max(3, round(50 * seconds))):
        head_seq = (await client.request("POST", "/v0/topics/routed", _stamped()))["head_seq"]
        began = perf_counter()
        await client.request("POST", "/v0/topics/routed/diff", b'{"from_seq":%d}' % (head_seq - 1))
        between = perf_counter()
        await client.request("POST", "/v0/topics/copy-7/diff", b'{"from_seq":%d}' % (head_seq - 1))
        added.append((perf_counter() - between - (between - began)) * 1000)
    client.close()
    return median(added), plain, routed


async def _many_topics(port: int, topics: int, seconds: float) -> float:
    """Records per second of 32 writers with batches of 100, spread over many topics."""
    batch = b'{"records":[%b]}' % b",".join(b'{"data":%b}' % payload for payload in payloads(100))
    deadline = perf_counter() + seconds

    async def writer(number: int) -> int:
        client = await Client(port).open()
        topic, records = number, 0
        while perf_counter() < deadline:
            await client.request("POST", f"/v0/topics/t{topic % topics}?return_seqs=false", batch)
            records += 100
            topic += 33
        client.close()
        return records

    return await _gathered(32, writer)


@dataclass(frozen=True, slots=True)
class IdleTopics:
    resident_mib: float
    start_s: float
    wake_ups_per_s: float


def idle_topics(directory: str, *, topics: int, settle_s: float) -> IdleTopics:
    """Memory, start time and wake-ups of a server with many idle topics."""
    with running_server(directory) as (port, _):
        uvloop.run(_create(port, topics))
    began = perf_counter()
    with running_server(directory) as (_, pid):
        started_s, resident = perf_counter() - began, resident_mib(pid)
        # The first sync mark and the first samples of the load come soon after the start.
        sleep(settle_s)
        before = wake_ups(pid)
        sleep(settle_s)
        return IdleTopics(resident, started_s, (wake_ups(pid) - before) / settle_s)


async def _create(port: int, topics: int) -> None:
    async def creator(number: int) -> int:
        client = await Client(port).open()
        for topic in range(number, topics, 64):
            await client.request("PUT", f"/v0/topics/idle-{topic}")
        client.close()
        return 0

    await _gathered(64, creator)
