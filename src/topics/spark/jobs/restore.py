"""`restore`: records of a lake, or of segments without a server, become a topic again.

Into a new topic of a running server: chunk by chunk, staged, each seen as a whole. The server gives seqs and times of
its own; the original ones are in `_topics_origin` of the meta. Into a directory: segments with the original seqs and
times, for a server to be started with.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from topics.client import Client
from topics.errors import TopicNotFound
from topics.limits import MIB, SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.epochs import require_staging, write_epochs
from topics.spark.jobs.frozen import default_id, freeze
from topics.spark.jobs.job import EXIT_DATA_LOSS, Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.marks import ORIGIN, marked, source_mark
from topics.spark.jobs.restore_directory import ChunkToWrite, DirectoryBuilder, write_chunk
from topics.spark.jobs.restore_source import SCHEMA, Chunk, LakeSource, PathSource, Source, reader_of
from topics.spark.jobs.spread import core_count, spread
from topics.spark.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Connection):
    """From `lake` or `path`, to `target` or `into_dir`. Seqs are inclusive; by default all that there is.

    `topic` may be left out where there is only one. `epoch` is an instance of the topic in a lake; by default the last.
    """

    lake: str | None = None
    path: str | None = None
    topic: str | None = None
    epoch: int | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    target: str | None = None
    into_dir: str | None = None
    topic_config: dict[str, Any] = field(default_factory=dict)
    chunk_bytes: int = 64 * MIB
    segment_records: int = SEGMENT_EVENTS_MAX
    segment_bytes: int = SEGMENT_BYTES_MAX
    id: str | None = None
    state: str | None = None
    dry_run: bool = False


class Plan(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    chunks: list[Chunk]


def run(spark: "SparkSession", config: Config, *, report: ReportProgress | None = None) -> Report:
    if (config.target is None) == (config.into_dir is None):
        raise BadOption("give a topic to restore to, or a directory to restore into")
    source = _source(config)
    gaps = source.gaps()

    def make() -> Plan:
        chunks = source.chunks(config.chunk_bytes)
        return Plan(source.topic, source.epoch, source.first_seq, source.last_seq, chunks)

    if config.dry_run:
        plan = make()
        done = Report(job="restore", items_skipped=len(plan.chunks))
    else:
        asked = _asked(config)
        writer, plan = freeze(config.state, "restore", config.id or default_id(asked), asked, Plan, make)
        if config.target is not None:
            done = _into_topic(spark, config, source, plan, writer, config.target, report)
        else:
            assert config.into_dir is not None
            done = _into_directory(spark, config, source, plan, writer, os.path.abspath(config.into_dir), report)
    detail = {
        "topic": plan.topic,
        "epoch": plan.epoch,
        "seqs": [plan.first_seq, plan.last_seq],
        "chunks": len(plan.chunks),
        "to": config.target if config.target is not None else config.into_dir,
    }
    return replace(
        done,
        findings=tuple(gaps),
        exit_code=EXIT_DATA_LOSS if gaps else done.exit_code,
        detail={**detail, **done.detail},
    )


def _source(config: Config) -> Source:
    if (config.lake is None) == (config.path is None):
        raise BadOption("give a lake, or a path with segments: it says what to restore from")
    if config.path is not None:
        return PathSource(config.path, config.topic, from_seq=config.from_seq, to_seq=config.to_seq)
    assert config.lake is not None
    if config.topic is None:
        raise BadOption("name the topic of the lake that is to be restored")
    return LakeSource(config.lake, config.topic, epoch=config.epoch, from_seq=config.from_seq, to_seq=config.to_seq)


def _asked(config: Config) -> dict[str, Any]:
    """What makes two restores the same one."""
    names = ("lake", "path", "topic", "epoch", "from_seq", "to_seq", "target", "into_dir", "chunk_bytes")
    server = {"endpoint": config.address()} if config.target is not None else {}
    return {**server, **{name: getattr(config, name) for name in names}}


# Into a topic.


def _into_topic(
    spark: "SparkSession",
    config: Config,
    source: Source,
    plan: Plan,
    writer: str,
    target: str,
    report: ReportProgress | None,
) -> Report:
    with config.client() as client:
        require_staging(client)
        _require_new(client, target, writer)
    options = {"createTopic": "true"}
    if config.topic_config:
        options["topicConfig"] = msgspec.json.encode(config.topic_config).decode()
    return write_epochs(
        "restore",
        plan.chunks,
        lambda chunk: _rows(spark, source, chunk),
        connection=config,
        writer=writer,
        topic=target,
        options=options,
        weigh=lambda chunk: chunk.bytes,
        report=report,
    )


def _require_new(client: Client, target: str, writer: str) -> None:
    """Nothing is mixed into a topic that has records of others."""
    try:
        state = client.topic(target)
    except TopicNotFound:
        return
    if state.head_seq and target not in {known.topic for known in client.writer(writer).topics}:
        raise Conflict(f'topic "{target}" has records already; restore to a new topic, then move readers to it')


def _rows(spark: "SparkSession", source: Source, chunk: Chunk) -> "DataFrame":
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
    config: Config,
    source: Source,
    plan: Plan,
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

        def write(wave: Sequence[Chunk]) -> WaveDone:
            tasks = [
                ChunkToWrite(
                    builder.root, chunk, tuple(source.pieces(chunk)), config.segment_records, config.segment_bytes
                )
                for chunk in wave
            ]
            done = spread(spark, tasks, write_chunk)
            data_bytes = sum(segment.data_bytes for each in done for segment in each.segments)
            return WaveDone(sum(each.records for each in done), data_bytes)

        moved = run_waves(
            "restore", left, write, cores=core_count(spark), weigh=lambda chunk: chunk.bytes, report=report
        )
        builder.finish(
            plan.chunks,
            name=plan.topic,
            epoch=plan.epoch,
            first_seq=plan.first_seq,
            config=config.topic_config,
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
