"""`convert-lake`: makes a Delta table of a lake of the older form, with a chain of manifests."""

from typing import TYPE_CHECKING

from topics.clock import SystemClock
from topics.spark.jobs.job import EXIT_DONE, Report, ReportProgress
from topics.spark.jobs.job_options import ConvertLakeOptions
from topics.spark.lake.convert import convert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: "SparkSession | None",  # noqa: ARG001 - every job is given one; copying files needs none.
    options: ConvertLakeOptions,
    *,
    report: ReportProgress | None = None,  # noqa: ARG001 - it is one step.
) -> Report:
    """Raises `LakeNotFound` when there is no lake of the older form."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    done = convert(options.lake)
    return Report(
        job="convert-lake",
        records=done.records,
        bytes=done.bytes,
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=done.files,
        exit_code=EXIT_DONE,
        detail={"lake": options.lake, "manifests": done.manifests, "gaps": done.gaps},
    )
