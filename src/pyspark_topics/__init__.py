"""Lets Spark find the format `topics` by itself: it imports every module `pyspark_*` and takes its `DefaultSource`.

Whatever goes wrong in such an import would take the formats of all other packages with it, so nothing may.
"""

try:
    from topics.spark.source import TopicsDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception:  # noqa: BLE001 -- an edge: see above. A format that is not there is named by Spark when it is used.
    __all__ = []
