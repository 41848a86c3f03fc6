"""`compact --latest-by-tag`: of each tag the last live record, into another topic, a lake or files.

The topic itself is only read. What is taken is one snapshot, and comes out in the order of its seqs. A run is known by
its writer and epoch: repeated, it adds nothing.
"""

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Literal

from topics.spark.errors import BadOption
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import Progress, Report, ReportProgress
from topics.spark.jobs.targets import LAKE, TOPIC, Mode, Target, parse_target, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Connection):
    """`into` is topic:NAME, lake:ADDRESS or a format such as parquet:PATH."""

    topic: str
    into: str
    # Records without a tag are nobody's latest: all of them stay, or none.
    untagged: Literal["keep", "drop"] = "keep"
    # By default the names of both ends.
    writer_id: str | None = None
    epoch: int = 0
    create_topic: bool = True
    # `overwrite` also takes away what the target had before.
    mode: Mode = "errorifexists"
    dry_run: bool = False


def run(spark: "SparkSession", config: Config, *, report: ReportProgress | None = None) -> Report:
    """`records` are those that were written; with `dry_run` those that would be."""
    started_s = monotonic()
    target = parse_target(config.into)
    if target == Target(TOPIC, config.topic):
        raise BadOption("a topic cannot be compacted into itself: name another one")
    rows = latest_by_tag(_read(spark, config), keeps_untagged=config.untagged == "keep")
    if config.dry_run:
        return _summary(config, rows.count(), is_written=False, started_s=started_s)
    written = write_rows(
        _columns(rows, target),
        target,
        connection=config,
        writer=config.writer_id or f"compact:{config.topic}:{target.place}".replace("/", ":")[:128],
        epoch=config.epoch,
        creates=config.create_topic,
        mode=config.mode,
    )
    done = _summary(config, written or 0, is_written=written is not None, started_s=started_s)
    if report is not None:
        report(_progress(done))
    return done


def _read(spark: "SparkSession", config: Config) -> "DataFrame":
    options = {**config.options(), "subscribe": config.topic, "columns": "topic,seq,ts,node,tag,data,meta,epoch"}
    return spark.read.format("topics").options(**options).load()


def latest_by_tag(records: "DataFrame", *, keeps_untagged: bool) -> "DataFrame":
    """The record with the highest seq of each tag, by seq. Only one row for a tag leaves a task, not all of them."""
    from pyspark.sql.functions import col, max_by, struct

    whole = struct(*(col(name) for name in records.columns))
    latest = (
        records.where(col("tag").isNotNull())
        .groupBy("tag")
        .agg(max_by(whole, "seq").alias("record"))
        .select("record.*")
    )
    if keeps_untagged:
        latest = latest.unionByName(records.where(col("tag").isNull()))
    return latest.orderBy("seq")


def _columns(rows: "DataFrame", target: Target) -> "DataFrame":
    """A topic gives its own seqs, times and name."""
    if target.kind == TOPIC:
        return rows.select("data", "tag", "node", "meta")
    return rows if target.kind == LAKE else rows.drop("epoch")


def _summary(config: Config, records: int, *, is_written: bool, started_s: float) -> Report:
    return Report(
        job="compact",
        records=records,
        seconds=monotonic() - started_s,
        items_done=int(is_written),
        items_skipped=int(not is_written),
        detail={"topic": config.topic, "into": config.into},
    )


def _progress(done: Report) -> Progress:
    """All of it is one wave: what is latest is known at the end only."""
    return Progress(
        job="compact",
        wave=1,
        waves=1,
        done=1,
        total=1,
        records=done.records,
        bytes=0,
        per_s=round(done.records / max(done.seconds, 1e-6), 1),
        eta_s=0.0,
    )
