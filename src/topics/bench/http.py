"""Single requests and pages over HTTP, with the load from wrk, beside Redis and the bare server under the same load."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from topics.bench.processes import Process, running_floor_server, running_redis
from topics.bench.report import Row, not_measured
from topics.bench.setting import Setting
from topics.bench.storage import payloads
from topics.bench.wrk import Load, Post, missing_tool, run_wrk

CONNECTIONS: Final = 16
SEALED_RECORDS: Final = 20_000


def write_body(count: int, *, tags: Sequence[str] = ()) -> bytes:
    made = payloads(count)
    if tags:
        records = [b'{"data":%b,"tag":"%b"}' % (data, tag.encode()) for data, tag in zip(made, tags, strict=True)]
    else:
        records = [b'{"data":%b}' % data for data in made]
    return b'{"records":[%b]}' % b",".join(records)


@dataclass(frozen=True, slots=True)
class _Figures:
    """Medians of the rounds."""

    load: Load
    bare_us: float
    # Entries per second; None if Redis is not installed.
    redis: float | None


def append_one(setting: Setting) -> list[Row]:
    return _appends(setting, "serve: append 1 record, 16 connections", 1, factor=0.7, cpu_ceiling_us=28)


def append_hundred(setting: Setting) -> list[Row]:
    return _appends(setting, "serve: append 100 records, 16 connections", 100, factor=1.5)


def append_fsync(setting: Setting) -> list[Row]:
    return _appends(setting, "serve: append 1 record, fsync, 16 connections", 1, factor=1, is_fsync=True)


def _appends(
    setting: Setting,
    what: str,
    count: int,
    *,
    factor: float,
    cpu_ceiling_us: float | None = None,
    is_fsync: bool = False,
) -> list[Row]:
    """The target is a multiple of the value that Redis reaches."""
    if (missing := missing_tool()) is not None:
        return [not_measured(what, missing)]
    with setting.server() as server, ExitStack() as peers:
        server.request("PUT", "/v0/topics/a", b'{"durability":"fsync"}' if is_fsync else b"{}")
        peer_rate = None
        if shutil.which("redis-server") is not None and shutil.which("redis-benchmark") is not None:
            policy = "always" if is_fsync else "everysec"
            redis = peers.enter_context(running_redis(f"{setting.directory}/redis", policy))
            peer_rate = partial(_xadd, redis, count, setting)
        post = Post("/v0/topics/a", write_body(count))
        figures = _rounds(setting, server, post, CONNECTIONS, peer_rate)
    load, peer = figures.load, figures.redis
    return [
        Row(
            what,
            load.rate * count / 1e3,
            "K records/s",
            floor=None if peer is None else factor * peer / 1e3,
            peer=None if peer is None else peer / 1e3,
            cpu=load.cpu,
            cpu_bare_us=figures.bare_us,
            cpu_ceiling_us=cpu_ceiling_us,
            client_share=load.client_share,
            note=_notes(load, "Redis is not installed" if peer is None else ""),
        )
    ]


def _notes(load: Load, *more: str) -> str:
    refused = f"{load.refused} of {load.requests} requests refused" if load.refused else ""
    return ", ".join(note for note in (refused, *more) if note)


def lone_append(setting: Setting) -> list[Row]:
    what = "serve: lone append, p50"
    if (missing := missing_tool()) is not None:
        return [not_measured(what, missing)]
    with setting.server() as server:
        figures = _rounds(setting, server, Post("/v0/topics/a", write_body(1)), 1)
    return [_latency(what, figures, ceiling=0.15)]


def caught_up_diff(setting: Setting) -> list[Row]:
    what = "serve: caught-up diff, p50"
    if (missing := missing_tool()) is not None:
        return [not_measured(what, missing)]
    with setting.server() as server:
        head_seq = server.request("POST", "/v0/topics/a", write_body(1000))["head_seq"]
        figures = _rounds(setting, server, Post("/v0/topics/a/diff", b'{"from_seq":%d}' % head_seq), 1)
    return [_latency(what, figures, ceiling=0.1, cpu_ceiling_us=30)]


def _latency(what: str, figures: _Figures, *, ceiling: float, cpu_ceiling_us: float | None = None) -> Row:
    load = figures.load
    return Row(
        what,
        load.p50_ms,
        "ms",
        ceiling=ceiling,
        cpu=load.cpu,
        cpu_bare_us=figures.bare_us,
        cpu_ceiling_us=cpu_ceiling_us,
        client_share=load.client_share,
        note=f"p99 {load.p99_ms:.2f} ms",
    )


def diff_thousand(setting: Setting) -> list[Row]:
    """Pages of 1000 records: from the tail, and from sealed segments."""
    names = ("serve: diff of 1000 records, tail", "serve: diff of 1000 records, sealed")
    if (missing := missing_tool()) is not None:
        return [not_measured(what, missing) for what in names]
    with setting.server() as server:
        for _ in range(SEALED_RECORDS // 1000):
            head_seq = server.request("POST", "/v0/topics/a", write_body(1000))["head_seq"]
        post = Post("/v0/topics/a/diff", b'{"limit":1000,"from_seq":%d}' % (head_seq - 1000))
        tail = _rounds(setting, server, post, CONNECTIONS)
    # A stop puts all records into segments.
    with setting.server() as server:
        sealed = _rounds(setting, server, Post("/v0/topics/a/diff", b'{"limit":1000}'), CONNECTIONS)
    return [
        Row(
            what,
            figures.load.rate / 1e3,
            "M records/s",
            floor=floor,
            cpu=figures.load.cpu,
            cpu_bare_us=figures.bare_us,
            client_share=figures.load.client_share,
        )
        for what, figures, floor in zip(names, (tail, sealed), (1.8, 0.8), strict=True)
    ]


def idle_memory(setting: Setting) -> list[Row]:
    with setting.server() as server:
        return [Row("serve: resident memory, idle", server.resident_mib(), "MiB", ceiling=90)]


def _rounds(
    setting: Setting,
    server: Process,
    post: Post,
    connections: int,
    peer: Callable[[], float] | None = None,
) -> _Figures:
    """The server, the bare server and the peer, measured in turns: the disk and the machine change from minute to
    minute.
    """
    loads: list[Load] = []
    bare_us: list[float] = []
    peers: list[float] = []
    answer = server.raw_answer("POST", post.path, post.body)
    with running_floor_server(setting.directory, answer) as bare:
        for _ in range(setting.rounds):
            loads.append(
                run_wrk(setting.directory, server, [post], connections=connections, seconds=setting.seconds(1.5))
            )
            load = run_wrk(setting.directory, bare, [post], connections=connections, seconds=setting.seconds(0.5))
            bare_us.append(load.cpu.total_us)
            if peer is not None:
                peers.append(peer())
    load = sorted(loads, key=lambda load: load.rate)[len(loads) // 2]
    return _Figures(load, median(bare_us), median(peers) if peers else None)


def _xadd(redis: Process, pipelined: int, setting: Setting) -> float:
    """Entries per second over the same number of connections. The tool of Redis counts requests, not seconds."""
    entry = ["XADD", "log", "*", "data", payloads(1)[0].decode()]
    requests = max(1000, setting.count({1: 40_000, 100: 300_000}[pipelined]))
    command = ["redis-benchmark", "-p", str(redis.port), "-c", str(CONNECTIONS), "-P", str(pipelined)]
    text = subprocess.run(
        [*command, "-n", str(requests), "--csv", *entry], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    # The first column is the command, which contains quotes.
    return float(text.splitlines()[-1].split('","')[-7])
