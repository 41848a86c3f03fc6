"""Runs benchmarks by name and prints one table: measured values, targets, and whether each target is met."""

import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from topics.bench import http, live, routers, spark, stalls, storage, streams


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `floor` or `ceiling` is the target, in the unit of `value`.

    `peer` is the value that Redis reached in the same run.
    """

    what: str
    value: float
    unit: str
    floor: float | None = None
    ceiling: float | None = None
    note: str = ""
    peer: float | None = None

    @property
    def is_met(self) -> bool | None:
        if self.floor is not None:
            return self.value >= self.floor
        if self.ceiling is not None:
            return self.value <= self.ceiling
        return None


Benchmark = Callable[[str, float], list[Row]]


def _append(directory: str, scale: float) -> list[Row]:
    rate = storage.append_batches(directory, batches=_scaled(4000, scale), durability="disk")
    return [Row("append, 100-record batches, disk", rate / 1e3, "K records/s", floor=400)]


def _read(directory: str, scale: float) -> list[Row]:
    tail, sealed = storage.read_pages(directory, pages=_scaled(2000, scale))
    return [
        Row("read, 1000-record pages, tail", tail / 1e6, "M records/s", floor=5),
        Row("read, 1000-record pages, sealed", sealed / 1e6, "M records/s", note="checksums verified"),
    ]


def _fsync(directory: str, scale: float) -> list[Row]:
    result = storage.fsync_writers(directory, writers=64, writes=_scaled(100_000, scale))
    return [
        Row("raw loop: write each, fdatasync per 64", result.raw_each / 1e3, "K records/s"),
        Row("raw loop: one write and fdatasync per 64", result.raw_joined / 1e3, "K records/s"),
        Row("fsync, 64 writers, encoded before", result.encoded / 1e3, "K records/s"),
        Row("fsync, 64 writers, from JSON text", result.from_json / 1e3, "K records/s"),
        Row("ratio to the raw loop (write each)", 100 * result.encoded / result.raw_each, "%", floor=60),
        Row("records per sync", result.records_per_sync, ""),
    ]


def _open(directory: str, scale: float) -> list[Row]:
    records = _scaled(1_000_000, scale)
    empty = storage.open_empty(directory)
    wal = storage.reopen(directory, records=records, checkpointed=False)
    segments = storage.reopen(directory, records=records, checkpointed=True)
    return [
        Row("open an empty directory", empty * 1e3, "ms", ceiling=200),
        Row(f"open after kill -9, {records} records in segments", segments.seconds, "s", ceiling=0.5),
        Row("  resident memory then", segments.resident_mib, "MiB", ceiling=150),
        Row(f"open after kill -9, {records} records in the WAL", wal.seconds, "s", ceiling=2),
        Row("  resident memory then", wal.resident_mib, "MiB", ceiling=150),
    ]


def _serve(directory: str, scale: float) -> list[Row]:
    if (missing := http.missing_tool()) is not None:
        return [Row("served over HTTP", 0, "", note=f"not measured: {missing} is not installed")]
    result = http.measure(directory, seconds=max(1, round(2 * scale)))
    redis = result.redis
    return [
        _against("serve: append 1 record, disk, 16 connections", result.append_one, redis.one, 1),
        _against("serve: append 100 records, disk, 16 connections", result.append_hundred, redis.hundred, 2.5),
        _against("serve: append 1 record, fsync, 16 connections", result.append_fsync, redis.always, 1),
        Row("serve: diff of 1000 records, tail", result.diff_tail / 1e6, "M records/s", floor=1),
        Row("serve: diff of 1000 records, sealed", result.diff_sealed / 1e6, "M records/s", floor=0.4),
        Row("serve: lone append, p50", result.append_p50_ms, "ms", ceiling=0.2),
        Row("serve: caught-up diff, p50", result.diff_p50_ms, "ms", ceiling=0.15),
        Row("serve: resident memory, idle", result.idle_mib, "MiB", ceiling=90),
    ]


def _against(what: str, rate: float, peer: float | None, factor: float) -> Row:
    """A row whose target is a multiple of the value that Redis reached."""
    if peer is None:
        return Row(what, rate / 1e3, "K records/s", note="Redis is not installed")
    return Row(what, rate / 1e3, "K records/s", floor=factor * peer / 1e3, peer=peer / 1e3)


def _live(directory: str, scale: float) -> list[Row]:
    result = live.measure(directory, seconds=max(0.1, 3 * scale), many=max(10, _scaled(1000, scale)))
    few, many = result.few, result.many
    return [
        Row(f"live: write to {few.watchers} watchers, p50", few.p50_ms, "ms", ceiling=2),
        Row(f"live: write to {many.watchers} watchers, p50", many.p50_ms, "ms", ceiling=8),
        Row(f"live: deliveries to {many.watchers} watchers", many.deliveries_per_s / 1e3, "K records/s", floor=60),
        Row("live: ack p50 with them, to that without", many.ack_p50_ms / result.ack_alone_p50_ms, "x", ceiling=1.5),
        Row("live: jobs of 50 workers, claim 8 and ack", result.jobs_per_s / 1e3, "K jobs/s", floor=12),
        Row("live: router, added latency, p50", result.router_p50_ms, "ms", ceiling=0.3),
        Row(
            "live: ack p50 with 50 routers, to that without",
            result.ack_routed_p50_ms / result.ack_plain_p50_ms,
            "x",
            ceiling=1.2,
        ),
        Row("live: many topics, 32 writers of 100", result.records_per_s_many_topics / 1e3, "K records/s", floor=200),
    ]


def _routers(directory: str, scale: float) -> list[Row]:
    rows = []
    for result in routers.measure(directory, writes=max(3, _scaled(1000, scale))):
        hops = f"{result.hops} hop{'s' if result.hops > 1 else ''}"
        ceiling = 1 if result.hops == 1 else None
        rows.append(Row(f"routers: {hops} to a live reader, p50", result.p50_ms, "ms", ceiling=ceiling))
        rows.append(Row(f"routers: {hops} to a live reader, p99", result.p99_ms, "ms"))
    return rows


def _stalls(directory: str, scale: float) -> list[Row]:
    return [
        Row(
            f"stalls: {stall.what}",
            stall.longest_gap_ms,
            "ms",
            ceiling=50,
            note=f"status {stall.status}, {stall.took_s:.1f} s, {stall.resident_mib:.0f} MiB",
        )
        for stall in stalls.measure(directory, scale=scale)
    ]


def _idle(directory: str, scale: float) -> list[Row]:
    topics = _scaled(100_000, scale)
    result = live.idle_topics(directory, topics=topics, settle_s=max(0.1, 5 * scale))
    return [
        Row(f"idle: resident memory with {topics} topics", result.resident_mib, "MiB", ceiling=400),
        Row(f"idle: start with {topics} topics", result.start_s, "s", ceiling=5),
        Row(f"idle: wake-ups with {topics} topics", result.wake_ups_per_s, "a second", ceiling=5),
    ]


def _streams(directory: str, scale: float) -> list[Row]:
    result = streams.measure(
        directory, send_bytes=_scaled(600_000_000, scale), open_messages=_scaled(streams.OPEN_MESSAGES, scale)
    )
    return [
        Row("streams: raw copy and write of 1 MB", result.raw_large_bytes_per_s / 1e6, "MB/s"),
        Row("streams: send 1000 x 1 KB", result.send_large_bytes_per_s / 1e6, "MB/s", floor=700),
        Row("streams: send 1000 x 100 B", result.send_small_per_s / 1e6, "M messages/s", floor=1),
        Row("streams: poll 1000 x 1 KB, sealed", result.poll_large_bytes_per_s / 1e6, "MB/s", floor=1000),
        Row(f"streams: open {result.open_messages} messages", result.open_s, "s", ceiling=0.1),
    ]


def _spark(directory: str, scale: float) -> list[Row]:
    if (missing := spark.missing()) is not None:
        return [Row("topics on Spark", 0, "", note=f"not measured: {missing}")]
    result = spark.measure(directory, records=_scaled(2_000_000, scale))
    return [
        Row("spark: decode in one process, verified", result.decode.verified / 1e6, "M records/s", floor=2),
        Row("spark: decode in one process, seq and ts", result.decode.seq_and_ts / 1e6, "M records/s", floor=8),
        Row("spark: aggregate, local[2], no checksums", result.aggregate / 1e6, "M records/s", floor=1.5),
        Row("spark: aggregate, local[2], verified", result.aggregate_verified / 1e6, "M records/s", floor=1),
        Row("spark: archive to Parquet (zstd), verified", result.archive / 1e6, "M records/s", floor=1),
        Row("spark: verify", result.verify_bytes_per_s / 1e6, "MB/s", floor=300),
        Row("spark: write to a sink that drops all", result.null_write / 1e6, "M records/s"),
        Row("spark: staged write into one server", result.staged_write / 1e6, "M records/s", floor=0.15),
        Row(f"spark: trigger, {spark.TOPICS_WATCHED} topics, news in one", result.trigger_one_s, "s", ceiling=0.5),
        Row(f"spark: trigger, {spark.TOPICS_WATCHED} topics, news in all", result.trigger_all_s, "s", ceiling=0.5),
    ]


BENCHMARKS: dict[str, Benchmark] = {
    "append": _append,
    "read": _read,
    "fsync": _fsync,
    "open": _open,
    "serve": _serve,
    "live": _live,
    "routers": _routers,
    "stalls": _stalls,
    "idle": _idle,
    "streams": _streams,
    "spark": _spark,
}


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def run_benchmarks(names: list[str], *, scale: float = 1.0) -> int:
    """Prints the table on stdout. A missed target is marked in the table. It is not an error, because machines
    differ."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark is called {unknown[0]!r}: choose among {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 1
    print(f"# {platform.machine()}, {platform.system()} {platform.release()}, Python {platform.python_version()}")
    print(f"{'benchmark':<50} {'measured':>12} {'unit':<12} {'target':>8} {'redis':>8}")
    for name in names or BENCHMARKS:
        directory = tempfile.mkdtemp(prefix="topics-bench-")
        try:
            rows = BENCHMARKS[name](directory, scale)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        for row in rows:
            print(_line(row), flush=True)
    return 0


def _line(row: Row) -> str:
    target = ""
    if row.floor is not None:
        target = f">= {row.floor:.4g}"
    elif row.ceiling is not None:
        target = f"<= {row.ceiling:g}"
    mark = {True: "met", False: "MISSED", None: row.note}[row.is_met]
    peer = "" if row.peer is None else f"{row.peer:.1f}"
    return f"{row.what:<50} {row.value:>12.2f} {row.unit:<12} {target:>8} {peer:>8}  {mark}".rstrip()
