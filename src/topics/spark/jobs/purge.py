"""`compact --purge`: segments with many deleted records are written again without them.

Frames of live records are copied. The seq of a deleted record becomes an index entry of length 0. A record counts as
deleted when its delete byte is set in the file; a delete since the last checkpoint waits for the next run. The last
record of a segment stays, deleted or not. Readers get the same records with the same seqs.

A segment is written again when the share of deleted frames in the file is large. So a second run finds nothing to do.
"""

from functools import partial
from typing import TYPE_CHECKING

from topics.client.sync.client import Client
from topics.errors import BadFrame
from topics.formats.frame_table import from_index
from topics.formats.segment_rewrite import deleted_frames, index_of_frames, keep_frames
from topics.spark.jobs.job import Report, ReportProgress
from topics.spark.jobs.job_options import CompactOptions
from topics.spark.jobs.rewriting import (
    Outcome,
    ServedSegment,
    exchange,
    read_if_there,
    read_segment,
    rewrite,
    sealed_segments,
)
from topics.spark.jobs.spread import Executors, SparkExecutors
from topics.storage.fs import RealFs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: "SparkSession", options: CompactOptions, *, report: ReportProgress | None = None) -> Report:
    """`records` and `bytes` are what was purged. Exit code 4 when a segment changed or was busy, 3 for damage."""
    return purge(options, SparkExecutors(spark), report=report)


def purge(options: CompactOptions, executors: Executors, *, report: ReportProgress | None = None) -> Report:
    listed = sealed_segments(options, options.topics)
    segments = [segment for segment in listed if _may_be_worth_it(segment, options.min_deleted)]
    if options.dry_run:
        return Report(
            job="purge",
            items_skipped=len(listed),
            detail={"candidates": [segment.path("data") for segment in segments]},
        )
    work = partial(purge_unit, options.min_deleted)
    rewritten = rewrite("purge", segments, work, executors=executors, report=report)
    replaced = len(rewritten.written)
    return rewritten.report("purge", items_done=replaced, items_skipped=len(listed) - replaced)


def _may_be_worth_it(served: ServedSegment, min_deleted: float) -> bool:
    """By the manifest. It does not tell deleted records from seqs without a frame, so that the file decides later."""
    segment = served.segment
    return segment.live < segment.records and segment.records - segment.live >= min_deleted * segment.records


# On an executor.


def purge_unit(min_deleted: float, unit: tuple[ServedSegment, ...]) -> list[Outcome]:
    with unit[0].connection.client() as client:
        return [_purge_segment(client, served, min_deleted) for served in unit]


def _purge_segment(client: Client, served: ServedSegment, min_deleted: float) -> Outcome:
    fs = RealFs()
    path, segment = served.path("data"), served.segment
    data = read_segment(fs, served)
    if data is None:
        return Outcome("changed", path, message="the file has changed since it was listed")
    idx = read_if_there(fs, served.path("idx"))
    table = from_index(data, idx, segment.first_seq, last_seq=segment.last_seq)
    if table.bad:
        return Outcome("damaged", path, message=f"seq {table.bad[0].first_seq}: {table.bad[0].reason}")
    left_out = deleted_frames(table)
    left_out[-1:] = False
    if not left_out.any() or left_out.mean() < min_deleted:
        return Outcome("same", path)
    kept = keep_frames(table, ~left_out)
    try:
        new_idx = index_of_frames(kept, segment.first_seq, segment.last_seq)
    except BadFrame as error:
        return Outcome("damaged", path, message=error.message)
    return exchange(client, served, "purge", bytes(kept.data), new_idx)
