"""Metrics: plain numbers while the server works, text when a client asks for them.

There are three steps. `Counters` has the numbers of the server: a few integer additions per request, because an
instrument of a metrics library costs ten times as much, and a request takes 13 µs. `collect` takes all numbers of a
scrape in one turn of the loop, from the counters and from the engine. The renderers make text from that `Snapshot`
and use no live objects, so a thread may run them.

Names follow the contract. Where a name of the contract is not in base units (`_ms`, `_us`), the server also has the
metric in seconds: `process_start_time_seconds`, `topics_wal_fsync_seconds`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from topics.clock import Clock, SystemClock
from topics.engine.config import DURABILITIES, Durability
from topics.engine.engine import Engine
from topics.engine.queues.jobs import QueueDepth
from topics.engine.starting.opened import OpenEngine
from topics.engine.topic.topic import Topic
from topics.protocol import json_text
from topics.protocol.response_body import DiskMetrics, MetricsJson, StreamsMetrics, TrafficMetrics, WalMetrics
from topics.server.disk_gauge import DiskRoom

# This module is never compiled; the JSON checks are, in the compiled form.
FORM: Final = "plain" if str(json_text.__file__).endswith(".py") else "compiled"

# Limit of series per topic: a monitoring system keeps each series, also for deleted topics.
SERIES_TOPICS_MAX: Final = 1000

# Limit of series per consumer group, over all topics.
SERIES_GROUPS_MAX: Final = 1000

# Limit of series per router.
SERIES_ROUTERS_MAX: Final = 1000


class RequestTally:
    """Requests of one route that ended with one status."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class Counters:
    """The numbers of the server. Loop thread only; callers add to the fields directly.

    | When | What |
    |---|---|
    | a connection opens, or ends | `connections_total`, `connections_open` |
    | bytes arrive, or are handed to the transport | `bytes_received`, `bytes_sent` |
    | a request is answered | `note_request` |
    | a write is acked and is no repeat | `note_append` |
    | a request is answered with 401 | `auth_failures` |
    | a stream or a watch session opens, or ends | `sse_connections`, `watch_sessions` |
    | the load was measured | `pressure` |
    """

    __slots__ = (
        "_clock",
        "_started_monotonic_ms",
        "append_bytes",
        "append_records",
        "appends",
        "auth_failures",
        "bytes_received",
        "bytes_sent",
        "connections_open",
        "connections_total",
        "pressure",
        "requests",
        "sse_connections",
        "started_ms",
        "watch_sessions",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_monotonic_ms = clock.monotonic_ms()
        self.started_ms = clock.now_ms()
        self.connections_open = 0
        self.connections_total = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        # By route and status. A route is the name of an endpoint, never a path, because callers choose paths.
        self.requests: dict[tuple[str, int], RequestTally] = {}
        self.appends: dict[Durability, int] = dict.fromkeys(DURABILITIES, 0)
        self.append_records = 0
        self.append_bytes = 0
        self.auth_failures = 0
        # SSE and WebSocket.
        self.sse_connections = 0
        self.watch_sessions = 0
        # From 0 to 1.
        self.pressure = 0.0

    def note_request(self, route: str, status: int, seconds: float) -> None:
        tally = self.requests.get((route, status))
        if tally is None:
            tally = self.requests[route, status] = RequestTally()
        tally.count += 1
        tally.seconds += seconds

    def note_append(self, durability: Durability, record_count: int, size_bytes: int) -> None:
        self.appends[durability] += 1
        self.append_records += record_count
        self.append_bytes += size_bytes

    def uptime_ms(self) -> int:
        return self._clock.monotonic_ms() - self._started_monotonic_ms


class TopicRow(NamedTuple):
    name: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    # None for a log.
    queue: QueueDepth | None
    # When the numbers were taken.
    now_ms: int


class WalFigures(NamedTuple):
    """Numbers of the write-ahead log, summed over its shards."""

    fsyncs: int
    frames: int
    batches: int
    bytes_written: int
    rotations: int
    queue_depth: int
    queue_depth_peak: int
    submit_full: int
    read_only: bool
    fsync_us_total: int
    fsync_bounds_us: tuple[int, ...]
    # How many syncs took no longer than the bound at the same index, and longer than the previous bound. The last
    # counts longer ones.
    fsync_buckets: tuple[int, ...]
    # Bytes that a power loss would take now, and the age of the oldest.
    unsynced_bytes: int
    unsynced_ms: int
    # Bytes whose records are in no segment yet.
    backlog_bytes: int


class ColdFigures(NamedTuple):
    """Numbers of the cold tier. Moves are of sealed segments, since the start."""

    segments: int
    size_bytes: int
    moved: int
    failed: int


class ProcessFigures(NamedTuple):
    """Numbers of the process. None: this system does not tell."""

    resident_bytes: int | None
    cpu_seconds: float
    open_files: int | None
    open_files_max: int


class RouterRow(NamedTuple):
    name: str
    lag: int
    forwarded: int


class StreamTopicRow(NamedTuple):
    stream: str
    topic: str
    messages: int
    size_bytes: int
    # Messages that were ever sent to it, since its last purge.
    sent: int


class StreamsFigures(NamedTuple):
    """Numbers of the streams. The numbers of the engine are 0 until the streams are recovered."""

    recovery_progress: float
    connections_open: int
    connections_total: int
    bytes_received: int
    bytes_sent: int
    # By the name of the command, and by the name of the status.
    requests: dict[str, int]
    errors: dict[str, int]
    streams: int = 0
    topics: int = 0
    partitions: int = 0
    messages: int = 0
    size_bytes: int = 0
    unsaved_messages: int = 0
    stopped_partitions: int = 0
    rows: tuple[StreamTopicRow, ...] = ()
    rows_truncated: bool = False


class MetricFamily(NamedTuple):
    """`kind` is the type of Prometheus: gauge, counter, summary or histogram."""

    kind: str
    meaning: str


class Snapshot(NamedTuple):
    """Everything that a scrape shows. It does not change after it is made."""

    version: str
    started_ms: int
    uptime_ms: int
    ready: bool
    # From 0 to 1.
    recovery_progress: float
    topics_by_class: dict[Durability, int]
    records_live: int
    bytes_live: int
    queue_topics: int
    queue_leases_in_flight: int
    queue_redriven: int
    rows: list[TopicRow]
    rows_truncated: bool
    # Topic, group and lag of each consumer group, up to the limit of series.
    group_lags: list[tuple[str, str, int]]
    pressure: float
    wal: WalFigures
    routers: int
    sse_connections: int
    watch_sessions: int
    connections_open: int
    connections_total: int
    bytes_received: int
    bytes_sent: int
    auth_failures: int
    appends: dict[Durability, int]
    append_records: int
    append_bytes: int
    # Route, status, count and seconds.
    requests: list[tuple[str, int, int, float]]
    router_rows: list[RouterRow]
    # None until it was measured.
    disk: DiskRoom | None
    # None in a server without a cold tier.
    cold: ColdFigures | None = None
    # None in a server without streams.
    streams: StreamsFigures | None = None
    # None during recovery.
    process: ProcessFigures | None = None


def collect(
    engine: Engine | None,
    counters: Counters,
    *,
    version: str,
    recovery_progress: float = 1.0,
    may_name: Callable[[str], bool],
    rows_max: int = SERIES_TOPICS_MAX,
    disk: DiskRoom | None = None,
    backlog_bytes: int = 0,
) -> Snapshot:
    """Takes the numbers, on the loop in one turn: 0.3 µs for each topic, and 1.3 µs more for each row.

    `engine` is None during recovery. A topic is shown by name only if `may_name` allows it; the totals count all
    topics. Expired records count until the topic is next read, written or checkpointed, because finding them may read a
    file. The JSON form shows no topics and needs no rows.
    """
    topics = () if engine is None else engine.topics.values()
    by_class: dict[Durability, int] = dict.fromkeys(DURABILITIES, 0)
    records_live = bytes_live = in_flight = 0
    queues = 0
    for topic in topics:
        by_class[topic.config.durability] += 1
        records_live += topic.count
        bytes_live += topic.size_bytes
        if topic.config.type == "queue":
            queues += 1
            assert engine is not None
            in_flight += engine.queues.in_flight(topic)
    # One more than is shown, to know whether there are more.
    shown: list[Topic] = []
    for topic in topics:
        if len(shown) > rows_max:
            break
        if may_name(topic.name):
            shown.append(topic)
    return Snapshot(
        version=version,
        started_ms=counters.started_ms,
        uptime_ms=counters.uptime_ms(),
        ready=engine is not None and not engine.is_closed and not engine.wal.is_read_only,
        recovery_progress=recovery_progress,
        topics_by_class=by_class,
        records_live=records_live,
        bytes_live=bytes_live,
        queue_topics=queues,
        queue_leases_in_flight=in_flight,
        queue_redriven=0 if engine is None else engine.queues.redriving.moved_total,
        rows=[] if engine is None else [_row(engine, topic) for topic in shown[:rows_max]],
        rows_truncated=len(shown) > rows_max,
        group_lags=list(islice(_group_lags(shown[:rows_max]), SERIES_GROUPS_MAX)),
        pressure=counters.pressure,
        wal=_NO_WAL if engine is None else _wal_figures(engine, backlog_bytes),
        routers=0 if engine is None else len(engine.routers),
        sse_connections=counters.sse_connections,
        watch_sessions=counters.watch_sessions,
        connections_open=counters.connections_open,
        connections_total=counters.connections_total,
        bytes_received=counters.bytes_received,
        bytes_sent=counters.bytes_sent,
        auth_failures=counters.auth_failures,
        appends=dict(counters.appends),
        append_records=counters.append_records,
        append_bytes=counters.append_bytes,
        requests=[(route, status, tally.count, tally.seconds) for (route, status), tally in counters.requests.items()],
        router_rows=[]
        if engine is None or not rows_max
        else list(islice(_routers(engine, may_name), SERIES_ROUTERS_MAX)),
        disk=disk,
    )


def cold_figures(opened: OpenEngine) -> ColdFigures | None:
    """The numbers of the cold tier, on the loop in one turn: 0.1 µs for each segment."""
    engine = opened.engine
    if engine.cold is None:
        return None
    lists = [topic.live.segments.segments for topic in engine.topics.values()]
    sizes = [state.data_bytes for states in lists for state in states if state.tier == "cold"]
    return ColdFigures(len(sizes), sum(sizes), opened.relocator.moved_total, opened.relocator.failed_total)


def _routers(engine: Engine, may_name: Callable[[str], bool]) -> Iterator[RouterRow]:
    for router in engine.routers.values():
        source = router.source
        if may_name(router.name) and may_name(source.name) and may_name(router.dest.name):
            yield RouterRow(router.name, max(source.head_seq - router.cursor, 0), router.forwarded_total)


def _group_lags(topics: list[Topic]) -> Iterator[tuple[str, str, int]]:
    for topic in topics:
        for group in topic.groups.values():
            yield topic.name, group.name, topic.head_seq - group.seq


def _row(engine: Engine, topic: Topic) -> TopicRow:
    depth = engine.queues.depth(topic) if topic.config.type == "queue" else None
    now_ms = engine.now_ms()
    return TopicRow(topic.name, topic.head_seq, topic.earliest_seq, topic.count, topic.size_bytes, depth, now_ms)


def _age_s(depth: QueueDepth, now_ms: int) -> float:
    return 0.0 if depth.oldest_ready_ts is None else max(now_ms - depth.oldest_ready_ts, 0) / 1000


# Used during recovery.
_NO_WAL: Final = WalFigures(0, 0, 0, 0, 0, 0, 0, 0, False, 0, (), (0,), 0, 0, 0)


def _wal_figures(engine: Engine, backlog_bytes: int) -> WalFigures:
    wal = engine.wal
    stats = wal.total_stats()
    depth = wal.queue_depth
    return WalFigures(
        fsyncs=stats.fsyncs,
        frames=stats.frames,
        batches=stats.batches,
        bytes_written=stats.bytes_written,
        rotations=stats.rotations,
        queue_depth=depth,
        # The recorded peak is of one shard; the sum of all shards may be higher by now.
        queue_depth_peak=max(stats.queue_depth_peak, depth),
        submit_full=stats.submit_full,
        read_only=wal.is_read_only,
        fsync_us_total=stats.fsync_us_total,
        fsync_bounds_us=tuple(stats.fsync_bounds_us),
        fsync_buckets=tuple(stats.fsync_buckets),
        unsynced_bytes=sum([shard.unsynced_bytes for shard in wal.shards]),
        unsynced_ms=max([shard.unsynced_ms for shard in wal.shards]),
        backlog_bytes=backlog_bytes,
    )


# JSON.


def render_json(snapshot: Snapshot) -> bytes:
    by_class, wal = snapshot.topics_by_class, snapshot.wal
    return msgspec.json.encode(
        MetricsJson(
            topics=sum(by_class.values()),
            topics_ephemeral=by_class["ephemeral"],
            topics_memory=by_class["memory"],
            topics_disk=by_class["disk"],
            topics_fsync=by_class["fsync"],
            routers=snapshot.routers,
            records_live=snapshot.records_live,
            bytes_live=snapshot.bytes_live,
            queue_topics=snapshot.queue_topics,
            queue_leases_in_flight=snapshot.queue_leases_in_flight,
            sse_connections=snapshot.sse_connections,
            watch_sessions=snapshot.watch_sessions,
            ready=snapshot.ready,
            replay_progress=snapshot.recovery_progress,
            uptime_ms=snapshot.uptime_ms,
            wal=WalMetrics(
                fsyncs=wal.fsyncs,
                frames=wal.frames,
                batches=wal.batches,
                bytes_written=wal.bytes_written,
                rotations=wal.rotations,
                queue_depth=wal.queue_depth,
                queue_depth_peak=wal.queue_depth_peak,
                submit_full_total=wal.submit_full,
                read_only=wal.read_only,
                fsync_count=wal.fsyncs,
                fsync_micros_total=wal.fsync_us_total,
                fsync_bounds_us=list(wal.fsync_bounds_us),
                fsync_buckets=list(wal.fsync_buckets),
                unsynced_bytes=wal.unsynced_bytes,
                unsynced_ms=wal.unsynced_ms,
                backlog_bytes=wal.backlog_bytes,
            ),
            pressure=snapshot.pressure,
            traffic=_traffic_json(snapshot),
            disk=UNSET if snapshot.disk is None else DiskMetrics(**snapshot.disk._asdict()),
            streams=UNSET if snapshot.streams is None else _streams_json(snapshot.streams),
        )
    )


def _traffic_json(snapshot: Snapshot) -> TrafficMetrics:
    by_route: dict[str, int] = {}
    refusals = errors = 0
    for route, status, count, _ in snapshot.requests:
        by_route[route] = by_route.get(route, 0) + count
        if status >= 500:
            errors += count
        elif status >= 400:
            refusals += count
    return TrafficMetrics(
        appends=sum(snapshot.appends.values()),
        append_records=snapshot.append_records,
        append_bytes=snapshot.append_bytes,
        received_bytes=snapshot.bytes_received,
        sent_bytes=snapshot.bytes_sent,
        requests=by_route,
        errors=errors,
        refusals=refusals,
        connections_open=snapshot.connections_open,
    )


def _streams_json(streams: StreamsFigures) -> StreamsMetrics:
    return StreamsMetrics(
        streams=streams.streams,
        topics=streams.topics,
        partitions=streams.partitions,
        messages=streams.messages,
        bytes=streams.size_bytes,
        unsaved_messages=streams.unsaved_messages,
        stopped_partitions=streams.stopped_partitions,
        connections=streams.connections_open,
        requests=streams.requests,
        errors=streams.errors,
        recovery_progress=streams.recovery_progress,
    )


# Prometheus text, version 0.0.4.


def render_prometheus(snapshot: Snapshot) -> bytes:
    lines: list[str] = []
    _add_totals(lines, snapshot)
    _add_topics(lines, snapshot)
    _add_routers(lines, snapshot.router_rows)
    _add_wal(lines, snapshot.wal)
    _add_traffic(lines, snapshot)
    if snapshot.cold is not None:
        _add_cold(lines, snapshot.cold)
    if snapshot.process is not None:
        _add_process(lines, snapshot.process)
    if snapshot.streams is not None:
        _add_streams(lines, snapshot.streams)
    lines.append("")
    return "\n".join(lines).encode()


def metric_families() -> dict[str, MetricFamily]:
    """Every family that a server may show, by name, for dashboards and docs."""
    snapshot = collect(None, Counters(SystemClock()), version="", may_name=lambda _: True)
    whole = snapshot._replace(
        cold=ColdFigures(0, 0, 0, 0),
        disk=DiskRoom(0, 0),
        process=ProcessFigures(0, 0, 0, 0),
        streams=StreamsFigures(1, 0, 0, 0, 0, {}, {}),
    )
    lines = [line.split(" ", 3) for line in render_prometheus(whole).decode().splitlines() if line.startswith("#")]
    kinds = {name: kind for _, what, name, kind in lines if what == "TYPE"}
    return {name: MetricFamily(kinds[name], meaning) for _, what, name, meaning in lines if what == "HELP"}


def _add_totals(lines: list[str], snapshot: Snapshot) -> None:
    by_class = snapshot.topics_by_class
    _add(lines, "topics_build_info", "gauge", "The version that runs and its form, as labels.")
    lines.append(f'topics_build_info{{version="{_escaped(snapshot.version)}",form="{FORM}"}} 1')
    _add(
        lines,
        "process_start_time_seconds",
        "gauge",
        "When the process started, since the Unix epoch.",
        snapshot.started_ms / 1000,
    )
    _add(lines, "topics_uptime_ms", "counter", "Milliseconds since the start.", snapshot.uptime_ms)
    _add(lines, "topics_ready", "gauge", "1 while every write can be taken.", int(snapshot.ready))
    _add(
        lines,
        "topics_recovery_progress",
        "gauge",
        "How much of the log is recovered, from 0 to 1.",
        snapshot.recovery_progress,
    )
    _add(lines, "topics_pressure", "gauge", "How loaded the server is, from 0 to 1.", snapshot.pressure)
    _add(lines, "topics_topics", "gauge", "Topics.", sum(by_class.values()))
    _add(lines, "topics_topics_by_class", "gauge", "Topics of each durability class.")
    lines += [f'topics_topics_by_class{{class="{durability}"}} {count}' for durability, count in by_class.items()]
    if snapshot.disk is not None:
        _add(lines, "topics_disk_free_bytes", "gauge", "Free bytes on the disk of the data.", snapshot.disk.free_bytes)
        _add(lines, "topics_disk_total_bytes", "gauge", "Size of the disk of the data.", snapshot.disk.total_bytes)
    _add(lines, "topics_routers", "gauge", "Routers.", snapshot.routers)
    _add(lines, "topics_records_live", "gauge", "Live records of all topics.", snapshot.records_live)
    _add(lines, "topics_bytes_live", "gauge", "Accounted bytes of all live records.", snapshot.bytes_live)
    _add(lines, "topics_queue_topics", "gauge", "Topics that are queues.", snapshot.queue_topics)
    _add(
        lines,
        "topics_queue_leases_in_flight",
        "gauge",
        "Jobs under an unexpired lease.",
        snapshot.queue_leases_in_flight,
    )
    _add(
        lines,
        "topics_queue_redriven_total",
        "counter",
        "Jobs that were moved by redrives.",
        snapshot.queue_redriven,
    )
    _add(lines, "topics_sse_connections", "gauge", "Open SSE and WebSocket streams.", snapshot.sse_connections)
    _add(lines, "topics_watch_sessions", "gauge", "Watch sessions.", snapshot.watch_sessions)


def _add_topics(lines: list[str], snapshot: Snapshot) -> None:
    rows = [(f'{{topic="{_escaped(row.name)}"}} ', row) for row in snapshot.rows]
    name = "topics_topic_head_seq"
    _add(lines, name, "gauge", "Seq of the last published record.")
    lines += [f"{name}{label}{row.head_seq}" for label, row in rows]
    name = "topics_topic_earliest_seq"
    _add(lines, name, "gauge", "Seq of the first record that can be read.")
    lines += [f"{name}{label}{row.earliest_seq}" for label, row in rows]
    name = "topics_topic_records_live"
    _add(lines, name, "gauge", "Live records of the topic.")
    lines += [f"{name}{label}{row.records_live}" for label, row in rows]
    name = "topics_topic_bytes_live"
    _add(lines, name, "gauge", "Accounted bytes of the topic's live records.")
    lines += [f"{name}{label}{row.bytes_live}" for label, row in rows]
    depths = [(label, row.queue, row.now_ms) for label, row in rows if row.queue is not None]
    name = "topics_topic_queue_ready"
    _add(lines, name, "gauge", "Jobs of the queue that can be claimed now.")
    lines += [f"{name}{label}{depth.ready}" for label, depth, _ in depths]
    name = "topics_topic_queue_in_flight"
    _add(lines, name, "gauge", "Jobs of the queue under an unexpired lease.")
    lines += [f"{name}{label}{depth.in_flight}" for label, depth, _ in depths]
    name = "topics_topic_queue_delayed"
    _add(lines, name, "gauge", "Jobs of the queue that were given back with a delay that is not over.")
    lines += [f"{name}{label}{depth.delayed}" for label, depth, _ in depths]
    name = "topics_topic_queue_dead_lettered_total"
    _add(lines, name, "counter", "Jobs of the queue that were moved to its dead-letter topic.")
    lines += [f"{name}{label}{depth.dead_lettered}" for label, depth, _ in depths]
    name = "topics_queue_oldest_ready_seconds"
    _add(lines, name, "gauge", "How long ago the oldest ready job of the queue was written; 0 if no job is ready.")
    lines += [f"{name}{label}{_age_s(depth, now_ms)}" for label, depth, now_ms in depths]
    name = "topics_group_lag"
    _add(lines, name, "gauge", "Seqs between the cursor of a consumer group and the head of its topic.")
    lines += [
        f'{name}{{topic="{_escaped(topic)}",group="{_escaped(group)}"}} {lag}'
        for topic, group, lag in snapshot.group_lags
    ]
    _add(
        lines,
        "topics_topic_metrics_truncated",
        "gauge",
        "1 if there are more topics than series for them.",
        int(snapshot.rows_truncated),
    )


def _add_routers(lines: list[str], rows: list[RouterRow]) -> None:
    labels = [(f'{{router="{_escaped(row.name)}"}} ', row) for row in rows]
    name = "topics_router_lag"
    _add(lines, name, "gauge", "Seqs between the last record that a router has looked at and the head of its source.")
    lines += [f"{name}{label}{row.lag}" for label, row in labels]
    name = "topics_router_forwarded_total"
    _add(lines, name, "counter", "Records that the router has copied.")
    lines += [f"{name}{label}{row.forwarded}" for label, row in labels]


def _add_wal(lines: list[str], wal: WalFigures) -> None:
    _add(lines, "topics_wal_frames_total", "counter", "Frames written to the log.", wal.frames)
    _add(lines, "topics_wal_batches_total", "counter", "Groups of writes, each written at once.", wal.batches)
    _add(lines, "topics_wal_fsyncs_total", "counter", "Syncs of the log.", wal.fsyncs)
    _add(lines, "topics_wal_bytes_written_total", "counter", "Bytes written to the log.", wal.bytes_written)
    _add(lines, "topics_wal_rotations_total", "counter", "Log files begun after the first.", wal.rotations)
    _add(lines, "topics_wal_submit_full_total", "counter", "Writes refused by a full commit queue.", wal.submit_full)
    _add(lines, "topics_wal_queue_depth", "gauge", "Writes that wait for their commit.", wal.queue_depth)
    _add(
        lines,
        "topics_wal_queue_depth_peak",
        "gauge",
        "The highest number of waiting writes since the start.",
        wal.queue_depth_peak,
    )
    _add(lines, "topics_wal_read_only", "gauge", "1 if a shard takes no writes until a restart.", int(wal.read_only))
    _add(
        lines,
        "topics_wal_backlog_bytes",
        "gauge",
        "Bytes of the log whose records are in no segment yet: the next start would read them.",
        wal.backlog_bytes,
    )
    _add(lines, "topics_wal_unsynced_bytes", "gauge", "Bytes that a power loss would take now.", wal.unsynced_bytes)
    _add(
        lines,
        "topics_wal_unsynced_seconds",
        "gauge",
        "Age of the oldest byte that a power loss would take now.",
        wal.unsynced_ms / 1000,
    )
    _add(lines, "topics_wal_fsync_latency_us", "histogram", "How long a sync of the log takes, in microseconds.")
    bounds = [str(bound_us) for bound_us in wal.fsync_bounds_us]
    _add_histogram(lines, "topics_wal_fsync_latency_us", bounds, wal.fsync_buckets, wal.fsync_us_total)
    _add(lines, "topics_wal_fsync_seconds", "histogram", "How long a sync of the log takes.")
    bounds = [f"{bound_us / 1e6:f}".rstrip("0") for bound_us in wal.fsync_bounds_us]
    _add_histogram(lines, "topics_wal_fsync_seconds", bounds, wal.fsync_buckets, wal.fsync_us_total / 1e6)


def _add_traffic(lines: list[str], snapshot: Snapshot) -> None:
    _add(lines, "topics_appends_total", "counter", "Writes that were acked, by durability class.")
    lines += [f'topics_appends_total{{class="{durability}"}} {count}' for durability, count in snapshot.appends.items()]
    _add(lines, "topics_append_records_total", "counter", "Records in acked writes.", snapshot.append_records)
    _add(
        lines,
        "topics_append_bytes_total",
        "counter",
        "Accounted bytes of records in acked writes.",
        snapshot.append_bytes,
    )
    name = "topics_request_seconds"
    _add(lines, name, "summary", "Requests by endpoint and status, and the time until their answer.")
    for route, status, count, seconds in snapshot.requests:
        label = f'{{route="{_escaped(route)}",code="{status}"}}'
        lines += (f"{name}_sum{label} {seconds!r}", f"{name}_count{label} {count}")
    _add(lines, "topics_auth_failures_total", "counter", "Requests without a valid key.", snapshot.auth_failures)
    _add(lines, "topics_connections_open", "gauge", "Open connections.", snapshot.connections_open)
    _add(lines, "topics_connections_total", "counter", "Connections since the start.", snapshot.connections_total)
    _add(lines, "topics_received_bytes_total", "counter", "Bytes from clients.", snapshot.bytes_received)
    _add(lines, "topics_sent_bytes_total", "counter", "Bytes to clients.", snapshot.bytes_sent)


def _add_cold(lines: list[str], cold: ColdFigures) -> None:
    _add(lines, "topics_cold_segments", "gauge", "Segments in the cold tier.", cold.segments)
    _add(lines, "topics_cold_bytes", "gauge", "Bytes of the segments in the cold tier.", cold.size_bytes)
    _add(lines, "topics_cold_moves_total", "counter", "Segments that were moved to the cold tier.", cold.moved)
    _add(
        lines,
        "topics_cold_move_failures_total",
        "counter",
        "Moves to the cold tier that failed; each is tried again.",
        cold.failed,
    )


def _add_process(lines: list[str], process: ProcessFigures) -> None:
    for name, kind, meaning, value in (
        ("process_resident_memory_bytes", "gauge", "Memory of the process.", process.resident_bytes),
        ("process_cpu_seconds_total", "counter", "CPU time of the process.", process.cpu_seconds),
        ("process_open_fds", "gauge", "Open files and connections of the process.", process.open_files),
        ("process_max_fds", "gauge", "How many of them the process may have.", process.open_files_max),
    ):
        if value is not None:
            _add(lines, name, kind, meaning, value)


def _add_streams(lines: list[str], streams: StreamsFigures) -> None:
    """Metrics `topics_streams…` are of all streams, `topics_stream_topic…` of one topic of a stream."""
    for name, kind, meaning, value in (
        ("recovery_progress", "gauge", "How much of the streams is recovered, from 0 to 1.", streams.recovery_progress),
        ("streams", "gauge", "Streams.", streams.streams),
        ("topics", "gauge", "Topics of all streams.", streams.topics),
        ("partitions", "gauge", "Partitions of these topics.", streams.partitions),
        ("messages", "gauge", "Messages that can be read.", streams.messages),
        ("bytes", "gauge", "Bytes of these messages.", streams.size_bytes),
        ("unsaved_messages", "gauge", "Messages that a kill of the process would lose.", streams.unsaved_messages),
        ("stopped_partitions", "gauge", "Partitions without writes until a restart.", streams.stopped_partitions),
        ("connections_open", "gauge", "Open connections of clients of Apache Iggy.", streams.connections_open),
        ("connections_total", "counter", "These connections since the start.", streams.connections_total),
        ("received_bytes_total", "counter", "Bytes from these clients.", streams.bytes_received),
        ("sent_bytes_total", "counter", "Bytes to these clients.", streams.bytes_sent),
    ):
        _add(lines, f"topics_streams_{name}", kind, meaning, value)
    name = "topics_streams_requests_total"
    _add(lines, name, "counter", "Requests of these clients, by command.")
    lines += [f'{name}{{command="{command}"}} {count}' for command, count in sorted(streams.requests.items())]
    name = "topics_streams_errors_total"
    _add(lines, name, "counter", "Requests that were refused, by status.")
    lines += [f'{name}{{status="{status}"}} {count}' for status, count in sorted(streams.errors.items())]
    rows = [(f'{{stream="{_escaped(row.stream)}",topic="{_escaped(row.topic)}"}} ', row) for row in streams.rows]
    name = "topics_stream_topic_messages"
    _add(lines, name, "gauge", "Messages of the topic that can be read.")
    lines += [f"{name}{label}{row.messages}" for label, row in rows]
    name = "topics_stream_topic_bytes"
    _add(lines, name, "gauge", "Bytes of the topic's messages.")
    lines += [f"{name}{label}{row.size_bytes}" for label, row in rows]
    name = "topics_stream_topic_sent_messages_total"
    _add(lines, name, "counter", "Messages that were sent to the topic since its last purge.")
    lines += [f"{name}{label}{row.sent}" for label, row in rows]
    name = "topics_stream_topic_metrics_truncated"
    _add(lines, name, "gauge", "1 if there are more topics than series for them.", int(streams.rows_truncated))


def _add(lines: list[str], name: str, kind: str, meaning: str, value: int | float | None = None) -> None:
    """Adds a metric family, with its value if it has a single one."""
    lines += (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")
    if value is not None:
        lines.append(f"{name} {value!r}")


def _add_histogram(lines: list[str], name: str, bounds: list[str], buckets: Iterable[int], total: float) -> None:
    """Adds a histogram. The buckets are counted separately, and shown cumulatively."""
    count = 0
    for bound, bucket in zip([*bounds, "+Inf"], buckets, strict=True):
        count += bucket
        lines.append(f'{name}_bucket{{le="{bound}"}} {count}')
    lines += (f"{name}_sum {total!r}", f"{name}_count {count}")


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
