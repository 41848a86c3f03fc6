"""Requests from wrk, a client in C: how many were answered, how fast, and what the client itself cost."""

import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from topics.bench.processes import CpuEach, CpuTime, Process, ProcessFailed

_UNITS_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
# wrk ends on SIGINT before that.
_LONG_S: Final = 3600
_AGAIN_S: Final = 0.2
_ANSWER_S_MAX: Final = 20
# Until wrk handles it: a signal that comes too early must not end wrk without its figures.
_IGNORING_INTERRUPTS: Final = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")


def missing_tool() -> str | None:
    return None if shutil.which("wrk") else "wrk is not installed"


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` is answers with success per second, `refused` the number of other answers."""

    rate: float
    requests: int
    refused: int
    p50_ms: float
    p99_ms: float
    cpu: CpuEach
    client_share: float


@dataclass(frozen=True, slots=True)
class Post:
    path: str
    body: bytes


def run_wrk(
    directory: str, server: Process, requests: Sequence[Post], *, connections: int, seconds: float, order: str = ""
) -> Load:
    """Sends the requests again and again, each when its connection has its last answer.

    `order` is a Lua expression for the index of request number `n`, which counts from 0 over all connections. Without
    it the requests take turns.
    """
    script = _script(directory, requests, order or f"n % {len(requests)}")
    while True:
        before, children_before = server.cpu_time(), _children_s()
        began_s = perf_counter()
        text = _output(server, script, connections, seconds)
        took_s = perf_counter() - began_s
        load = _parse(text, server.cpu_time() - before, (_children_s() - children_before) / took_s)
        if load is not None:
            return load
        server.check_running(is_in_doubt=True)
        if seconds > _ANSWER_S_MAX:
            raise ProcessFailed(f"wrk got no answer in {seconds:.0f} s")
        seconds *= 4


def _output(server: Process, script: str, connections: int, seconds: float) -> str:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{_LONG_S}s", "--timeout", "60s", "--latency", "-s", script]
    command = [*_IGNORING_INTERRUPTS, *command, f"http://127.0.0.1:{server.port}/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        sleep(seconds)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_AGAIN_S)
        return process.communicate()[0]


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _script(directory: str, requests: Sequence[Post], order: str) -> str:
    """The path of a Lua script, which reads all bodies from one file."""
    bodies, path = Path(directory, "bodies"), Path(directory, "load.lua")
    lines = [
        "local made, n = {}, -1",
        "function init()",
        '  wrk.headers["Content-Type"] = "application/json"',
        f'  local file = io.open("{bodies}", "rb")',
        '  local bodies = file:read("*a")',
        "  file:close()",
    ]
    begin = 0
    for number, request in enumerate(requests):
        end = begin + len(request.body)
        # In Lua the first byte has the number 1, and the end is included.
        lines.append(
            f'  made[{number}] = wrk.format("POST", "{request.path}", nil, string.sub(bodies, {begin + 1}, {end}))'
        )
        begin = end
    lines += ["end", f"function request() n = n + 1; return made[{order}] end", ""]
    bodies.write_bytes(b"".join(request.body for request in requests))
    path.write_text("\n".join(lines))
    return str(path)


def _parse(text: str, cpu_time: CpuTime, client_share: float) -> Load | None:
    """None if no answer came in the time."""
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in", text)
    if rate is None or count is None or not int(count[1]):
        return None
    # Writers that are faster than the checkpoints get 429. A refused write does not count.
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    refused_count = int(refused[1]) if refused else 0
    requests = int(count[1])
    return Load(
        rate=float(rate[1]) * (1 - refused_count / requests),
        requests=requests,
        refused=refused_count,
        p50_ms=_percentile_ms(text, 50),
        p99_ms=_percentile_ms(text, 99),
        cpu=cpu_time.each(requests),
        client_share=client_share,
    )


def _percentile_ms(text: str, percent: int) -> float:
    found = re.search(rf"\b{percent}%\s+([\d.]+)(us|ms|s|m)\b", text)
    assert found is not None, text
    return float(found[1]) * _UNITS_MS[found[2]]
