"""The frame of jobs whose work is done by tasks.

A job plans its items. It says what a task does with one item (`work`), and what the driver does with the results of a
wave (`collect`): there the job commits the wave. `Executors` say where tasks run.

On Spark a wave is a range with one partition for each item, and `mapInArrow` over it: Spark Connect has these calls,
too. The items are pickled into the function, so that a call with very many items would be slow.
"""

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from topics.errors import TopicsError
from topics.limits import MIB
from topics.spark.jobs.job import ReportProgress, WaveDone, WavesDone, run_waves

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

# A task of Spark costs about 0.1 s, so that small files go together.
UNIT_BYTES: Final = 64 * MIB
UNIT_FILES: Final = 200

# A line of a Python traceback.
_OUR_ERROR: Final = re.compile(r"(?P<kind>topics\.[a-z_.]+\.[A-Z]\w*): (?P<message>.+)")
# The class of a Java exception, before its message.
_JAVA_CLASS: Final = re.compile(r"^[a-z][\w.]*\.[A-Z][\w$]*: (?=.)")

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskFailed(TopicsError):
    """A task failed on its executor, also when it was tried again. The message is the last thing that it said."""


class Executors(Protocol):
    """Where tasks run."""

    def spread(self, items: Sequence[Item], work: Callable[[Item], Result]) -> Sequence[Result]:
        """`[work(item) for item in items]`, one task for each item."""
        ...

    def core_count(self) -> int: ...


class SparkExecutors:
    """The executors of a Spark session."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def spread(self, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
        return spread(self._spark, items, work)

    def core_count(self) -> int:
        return core_count(self._spark)


def spread_waves(
    job: str,
    items: Sequence[Item],
    work: Callable[[Any], Result],
    *,
    executors: Executors,
    collect: Callable[[Sequence[Item], Sequence[Result]], WaveDone],
    prepare: Callable[[Sequence[Item]], Sequence[Any]] | None = None,
    weigh: Callable[[Item], int] | None = None,
    report: ReportProgress | None = None,
) -> WavesDone:
    """Does `work` for every item on the executors, and `collect` on the driver after each wave.

    `prepare` is called on the driver with the items of a wave, and returns what its tasks are given instead.
    """

    def wave(items: Sequence[Item]) -> WaveDone:
        given = items if prepare is None else prepare(items)
        return collect(items, executors.spread(given, work))

    # Counting the cores runs a query.
    cores = executors.core_count() if items else 1
    return run_waves(job, items, wave, cores=cores, weigh=weigh, report=report)


def units_of(items: Sequence[Item], weigh: Callable[[Item], int]) -> list[tuple[Item, ...]]:
    """Neighbours together, up to about 64 MiB."""
    units: list[tuple[Item, ...]] = []
    unit: list[Item] = []
    size_bytes = 0
    for item in items:
        if unit and (size_bytes + weigh(item) > UNIT_BYTES or len(unit) == UNIT_FILES):
            units.append(tuple(unit))
            unit, size_bytes = [], 0
        unit.append(item)
        size_bytes += weigh(item)
    return [*units, tuple(unit)] if unit else units


def spread(spark: "SparkSession", items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """`[work(item) for item in items]`, on the executors.

    The function must be importable on the executors, or a closure; items and results are pickled. An error of ours
    that is not worth a retry is raised here as it is. Any other error fails its task, which Spark may try again; if all
    attempts fail, `TaskFailed` is raised.
    """
    if not items:
        return []
    from pyspark.errors import PySparkException

    count = len(items)
    # Pickled here, so that only the task unpickles a class of ours, after its module is imported.
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
    """How many tasks run at the same time. A query finds out, because Spark Connect has no context to ask."""
    from pyspark.sql.functions import spark_partition_id

    return spark.range(1 << 16).select(spark_partition_id()).distinct().count()


def task_failure(error: Exception) -> TaskFailed:
    """An error that came through Spark: with the last line that Python said, or else the first line of Spark.

    Of an error of ours from a task or a data source the name of its class is kept, as `kind` of the detail.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return TaskFailed(type(error).__name__)
    ours = [match for line in lines if (match := _OUR_ERROR.fullmatch(line)) is not None]
    if ours:
        return TaskFailed(ours[-1]["message"], {"kind": ours[-1]["kind"]})
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return TaskFailed([line for line in lines if not line.startswith("at ")][-1])
    return TaskFailed(_cause(lines))


def _cause(lines: list[str]) -> str:
    """The first line; or what Java said, when the first line is only the name of a call."""
    if not lines[0].startswith("An error occurred while calling ") or len(lines) == 1:
        return lines[0]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return _JAVA_CLASS.sub("", (causes or [lines[1].removeprefix(": ")])[-1])
