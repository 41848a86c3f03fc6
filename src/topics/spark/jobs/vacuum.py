"""`vacuum`: removes files of the lake that have not counted for long enough.

These are files that no version names (the job was killed before its commit, or another job committed first), files that
a version has removed, and parts of unfinished puts. A version that is older than that cannot be read afterwards.

A running job has files that no version names *yet*. Such files are young. So an age of less than an hour is refused,
unless the user says that no other job is running.
"""

from typing import TYPE_CHECKING, Final

from topics.clock import SystemClock
from topics.spark.jobs.job import EXIT_DONE, Report, ReportProgress
from topics.spark.jobs.job_options import VacuumOptions
from topics.spark.lake.gaps import GAPS
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import DATA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR_MS: Final = 3_600_000


def run(
    spark: "SparkSession | None",  # noqa: ARG001 - every job is given one; the library needs none.
    options: VacuumOptions,
    *,
    report: ReportProgress | None = None,  # noqa: ARG001 - it is one step.
) -> Report:
    """Removes files that do not count any more. Ages are whole hours, rounded up."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    lake = open_lake(options.lake)
    hours = max(-(-options.older_than_ms // _HOUR_MS), 0)
    sizes = {entry.name: entry.size_bytes for entry in lake.store.entries(DATA)}
    removed = lake.table.vacuum(hours, dry_run=options.dry_run)
    if lake.gaps.table.refresh() >= 0:
        removed += [f"{GAPS}/{name}" for name in lake.gaps.table.vacuum(hours, dry_run=options.dry_run)]
    # An entry of the log may name a file that an earlier vacuum has removed.
    removed = [name for name in removed if name in sizes or name.startswith(GAPS)]
    unfinished = 0 if options.dry_run else lake.store.remove_unfinished(clock.now_ms() - hours * _HOUR_MS)
    return Report(
        job="vacuum",
        bytes=0 if options.dry_run else sum(sizes.get(name, 0) for name in removed),
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=0 if options.dry_run else len(removed),
        items_skipped=len(removed) if options.dry_run else 0,
        exit_code=EXIT_DONE,
        detail={
            "lake": lake.address,
            "version": lake.refresh().version,
            "files_kept": len(lake.state.files),
            "unfinished_removed": unfinished,
        },
    )
