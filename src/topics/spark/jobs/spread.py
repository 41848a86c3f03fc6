"""Runs a function of ours on the executors, one task for each item.

Only public calls that Spark Connect has, too: a range with as many partitions as items, and `mapInArrow` over it. The
items travel inside the function, so a call is meant for one wave of them.
"""

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topics.errors import TopicsError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

# A line of a Python traceback.
_OUR_ERROR: Final = re.compile(r"(?P<kind>topics\.[a-z_.]+\.[A-Z]\w*): (?P<message>.+)")

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskFailed(TopicsError):
    """A task failed on its executor, also when it was tried again. The message is what it said last."""


def spread(spark: "SparkSession", items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """`[work(item) for item in items]`, on the executors.

    The function must be importable there, or a closure; items and results are pickled. An error of ours that is not
    worth a retry is raised here as it is. Any other fails its task, which Spark may try again, and in the end comes
    out as `TaskFailed`.
    """
    if not items:
        return []
    from pyspark.errors import PySparkException

    count = len(items)
    # Pickled here, so that a class of ours is unpickled by the task alone, after its module is imported.
    pickled = [pickle.dumps(item) for item in items]
    tasks = spark.range(0, count, 1, count).mapInArrow(_task(pickled, work), "id bigint, is_error boolean, body binary")
    try:
        rows = tasks.collect()
    except PySparkException as error:
        raise task_failure(error) from error
    assert len(rows) == count, "every task gives one row, or the query fails"
    for row in sorted(rows):
        if row["is_error"]:
            raise pickle.loads(row["body"])  # noqa: S301 - our own task wrote it.
    return [pickle.loads(row["body"]) for row in sorted(rows)]  # noqa: S301 - our own tasks wrote them.


def _task(pickled: list[bytes], work: Callable[[Any], Any]) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for index in batch.column(0).to_pylist():
                is_error = False
                try:
                    body = pickle.dumps(work(pickle.loads(pickled[index])))  # noqa: S301 - the driver wrote it.
                except TopicsError as error:
                    if error.retriable:
                        raise
                    is_error, body = True, pickle.dumps(error)
                yield pa.RecordBatch.from_pydict(
                    {"id": [index], "is_error": [is_error], "body": [body]},
                    schema=pa.schema([("id", pa.int64()), ("is_error", pa.bool_()), ("body", pa.binary())]),
                )

    return run


def core_count(spark: "SparkSession") -> int:
    """How many tasks run at the same time. Asked of a query, as Connect has no context to ask."""
    from pyspark.sql.functions import spark_partition_id

    return spark.range(1 << 16).select(spark_partition_id()).distinct().count()


def task_failure(error: Exception) -> TaskFailed:
    """What is left of an error that came through Spark: the last thing that Python said, or the first of Spark.

    An error of ours that came from a task or a data source keeps the name of its class, as `kind` of the detail.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return TaskFailed(type(error).__name__)
    ours = [match for line in lines if (match := _OUR_ERROR.fullmatch(line)) is not None]
    if ours:
        return TaskFailed(ours[-1]["message"], {"kind": ours[-1]["kind"]})
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return TaskFailed([line for line in lines if not line.startswith("at ")][-1])
    return TaskFailed(lines[0])
