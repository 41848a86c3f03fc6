"""`optimize`: small files of a topic in the lake become files of about 256 MiB.

The library merges them in this process, and commits. The small files themselves stay until a vacuum, so that readers of
an older version are not disturbed. The rows stay the same; their order in a file may change.
"""

from typing import TYPE_CHECKING, Any, Final

from deltalake import WriterProperties
from xxhash import xxh3_64_hexdigest

from topics.clock import SystemClock
from topics.spark.errors import Conflict
from topics.spark.jobs.job import EXIT_DONE, Report, ReportProgress
from topics.spark.jobs.job_options import OptimizeOptions
from topics.spark.lake.files import ROW_GROUP_ROWS
from topics.spark.lake.lake import Lake, open_lake, require_topics
from topics.spark.lake.state import LakeFile
from topics.spark.lake.table import CommitRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often another job may change the same files meanwhile before that is an error.
ATTEMPTS_MAX: Final = 3
_WRITING: Final = WriterProperties(compression="ZSTD", max_row_group_size=ROW_GROUP_ROWS)


def run(
    spark: "SparkSession | None",  # noqa: ARG001 - every job is given one; the library needs none.
    options: OptimizeOptions,
    *,
    report: ReportProgress | None = None,  # noqa: ARG001 - it is one step.
) -> Report:
    """Merges the files that are small now. Raises `Conflict` when other jobs change the same files meanwhile."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    lake = open_lake(options.lake)
    require_topics(lake, lake.state, options.topics)
    small = _small_files(lake, options)
    merged: dict[str, Any] = {}
    written: list[LakeFile] = []
    if not options.dry_run:
        merged = _merge(lake, options)
        written = _note_digests(lake)
    return Report(
        job="optimize",
        records=sum(file.records for file in written),
        bytes=sum(file.bytes for file in written),
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=merged.get("numFilesAdded", 0),
        items_skipped=len(small) if options.dry_run else 0,
        exit_code=EXIT_DONE,
        detail={
            "lake": lake.address,
            "version": lake.state.version,
            "files_before": merged.get("numFilesRemoved", 0),
            "files_after": merged.get("numFilesAdded", 0),
        },
    )


def _small_files(lake: Lake, options: OptimizeOptions) -> list[LakeFile]:
    """Files that have a neighbour to be merged with."""
    found: dict[tuple[str, int], list[LakeFile]] = {}
    for file in lake.state.files_of(options.topics or None):
        if file.bytes < options.target_bytes:
            found.setdefault((file.topic, file.epoch), []).append(file)
    return [file for files in found.values() if len(files) > 1 for file in files]


def _merge(lake: Lake, options: OptimizeOptions) -> dict[str, Any]:
    filters = [("topic", "in", list(options.topics))] if options.topics else None
    for _ in range(ATTEMPTS_MAX):
        lake.refresh()
        try:
            return lake.table.compact(filters, target_bytes=options.target_bytes, writing=_WRITING)
        except CommitRefused:
            continue
    raise Conflict(f"{lake.address}: other jobs changed the same files {ATTEMPTS_MAX} times; run optimize again")


def _note_digests(lake: Lake) -> list[LakeFile]:
    """Digests of the files that the library made, here or in a run that was killed. `verify` compares them."""
    written = [file for file in lake.refresh().files_of() if not file.digest]
    digests = {file.name: xxh3_64_hexdigest(lake.store.read_range(file.name, 0, file.bytes)) for file in written}
    if digests:
        lake.note_digests(digests)
    return written
