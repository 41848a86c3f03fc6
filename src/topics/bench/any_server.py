"""`topics bench --server`: a server that is already running, here or elsewhere, measured from this machine.

Each benchmark has a topic of its own, whose name nobody else uses. The topics are removed at the end, also after Ctrl+C
and SIGTERM. A benchmark ends after its time or its number of requests, whichever comes first, so that a server gets
some tens of megabytes at most.

The load comes from this process. Its share of a core is in the column `client`: near 100 % the client is the limit.
"""

import asyncio
import secrets
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic_ns, perf_counter, process_time
from typing import Any, Final

import msgspec

from topics.bench import report
from topics.bench.http import CONNECTIONS, write_body
from topics.bench.load_client import Deadline, Requester, percentile
from topics.bench.report import Report, Row
from topics.client.aio.client import AsyncClient
from topics.client.endpoint import Endpoint
from topics.client.sync.client import Client
from topics.client.tls import tls_context
from topics.errors import TopicsError
from topics.results import Tombstone

PREFIX_DEFAULT: Final = "topics-bench."
SECONDS_DEFAULT: Final = 3.0
SECONDS_MAX: Final = 60.0

_APPENDS_MAX: Final = 50_000
_BATCHES_MAX: Final = 2_000
_PAGES_MAX: Final = 1_000
_PAGE_RECORDS: Final = 1_000
# Records that a tail is timed with, and the pause between them.
_TAILED_MAX: Final = 300
_TAIL_EVERY_S: Final = 0.01
_JOBS_MAX: Final = 10_000
_JOBS_EACH: Final = 10
_WORKERS: Final = 8
# A record that does not arrive, and a removal at the end, must not hang.
_WAIT_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Which server, and how long each benchmark takes. Without `durability` it is the server's default."""

    url: str
    key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    seconds: float = SECONDS_DEFAULT
    prefix: str = PREFIX_DEFAULT
    durability: str | None = None


class _Run:
    """One measurement of a server: its connections, and the topics that it must remove."""

    def __init__(self, load: ServerLoad) -> None:
        self.load = load
        self.endpoint = Endpoint.parse(load.url, load.key)
        self.tls: ssl.SSLContext | None = tls_context(self.endpoint, None, load.ca_file)
        self.prefix = f"{load.prefix}{secrets.token_hex(4)}."
        self.topics: list[str] = []

    def client(self) -> Client:
        return Client(self.load.url, token=self.load.key, ca_file=self.load.ca_file, retries=2)

    def async_client(self) -> AsyncClient:
        return AsyncClient(self.load.url, token=self.load.key, ca_file=self.load.ca_file)

    def create(self, name: str, **config: Any) -> str:
        topic = f"{self.prefix}{len(self.topics)}.{name}"
        # Before it is there: an answer that does not come leaves nothing behind either.
        self.topics.append(topic)
        if self.load.durability is not None:
            config["durability"] = self.load.durability
        with self.client() as client:
            client.create(topic, **config)
        return topic

    def remove_topics(self) -> None:
        """Says which ones it could not remove."""
        left: list[str] = []
        with self.client().with_options(timeout_s=_WAIT_S_MAX, deadline_s=_WAIT_S_MAX) as client:
            for topic in self.topics:
                try:
                    client.drop(topic)
                except TopicsError as error:
                    if error.code != "topic_not_found":
                        left.append(topic)
        if left:
            print(f"these topics could not be removed: {' '.join(left)}", file=sys.stderr)

    def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
        return head + self.endpoint.head + b"\r\n" + body


# The load.


@dataclass(frozen=True, slots=True)
class _Measured:
    """How long each answer took, the time of all, how many of them refused, and the CPU of the client."""

    latencies_ns: list[int]
    seconds: float
    refused: int = 0
    client_share: float = 0.0

    def latency(self, what: str, percent: float) -> Row:
        return Row(f"{what}, p{percent:g}", percentile(self.latencies_ns, percent) / 1e6, "ms", note=self.note)

    def rate(self, what: str, each: int) -> Row:
        rate = (len(self.latencies_ns) - self.refused) * each / self.seconds / 1e3
        return Row(what, rate, "K records/s", note=self.note, client_share=self.client_share)

    @property
    def note(self) -> str:
        return f"{self.refused} of {len(self.latencies_ns)} requests refused" if self.refused else ""


def _timed(work: Coroutine[Any, Any, _Measured]) -> _Measured:
    began_s, cpu_s = perf_counter(), process_time()
    found = asyncio.run(work)
    client_share = (process_time() - cpu_s) / (perf_counter() - began_s)
    if not found.latencies_ns:
        raise ConnectionError("the server has answered nothing")
    return replace(found, client_share=client_share)


async def _send(run: _Run, request: bytes, connections: int, requests_max: int) -> _Measured:
    """The same request again and again on some connections. Answers before all of them are open do not count."""
    deadline = Deadline(run.load.seconds)
    left = requests_max
    is_open = False

    def take_next() -> bytes | None:
        nonlocal left
        left -= 1
        return None if left < 0 or (is_open and deadline.is_over) else request

    requesters: list[Requester] = []

    def make() -> Requester:
        requesters.append(Requester(take_next))
        return requesters[-1]

    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(make, run.endpoint.host, run.endpoint.port, ssl=run.tls)
    before = [len(requester.latencies_ns) for requester in requesters]
    is_open = True
    began_s = perf_counter()
    await asyncio.gather(*(requester.done for requester in requesters))
    seconds = perf_counter() - began_s
    counted = [each.latencies_ns[start:] for each, start in zip(requesters, before, strict=True)]
    refused = sum(requester.refused for requester in requesters)
    return _Measured([latency for latencies in counted for latency in latencies], seconds, refused)


# The benchmarks.


def _appends(run: _Run, records: int, connections: int, requests_max: int) -> tuple[str, _Measured]:
    topic = run.create(f"append-{records}x{connections}")
    request = run.post(f"/v0/topics/{topic}", write_body(records))
    return topic, _timed(_send(run, request, connections, requests_max))


def _append_one(run: _Run) -> list[Row]:
    what = f"server: append 1 record, {CONNECTIONS} connections"
    _, found = _appends(run, 1, CONNECTIONS, _APPENDS_MAX)
    return [found.rate(what, 1), found.latency(what, 50), found.latency(what, 99)]


def _append_hundred(run: _Run) -> list[Row]:
    what = f"server: append 100 records, {CONNECTIONS} connections"
    _, found = _appends(run, 100, CONNECTIONS, _BATCHES_MAX)
    return [found.rate(what, 100), found.latency(what, 99)]


def _lone_append(run: _Run) -> list[Row]:
    _, found = _appends(run, 1, 1, _APPENDS_MAX)
    return [found.latency("server: lone append", percent) for percent in (50, 99)]


def _diff(run: _Run) -> list[Row]:
    topic = run.create("diff")
    with run.client() as client:
        for _ in range(_PAGE_RECORDS // 100):
            client.append_encoded(topic, _records_of(write_body(100)))
    request = run.post(f"/v0/topics/{topic}/diff", b'{"from_seq":0,"limit":%d}' % _PAGE_RECORDS)
    found = _timed(_send(run, request, 1, _PAGES_MAX))
    what = f"server: diff of {_PAGE_RECORDS} records"
    return [found.rate(what, _PAGE_RECORDS), found.latency(what, 50)]


def _records_of(body: bytes) -> bytes:
    return body.removeprefix(b'{"records":').removesuffix(b"}")


def _tail(run: _Run) -> list[Row]:
    topic = run.create("tail")
    found = _timed(_tail_latencies(run, topic))
    return [found.latency("server: append to tail (SSE), 100 records/s", percent) for percent in (50, 99)]


async def _tail_latencies(run: _Run, topic: str) -> _Measured:
    arrived: asyncio.Queue[int] = asyncio.Queue()
    async with run.async_client() as client:
        # A record that is not counted says that the tail is there.
        await client.append(topic, [{"sent_ns": 0}])

        async def follow() -> None:
            async for item in client.tail(topic):
                now_ns = monotonic_ns()
                if not isinstance(item, Tombstone):
                    arrived.put_nowait(now_ns - int(msgspec.json.decode(item.data)["sent_ns"]))

        follower = asyncio.create_task(follow())
        try:
            await asyncio.wait_for(arrived.get(), _WAIT_S_MAX)
            deadline = Deadline(run.load.seconds)
            sent = 0
            while sent < _TAILED_MAX and not deadline.is_over:
                await client.append(topic, [{"sent_ns": monotonic_ns()}])
                sent += 1
                await asyncio.sleep(_TAIL_EVERY_S)
            latencies_ns = [await asyncio.wait_for(arrived.get(), _WAIT_S_MAX) for _ in range(sent)]
            return _Measured(latencies_ns, run.load.seconds)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)


def _queue(run: _Run) -> list[Row]:
    topic = run.create("queue", type="queue")
    records = _records_of(write_body(1_000))
    with run.client() as client:
        for _ in range(_JOBS_MAX // 1_000):
            client.append_encoded(topic, records)
    found = _timed(_work(run, topic))
    what = f"server: claim and ack {_JOBS_EACH} jobs, {_WORKERS} workers"
    rate = found.rate(what, _JOBS_EACH)
    return [
        Row(what, rate.value, "K jobs/s", note=rate.note, client_share=rate.client_share),
        found.latency(what, 50),
        found.latency(what, 99),
    ]


async def _work(run: _Run, topic: str) -> _Measured:
    latencies_ns: list[int] = []
    deadline = Deadline(run.load.seconds)

    async def work(client: AsyncClient, node: str) -> None:
        while not deadline.is_over:
            began_ns = monotonic_ns()
            jobs = await client.claim(topic, node, max_jobs=_JOBS_EACH, lease_ms=60_000)
            if len(jobs) < _JOBS_EACH:
                return
            await client.ack(topic, node, jobs)
            latencies_ns.append(monotonic_ns() - began_ns)

    async with run.async_client() as client:
        began_s = perf_counter()
        await asyncio.gather(*(work(client, f"worker-{number}") for number in range(_WORKERS)))
        return _Measured(latencies_ns, perf_counter() - began_s)


SERVER_BENCHMARKS: Final[dict[str, Callable[[_Run], list[Row]]]] = {
    "append-1": _append_one,
    "append-100": _append_hundred,
    "lone-append": _lone_append,
    "diff": _diff,
    "tail": _tail,
    "queue": _queue,
}


def ask_server(load: ServerLoad) -> Report:
    """What is measured, as a report without rows. Raises `TopicsError` if the server cannot be asked with the key."""
    run = _Run(load)
    with run.client() as client:
        version, form = client.health().version, _form(client)
        # A health answer needs no key; a list does.
        next(client.topic_list(run.prefix), None)
    return Report(report.this_machine(), version, (), form, run.endpoint.url)


def measure_server(names: Sequence[str], load: ServerLoad, rounds: int = 1) -> Generator[Row, None, None]:
    """A benchmark that fails is a row. When the iterator is closed, or ends, the topics are removed."""
    run = _Run(load)
    with _removing(run):
        for name in names:
            yield from report.medians([_measure(name, run) for _ in range(rounds)])


def _measure(name: str, run: _Run) -> list[Row]:
    try:
        return SERVER_BENCHMARKS[name](run)
    except (TopicsError, OSError) as error:
        return [report.failed(f"server: {name}", str(error) or type(error).__name__)]


@contextmanager
def _removing(run: _Run) -> Iterator[None]:
    """Removes the topics at the end. SIGTERM ends a measurement as Ctrl+C does."""
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        run.remove_topics()


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _form(client: Client) -> str:
    """As the server's metrics tell it; empty if they do not, or if the key may not see them."""
    try:
        lines = client.metrics().splitlines()
    except TopicsError:
        return ""
    info = next((line for line in lines if line.startswith("topics_build_info{")), "")
    return info.partition('form="')[2].partition('"')[0]
