"""`optimize`: small neighbouring files of a topic and day in the lake become one of about 256 MiB.

One manifest removes the small files from the lake and adds the large one. The small files themselves stay until a
vacuum, so that readers of an older manifest are not disturbed. Rows and their order stay the same.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from topics.clock import SystemClock
from topics.spark.jobs.job import EXIT_DONE, Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import OptimizeOptions
from topics.spark.jobs.spread import SparkExecutors, spread_waves
from topics.spark.lake.files import DayFiles, file_batches, store_at
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeChange, LakeFile, LakeState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: "SparkSession", options: OptimizeOptions, *, report: ReportProgress | None = None) -> Report:
    """Merges the files that are small now. Files that another job changes meanwhile are left out."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    lake = open_lake(options.lake)
    groups = list(small_neighbours(lake.state, options.topics or None, options.target_bytes))
    merged: list[LakeChange] = []

    def commit(_: Sequence[tuple[LakeFile, ...]], changes: Sequence[LakeChange]) -> WaveDone:
        kept = lake.commit("optimize", changes, now_ms=clock.now_ms())
        merged.extend(kept)
        return WaveDone(sum(change.records for change in kept), sum(change.bytes for change in kept))

    if not options.dry_run:
        spread_waves(
            "optimize",
            groups,
            partial(merge_files, address=lake.address),
            executors=SparkExecutors(spark),
            collect=commit,
            weigh=_weight_bytes,
            report=report,
        )
    return Report(
        job="optimize",
        records=sum(change.records for change in merged),
        bytes=sum(change.bytes for change in merged),
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=len(merged),
        items_skipped=len(groups) - len(merged),
        exit_code=EXIT_DONE,
        detail={
            "lake": lake.address,
            "manifest": lake.state.number,
            "files_before": sum(len(group) for group in groups),
            "files_after": sum(len(change.adds) for change in merged),
        },
    )


def _weight_bytes(group: Sequence[LakeFile]) -> int:
    return sum(file.bytes for file in group)


def small_neighbours(
    state: LakeState, topics: Sequence[str] | None, target_bytes: int
) -> Iterator[tuple[LakeFile, ...]]:
    """Groups of at least two files to merge. Files of a group are neighbours by seq.

    Two files are no neighbours when seqs between them may still come into the lake: the merged file would overlap.
    """
    for _, files in groupby(state.files_of(topics), key=lambda file: (file.topic, file.epoch, file.date)):
        group: list[LakeFile] = []
        for file in files:
            if group and (
                _weight_bytes(group) + file.bytes > target_bytes
                or file.bytes * 2 >= target_bytes
                or not _are_neighbours(state, group[-1], file)
            ):
                if len(group) > 1:
                    yield tuple(group)
                group = []
            if file.bytes * 2 < target_bytes:
                group.append(file)
        if len(group) > 1:
            yield tuple(group)


def _are_neighbours(state: LakeState, file: LakeFile, after: LakeFile) -> bool:
    assert file.last_seq is not None, "a file of records has a last seq"
    return state.is_covered(file.topic, file.epoch, file.last_seq + 1, after.first_seq - 1)


def merge_files(files: Sequence[LakeFile], *, address: str) -> LakeChange:
    """Runs on an executor: puts one file with the rows of all into the lake. It does not count before the commit."""
    store = store_at(address)
    merged = DayFiles(files[0].topic, files[0].epoch)
    for file in files:
        for batch in file_batches(store, file.name):
            merged.write(batch)
    adds = merged.put(store)
    assert sum(file.records for file in adds) == sum(file.records for file in files), "no row is lost on the way"
    return LakeChange(adds=adds, removes=tuple(file.name for file in files))
