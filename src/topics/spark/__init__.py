"""Topics on Spark.

    import topics.spark

    spark = topics.spark.session()
    orders = topics.spark.read(spark, subscribe="orders", endpoint="http://localhost:4000")
    orders.groupBy("tag").count().show()

The same without this module: `spark.read.format("topics").option("subscribe", "orders").load()`. Both formats, `topics`
and `topics_streams`, are found by Spark where this package is installed.

Nothing heavy is imported before it is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics.spark.session import SparkUnavailable, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import DataType

    from topics.spark.attached import Attached
    from topics.spark.watching import StreamProgress

__all__ = [
    "SparkUnavailable",
    "attach",
    "doctor",
    "each_batch",
    "listener",
    "progress",
    "read",
    "read_stream",
    "register",
    "session",
    "typed",
]


def register(spark: "SparkSession") -> None:
    """Registers the formats in a session that does not find them."""
    from topics.spark.data_sources import StreamsDataSource, TopicsDataSource

    spark.dataSource.register(TopicsDataSource)
    spark.dataSource.register(StreamsDataSource)


def read(spark: "SparkSession", *, where: str | None = None, **options: Any) -> "DataFrame":
    """Records of topics, as a snapshot of the moment of the first action. Options by name; see docs/spark.md.

    `where` is a filter of SQL. Conditions on `seq`, `ts`, `tag` and `node` that are joined by AND become options, so
    that other records are not read; an option that is given wins. Spark applies the whole filter.
    """
    if where is None:
        return _load(spark.read, options)
    from topics.spark.narrowing import options_of

    return _load(spark.read, {**options_of(where), **options}).where(where)


def read_stream(spark: "SparkSession", *, observe: str | None = None, **options: Any) -> "DataFrame":
    """Records of topics as a stream. With `observe`, progress has records and bytes of each batch under this name."""
    rows = _load(spark.readStream, options)
    if observe is None:
        return rows
    from topics.spark.watching import observed

    return observed(rows, observe)


def _load(reader: "DataFrameReader | DataStreamReader", options: dict[str, Any]) -> "DataFrame":
    # A source cannot make a VARIANT of a text at a good speed; Spark itself can.
    is_variant = str(options.get("schema")).strip().lower() == "variant"
    own = {name: value for name, value in options.items() if not is_variant or name != "schema"}
    rows = reader.format("topics").options(**own).load()
    return typed(rows, "variant") if is_variant else rows


def typed(
    df: "DataFrame", schema: "str | DataType | None" = None, *, sample: "int | DataFrame | None" = None
) -> "DataFrame":
    """The rows with `data` as a structure, `meta` as a map, and the text of data that does not fit in `_rescued`.

    `df` is a batch or a stream of a topic or a lake. `schema` is DDL, a type of Spark, a file with a JSON Schema,
    `variant`, or `infer`. `sample` has the records to infer a schema from: how many of these rows, or a batch.
    """
    from topics.spark.shaping import columns

    return columns.typed(df, schema, sample=sample)


def progress(query: "StreamingQuery") -> "StreamProgress | None":
    """Lag of each topic, records and bytes of the last batch of a streaming query; None before its first batch."""
    from topics.spark import watching

    return watching.progress(query)


def listener(tell: "Callable[[StreamProgress], object]") -> "StreamingQueryListener":
    """For `spark.streams.addListener`: calls the function with the progress of every batch of every query."""
    from topics.spark import watching

    return watching.listener(tell)


def each_batch(**options: Any) -> "Callable[[DataFrame, int], None]":
    """A function for `foreachBatch` that writes every batch once, also in output mode `update`.

    The options are those of a write; `topic` and `writerId` must be among them.
    """

    def write(rows: "DataFrame", number: int) -> None:
        rows.write.format("topics").options(**options, epoch=str(number)).mode("append").save()

    return write


def attach(
    spark: "SparkSession",
    *,
    endpoint: str | None = None,
    path: str | None = None,
    database: str = "topics",
    topics: "Iterable[str] | None" = None,
    names: "Mapping[str, str] | None" = None,
    **options: Any,
) -> "Attached":
    """Makes every topic of a server, or of a path, a table of the database, which is made when it is not there.

    `path` is a data directory, an archive or a lake. `topics` are the topics to attach; without it all are. A character
    that Spark does not allow in the name of a table becomes `_`; `names` gives a topic another name. Other options are
    those of reads. Raises `BadOption` when two topics would have the same name.
    """
    from topics.spark.attached import Attached

    places = {"endpoint": endpoint, "path": path}
    attached = Attached(spark, database, {**places, **options}, topics=topics, names=names)
    attached.refresh()
    return attached


def doctor(spark: "SparkSession", endpoint: str | None = None) -> Any:
    """What works here and what does not: Java, Python and packages on driver and executor, the server."""
    from topics.spark.jobs import doctor as job
    from topics.spark.jobs.job_options import DoctorOptions

    return job.run(spark, DoctorOptions(endpoint=endpoint))
