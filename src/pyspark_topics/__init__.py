"""Lets Spark find the format `topics` by itself: it imports every module `pyspark_*` and takes its `DefaultSource`.

An error in this import would disable the formats of all other packages. So it is only a warning.
"""

import logging

try:
    from topics.spark.data_sources import TopicsDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception:  # Any error: see above.
    logging.getLogger(__name__).warning("format `topics` is not available", exc_info=True)
    __all__ = []
