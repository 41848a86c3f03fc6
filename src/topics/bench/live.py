"""Live delivery over SSE, queues, routers, idle topics. This process is the client, another process is the server."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic_ns, perf_counter, sleep
from typing import Any, Final

import uvloop

from topics.bench.load_client import (
    Deadline,
    LastWrite,
    Requester,
    Stream,
    TimedStream,
    connect,
    finished,
    percentile,
    post,
    stamped,
    until,
)
from topics.bench.processes import CpuEach, CpuMeter, Process, running_floor_server, wake_ups
from topics.bench.report import Row
from topics.bench.setting import Setting
from topics.bench.storage import payloads

_HEAD_END: Final = b"\r\n\r\n"
# Writes per second, so that the server is never busy for long.
_SSE_PACES: Final = {1: 200, 10: 100, 100: 50, 1000: 10}
_SSE_P50_MS_MAX: Final = {100: 1.5, 1000: 8.0}
_SSE_CPU_US_MAX: Final = {100: 14.0, 1000: 14.0}
_CALL_RECORDS_PER_S: Final = 50
# What one delivery of a call looks like: the envelope is shared by all records of a turn.
_CALL_RECORD: Final = b'{"$seq":1234567,"$ts":1790000000000,"$node":"p17","data":{"sent_ns":123456789012345}},\n'
# A delivery that takes longer is not in time.
_IN_TIME_S: Final = 0.1


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


# One writer, many readers.


@dataclass(frozen=True, slots=True)
class FanOut:
    p50_ms: float
    p99_ms: float
    ack_p50_ms: float
    cpu: CpuEach
    client_share: float
    # By one writer that is as fast as its answers.
    deliveries_per_s: float
    fast_cpu: CpuEach
    fast_client_share: float


def sse(setting: Setting, watchers: int) -> list[Row]:
    """One writer at a steady pace. Then the same writer as fast as it gets answers."""
    pace, watchers = _SSE_PACES[watchers], max(1, min(watchers, setting.count(10 * watchers)))
    seconds = setting.seconds(2)
    with setting.server() as server:
        server.request("PUT", "/v0/topics/a")
        alone_ms = uvloop.run(_ack_p50_ms(server, "alone", pace, seconds)) if watchers > 100 else None
        event = uvloop.run(_captured_event(server))
        result = uvloop.run(_fan_out(server, watchers, pace, seconds))
    with running_floor_server(setting.directory, _answer(), event) as bare_server:
        bare = uvloop.run(_fan_out(bare_server, watchers, pace, seconds, is_bare=True))
    what = f"live: SSE to {watchers} watcher{'s' if watchers > 1 else ''}"
    rows = [
        Row(
            f"{what}, p50",
            result.p50_ms,
            "ms",
            ceiling=_SSE_P50_MS_MAX.get(watchers),
            peer=bare.p50_ms,
            cpu=result.cpu,
            cpu_bare_us=bare.cpu.total_us,
            cpu_ceiling_us=_SSE_CPU_US_MAX.get(watchers),
            client_share=result.client_share,
        ),
        Row(f"{what}, p99", result.p99_ms, "ms"),
        Row(
            f"{what}, one fast writer",
            result.deliveries_per_s / 1e3,
            "K records/s",
            cpu=result.fast_cpu,
            cpu_bare_us=bare.fast_cpu.total_us,
            client_share=result.fast_client_share,
        ),
    ]
    if alone_ms is not None:
        rows.append(Row(f"{what}, ack p50 to that without", result.ack_p50_ms / alone_ms, "x", ceiling=1.5))
    return rows


def _answer() -> bytes:
    body = b"x" * 180
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _stream_paths(server: Process, wanted: Sequence[dict[str, Any]]) -> list[str]:
    client = await Client(server.port).open()
    paths = [(await client.request("POST", "/v0/watch", json.dumps(one).encode()))["stream_url"] for one in wanted]
    client.close()
    return paths


_TAIL: Final = {"topics": {"a": {"tail": True}}}


async def _captured_event(server: Process) -> bytes:
    """The bytes that one stream gets for one record."""
    seen = bytearray()

    class Capture(Stream):
        def data_received(self, data: bytes) -> None:
            seen.extend(data)

    (path,) = await _stream_paths(server, [_TAIL])
    stream = Capture(path)
    await connect(server, [stream])
    await until(lambda: b"caught-up" in seen, server)
    seen.clear()
    client = await Client(server.port).open()
    await client.request("POST", "/v0/topics/a", stamped())
    await until(lambda: b"caught-up" in seen, server)
    client.close()
    stream.transport.abort()
    return bytes(seen)


async def _fan_out(server: Process, watchers: int, pace: int, seconds: float, *, is_bare: bool = False) -> FanOut:
    latencies_ns: list[int] = []
    paths = ["/"] * watchers if is_bare else await _stream_paths(server, [_TAIL] * watchers)
    last_write = LastWrite()
    streams = [TimedStream(path, latencies_ns, last_write if is_bare else None) for path in paths]
    await connect(server, streams)
    await _write(server, writes=1)
    await until(lambda: len(latencies_ns) >= watchers, server)
    latencies_ns.clear()
    meter = CpuMeter(server)
    acks_ns = await _write(server, writes=max(3, round(pace * seconds)), every_s=1 / pace, last_write=last_write)
    await until(lambda: len(latencies_ns) >= watchers * len(acks_ns), server)
    cpu, client_share = meter.server().each(len(latencies_ns)), meter.client_share()
    p50_ms, p99_ms = percentile(latencies_ns, 50) / 1e6, percentile(latencies_ns, 99) / 1e6
    latencies_ns.clear()
    began_s, deadline, meter = perf_counter(), Deadline(seconds), CpuMeter(server)
    writes = len(await _write(server, until_over=deadline))
    await until(lambda: len(latencies_ns) >= watchers * writes, server)
    fast_per_s = len(latencies_ns) / (perf_counter() - began_s)
    fast_cpu, fast_client_share = meter.server().each(len(latencies_ns)), meter.client_share()
    for stream in streams:
        stream.transport.abort()
    ack_p50_ms = median(acks_ns) / 1e6
    return FanOut(p50_ms, p99_ms, ack_p50_ms, cpu, client_share, fast_per_s, fast_cpu, fast_client_share)


async def _write(
    server: Process,
    topic: str = "a",
    *,
    writes: int | None = None,
    until_over: Deadline | None = None,
    every_s: float = 0.0,
    last_write: LastWrite | None = None,
) -> list[int]:
    """Writes of one record by one connection; how long each took."""
    left = writes

    def take_next() -> bytes | None:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                return None
        if until_over is not None and until_over.is_over:
            return None
        if last_write is not None:
            last_write.sent_ns = monotonic_ns()
        return post(f"/v0/topics/{topic}", stamped())

    writer = Requester(take_next, every_s=every_s)
    await connect(server, [writer])
    await finished(server, [writer])
    return writer.latencies_ns


async def _ack_p50_ms(server: Process, topic: str, pace: int, seconds: float) -> float:
    acks_ns = await _write(server, topic, writes=max(3, round(pace * seconds)), every_s=1 / pace)
    return median(acks_ns) / 1e6


# Many writers, many readers.


@dataclass(frozen=True, slots=True)
class Call:
    deliveries_per_s: float
    # Of the deliveries that all writers together asked for.
    share_in_time: float
    p50_ms: float
    p99_ms: float
    cpu: CpuEach
    client_share: float
    records_per_s: float


def call(setting: Setting) -> list[Row]:
    """Each participant writes 50 records a second. It watches the records of all others."""
    result, bare = _call_beside_bare(setting, _CALL_RECORDS_PER_S)
    what = f"live: call of {_participants(setting)}, {_CALL_RECORDS_PER_S} records/s each"
    return [
        _deliveries_row(f"{what}, deliveries", result, bare),
        Row(f"{what}, delivered in time", 100 * result.share_in_time, "%", floor=100),
        Row(f"{what}, p50", result.p50_ms, "ms"),
        Row(f"{what}, p99", result.p99_ms, "ms"),
    ]


def call_at_full_speed(setting: Setting) -> list[Row]:
    """Each participant writes as fast as it gets answers."""
    result, bare = _call_beside_bare(setting, None)
    what = f"live: call of {_participants(setting)}, full speed"
    return [
        _deliveries_row(f"{what}, deliveries", result, bare),
        Row(f"{what}, writes", result.records_per_s / 1e3, "K records/s"),
        Row(f"{what}, p99", result.p99_ms, "ms"),
    ]


def _deliveries_row(what: str, result: Call, bare: Call) -> Row:
    return Row(
        what,
        result.deliveries_per_s / 1e3,
        "K records/s",
        floor=250,
        cpu=result.cpu,
        cpu_bare_us=bare.cpu.total_us,
        cpu_ceiling_us=4,
        client_share=result.client_share,
    )


def _participants(setting: Setting) -> int:
    return max(3, min(100, setting.count(1000)))


def _call_beside_bare(setting: Setting, pace: int | None) -> tuple[Call, Call]:
    participants, seconds = _participants(setting), setting.seconds(4)
    with setting.server() as server:
        server.request("PUT", "/v0/topics/a")
        result = uvloop.run(_call(server, participants, pace, seconds))
    with running_floor_server(setting.directory, _answer(), _CALL_RECORD) as bare_server:
        bare = uvloop.run(_call(bare_server, participants, pace, seconds / 2, is_bare=True))
    return result, bare


async def _call(server: Process, participants: int, pace: int | None, seconds: float, *, is_bare: bool = False) -> Call:
    sampled_ns: list[int] = []
    wanted = [{**_TAIL, "node": f"p{number}"} for number in range(participants)]
    paths = ["/"] * participants if is_bare else await _stream_paths(server, wanted)
    # One reader looks at the age of each record. The others count, so that the client is not the limit.
    streams: list[Stream] = [TimedStream(paths[0], sampled_ns), *(Stream(path) for path in paths[1:])]
    await connect(server, streams)
    deadline = Deadline(seconds)
    writes = 0

    def take_next(number: int) -> bytes | None:
        nonlocal writes
        if deadline.is_over:
            return None
        writes += 1
        return post("/v0/topics/a", stamped(b',"node":"p%d"' % number))

    every_s = 1 / pace if pace is not None else 0.0
    writers = [
        Requester(lambda number=number: take_next(number), every_s=every_s, first_s=every_s * number / participants)  # type: ignore[misc]
        for number in range(participants)
    ]
    readers = participants if is_bare else participants - 1
    meter = CpuMeter(server)
    began_s = perf_counter()
    await connect(server, writers)
    await finished(server, writers)
    await asyncio.sleep(_IN_TIME_S)
    in_time = _delivered(streams)
    await until(lambda: _delivered(streams) >= writes * readers, server)
    took_s = perf_counter() - began_s
    cpu, client_share = meter.server().each(_delivered(streams)), meter.client_share()
    for stream in streams:
        stream.transport.abort()
    wished = (pace * seconds * participants if pace is not None else writes) * readers
    return Call(
        deliveries_per_s=_delivered(streams) / took_s if in_time < writes * readers else in_time / seconds,
        share_in_time=min(1.0, in_time / wished),
        p50_ms=percentile(sampled_ns, 50) / 1e6,
        p99_ms=percentile(sampled_ns, 99) / 1e6,
        cpu=cpu,
        client_share=client_share,
        records_per_s=writes / seconds,
    )


def _delivered(streams: Sequence[Stream]) -> int:
    return sum(stream.records for stream in streams)


# Queues and routers.


async def _gathered(count: int, work: Callable[[int], Awaitable[int]]) -> float:
    """The work of all workers together, per second."""
    began = perf_counter()
    done = await asyncio.gather(*(work(number) for number in range(count)))
    return sum(done) / (perf_counter() - began)


def jobs(setting: Setting) -> list[Row]:
    with setting.server() as server:
        rate = uvloop.run(_jobs(server.port, setting.seconds(2)))
    return [Row("live: jobs of 50 workers, claim 8 and ack", rate / 1e3, "K jobs/s", floor=12)]


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


def routed_writes(setting: Setting) -> list[Row]:
    with setting.server() as server:
        added_ms, plain_ms, routed_ms = uvloop.run(_routed_writes(server, setting.seconds(2)))
    return [
        Row("live: router, added latency, p50", added_ms, "ms", ceiling=0.3),
        Row("live: ack p50 with 50 routers, to that without", routed_ms / plain_ms, "x", ceiling=1.2),
    ]


async def _routed_writes(server: Process, seconds: float) -> tuple[float, float, float]:
    """Medians: ms until a copy is seen beyond the ack, ack ms of a plain source, ack ms of a source with 50 routers."""
    client = await Client(server.port).open()
    plain_ms = await _ack_p50_ms(server, "plain", 100, seconds)
    for number in range(50):
        spec = json.dumps({"source": "routed", "dest": f"copy-{number}"}).encode()
        await client.request("PUT", f"/v0/routers/r{number}", spec)
    routed_ms = await _ack_p50_ms(server, "routed", 100, seconds)
    added: list[float] = []
    for _ in range(max(3, round(50 * seconds))):
        head_seq = (await client.request("POST", "/v0/topics/routed", stamped()))["head_seq"]
        began = perf_counter()
        await client.request("POST", "/v0/topics/routed/diff", b'{"from_seq":%d}' % (head_seq - 1))
        between = perf_counter()
        await client.request("POST", "/v0/topics/copy-7/diff", b'{"from_seq":%d}' % (head_seq - 1))
        added.append((perf_counter() - between - (between - began)) * 1000)
    client.close()
    return median(added), plain_ms, routed_ms


# Many idle topics.


def idle_topics(setting: Setting) -> list[Row]:
    """Memory, start time and wake-ups of a server with many idle topics. The targets are those of 100,000 topics."""
    topics, settle_s = setting.count(100_000 if setting.is_full else 20_000), setting.seconds(5)
    with setting.server() as server:
        uvloop.run(_create(server.port, topics))
    began = perf_counter()
    with setting.server() as server:
        started_s, resident_mib = perf_counter() - began, server.resident_mib()
        # The first sync mark and the first samples of the load come soon after the start.
        sleep(settle_s)
        before = wake_ups(server.pid)
        sleep(settle_s)
        woken_per_s = (wake_ups(server.pid) - before) / settle_s
    return [
        Row(f"idle: resident memory with {topics} topics", resident_mib, "MiB", ceiling=400),
        Row(f"idle: start with {topics} topics", started_s, "s", ceiling=5),
        Row(f"idle: wake-ups with {topics} topics", woken_per_s, "a second", ceiling=5),
    ]


async def _create(port: int, topics: int) -> None:
    async def creator(number: int) -> int:
        client = await Client(port).open()
        for topic in range(number, topics, 64):
            await client.request("PUT", f"/v0/topics/idle-{topic}")
        client.close()
        return 0

    await _gathered(64, creator)
