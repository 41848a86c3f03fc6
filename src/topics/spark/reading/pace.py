"""How much a trigger of a streaming query takes, and when it waits for more. State of one query, on the driver."""

from time import monotonic

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from topics.spark.options import ReadOptions


class Pace:
    """A restart forgets this state. Only the time of the next batch depends on it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._last_batch_s: float | None = None

    def default_limit(self) -> ReadLimit:
        """Only says whether there are limits. The options have them, because Spark has no type for all limits."""
        limit = self._options.max_records_per_trigger
        if limit is None and self._options.max_bytes_per_trigger is not None:
            limit = self._options.max_records_per_partition
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def may_wait(self) -> bool:
        """Whether a small batch may be held back for more."""
        if self._options.min_records_per_trigger is None:
            return False
        if self._last_batch_s is None:
            self._last_batch_s = monotonic()
        return (monotonic() - self._last_batch_s) * 1000 < self._options.max_trigger_delay_ms

    def note_batch(self) -> None:
        self._last_batch_s = monotonic()
