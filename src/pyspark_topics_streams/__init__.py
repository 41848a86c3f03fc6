"""Lets Spark find the format `topics_streams` by itself: it imports every `pyspark_*` and takes its `DefaultSource`.

An error in such an import would take the formats of all other packages with it, so it is only told.
"""

import logging

try:
    from topics.spark.data_sources import StreamsDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception:  # An edge: see above.
    logging.getLogger(__name__).warning("format `topics_streams` is not available", exc_info=True)
    __all__ = []
