"""Speed of a server, with the load from another process (wrk), and of Redis under the same load.

Everything runs on loopback with keep-alive, one after the other. Figures of one run can be compared with each other,
not with figures of another machine or another time.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Final

from topics.bench.storage import payloads

CONNECTIONS: Final = 16
START_S_MAX: Final = 30
SEALED_RECORDS: Final = 20_000
ROUNDS: Final = 3
_UNITS_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class RedisRates:
    """Stream entries per second; None if Redis is not installed."""

    one: float | None
    hundred: float | None
    always: float | None


@dataclass(frozen=True, slots=True)
class HttpResult:
    append_one: float
    append_hundred: float
    append_fsync: float
    diff_tail: float
    diff_sealed: float
    append_p50_ms: float
    diff_p50_ms: float
    idle_mib: float
    redis: RedisRates


def missing_tool() -> str | None:
    return None if shutil.which("wrk") else "wrk"


def measure(directory: str, *, seconds: int) -> HttpResult:
    """Measures each figure with loads of `seconds`. Figures that are compared take turns, and the median of the rounds
    counts.
    """
    one, hundred = _write_body(1), _write_body(100)
    with running_server(directory) as (port, pid), ExitStack() as peers:
        idle_mib = resident_mib(pid)
        _request(port, "PUT", "/v0/topics/synced", b'{"durability":"fsync"}')

        def append(topic: str, body: bytes) -> float:
            return _wrk(directory, port, f"/v0/topics/{topic}", body, CONNECTIONS, seconds).rate

        everysec = always = None
        if shutil.which("redis-server") is not None:
            everysec = peers.enter_context(_redis(f"{directory}/redis-everysec", "everysec"))
            always = peers.enter_context(_redis(f"{directory}/redis-always", "always"))
        append_one, redis_one = _compared(lambda: append("one", one), everysec, 1, seconds)
        append_hundred, redis_hundred = _compared(lambda: 100 * append("hundred", hundred), everysec, 100, seconds)
        append_fsync, redis_always = _compared(lambda: append("synced", one), always, 1, seconds)
        append_p50_ms = _wrk(directory, port, "/v0/topics/lone", one, 1, seconds).p50_ms
        for _ in range(SEALED_RECORDS // 1000):
            head_seq = _request(port, "POST", "/v0/topics/read", _write_body(1000))["head_seq"]
        tail = b'{"limit":1000,"from_seq":%d}' % (head_seq - 1000)
        diff_tail = 1000 * _wrk(directory, port, "/v0/topics/read/diff", tail, CONNECTIONS, seconds).rate
        caught_up = b'{"from_seq":%d}' % head_seq
        diff_p50_ms = _wrk(directory, port, "/v0/topics/read/diff", caught_up, 1, seconds).p50_ms
    # A stop puts all records into segments.
    with running_server(directory) as (port, _):
        diff_sealed = 1000 * _wrk(directory, port, "/v0/topics/read/diff", b'{"limit":1000}', CONNECTIONS, seconds).rate
    return HttpResult(
        append_one,
        append_hundred,
        append_fsync,
        diff_tail,
        diff_sealed,
        append_p50_ms,
        diff_p50_ms,
        idle_mib,
        RedisRates(redis_one, redis_hundred, redis_always),
    )


def _compared(
    ours: Callable[[], float], redis_port: int | None, pipelined: int, seconds: int
) -> tuple[float, float | None]:
    """The rates of the server and of the peer, measured in turns: the disk and the machine change from minute to
    minute.
    """
    rates: list[float] = []
    peers: list[float] = []
    for _ in range(ROUNDS):
        if redis_port is not None:
            peers.append(_xadd(redis_port, pipelined, seconds))
        rates.append(ours())
    return median(rates), median(peers) if peers else None


def _write_body(count: int) -> bytes:
    return b'{"records":[%b]}' % b",".join(b'{"data":%b}' % payload for payload in payloads(count))


@contextmanager
def running_server(directory: str) -> Iterator[tuple[int, int]]:
    """A server process on the directory. Yields its port and pid."""
    port_file = f"{directory}/port"
    command = [sys.executable, "-m", "topics.cli.entry", "serve", "--port", "0", "--port-file", port_file]
    with subprocess.Popen(
        [*command, "--data-dir", f"{directory}/data", "--log-level", "error"], stdout=subprocess.DEVNULL
    ) as process:
        try:
            _wait_until(lambda: os.path.exists(port_file))
            with open(port_file, encoding="utf-8") as file:
                port = int(file.read().rpartition(":")[2])
            _wait_until(lambda: "status" in _request(port, "GET", "/v0/ready"))
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            os.unlink(port_file)


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + START_S_MAX
    while not is_so():
        if monotonic() > deadline:
            raise TimeoutError("a server did not start")
        sleep(0.01)


def _request(port: int, method: str, path: str, body: bytes | None = None) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer: dict[str, int] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def wake_ups(pid: int) -> int:
    """How often the threads of a process went to sleep and were woken since its start. Linux only."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status.read_text(), re.MULTILINE)
        total += int(found[1]) if found is not None else 0
    return total


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read())
    assert found is not None
    return int(found[1]) / 1024


@dataclass(frozen=True, slots=True)
class _Load:
    rate: float
    p50_ms: float


def _wrk(directory: str, port: int, path: str, body: bytes, connections: int, seconds: int) -> _Load:
    """Sends the body by POST again and again. wrk runs a Lua script, which reads the body from a file."""
    with open(f"{directory}/body", "wb") as file:
        file.write(body)
    with open(f"{directory}/post.lua", "w", encoding="utf-8") as file:
        file.write(
            f'local file = io.open("{directory}/body", "rb")\n'
            'wrk.method, wrk.body = "POST", file:read("*a")\n'
            'wrk.headers["Content-Type"] = "application/json"\n'
        )
    url = f"http://127.0.0.1:{port}{path}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", f"{directory}/post.lua", url]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in", text)
    p50 = re.search(r"50%\s+([\d.]+)(us|ms|s)\b", text)
    assert rate is not None
    assert count is not None
    assert p50 is not None
    # Writers that are faster than the checkpoints get 429. A refused write does not count.
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    share = 1 - (int(refused[1]) if refused else 0) / max(1, int(count[1]))
    return _Load(float(rate[1]) * share, float(p50[1]) * _UNITS_MS[p50[2]])


@contextmanager
def _redis(directory: str, appendfsync: str) -> Iterator[int]:
    os.mkdir(directory)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--dir", directory, "--save", "", "--appendonly", "yes"]
    with subprocess.Popen([*command, "--appendfsync", appendfsync], stdout=subprocess.DEVNULL) as process:
        try:
            _wait_until(lambda: _answers(port))
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _xadd(port: int, pipelined: int, seconds: int) -> float:
    """Entries per second over the same number of connections. The tool of Redis counts requests, not seconds."""
    entry = ["XADD", "log", "*", "data", payloads(1)[0].decode()]
    requests = {1: 25_000, 100: 150_000}[pipelined] * seconds
    command = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-P", str(pipelined), "-n", str(requests)]
    text = subprocess.run([*command, "--csv", *entry], stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(text.splitlines()[-1].split('","')[1].strip('"'))
