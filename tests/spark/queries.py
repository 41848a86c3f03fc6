"""Streaming queries that end by themselves, and the events about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Below the time that a test with Spark has.
PATIENCE_S: Final = 500
# Spark gives the Python process of a source ten seconds to start, and cannot be told to give it more.
NOT_STARTED: Final = "Python worker failed to connect back"


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Starts a query and waits until it has ended; raises what it failed with.

    A query whose source did not start in time, as on a busy machine, has done nothing and is started again.
    """
    while True:
        try:
            query = start()
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
        except StreamingQueryException as error:
            if NOT_STARTED not in str(error):
                raise
        else:
            return query


def wait_for_listeners(spark: SparkSession) -> None:
    """Until listeners, and the event log, have got what has happened so far: they get it later, on other threads."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(PATIENCE_S * 1000)
