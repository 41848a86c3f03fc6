"""Loads on many topics: actors with a small topic each, and writers of batches that change the topic each time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from time import perf_counter
from typing import Final

import uvloop

from topics.bench.http import write_body
from topics.bench.load_client import Deadline, Requester, connect, finished, percentile, post
from topics.bench.processes import CpuEach, CpuMeter, Process, running_floor_server
from topics.bench.report import Row
from topics.bench.setting import Setting

_ACTOR_CONNECTIONS: Final = 64
_CHAIN: Final = 5
# K requests/s: 1.5 times what the plain form reached before its hot modules were compiled.
_ACTORS_MIN: Final = 26.0
_WRITERS: Final = 32
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class _Result:
    """`rate` and `cpu` are those of requests."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu: CpuEach
    client_share: float
    refused: int


def actor_requests(numbers: range) -> Iterator[bytes]:
    """Requests of the actors of one connection, one actor after the other, without an end: a chain of appends, and
    after every second chain a delete of all records but the newest.
    """
    body = write_body(1)
    appends = [post(f"/v0/topics/actor-{number}", body) for number in numbers]
    chains = 0
    while True:
        chains += 1
        for number, append in zip(numbers, appends, strict=True):
            for _ in range(_CHAIN):
                yield append
            if chains % 2 == 0:
                yield post(f"/v0/topics/actor-{number}/delete", b'{"before_seq":%d}' % (chains * _CHAIN))


def actors(setting: Setting) -> list[Row]:
    count = max(_ACTOR_CONNECTIONS, setting.count(1000))
    endless = [actor_requests(range(first, count, _ACTOR_CONNECTIONS)) for first in range(_ACTOR_CONNECTIONS)]
    # The first chain of each actor creates its topic.
    first_chains = [
        islice(requests, len(range(first, count, _ACTOR_CONNECTIONS)) * _CHAIN)
        for first, requests in enumerate(endless)
    ]
    with setting.server() as server:
        uvloop.run(_load(server, first_chains))
        answer = server.raw_answer("POST", "/v0/topics/another", write_body(1))
        result = uvloop.run(_load(server, endless, setting.seconds(4)))
    with running_floor_server(setting.directory, answer) as bare_server:
        bare = uvloop.run(_load(bare_server, endless, setting.seconds(1)))
    what = f"live: {count} actors, chains of {_CHAIN} appends and deletes"
    return _rows(what, result, bare, per_request=1, unit="K requests/s", floor=_ACTORS_MIN)


def batch_requests(first: int, topics: int) -> Iterator[bytes]:
    """Batches of one connection, without an end. Each one goes into the next topic of this connection. After each round
    over its topics the connection takes those of its neighbour.
    """
    body = write_body(_BATCH)
    while True:
        for number in range(first, topics, _WRITERS):
            yield post(f"/v0/topics/t{number}?return_seqs=false", body)
        first = (first + 1) % _WRITERS


def many_topics(setting: Setting) -> list[Row]:
    """First each topic is created by the first batch that it gets. Then all topics are there."""
    topics = max(_WRITERS, setting.count(5000))
    endless = [batch_requests(number, topics) for number in range(_WRITERS)]
    with setting.server() as server:
        answer = server.raw_answer("POST", "/v0/topics/another?return_seqs=false", write_body(_BATCH))
        # One round of each connection.
        rounds = [len(range(number, topics, _WRITERS)) for number in range(_WRITERS)]
        first_rounds = [islice(requests, count) for requests, count in zip(endless, rounds, strict=True)]
        creating = uvloop.run(_load(server, first_rounds))
        result = uvloop.run(_load(server, endless, setting.seconds(3)))
    with running_floor_server(setting.directory, answer) as bare_server:
        bare = uvloop.run(_load(bare_server, endless, setting.seconds(1)))
    what = f"live: {topics} topics, {_WRITERS} writers of {_BATCH}"
    return [
        *_rows(what, result, bare, per_request=_BATCH, unit="K records/s", floor=350),
        *_rows(f"{what}, all new", creating, bare, per_request=_BATCH, unit="K records/s"),
    ]


def _rows(
    what: str, result: _Result, bare: _Result, *, per_request: int, unit: str, floor: float | None = None
) -> list[Row]:
    return [
        Row(
            what,
            result.rate * per_request / 1e3,
            unit,
            floor=floor,
            cpu=result.cpu,
            cpu_bare_us=bare.cpu.total_us,
            client_share=result.client_share,
            note=f"{result.refused} requests refused" if result.refused else "",
        ),
        Row(f"{what}, p50", result.p50_ms, "ms"),
        Row(f"{what}, p99", result.p99_ms, "ms"),
    ]


async def _load(server: Process, sources: Sequence[Iterator[bytes]], seconds: float = inf) -> _Result:
    """One connection for each source, until the sources or the seconds end."""
    deadline = Deadline(seconds)

    def take_next(source: Iterator[bytes]) -> bytes | None:
        return None if deadline.is_over else next(source, None)

    requesters = [Requester(partial(take_next, source)) for source in sources]
    meter, began_s = CpuMeter(server), perf_counter()
    await connect(server, requesters)
    await finished(server, requesters)
    took_s = perf_counter() - began_s
    latencies_ns = [latency for requester in requesters for latency in requester.latencies_ns]
    return _Result(
        len(latencies_ns) / took_s,
        percentile(latencies_ns, 50) / 1e6,
        percentile(latencies_ns, 99) / 1e6,
        meter.server().each(len(latencies_ns)),
        meter.client_share(),
        sum(requester.refused for requester in requesters),
    )
