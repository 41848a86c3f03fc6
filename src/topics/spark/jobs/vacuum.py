"""`vacuum`: removes files of the lake that have not counted for long enough.

These are files that no manifest names (the job was killed before its commit, or another job committed first), files
that a manifest has removed, and parts of unfinished puts. A manifest that is older than that cannot be read afterwards.

A running job has files that no manifest names *yet*. Such files are young. So an age of less than an hour is refused,
unless the user says that no other job is running.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from topics.clock import SystemClock
from topics.spark.jobs.job import EXIT_DONE, Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.job_options import VacuumOptions
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import DATA, GAPS
from topics.storage.tiers.store import ListedObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

# So many files are removed before the chain is read again.
WAVE_FILES: Final = 100


def run(
    spark: "SparkSession | None",  # noqa: ARG001 - every job is given one; removing files needs none.
    options: VacuumOptions,
    *,
    report: ReportProgress | None = None,
) -> Report:
    """Removes files that do not count any more."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    lake = open_lake(options.lake)
    before_ms = clock.now_ms() - options.older_than_ms
    found = [entry for prefix in (DATA, GAPS) for entry in lake.store.entries(prefix)]
    doomed = list(_not_counting(lake, found, before_ms))
    removed: list[ListedObject] = []

    def wave(entries: "Sequence[ListedObject]") -> WaveDone:
        lake.refresh()
        gone = list(_not_counting(lake, entries, before_ms))
        for entry in gone:
            # A job may have put the same file again since it was listed, to commit it next. Then it is young.
            if lake.store.modified_ms(entry.name) < before_ms:
                lake.store.delete(entry.name)
                removed.append(entry)
        return WaveDone(bytes=sum(entry.size_bytes for entry in gone))

    unfinished = 0
    if not options.dry_run:
        run_waves("vacuum", doomed, wave, cores=1, wave_items=WAVE_FILES, report=report)
        unfinished = lake.store.remove_unfinished(before_ms)
    return Report(
        job="vacuum",
        bytes=sum(entry.size_bytes for entry in removed),
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=len(removed),
        items_skipped=len(doomed) - len(removed),
        exit_code=EXIT_DONE,
        detail={
            "lake": lake.address,
            "manifest": lake.state.number,
            "files_kept": len(found) - len(removed),
            "unfinished_removed": unfinished,
        },
    )


def _not_counting(lake: Lake, entries: "Sequence[ListedObject]", before_ms: int) -> Iterator[ListedObject]:
    """Files that are older than that time, and that no manifest has named since."""
    state = lake.state
    for entry in entries:
        if entry.name in state.files or entry.name in state.gaps or entry.modified_ms >= before_ms:
            continue
        if state.removed_ms.get(entry.name, 0) < before_ms:
            yield entry
