"""The lake: records of topics as a Delta table."""

from topics.spark.lake.lake import gaps, history, read, restore

__all__ = ["gaps", "history", "read", "restore"]
