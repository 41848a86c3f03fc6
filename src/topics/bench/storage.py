"""Benchmarks of the embedded engine: records per second, seconds to open, memory in MiB. Payloads are 100 bytes of
JSON."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import uvloop

import topics
from topics.embedded.log import make_batch
from topics.engine.config import Durability
from topics.formats.wal_frame import OVERHEAD_BYTES

NEVER_MS: Final = 2**40
PAYLOAD_BYTES: Final = 100
# No checkpoint runs during a measurement.
HELD_OFF: Final = topics.EngineSettings(checkpoint_wal_bytes=2**50, checkpoint_interval_ms=NEVER_MS)


def payloads(count: int) -> list[bytes]:
    made = [b'{"id":%08d,"pad":"%b"}' % (10_000_000 + number, b"x" * 76) for number in range(count)]
    assert all(len(payload) == PAYLOAD_BYTES for payload in made)
    return made


def append_batches(directory: str, *, batches: int, durability: Durability) -> float:
    """Appended records per second, from JSON text to the answer."""
    batch = payloads(100)
    with topics.open(f"{directory}/append", settings=HELD_OFF) as log:
        log.create("a", durability=durability)
        log.append("a", batch)
        began = perf_counter()
        for _ in range(batches):
            log.append("a", batch)
        return batches * 100 / (perf_counter() - began)


def read_pages(directory: str, *, pages: int) -> tuple[float, float]:
    """Records per second that are read in pages of raw records: from the tail, and from sealed segments."""
    settings = topics.EngineSettings(tail_cache_bytes=0, checkpoint_interval_ms=NEVER_MS)
    batch = payloads(1000)
    with topics.open(f"{directory}/read", settings=settings) as log:
        for _ in range(20):
            log.append("a", batch)
        log.checkpoint()
        sealed = _page_rate(lambda: len(log.read("a", 5000, limit=1000)), max(1, pages // 10))
        log.append("a", batch)
        tail = _page_rate(lambda: len(log.read("a", 20_000, limit=1000)), pages)
    return tail, sealed


def _page_rate(read: Callable[[], int], pages: int) -> float:
    began = perf_counter()
    records = sum(read() for _ in range(pages))
    return records / (perf_counter() - began)


@dataclass(frozen=True, slots=True)
class FsyncResult:
    raw_each: float
    raw_joined: float
    encoded: float
    from_json: float
    records_per_sync: float


def fsync_writers(directory: str, *, writers: int, writes: int) -> FsyncResult:
    """Durable writes of one record each by the tasks of one loop, compared with plain loops that write as many
    bytes."""
    raw_each = _raw_loop(f"{directory}/raw-each", writes, joined=False)
    raw_joined = _raw_loop(f"{directory}/raw-joined", writes, joined=True)
    encoded, per_sync = uvloop.run(_durable_writes(f"{directory}/encoded", writers, writes, encoded=True))
    from_json, _ = uvloop.run(_durable_writes(f"{directory}/json", writers, writes, encoded=False))
    return FsyncResult(raw_each, raw_joined, encoded, from_json, per_sync)


def _raw_loop(path: str, writes: int, *, joined: bool) -> float:
    frame = b"x" * (PAYLOAD_BYTES + len(b'{"d":}') + OVERHEAD_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        began = perf_counter()
        for _ in range(0, writes, 64):
            if joined:
                os.write(descriptor, frame * 64)
            else:
                for _ in range(64):
                    os.write(descriptor, frame)
            os.fdatasync(descriptor)
        return writes / (perf_counter() - began)
    finally:
        os.close(descriptor)


async def _durable_writes(path: str, writers: int, writes: int, *, encoded: bool) -> tuple[float, float]:
    payload = payloads(1)
    batch = make_batch(payload)
    async with topics.open_async(path, settings=HELD_OFF) as log:
        await log.create("a", durability="fsync")
        left = writes
        before = log.syncs_total

        async def writer() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await (log.append_batch("a", batch) if encoded else log.append("a", payload))

        began = perf_counter()
        await asyncio.gather(*(writer() for _ in range(writers)))
        rate = writes / (perf_counter() - began)
        return rate, writes / max(1, log.syncs_total - before)


def open_empty(directory: str) -> float:
    """Seconds to open a directory that does not exist yet. The imports are already done."""
    began = perf_counter()
    log = topics.open(f"{directory}/empty")
    seconds = perf_counter() - began
    log.close()
    return seconds


@dataclass(frozen=True, slots=True)
class Reopened:
    seconds: float
    resident_mib: float


_FILL: Final = """
import os, signal, sys
import topics
from topics.bench.storage import HELD_OFF, payloads
path, records, checkpointed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
log = topics.open(path, settings=HELD_OFF)
batch = payloads(100)
for _ in range(records // 100):
    log.append("a", batch)
if checkpointed:
    log.checkpoint()
os.kill(os.getpid(), signal.SIGKILL)
"""

_REOPEN: Final = """
import os, resource, sys, time
import topics
from topics.bench.storage import HELD_OFF
began = time.perf_counter()
log = topics.open(sys.argv[1], settings=HELD_OFF)
seconds = time.perf_counter() - began
assert log.state("a").count == int(sys.argv[2])
with open("/proc/self/statm") as statm:
    resident = int(statm.read().split()[1]) * resource.getpagesize()
print(seconds, resident / 2**20, flush=True)
os._exit(0)
"""


def reopen(directory: str, *, records: int, checkpointed: bool) -> Reopened:
    """One process writes the records and is killed with SIGKILL. Another process opens the directory and is
    measured."""
    records -= records % 100
    path = f"{directory}/reopen-{checkpointed}"
    _python(_FILL, path, records, checkpointed)
    seconds, resident_mib = _python(_REOPEN, path, records).split()
    return Reopened(float(seconds), float(resident_mib))


def _python(script: str, *arguments: Any) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
