"""Loads on the embedded engine, as a program that prints figures as JSON: records per second, seconds to open, memory.

The program can run with the package of another folder. So it imports nothing of this folder. Payloads are 100 bytes of
JSON.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import uvloop

import topics
from topics.embedded.log import make_batch
from topics.formats.wal_frame import OVERHEAD_BYTES

NEVER_MS: Final = 2**40
PAYLOAD_BYTES: Final = 100
# No checkpoint runs during a measurement.
HELD_OFF: Final = topics.EngineSettings(checkpoint_wal_bytes=2**50, checkpoint_interval_ms=NEVER_MS)


def payloads(count: int) -> list[bytes]:
    made = [b'{"id":%08d,"pad":"%b"}' % (10_000_000 + number, b"x" * 76) for number in range(count)]
    assert all(len(payload) == PAYLOAD_BYTES for payload in made)
    return made


def append_batches(directory: str, batches: int) -> float:
    """Appended records per second, from JSON text to the answer."""
    batch = payloads(100)
    with topics.open(f"{directory}/append", settings=HELD_OFF) as log:
        log.create("a", durability="disk")
        log.append("a", batch)
        began = perf_counter()
        for _ in range(batches):
            log.append("a", batch)
        return batches * 100 / (perf_counter() - began)


def read_pages(directory: str, pages: int) -> tuple[float, float]:
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


def fsync_writers(directory: str, writers: int, writes: int) -> dict[str, float]:
    """Durable writes of one record each by the tasks of one loop, compared with plain loops that write as many
    bytes."""
    raw_each = _raw_loop(f"{directory}/raw-each", writes, joined=False)
    raw_joined = _raw_loop(f"{directory}/raw-joined", writes, joined=True)
    encoded, per_sync = uvloop.run(_durable_writes(f"{directory}/encoded", writers, writes, encoded=True))
    from_json, _ = uvloop.run(_durable_writes(f"{directory}/json", writers, writes, encoded=False))
    return {
        "raw_each": raw_each,
        "raw_joined": raw_joined,
        "encoded": encoded,
        "from_json": from_json,
        "records_per_sync": per_sync,
    }


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


def fill_and_die(path: str, records: int, is_checkpointed: bool) -> None:  # noqa: FBT001 - an argument of the program.
    """Writes the records and ends this process with SIGKILL."""
    log = topics.open(path, settings=HELD_OFF)
    batch = payloads(100)
    for _ in range(records // 100):
        log.append("a", batch)
    if is_checkpointed:
        log.checkpoint()
    os.kill(os.getpid(), signal.SIGKILL)


def reopen(path: str, records: int) -> dict[str, float]:
    """Opens what a killed process has written."""
    began = perf_counter()
    log = topics.open(path, settings=HELD_OFF)
    seconds = perf_counter() - began
    found = log.state("a").count
    assert found == records, f"{found} of {records} records are there"
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident_bytes = int(statm.read().split()[1]) * resource.getpagesize()
    return {"seconds": seconds, "resident_mib": resident_bytes / 2**20}


LOADS: Final[dict[str, Callable[..., Any]]] = {
    load.__name__: load for load in (append_batches, read_pages, fsync_writers, open_empty, fill_and_die, reopen)
}


if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](*json.loads(sys.argv[2]))), flush=True)
    # No checkpoint: the directory is removed anyway.
    os._exit(0)
