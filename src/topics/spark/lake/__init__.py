"""The lake: records of topics as Parquet files."""

from topics.spark.lake.lake import read

__all__ = ["read"]
