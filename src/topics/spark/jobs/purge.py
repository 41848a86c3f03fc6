"""`compact --purge`: segments with many deleted records are written again without them.

The frames that stay are copied, the seqs of the others become entries of length 0. Left out are records whose delete
byte is set in the file; a delete that is younger than the last checkpoint waits for the next run. The last record of
a segment stays, deleted or not. Readers see no difference: the same records, the same seqs.

What counts is the share of deleted frames in the file itself. So a second run finds nothing to do.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from topics.client import Client
from topics.errors import BadFrame
from topics.formats.frame_table import from_index
from topics.formats.segment_rewrite import deleted_frames, index_of_frames, keep_frames
from topics.spark.jobs.job import Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.job_options import CompactOptions
from topics.spark.jobs.rewriting import (
    Outcome,
    SegmentTask,
    Spread,
    Unit,
    exchange,
    exit_code_of,
    read_if_there,
    read_segment,
    sealed_segments,
    units_of,
)
from topics.spark.jobs.spread import core_count, spread
from topics.storage.fs import RealFs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: "SparkSession", options: CompactOptions, *, report: ReportProgress | None = None) -> Report:
    """`records` were left out, `bytes` were freed. Exit code 4 when a segment changed or was busy, 3 for damage."""
    return purge(options, partial(spread, spark), cores=core_count(spark), report=report)


def purge(
    options: CompactOptions, spread_units: Spread[SegmentTask], *, cores: int, report: ReportProgress | None = None
) -> Report:
    listed = sealed_segments(options, options.topics)
    tasks = [task for task in listed if _may_be_worth_it(task, options.min_deleted)]
    if options.dry_run:
        return Report(
            job="purge",
            items_skipped=len(listed),
            detail={"candidates": [task.path("data") for task in tasks]},
        )
    outcomes: list[Outcome] = []

    def wave(units: Sequence[Unit[SegmentTask]]) -> WaveDone:
        done = [
            outcome for results in spread_units(units, partial(purge_unit, options.min_deleted)) for outcome in results
        ]
        outcomes.extend(done)
        return WaveDone(sum(outcome.records for outcome in done), sum(outcome.bytes for outcome in done))

    done = run_waves("purge", units_of(tasks, _size_of), wave, cores=cores, weigh=_unit_bytes, report=report)
    replaced = sum(outcome.status == "done" for outcome in outcomes)
    return Report(
        job="purge",
        records=done.records,
        bytes=done.bytes,
        seconds=done.seconds,
        items_done=replaced,
        items_skipped=len(listed) - replaced,
        findings=tuple(outcome.finding() for outcome in outcomes if outcome.status not in {"done", "same"}),
        exit_code=exit_code_of(outcomes),
    )


def _may_be_worth_it(task: SegmentTask, min_deleted: float) -> bool:
    """By the manifest, whose live records do not tell deleted ones from seqs that have no frame any more."""
    segment = task.segment
    return segment.live < segment.records and segment.records - segment.live >= min_deleted * segment.records


def _size_of(task: SegmentTask) -> int:
    return task.segment.data_len


def _unit_bytes(unit: Unit[SegmentTask]) -> int:
    return sum(map(_size_of, unit))


# On an executor.


def purge_unit(min_deleted: float, unit: Unit[SegmentTask]) -> list[Outcome]:
    with unit[0].connection.client() as client:
        return [_purge_segment(client, task, min_deleted) for task in unit]


def _purge_segment(client: Client, task: SegmentTask, min_deleted: float) -> Outcome:
    fs = RealFs()
    path, segment = task.path("data"), task.segment
    data = read_segment(fs, task)
    if data is None:
        return Outcome("changed", path, message="the file is another one by now")
    idx = read_if_there(fs, task.path("idx"))
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
    return exchange(client, task, "purge", bytes(kept.data), new_idx)
