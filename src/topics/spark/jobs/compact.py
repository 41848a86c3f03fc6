"""`compact`: one command, two jobs. The latest of each tag goes elsewhere, or deleted records leave their files."""

from typing import TYPE_CHECKING

from topics.spark.jobs import compact_latest, purge
from topics.spark.jobs.job import Report, ReportProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: "SparkSession", config: compact_latest.Config | purge.Config, *, report: ReportProgress | None = None
) -> Report:
    if isinstance(config, purge.Config):
        return purge.run(spark, config, report=report)
    return compact_latest.run(spark, config, report=report)
