"""`sql`: one SELECT over named inputs, once or as a stream, into a topic, a lake or files.

Inputs are views: topics, lakes, and whatever Spark can read. With a trigger topics are read as streams, and all other
inputs as they are; the checkpoint knows how far the query is. Into a topic each batch is an epoch that is staged and
committed as a whole, so a query that is killed and started again adds nothing twice and leaves nothing out. Into a lake
the chain of manifests keeps the same promise, into files Spark's own log of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from topics.spark.errors import BadOption
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import Interrupted, Progress, Report, ReportProgress, interrupts_held_back
from topics.spark.jobs.lake_write import write_lake
from topics.spark.jobs.targets import LAKE, TOPIC, Mode, Target, parse_target, topic_options, write_rows
from topics.spark.lake import lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AVAILABLE_NOW: Final = "availableNow"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL: Final = re.compile(r"([0-9]+)\s*(ms|s|m|h)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
# What a query may begin with. Anything else would be done at once, and is no SELECT.
_SELECT: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL
)
# How often a running query is asked how far it is.
_LOOK_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Connection):
    """`inputs` are (view, what), such as ("orders", "topic:orders"); `into` is such a what, or None: rows are shown."""

    query: str
    inputs: tuple[tuple[str, str], ...] = ()
    # Options of the reads, by view.
    input_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    into: str | None = None
    # `availableNow`, or how often a batch is made, such as `5s`. None: once, without a checkpoint.
    trigger: str | None = None
    checkpoint: str | None = None
    # Who writes, and which run of it this is. A stream is known by its checkpoint, and counts by itself.
    writer_id: str | None = None
    epoch: int = 0
    create_topic: bool = False
    mode: Mode = "errorifexists"
    rows_shown: int = 100


def run(spark: "SparkSession", config: Config, *, report: ReportProgress | None = None) -> Report:
    """`detail["rows"]` has the rows, as JSON text, when they go nowhere else."""
    started_s = monotonic()
    target = None if config.into is None else parse_target(config.into)
    _check(config, target)
    rows = _select(spark, config)
    if config.trigger is not None:
        assert target is not None
        return _run_stream(rows, config, target, report, started_s)
    if target is None:
        shown = list(_shown(rows, config.rows_shown))
        return Report(
            job="sql",
            records=len(shown),
            seconds=monotonic() - started_s,
            items_done=1,
            detail={"columns": rows.columns, "rows": shown},
        )
    written = write_rows(
        rows,
        target,
        connection=config,
        writer=config.writer_id,
        epoch=config.epoch,
        creates=config.create_topic,
        mode=config.mode,
    )
    return Report(
        job="sql",
        records=written or 0,
        seconds=monotonic() - started_s,
        items_done=int(written is not None),
        items_skipped=int(written is None),
        detail={"into": config.into},
    )


def _check(config: Config, target: Target | None) -> None:
    """Raises `BadOption` before anything is read."""
    if _SELECT.match(config.query) is None:
        raise BadOption("the query must be one SELECT; what it finds goes where --into says")
    names = [name for name, _ in config.inputs]
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise BadOption(f"{name!r} is no name for an input: take letters, digits and _")
        if names.count(name) > 1:
            raise BadOption(f"there are several inputs {name}")
    unknown = [name for name in config.input_options if name not in names]
    if unknown:
        raise BadOption(f"there is no input {unknown[0]} to have options")
    if config.trigger is None:
        if config.checkpoint is not None:
            raise BadOption("--checkpoint goes with --trigger: a query that runs once has none")
        return
    if target is None:
        raise BadOption("a query with --trigger needs --into")
    if config.checkpoint is None:
        raise BadOption("a query with --trigger needs --checkpoint, where it remembers how far it is")
    if target.kind == LAKE and config.writer_id is None:
        raise BadOption("give --writer-id: batches in a lake are known by it")
    if config.trigger != AVAILABLE_NOW and _INTERVAL.fullmatch(config.trigger) is None:
        raise BadOption(f"--trigger is {AVAILABLE_NOW} or an interval such as 5s, not {config.trigger!r}")
    if not any(parse_target(what).kind == TOPIC for _, what in config.inputs):
        raise BadOption("a query with --trigger needs an input topic:NAME, which it follows")


def _select(spark: "SparkSession", config: Config) -> "DataFrame":
    for name, what in config.inputs:
        options = dict(config.input_options.get(name, {}))
        _input(spark, parse_target(what), options, config).createOrReplaceTempView(name)
    return spark.sql(config.query)


def _input(spark: "SparkSession", source: Target, options: dict[str, str], config: Config) -> "DataFrame":
    if source.kind == TOPIC:
        reader = spark.read if config.trigger is None else spark.readStream
        return reader.format("topics").options(**config.options(), subscribe=source.place, **options).load()
    if source.kind == LAKE:
        topics = options.pop("topics", None)
        if options:
            raise BadOption(f"a lake has no option {next(iter(options))}, only topics")
        return lake.read(spark, source.place, topics=None if topics is None else topics.split(","))
    return spark.read.format(source.kind).options(**options).load(source.place)


def _shown(rows: "DataFrame", count: int) -> Iterator[str]:
    from pyspark.sql.functions import col, struct, to_json

    columns = [col(f"`{name}`") for name in rows.columns]
    text = to_json(struct(*columns), {"ignoreNullFields": "false"})
    for row in rows.limit(count).select(text).collect():
        yield row[0]


# Streams.


def _run_stream(
    rows: "DataFrame", config: Config, target: Target, report: ReportProgress | None, started_s: float
) -> Report:
    if not rows.isStreaming:
        raise BadOption("the query reads no topic, so that there is nothing to follow; leave --trigger out")
    assert config.checkpoint is not None
    writer = _into(rows, config, target).option("checkpointLocation", config.checkpoint)
    if config.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=_interval(config.trigger or ""))
    batches, records = _follow(writer.start(), report)
    return Report(
        job="sql",
        records=records,
        seconds=monotonic() - started_s,
        items_done=batches,
        detail={"into": config.into, "checkpoint": config.checkpoint},
    )


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    assert match is not None
    return f"{match[1]} {_UNITS[match[2]]}"


def _into(rows: "DataFrame", config: Config, target: Target) -> "DataStreamWriter":
    if target.kind == TOPIC:
        options = topic_options(config, target.place, creates=config.create_topic)
        if config.writer_id is not None:
            options["writerId"] = config.writer_id
        return rows.writeStream.format("topics").options(**options).outputMode("append")
    if target.kind == LAKE:
        address, lake_writer = target.place, config.writer_id
        assert lake_writer is not None

        def write(batch: "DataFrame", number: int) -> None:
            write_lake(batch, address, writer=lake_writer, epoch=number)

        return rows.writeStream.foreachBatch(write)
    return rows.writeStream.format(target.kind).option("path", target.place).outputMode("append")


def _follow(query: "StreamingQuery", report: ReportProgress | None) -> tuple[int, int]:
    """Until the query ends, or somebody presses Ctrl-C. (batches, rows read) of this run."""
    seen: dict[int, int] = {}
    started_s = monotonic()
    with interrupts_held_back() as is_interrupted:
        while not query.awaitTermination(_LOOK_S):
            if _note(query, seen) and report is not None:
                report(_progress(seen, monotonic() - started_s))
            if is_interrupted():
                query.stop()
                raise Interrupted(
                    f"stopped after {len(seen)} batches; run the same command again to go on with the next"
                )
    _note(query, seen)
    return len(seen), sum(seen.values())


def _note(query: "StreamingQuery", seen: dict[int, int]) -> bool:
    """Takes in the batches that ended since; whether there were any."""
    before = len(seen)
    for progress in query.recentProgress:
        # By attribute: as a mapping it has no number of rows on Spark Connect.
        known: Any = progress
        rows = known.numInputRows if hasattr(known, "numInputRows") else known["numInputRows"]
        batch = known.batchId if hasattr(known, "batchId") else known["batchId"]
        if rows:
            seen[batch] = rows
    return len(seen) > before


def _progress(seen: Mapping[int, int], seconds: float) -> Progress:
    records = sum(seen.values())
    return Progress(
        job="sql",
        wave=len(seen),
        waves=0,
        done=len(seen),
        total=0,
        records=records,
        bytes=0,
        per_s=round(records / max(seconds, 1e-6), 1),
        eta_s=0.0,
    )
