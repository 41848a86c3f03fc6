"""Streams over the wire protocol: one producer, one consumer, a lone message, each beside the bare server of streams.

The client waits for each answer before the next request, as clients of Apache Iggy do. It is this process; the server
is another one. MB/s count payloads only.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from struct import Struct
from time import perf_counter, perf_counter_ns
from typing import Final, Self

from topics.bench.bare_streams import METADATA_BYTES, POLL_OFFSET_AT
from topics.bench.processes import (
    CpuEach,
    CpuMeter,
    Process,
    ProcessFailed,
    running_bare_streams,
    running_streams_server,
)
from topics.bench.report import Row
from topics.bench.setting import Setting

BATCH_MESSAGES: Final = 1000
# Payload bytes that a producer sends in one round, and a consumer reads.
ROUND_BYTES: Final = 150_000_000
LONE_MESSAGES: Final = 20_000

_U32: Final = Struct("<I")
_ANSWER: Final = Struct("<II")
_POLLED: Final = Struct("<IQI")
_HEADER: Final = Struct("<Q16sQQQIIQ")
_ENTRY: Final = Struct("<IIQ")
_BY_NUMBER: Final = b"\x01\x04"


def frame(code: int, payload: bytes) -> bytes:
    return _U32.pack(4 + len(payload)) + _U32.pack(code) + payload


def login_frame(username: bytes = b"iggy", password: bytes = b"iggy") -> bytes:
    names = b"".join(bytes((len(text),)) + text for text in (username, password))
    return frame(38, names + _U32.pack(0) + _U32.pack(0))


def create_stream_frame(name: bytes) -> bytes:
    return frame(202, bytes((len(name),)) + name)


def create_topic_frame(stream_id: int, name: bytes, *, partitions: int = 1) -> bytes:
    options = _U32.pack(partitions) + b"\x01" + bytes(8) + bytes(8) + b"\x01"
    return frame(302, _BY_NUMBER + _U32.pack(stream_id) + options + bytes((len(name),)) + name)


def send_frame(topic_id: int, payloads: list[bytes]) -> bytes:
    """Into stream 0, partition 0. The server chooses the ids."""
    metadata = b"".join(
        (_BY_NUMBER, _U32.pack(0), _BY_NUMBER, _U32.pack(topic_id), b"\x02\x04", _U32.pack(0), _U32.pack(len(payloads)))
    )
    assert len(metadata) == METADATA_BYTES - 4
    messages = [_HEADER.pack(0, bytes(16), 0, 0, 1, 0, len(payload), 0) + payload for payload in payloads]
    entries = []
    end = 0
    for message in messages:
        end += len(message)
        entries.append(_ENTRY.pack(0, end, 0))
    return frame(101, b"".join((_U32.pack(len(metadata)), metadata, *entries, *messages)))


def poll_frame(topic_id: int, offset: int, count: int) -> bytes:
    """From stream 0, partition 0, by offset, without a commit."""
    consumer = b"\x01" + _BY_NUMBER + _U32.pack(0)
    where = _BY_NUMBER + _U32.pack(0) + _BY_NUMBER + _U32.pack(topic_id) + b"\x01" + _U32.pack(0)
    head = frame(100, consumer + where + b"\x01" + offset.to_bytes(8, "little") + _U32.pack(count) + b"\x00")
    assert head[POLL_OFFSET_AT : POLL_OFFSET_AT + 8] == offset.to_bytes(8, "little")
    return head


class Client:
    """A blocking connection: the least that a client can do for an answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(4 * 1024 * 1024))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, request: bytes) -> memoryview:
        """The payload of the answer, until the next call."""
        self._socket.sendall(request)
        filled = self._read(0, _ANSWER.size)
        status, length = _ANSWER.unpack_from(self._buffer)
        if status:
            raise ProcessFailed(f"a request was answered with status {status}")
        end = _ANSWER.size + length
        if end > len(self._buffer):
            grown = memoryview(bytearray(end))
            grown[:filled] = self._buffer[:filled]
            self._buffer = grown
        self._read(filled, end)
        return self._buffer[_ANSWER.size : end]

    def _read(self, filled: int, wanted: int) -> int:
        while filled < wanted:
            count = self._socket.recv_into(self._buffer[filled:])
            if not count:
                raise ProcessFailed("the server closed the connection")
            filled += count
        return filled


@dataclass(frozen=True, slots=True)
class _Load:
    """Batches a second, and the CPU of the server for one batch."""

    rate: float
    cpu: CpuEach
    client_share: float


@dataclass(frozen=True, slots=True)
class _Compared:
    """Medians of the rounds."""

    load: _Load
    bare: _Load


def measure(setting: Setting) -> list[Row]:
    rows: list[Row] = []
    with _servers(setting) as (server, port, bare):
        with Client(port) as client:
            client.call(login_frame())
            client.call(create_stream_frame(b"bench"))
            for name in (b"large", b"small", b"lone"):
                client.call(create_topic_frame(0, name))
        pairs = ((server, port), (bare, bare.port))
        rows += _throughput(setting, pairs, 0, 1000, "1 KB", mb_per_s=400, share=0.7)
        rows += _throughput(setting, pairs, 1, 100, "100 B", m_per_s=0.7, share=0.6)
        rows += _lone(setting, pairs, 2)
    return rows


@contextmanager
def _servers(setting: Setting) -> Iterator[tuple[Process, int, Process]]:
    with (
        running_streams_server(setting.directory, python_path=setting.python_path) as (server, port),
        running_bare_streams(setting.directory) as bare,
    ):
        yield server, port, bare


Pair = tuple[Process, int]


def _throughput(
    setting: Setting,
    pairs: tuple[Pair, Pair],
    topic_id: int,
    payload_bytes: int,
    size: str,
    *,
    share: float,
    mb_per_s: float | None = None,
    m_per_s: float | None = None,
) -> list[Row]:
    batches = max(2, setting.count(ROUND_BYTES) // (BATCH_MESSAGES * payload_bytes))
    request = send_frame(topic_id, [os.urandom(payload_bytes) for _ in range(BATCH_MESSAGES)])
    produced: list[tuple[_Load, _Load]] = []
    consumed: list[tuple[_Load, _Load]] = []
    for _ in range(setting.rounds):
        produced.append(tuple(_produce(*pair, request, batches) for pair in pairs))  # type: ignore[arg-type]
        consumed.append(tuple(_consume(*pair, topic_id, batches) for pair in pairs))  # type: ignore[arg-type]
    rows = []
    for what, rounds in (("send", produced), ("poll", consumed)):
        compared = _medians(rounds)
        # Batches a second, in the unit of the row.
        factor = BATCH_MESSAGES * (payload_bytes if mb_per_s is not None else 1) / 1e6
        target = mb_per_s if mb_per_s is not None else m_per_s
        assert target is not None
        bare = compared.bare.rate * factor
        rows.append(
            Row(
                f"streams: {what} 1000 x {size}, one client",
                compared.load.rate * factor,
                "MB/s" if mb_per_s is not None else "M messages/s",
                floor=max(target, share * bare),
                peer=bare,
                cpu=compared.load.cpu,
                cpu_bare_us=compared.bare.cpu.total_us,
                client_share=compared.load.client_share,
                note=f"target: {target:g} and {share:g} of the bare {'receiver' if what == 'send' else 'sender'}",
            )
        )
    return rows


def _produce(server: Process, port: int, request: bytes, batches: int) -> _Load:
    with Client(port) as client:
        _log_in(client)
        client.call(request)
        meter, began = CpuMeter(server), perf_counter()
        for _ in range(batches):
            client.call(request)
        return _load(meter, perf_counter() - began, batches)


def _consume(server: Process, port: int, topic_id: int, batches: int) -> _Load:
    requests = [poll_frame(topic_id, place * BATCH_MESSAGES, BATCH_MESSAGES) for place in range(batches)]
    with Client(port) as client:
        _log_in(client)
        meter, began = CpuMeter(server), perf_counter()
        for request in requests:
            _, _, count = _POLLED.unpack_from(client.call(request))
            if count != BATCH_MESSAGES:
                raise ProcessFailed(f"a poll of {BATCH_MESSAGES} messages got {count}")
        return _load(meter, perf_counter() - began, batches)


def _log_in(client: Client) -> None:
    """The bare server answers a login, too."""
    client.call(login_frame())


def _load(meter: CpuMeter, seconds: float, batches: int) -> _Load:
    return _Load(batches / seconds, meter.server().each(batches), meter.client_share())


def _medians(rounds: list[tuple[_Load, _Load]]) -> _Compared:
    def middle(loads: list[_Load]) -> _Load:
        return sorted(loads, key=lambda load: load.rate)[len(loads) // 2]

    return _Compared(middle([load for load, _ in rounds]), middle([bare for _, bare in rounds]))


def _lone(setting: Setting, pairs: tuple[Pair, Pair], topic_id: int) -> list[Row]:
    """How long a send of one message takes."""
    count = max(10, setting.count(LONE_MESSAGES))
    request = send_frame(topic_id, [os.urandom(100)])
    p50s: list[list[float]] = [[], []]
    p99s: list[list[float]] = [[], []]
    cpus: list[list[CpuEach]] = [[], []]
    for _ in range(setting.rounds):
        for place, (server, port) in enumerate(pairs):
            with Client(port) as client:
                _log_in(client)
                meter = CpuMeter(server)
                times = sorted(_timed(client, request) for _ in range(count))
                cpus[place].append(meter.server().each(count))
            p50s[place].append(times[count // 2] / 1e6)
            p99s[place].append(times[count * 99 // 100] / 1e6)
    cpu, bare_cpu = (sorted(each, key=lambda cpu: cpu.total_us)[len(each) // 2] for each in cpus)
    return [
        Row(
            f"streams: send one message, {name}",
            median(found[0]),
            "ms",
            ceiling=ceiling,
            peer=median(found[1]),
            cpu=cpu,
            cpu_bare_us=bare_cpu.total_us,
        )
        for name, found, ceiling in (("p50", p50s, 0.2), ("p99", p99s, None))
    ]


def _timed(client: Client, request: bytes) -> int:
    began = perf_counter_ns()
    client.call(request)
    return perf_counter_ns() - began
