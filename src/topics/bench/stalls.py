"""How long one client can keep the server from answering others: the longest health answer beside each hostile request.

A probe asks for health every 10 ms on a connection of its own while one large request runs. The figures depend on the
machine, so the idle server is measured first.
"""

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Final

from topics.bench.processes import Process
from topics.bench.report import Row
from topics.bench.setting import Setting
from topics.limits import KIB, MIB

_HEALTH: Final = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_EVERY_S: Final = 0.01
_IDLE_S: Final = 1.0
_ANSWER_S_MAX: Final = 120.0
_JSON: Final = b"Content-Type: application/json\r\n"
# A record of the largest size.
_LARGEST: Final = b'{"data":"%b"}' % (b"x" * (MIB - 2))


@dataclass(frozen=True, slots=True)
class Stall:
    """One request, its status, how long it took, and the longest health answer meanwhile."""

    what: str
    status: int
    took_s: float
    longest_gap_ms: float
    resident_mib: float


class HealthProbe:
    """Asks for health on a connection of its own, every 10 ms, on a thread."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout=_ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_over = threading.Event()
        self._began_s: float | None = None
        self._answers = 0
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            self._began_s = began_s = perf_counter()
            self._socket.sendall(_HEALTH)
            answer = b""
            while not answer.endswith(b"}"):
                answer += self._socket.recv(64 * KIB)
            self._longest_s = max(self._longest_s, perf_counter() - began_s)
            self._began_s = None
            self._answers += 1

    def start_over(self) -> None:
        """Forgets all answers up to now. This process itself may have kept the probe waiting, for example while it made
        a large request."""
        last = self._answers + 2
        while self._answers < last:
            sleep(_EVERY_S)
        self._longest_s = 0.0

    def take_longest_ms(self) -> float:
        """The longest answer since the last call, in ms. An answer that is still awaited counts, too."""
        began_s = self._began_s
        waiting_s = 0.0 if began_s is None else perf_counter() - began_s
        longest_s, self._longest_s = max(self._longest_s, waiting_s), 0.0
        return longest_s * 1000

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def health_probe(port: int) -> Iterator[HealthProbe]:
    probe = HealthProbe(port)
    try:
        yield probe
    finally:
        probe.close()


def records(count: int, record: bytes, rest: bytes = b"") -> bytes:
    """A write of equal records. `rest` are more members, with their first comma."""
    return b'{"records":[%b]%b}' % (b",".join([record] * count), rest)


def members(bytes_count: int) -> bytes:
    """About so many bytes of tiny members, each with a comma before it."""
    return b"".join([b',"%07x":0' % number for number in range(bytes_count // 12)])


def hostile_requests(scale: float) -> Iterator[tuple[str, bytes]]:
    """Requests of the largest legal size, by what is special about each."""
    yield from _hostile_writes(scale)
    yield from _hostile_stages(scale)
    yield from _other_hostile_requests()


def _request(line: bytes, body: bytes, headers: bytes = _JSON) -> bytes:
    return b"%b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (line, headers, len(body), body)


def _hostile_writes(scale: float) -> Iterator[tuple[str, bytes]]:
    size = round(60 * MIB * scale)
    count = max(1, round(60 * scale))
    write = b"POST /v0/topics/t"
    yield "write: records of 1 MiB", _request(write, records(count, _LARGEST))
    yield (
        "write: 10 000 records of 6 KB",
        _request(write, records(round(10_000 * scale) or 1, b'{"data":"%b"}' % (b"x" * 6200))),
    )
    yield "write: 10 000 tiny records", _request(write, records(10_000, b'{"data":1}'))
    yield (
        "write: 10 000 tiny records with tag, node, meta",
        _request(write, records(10_000, b'{"data":1,"tag":"t","node":"n","meta":{"a":1}}')),
    )
    yield (
        "write: with a key, records of 1 MiB",
        _request(write, records(count, _LARGEST, b',"idempotency_key":"k%d"' % size)),
    )
    yield "write: unknown members of the body", _request(write, records(1, b'{"data":1}', members(size)))
    tiny = members(6000)
    yield (
        "write: unknown members of each record",
        _request(write, records(round(10_000 * scale) or 1, b'{"data":1%b}' % tiny)),
    )
    yield (
        "write: one huge unknown array",
        _request(write, records(1, b'{"data":1}', b',"x":[%b0]' % (b"0," * (size // 2)))),
    )
    yield "write: millions of tiny records", _request(write, records(size // 11, b'{"data":1}'))
    yield "write: brackets", _request(write, records(count, b'{"data":[%b0]}' % (b"[]," * 340_000)))
    yield (
        "write: repeated names",
        _request(write, records(max(1, count // 10), b'{"x":1,"x":1,"data":[%b0]}' % (b'{"data":1},' * 90_000))),
    )
    yield "write: numbers", _request(write, records(max(1, count // 4), b'{"data":[%b0]}' % (b"1e200," * 170_000)))
    yield "write: escapes", _request(write, records(count, b'{"data":"%b"}' % (b'\\"' * 500_000)))
    zipped = gzip.compress(records(round(10_000 * scale) or 1, b'{"data":"%b"}' % (b"xy" * 3100)), 1)
    yield "write: gzip", _request(write, zipped, _JSON + b"Content-Encoding: gzip\r\n")
    chunked = b"%b HTTP/1.1\r\nHost: localhost\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (write, _JSON)
    yield (
        "write: chunked",
        chunked
        + b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in _parts(records(count, _LARGEST))])
        + b"0\r\n\r\n",
    )


def _hostile_stages(scale: float) -> Iterator[tuple[str, bytes]]:
    count = max(1, round(60 * scale))
    stage = b',"writer":"w","epoch":1,"part":1,"attempt":1,"chunk":%d'
    yield "stage: records of 1 MiB", _request(b"POST /v0/topics/t/stage", records(count, _LARGEST, stage % 1))
    yield (
        "stage: 10 000 tiny records",
        _request(b"POST /v0/topics/t/stage", records(10_000, b'{"data":1,"tag":"t"}', stage % 2)),
    )


def _other_hostile_requests() -> Iterator[tuple[str, bytes]]:
    small = MIB - KIB
    yield "watch: unknown members", _request(b"POST /v0/watch", b'{"topics":{"t":{}}%b}' % members(small))
    yield (
        "watch: many topics",
        _request(
            b"POST /v0/watch", b'{"topics":{"t":{}%b}}' % b"".join([b',"%x":{}' % number for number in range(90_000)])
        ),
    )
    yield "watch: 16 MiB", _request(b"POST /v0/watch", b'{"topics":{"t":{}}%b}' % members(16 * MIB))
    yield "diff: nodes", _request(b"POST /v0/topics/t/diff", b'{"node":[%b""]}' % (b'"",' * (small // 3)))
    yield "diff: a page of 8 MiB", _request(b"POST /v0/topics/t/diff", b'{"limit":1000,"max_batch_bytes":8388608}')
    yield (
        "diff: a page of 8 MiB, gzip",
        _request(
            b"POST /v0/topics/t/diff", b'{"limit":1000,"max_batch_bytes":8388608}', _JSON + b"Accept-Encoding: gzip\r\n"
        ),
    )
    yield "frames: the largest page", _request(b"GET /v0/topics/t/frames?max_bytes=67108864", b"")
    yield "ack: seqs", _request(b"POST /v0/topics/q/ack", b'{"node":"n","seqs":[%b0]}' % (b"0," * (small // 2)))
    yield "delete: a pattern", _request(b"POST /v0/topics/t/delete", b'{"match":"%b*"}' % (b"x" * small))
    yield "config: unknown members", _request(b"PUT /v0/topics/t", b'{"ttl_ms":0%b}' % members(small))


def _parts(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 64 * KIB):
        yield body[start : start + 64 * KIB]


def send(port: int, request: bytes) -> int:
    """Sends one request on a connection of its own, and takes the whole answer; its status, or 0 if there was none."""
    with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S_MAX) as client:
        try:
            client.sendall(request)
        except ConnectionError:
            # Refused by its head, perhaps with an answer.
            pass
        answer = b""
        try:
            while b"\r\n\r\n" not in answer:
                if not (received := client.recv(MIB)):
                    return 0
                answer += received
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            left = length - len(body)
            while left > 0 and (received := client.recv(MIB)):
                left -= len(received)
        except ConnectionError:
            pass
        return int(answer[9:12] or 0)


def measure(setting: Setting) -> list[Row]:
    """One row for each hostile request, after one for the idle server."""
    with setting.server() as server, health_probe(server.port) as probe:
        stalls = _stalls(server, probe, setting.scale)
    return [
        Row(
            f"stalls: {stall.what}",
            stall.longest_gap_ms,
            "ms",
            ceiling=50,
            note=f"status {stall.status}, {stall.took_s:.1f} s, {stall.resident_mib:.0f} MiB",
        )
        for stall in stalls
    ]


def _stalls(server: Process, probe: HealthProbe, scale: float) -> list[Stall]:
    port, pid = server.port, server.pid
    send(
        port,
        b'PUT /v0/topics/q HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: 16\r\n\r\n{"type":"queue"}' % _JSON,
    )
    sleep(_IDLE_S * scale)
    stalls = [Stall("idle", 200, _IDLE_S * scale, probe.take_longest_ms(), _peak_mib(pid))]
    for what, request in hostile_requests(scale):
        _forget_peak(pid)
        probe.start_over()
        began_s = perf_counter()
        status = send(port, request)
        took_s = perf_counter() - began_s
        sleep(5 * _EVERY_S)
        stalls.append(Stall(what, status, took_s, probe.take_longest_ms(), _peak_mib(pid)))
    return stalls


def _peak_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        (line,) = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) / KIB


def _forget_peak(pid: int) -> None:
    """The peak of the resident memory begins at its current size again."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as control:
        control.write("5")
