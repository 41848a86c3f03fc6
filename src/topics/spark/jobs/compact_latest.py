"""`compact --latest-by-tag`: copies the last live record of each tag into another topic, a lake or files.

The topic is only read, as one snapshot. The records are written in the order of their seqs. The target knows a run by
writer and epoch, so that a repeated run adds nothing.
"""

from time import monotonic
from typing import TYPE_CHECKING

from topics.spark.errors import BadOption
from topics.spark.jobs.job import Progress, Report, ReportProgress
from topics.spark.jobs.job_options import CompactOptions
from topics.spark.jobs.targets import LAKE, TOPIC, Target, parse_target, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(spark: "SparkSession", options: CompactOptions, *, report: ReportProgress | None = None) -> Report:
    """`records` counts the records that were written, or with `dry_run` would be."""
    started_s = monotonic()
    assert options.into is not None
    (topic,) = options.topics
    target = parse_target(options.into)
    if target == Target(TOPIC, topic):
        raise BadOption("a topic cannot be compacted into itself: name another one")
    rows = latest_by_tag(_read(spark, options), keeps_untagged=options.untagged == "keep")
    if options.dry_run:
        return _summary(options, rows.count(), is_written=False, started_s=started_s)
    written = write_rows(
        _columns(rows, target),
        target,
        connection=options,
        writer=f"compact:{topic}:{target.place}".replace("/", ":")[:128],
        epoch=options.epoch,
        creates=True,
        mode=options.mode,
    )
    done = _summary(options, written or 0, is_written=written is not None, started_s=started_s)
    if report is not None:
        report(_progress(done))
    return done


def _read(spark: "SparkSession", options: CompactOptions) -> "DataFrame":
    read_options = {
        **options.format_options(),
        "subscribe": options.topics[0],
        "columns": "topic,seq,ts,node,tag,data,meta,epoch",
    }
    return spark.read.format("topics").options(**read_options).load()


def latest_by_tag(records: "DataFrame", *, keeps_untagged: bool) -> "DataFrame":
    """The record with the highest seq of each tag, by seq. A task sends on one row for each tag, not all rows."""
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
    """The columns that the target takes. A topic gives records new seqs and times."""
    if target.kind == TOPIC:
        return rows.select("data", "tag", "node", "meta")
    return rows if target.kind == LAKE else rows.drop("epoch")


def _summary(options: CompactOptions, records: int, *, is_written: bool, started_s: float) -> Report:
    return Report(
        job="compact",
        records=records,
        seconds=monotonic() - started_s,
        items_done=int(is_written),
        items_skipped=int(not is_written),
        detail={"topic": options.topics[0], "into": options.into},
    )


def _progress(done: Report) -> Progress:
    """The job is one wave, because the latest records are known only at the end."""
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
