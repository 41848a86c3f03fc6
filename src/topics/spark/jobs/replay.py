"""`replay`: copies a range of a topic into a topic.

The range is cut into chunks. Each chunk is an epoch of the target: it is staged, and becomes visible as a whole. Tags,
nodes and metas are kept; `_topics_replay` in the meta names the original record. At a speed other than `max` a chunk
has the records of one tick of the source. It is written when it is due: as long after the first chunk as it was in the
source, divided by the speed. A replay that was stopped writes the next chunk at once, and keeps the pace from there.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from topics.spark.errors import BadOption
from topics.spark.jobs.epochs import require_staging, write_epochs
from topics.spark.jobs.frozen import default_id, freeze
from topics.spark.jobs.job import EXIT_DATA_LOSS, Report, ReportProgress
from topics.spark.jobs.job_options import ReplayOptions
from topics.spark.jobs.marks import REPLAY, marked, source_mark
from topics.spark.manifest import Manifest, decode_manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import choose_cuts, range_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

# Each tick is a query, so that more ticks would take too long.
TICKS_MAX: Final = 100_000


class ReplayChunk(msgspec.Struct, frozen=True):
    """Seqs, both included, and about how many bytes they are. `ts` is the time of the first record, for the pace."""

    first_seq: int
    last_seq: int
    bytes: int = 0
    ts: int = 0


class ReplayPlan(msgspec.Struct, frozen=True):
    # Of the source: another topic of the same name has another number.
    instance: int
    chunks: list[ReplayChunk]


def parse_speed(text: str) -> float | None:
    """How many times as fast as the source; None for `max`."""
    if text == "max":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)x", text)
    if match is None or float(match[1]) <= 0:
        raise BadOption(f"the speed {text!r} must be max, or a number and x, such as 1x, 0.5x or 20x")
    return float(match[1])


def run(spark: "SparkSession", options: ReplayOptions, *, report: ReportProgress | None = None) -> Report:
    """Raises `TopicsDataLoss` for records that are gone. With `skip_gaps` they are findings instead."""
    speed = parse_speed(options.speed)
    with options.client() as client:
        require_staging(client)
        manifest = decode_manifest(client.manifest(options.source))
    if options.dry_run:
        return _report_plan(options, ReplayPlan(manifest.instance, _cut(spark, options, manifest, speed)))
    asked = _asked(options)
    writer, plan = freeze(
        options.state,
        "replay",
        options.id or default_id(asked),
        asked,
        ReplayPlan,
        lambda: ReplayPlan(manifest.instance, _cut(spark, options, manifest, speed)),
    )
    if plan.instance != manifest.instance:
        raise BadOption(
            f'topic "{options.source}" was deleted and created again since the replay began; begin another with --id'
        )
    gaps = _GapWatch()
    done = write_epochs(
        "replay",
        plan.chunks,
        lambda chunk: _rows(spark, options, chunk, gaps),
        connection=options,
        writer=writer,
        topic=options.target,
        options={"createTopic": "true"} if options.create_topic else {},
        weigh=lambda chunk: chunk.bytes,
        before=None if speed is None else pace(speed, monotonic, Event().wait),
        report=report,
    )
    findings = tuple(gaps.findings())
    return replace(
        done,
        findings=findings,
        exit_code=EXIT_DATA_LOSS if findings else done.exit_code,
        detail={**_report_plan(options, plan).detail, **done.detail},
    )


def _asked(options: ReplayOptions) -> dict[str, object]:
    """The options that the plan depends on."""
    names = ("source", "target", "from_seq", "to_seq", "as_of_ms", "speed", "tick_ms", "chunk_records", "chunk_bytes")
    return {"endpoint": options.address(), **{name: getattr(options, name) for name in names}}


def _report_plan(options: ReplayOptions, plan: ReplayPlan) -> Report:
    detail: dict[str, object] = {"source": options.source, "target": options.target, "epochs": len(plan.chunks)}
    if plan.chunks:
        detail["seqs"] = [plan.chunks[0].first_seq, plan.chunks[-1].last_seq]
    return Report(job="replay", items_skipped=len(plan.chunks), detail=detail)


# Chunks.


def _cut(spark: "SparkSession", options: ReplayOptions, manifest: Manifest, speed: float | None) -> list[ReplayChunk]:
    first_seq = manifest.first_seq if options.from_seq is None else max(1, options.from_seq)
    last_seq = manifest.head_seq if options.to_seq is None else min(options.to_seq, manifest.head_seq)
    if options.as_of_ms is not None:
        # Times never go back in a topic, so that the range ends before the first segment that begins later.
        later = [segment.first_seq for segment in manifest.segments if segment.min_ts > options.as_of_ms]
        last_seq = min([last_seq, *(seq - 1 for seq in later[:1])])
    if first_seq > last_seq:
        return []
    if speed is not None:
        return _cut_by_time(spark, options, manifest, ReplayChunk(first_seq, last_seq), speed)
    limits = ReadOptions(partition_bytes=options.chunk_bytes, max_records_per_partition=options.chunk_records)
    cuts = choose_cuts(manifest, first_seq, last_seq, limits)
    starts = [first_seq, *(cut + 1 for cut in cuts)]
    return [
        ReplayChunk(start, cut, range_bytes(manifest, start, cut)) for start, cut in zip(starts, cuts, strict=False)
    ]


def _cut_by_time(
    spark: "SparkSession", options: ReplayOptions, manifest: Manifest, whole: ReplayChunk, speed: float
) -> list[ReplayChunk]:
    """One query over the times of the range. All records of a tick are in one chunk."""
    from pyspark.sql import functions as f

    tick_ms = max(1, round(options.tick_ms * speed))
    rows = (
        _read(spark, options, whole, columns="seq,ts")
        .groupBy(f.floor(f.unix_millis(f.col("ts")) / tick_ms).alias("tick"))
        .agg(f.min("seq").alias("first_seq"), f.unix_millis(f.min("ts")).alias("ts"))
        .orderBy("first_seq")
        .limit(TICKS_MAX + 1)
        .collect()
    )
    if len(rows) > TICKS_MAX:
        raise BadOption(f"the range has more than {TICKS_MAX} ticks; choose a longer --tick or a higher --speed")
    # A chunk ends before the next tick begins, so that deleted seqs between two ticks belong to a chunk.
    ends = [row["first_seq"] - 1 for row in rows[1:]] + [whole.last_seq]
    starts = [whole.first_seq, *(end + 1 for end in ends)]
    return [
        ReplayChunk(start, end, range_bytes(manifest, start, end), row["ts"])
        for start, end, row in zip(starts, ends, rows, strict=False)
    ]


def pace(speed: float, now_s: Callable[[], float], wait: Callable[[float], object]) -> Callable[[ReplayChunk], None]:
    """A function that waits until a chunk is due. The first chunk is due at once."""
    began: tuple[float, int] | None = None

    def before(chunk: ReplayChunk) -> None:
        nonlocal began
        if began is None:
            began = (now_s(), chunk.ts)
        due_s = began[0] + (chunk.ts - began[1]) / 1000 / speed
        while (left_s := due_s - now_s()) > 0:
            wait(left_s)

    return before


# Rows.


class _GapWatch:
    """Counts gaps in the rows of each chunk, so that every skipped gap is reported."""

    def __init__(self) -> None:
        self._seen: list[tuple[ReplayChunk, Observation]] = []

    def without_gaps(self, chunk: ReplayChunk, rows: "DataFrame") -> "DataFrame":
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        is_gap = f.col("kind") == "gap"
        seen = Observation(f"gaps-{chunk.first_seq}")
        self._seen.append((chunk, seen))
        return rows.observe(
            seen,
            f.count(f.when(is_gap, 1)).alias("gaps"),
            f.min(f.when(is_gap, f.col("seq"))).alias("first_seq"),
            f.max(f.when(is_gap, f.col("gap_to"))).alias("last_seq"),
        ).where(~is_gap)

    def findings(self) -> Iterator[dict[str, object]]:
        for chunk, seen in self._seen:
            values = seen.get
            if values["gaps"]:
                yield {"problem": "gap", "chunk": [chunk.first_seq, chunk.last_seq], **values}


def _read(
    spark: "SparkSession", options: ReplayOptions, chunk: ReplayChunk, *, columns: str | None = None
) -> "DataFrame":
    from pyspark.sql.functions import col, lit, timestamp_millis

    read_options = {
        **options.format_options(),
        "subscribe": options.source,
        "startingOffsets": _offsets(options.source, chunk.first_seq),
        "endingOffsets": _offsets(options.source, chunk.last_seq),
        "gaps": "rows" if options.skip_gaps else "fail",
    }
    if columns is not None:
        read_options["columns"] = columns
    rows = spark.read.format("topics").options(**read_options).load()
    if options.as_of_ms is None:
        return rows
    is_wanted = col("ts") <= timestamp_millis(lit(options.as_of_ms))
    return rows.where(is_wanted | (col("kind") == "gap") if options.skip_gaps else is_wanted)


def _offsets(topic: str, seq: int) -> str:
    return msgspec.json.encode({topic: seq}).decode()


def _rows(spark: "SparkSession", options: ReplayOptions, chunk: ReplayChunk, gaps: _GapWatch) -> "DataFrame":
    from pyspark.sql.functions import col

    rows = _read(spark, options, chunk)
    if options.skip_gaps:
        rows = gaps.without_gaps(chunk, rows)
    mark = source_mark(col("seq"), col("ts"), options.source)
    return rows.select("data", "tag", "node", marked(col("meta"), REPLAY, mark).alias("meta"))
