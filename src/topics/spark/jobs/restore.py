"""`restore`: makes a topic from the records of a lake, or of segments without a server.

A new topic of a running server is written chunk by chunk; each chunk is staged, and becomes visible as a whole. The
server gives new seqs and times; the original ones are in `_topics_origin` of the meta. A new directory gets segments
with the original seqs and times, and a server can be started with it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from topics.client.sync.client import Client
from topics.errors import TopicNotFound
from topics.spark.errors import Conflict
from topics.spark.jobs.epochs import require_staging, write_epochs
from topics.spark.jobs.frozen import default_id, freeze
from topics.spark.jobs.job import EXIT_DATA_LOSS, Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import RestoreOptions
from topics.spark.jobs.marks import ORIGIN, marked, source_mark
from topics.spark.jobs.restore_directory import ChunkDone, ChunkToWrite, DirectoryBuilder, write_chunk
from topics.spark.jobs.restore_source import SCHEMA, LakeSource, PathSource, RestoreChunk, Source, reader_of
from topics.spark.jobs.spread import SparkExecutors, spread_waves
from topics.spark.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RestorePlan(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    chunks: list[RestoreChunk]


def run(spark: "SparkSession", options: RestoreOptions, *, report: ReportProgress | None = None) -> Report:
    source = _source(options)
    gaps = source.gaps()

    def make() -> RestorePlan:
        chunks = source.chunks(options.chunk_bytes)
        return RestorePlan(source.topic, source.epoch, source.first_seq, source.last_seq, chunks)

    if options.dry_run:
        plan = make()
        done = Report(job="restore", items_skipped=len(plan.chunks))
    else:
        asked = _asked(options)
        writer, plan = freeze(options.state, "restore", options.id or default_id(asked), asked, RestorePlan, make)
        if options.target is not None:
            done = _into_topic(spark, options, source, plan, writer, options.target, report)
        else:
            assert options.into_dir is not None
            done = _into_directory(spark, options, source, plan, writer, os.path.abspath(options.into_dir), report)
    detail = {
        "topic": plan.topic,
        "epoch": plan.epoch,
        "seqs": [plan.first_seq, plan.last_seq],
        "chunks": len(plan.chunks),
        "to": options.target if options.target is not None else options.into_dir,
    }
    return replace(
        done,
        findings=tuple(gaps),
        exit_code=EXIT_DATA_LOSS if gaps else done.exit_code,
        detail={**detail, **done.detail},
    )


def _source(options: RestoreOptions) -> Source:
    if options.path is not None:
        return PathSource(options.path, options.topic, from_seq=options.from_seq, to_seq=options.to_seq)
    assert options.lake is not None
    assert options.topic is not None
    return LakeSource(
        options.lake, options.topic, epoch=options.epoch, from_seq=options.from_seq, to_seq=options.to_seq
    )


def _asked(options: RestoreOptions) -> dict[str, Any]:
    """The options that the plan depends on."""
    names = ("lake", "path", "topic", "epoch", "from_seq", "to_seq", "target", "into_dir", "chunk_bytes")
    server = {"endpoint": options.address()} if options.target is not None else {}
    return {**server, **{name: getattr(options, name) for name in names}}


# Into a topic.


def _into_topic(
    spark: "SparkSession",
    options: RestoreOptions,
    source: Source,
    plan: RestorePlan,
    writer: str,
    target: str,
    report: ReportProgress | None,
) -> Report:
    with options.client() as client:
        require_staging(client)
        _require_new(client, target, writer)
    write_options = {"createTopic": "true"}
    if options.topic_config:
        write_options["topicConfig"] = msgspec.json.encode(options.topic_config).decode()
    return write_epochs(
        "restore",
        plan.chunks,
        lambda chunk: _rows(spark, source, chunk),
        connection=options,
        writer=writer,
        topic=target,
        options=write_options,
        weigh=lambda chunk: chunk.bytes,
        report=report,
    )


def _require_new(client: Client, target: str, writer: str) -> None:
    """Raises `Conflict` for a topic that has records from elsewhere."""
    try:
        state = client.state(target)
    except TopicNotFound:
        return
    if state.head_seq and target not in {known.topic for known in client.writer(writer).topics}:
        raise Conflict(f'topic "{target}" has records already; restore to a new topic, then move readers to it')


def _rows(spark: "SparkSession", source: Source, chunk: RestoreChunk) -> "DataFrame":
    from pyspark.sql.functions import col

    pieces = source.pieces(chunk)
    count = len(pieces)
    if not count:
        rows = spark.createDataFrame([], ddl(SCHEMA))
    else:
        rows = spark.range(0, count, 1, count).mapInArrow(reader_of(pieces), ddl(SCHEMA))
    mark = source_mark(col("seq"), col("ts"), source.topic)
    return rows.select("data", "tag", "node", marked(col("meta"), ORIGIN, mark).alias("meta"))


# Into a directory.


def _into_directory(
    spark: "SparkSession",
    options: RestoreOptions,
    source: Source,
    plan: RestorePlan,
    writer: str,
    directory: str,
    report: ReportProgress | None,
) -> Report:
    started_s = monotonic()
    builder = DirectoryBuilder(directory)
    if builder.is_done(writer):
        return Report(job="restore", items_skipped=len(plan.chunks))
    builder.begin()
    try:
        left = [chunk for chunk in plan.chunks if builder.done(chunk) is None]

        def tasks_of(chunks: Sequence[RestoreChunk]) -> list[ChunkToWrite]:
            bounds = (options.segment_records, options.segment_bytes)
            return [ChunkToWrite(builder.root, chunk, tuple(source.pieces(chunk)), *bounds) for chunk in chunks]

        def collect(_: Sequence[RestoreChunk], done: Sequence[ChunkDone]) -> WaveDone:
            data_bytes = sum(segment.data_bytes for each in done for segment in each.segments)
            return WaveDone(sum(each.records for each in done), data_bytes)

        moved = spread_waves(
            "restore",
            left,
            write_chunk,
            executors=SparkExecutors(spark),
            prepare=tasks_of,
            collect=collect,
            weigh=lambda chunk: chunk.bytes,
            report=report,
        )
        builder.finish(
            plan.chunks,
            name=plan.topic,
            epoch=plan.epoch,
            first_seq=plan.first_seq,
            config=options.topic_config,
            writer=writer,
        )
    finally:
        builder.end()
    return Report(
        job="restore",
        records=moved.records,
        bytes=moved.bytes,
        seconds=monotonic() - started_s,
        items_done=moved.items,
        items_skipped=len(plan.chunks) - len(left),
    )
