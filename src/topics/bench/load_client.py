"""Connections of a client that is not the limit: callbacks on uvloop that look at as few bytes as they can.

The client runs in the process of the benchmark, the server in another one. A write carries its send time, on the clock
that all processes of a machine share.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from time import monotonic_ns, perf_counter
from typing import Final, cast

from topics.bench.processes import Process, ProcessFailed

_SENT_NS: Final = re.compile(rb'"sent_ns":(\d+)')
_RECORD: Final = b'"$seq":'
_LENGTH: Final = b"content-length: "
_WAIT_S_MAX: Final = 60


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


class Requester(asyncio.Protocol):
    """One keep-alive connection with one request at a time, until `take_next` returns None.

    With `every_s`, requests begin at times that far apart. A request that is late begins as soon as the connection has
    its last answer.
    """

    def __init__(self, take_next: Callable[[], bytes | None], *, every_s: float = 0.0, first_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._take_next = take_next
        self._every_s = every_s
        self._due_s = self._loop.time() + first_s
        self._sent_ns = 0
        self._rest = b""
        self._transport: asyncio.WriteTransport
        self.latencies_ns: list[int] = []
        self.refused = 0
        self.done: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._loop.call_at(self._due_s, self._send)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("the server closed a connection"))

    def _send(self) -> None:
        request = self._take_next()
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent_ns = monotonic_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not _is_whole(data):
            self._rest = data
            return
        self._rest = b""
        self.latencies_ns.append(monotonic_ns() - self._sent_ns)
        if data[9:10] != b"2":
            self.refused += 1
        if self._every_s:
            self._due_s += self._every_s
            if self._due_s > self._loop.time():
                self._loop.call_at(self._due_s, self._send)
                return
        self._send()


def _is_whole(answer: bytes) -> bool:
    at = answer.find(_LENGTH)
    head_end = answer.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    return len(answer) >= head_end + 4 + int(answer[at + len(_LENGTH) : answer.index(b"\r", at)])


class Stream(asyncio.Protocol):
    """An SSE stream that counts its records in large reads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = b""
        self.records = 0
        self.is_lost = False
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.transport.write(f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        # A mark may be divided between two reads.
        edge = len(_RECORD) - 1
        self.records += data.count(_RECORD) + (self._last + data[:edge]).count(_RECORD)
        self._last = data[-edge:]


class LastWrite:
    """When the last write was sent."""

    __slots__ = ("sent_ns",)

    def __init__(self) -> None:
        self.sent_ns = 0


class TimedStream(Stream):
    """An SSE stream that also notes the age of each record when it arrives.

    Records of the bare server are all the same. Their age is that of the last write.
    """

    def __init__(self, path: str, latencies_ns: list[int], last_write: LastWrite | None = None) -> None:
        super().__init__(path)
        self._rest = b""
        self._latencies_ns = latencies_ns
        self._last_write = last_write

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        if self._rest:
            data = self._rest + data
        if data.endswith(b"\n"):
            self._rest = b""
        else:
            whole = data.rfind(b"\n") + 1
            data, self._rest = data[:whole], data[whole:]
        sent = _SENT_NS.findall(data)
        self.records += len(sent)
        if self._last_write is not None:
            self._latencies_ns += [now_ns - self._last_write.sent_ns] * len(sent)
        else:
            self._latencies_ns += [now_ns - int(sent_ns) for sent_ns in sent]


async def connect(server: Process, protocols: Sequence[asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    for protocol in protocols:
        try:
            await loop.create_connection(lambda protocol=protocol: protocol, "127.0.0.1", server.port)  # type: ignore[misc]
        except OSError:
            server.check_running(is_in_doubt=True)
            raise


async def finished(server: Process, requesters: Sequence[Requester]) -> None:
    """Waits until all requesters are done. A connection that broke raises, with the reason if the server has ended."""
    results = await asyncio.gather(*(requester.done for requester in requesters), return_exceptions=True)
    for error in results:
        if error is not None:
            server.check_running(is_in_doubt=True)
            raise ProcessFailed(f"a connection broke: {error}")


async def until(is_so: Callable[[], bool], server: Process) -> None:
    deadline = perf_counter() + _WAIT_S_MAX
    while not is_so():
        server.check_running()
        if perf_counter() > deadline:
            raise ProcessFailed("records did not arrive within a minute")
        await asyncio.sleep(0.001)


class Deadline:
    """Whether the time of a load is over. It begins when it is asked first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end_s: float | None = None

    @property
    def is_over(self) -> bool:
        now_s = perf_counter()
        if self._end_s is None:
            self._end_s = now_s + self._seconds
        return now_s >= self._end_s


def percentile(values: list[int], percent: float) -> float:
    """Of values that need not be sorted."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))])


def stamped(rest: bytes = b"") -> bytes:
    """A write of one small record that carries the time. `rest` are more members of the write, with a comma."""
    return b'{"records":[{"data":{"sent_ns":%d}}]%b}' % (monotonic_ns(), rest)
