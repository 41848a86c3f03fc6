"""`compact`: one command for two jobs, `purge` and `compact_latest`."""

from typing import TYPE_CHECKING

from topics.spark.jobs import compact_latest, purge
from topics.spark.jobs.job import Report, ReportProgress
from topics.spark.jobs.job_options import CompactOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: "SparkSession", options: CompactOptions, *, report: ReportProgress | None = None) -> Report:
    if options.purge:
        return purge.run(spark, options, report=report)
    return compact_latest.run(spark, options, report=report)
