"""`sql`: one SELECT over named inputs, once or as a stream, into a topic, a lake or files.

Inputs are views: topics, lakes, and everything that Spark can read. With a trigger, topics are read as streams and the
other inputs as tables; the checkpoint has how far the query is. A batch into a topic is an epoch, which is staged and
committed as a whole. So a query that is killed and started again adds nothing twice and leaves nothing out. For a lake
the ledger of the lake guarantees the same, for files the log that Spark keeps of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from topics.spark import read, read_stream, typed
from topics.spark.errors import BadOption
from topics.spark.free_place import require_free_place
from topics.spark.jobs.job import Interrupted, Progress, Report, ReportProgress, interrupts_held_back
from topics.spark.jobs.job_options import SqlOptions
from topics.spark.jobs.lake_write import write_lake
from topics.spark.jobs.named_sources import named_sources
from topics.spark.jobs.targets import LAKE, TOPIC, Target, parse_target, topic_options, write_rows
from topics.spark.lake import lake
from topics.spark.lake.lake import open_lake
from topics.spark.shaping.schema_option import INFER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AVAILABLE_NOW: Final = "availableNow"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL: Final = re.compile(r"([0-9]+)\s*(ms|s|m|h)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
# The beginnings of a query. Spark would run any other statement at once.
_SELECT: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL
)
# How often the progress of a running query is read.
_LOOK_S: Final = 1


def run(spark: "SparkSession", options: SqlOptions, *, report: ReportProgress | None = None) -> Report:
    """Without `into`, `detail["rows"]` has the rows as JSON text."""
    started_s = monotonic()
    options = with_named_sources(options)
    target = None if options.into is None else parse_target(options.into)
    _check(options, target)
    rows = _select(spark, options)
    if options.trigger is not None:
        assert target is not None
        return _run_stream(rows, options, target, report, started_s)
    if target is None:
        shown = list(_shown(rows, options.rows_shown))
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
        connection=options,
        writer=options.writer_id,
        epoch=options.epoch,
        creates=options.create_topic,
        mode=options.mode,
    )
    return Report(
        job="sql",
        records=written or 0,
        seconds=monotonic() - started_s,
        items_done=int(written is not None),
        items_skipped=int(written is None),
        detail={"into": options.into},
    )


def with_named_sources(options: SqlOptions) -> SqlOptions:
    """The topics and lakes that the query names are inputs, too."""
    query, inputs = named_sources(options.query)
    return replace(options, query=query, inputs=(*options.inputs, *inputs))


def _check(options: SqlOptions, target: Target | None) -> None:
    """Raises `BadOption` before anything is read."""
    if _SELECT.match(options.query) is None:
        raise BadOption("the query must be one SELECT; what it finds goes where --into says")
    names = [name for name, _ in options.inputs]
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise BadOption(f"{name!r} is no name for an input: take letters, digits and _")
        if names.count(name) > 1:
            raise BadOption(f"there are several inputs {name}")
    unknown = [name for name in options.input_options if name not in names]
    if unknown:
        raise BadOption(f"there is no input {unknown[0]} to have options")
    places = {parse_target(what).place for _, what in options.inputs if parse_target(what).kind in {TOPIC, LAKE}}
    untyped = [name for name in options.schemas if name not in names and name not in places]
    if untyped:
        raise BadOption(f"there is no input {untyped[0]} to have a schema")
    if options.trigger is None:
        if options.checkpoint is not None:
            raise BadOption("--checkpoint goes with --trigger: a query that runs once has none")
        return
    if target is None:
        raise BadOption("a query with --trigger needs --into")
    if options.checkpoint is None:
        raise BadOption("a query with --trigger needs --checkpoint, where it remembers how far it is")
    if target.kind == LAKE and options.writer_id is None:
        raise BadOption("give --writer-id: batches in a lake are known by it")
    if options.trigger != AVAILABLE_NOW and _INTERVAL.fullmatch(options.trigger) is None:
        raise BadOption(f"--trigger is {AVAILABLE_NOW} or an interval such as 5s, not {options.trigger!r}")
    if not any(parse_target(what).kind == TOPIC for _, what in options.inputs):
        raise BadOption("a query with --trigger needs an input topic:NAME, which it follows")


def _select(spark: "SparkSession", options: SqlOptions) -> "DataFrame":
    for name, what in options.inputs:
        read_options = dict(options.input_options.get(name, {}))
        _input(spark, name, parse_target(what), read_options, options).createOrReplaceTempView(name)
    return spark.sql(options.query)


def _input(
    spark: "SparkSession", name: str, source: Target, read_options: dict[str, str], options: SqlOptions
) -> "DataFrame":
    # A query that names a topic itself has a view with another name.
    schema = options.schemas.get(name, options.schemas.get(source.place))
    if source.kind == TOPIC:
        load = read if options.trigger is None else read_stream
        given = {**options.format_options(), "subscribe": source.place, **_typing(source.place, schema, options)}
        return load(spark, **given, **read_options)
    if source.kind == LAKE:
        topics = read_options.pop("topics", None)
        if read_options:
            raise BadOption(f"a lake has no option {next(iter(read_options))}, only topics")
        rows = lake.read(spark, source.place, topics=lake_topics(name, source.place, topics))
        return rows if schema is None else typed(rows, schema)
    if schema is not None:
        raise BadOption(f"--schema {name}=… is for topics and lakes; {source.kind} has types of its own")
    return spark.read.format(source.kind).options(**read_options).load(source.place)


def _typing(topic: str, schema: str | None, options: SqlOptions) -> dict[str, str]:
    """Options of a typed read. The schema that a stream infers is kept beside its checkpoint."""
    if schema is None:
        return {}
    if options.checkpoint is None or schema.strip().lower() != INFER:
        return {"schema": schema}
    # The formats of Spark have another name for buckets.
    place = re.sub(r"^s3[an]://", "s3://", options.checkpoint.rstrip("/"))
    return {"schema": schema, "schemaLocation": f"{place}/topics-schema/{topic}"}


def lake_topics(view: str, address: str, chosen: str | None) -> list[str] | None:
    """The topics of a lake that a view reads: those that were chosen, or the one with the name of the view.

    A lake with one topic has no choice. A lake that the query itself names is read as it is, with all topics.
    """
    if chosen is not None:
        return None if chosen == "*" else chosen.split(",")
    if view.startswith("_"):
        return None
    known = open_lake(address).state.topics
    if view in known or len(known) <= 1:
        return [view] if view in known else known
    raise BadOption(
        f"{address} has topics {', '.join(known)}: name the view like one of them, or choose with "
        f"--input-option {view}.topics=NAME,… or {view}.topics=* for all"
    )


def _shown(rows: "DataFrame", count: int) -> Iterator[str]:
    from pyspark.sql.functions import col, struct, to_json

    columns = [col(f"`{name}`") for name in rows.columns]
    text = to_json(struct(*columns), {"ignoreNullFields": "false"})
    for row in rows.limit(count).select(text).collect():
        yield row[0]


# Streams.


def _run_stream(
    rows: "DataFrame", options: SqlOptions, target: Target, report: ReportProgress | None, started_s: float
) -> Report:
    if not rows.isStreaming:
        raise BadOption("the query reads no topic as a stream; leave out --trigger")
    assert options.checkpoint is not None
    writer = _into(rows, options, target).option("checkpointLocation", options.checkpoint)
    # The name is what Spark's page of streaming queries shows.
    writer = writer.queryName(f"{', '.join(what for _, what in options.inputs)} → {options.into}")
    if options.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=_interval(options.trigger or ""))
    batches, records = _follow(writer.start(), report)
    return Report(
        job="sql",
        records=records,
        seconds=monotonic() - started_s,
        items_done=batches,
        detail={"into": options.into, "checkpoint": options.checkpoint},
    )


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    assert match is not None
    return f"{match[1]} {_UNITS[match[2]]}"


def _into(rows: "DataFrame", options: SqlOptions, target: Target) -> "DataStreamWriter":
    if target.kind == TOPIC:
        write_options = topic_options(options, target.place, creates=options.create_topic)
        if options.writer_id is not None:
            write_options["writerId"] = options.writer_id
        return rows.writeStream.format("topics").options(**write_options).outputMode("append")
    if target.kind == LAKE:
        address, lake_writer = target.place, options.writer_id
        assert lake_writer is not None

        def write(batch: "DataFrame", number: int) -> None:
            write_lake(batch, address, writer=lake_writer, epoch=number)

        return rows.writeStream.foreachBatch(write)
    require_free_place(target.place)
    return rows.writeStream.format(target.kind).option("path", target.place).outputMode("append")


def _follow(query: "StreamingQuery", report: ReportProgress | None) -> tuple[int, int]:
    """Waits until the query ends, or for Ctrl-C. Returns the batches and the rows of this run."""
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
    """Adds the batches that ended since the last call; whether there were any."""
    before = len(seen)
    for progress in query.recentProgress:
        # On Spark Connect only the attributes have the number of rows.
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
