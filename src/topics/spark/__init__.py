"""Topics on Spark.

    import topics.spark

    spark = topics.spark.session()
    orders = topics.spark.read(spark, subscribe="orders", endpoint="http://localhost:4000")
    orders.groupBy("tag").count().show()

The same without this module: `spark.read.format("topics").option("subscribe", "orders").load()`. Both formats, `topics`
and `topics_streams`, are found by Spark where this package is installed.

Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING, Any

from topics.spark.session import SparkUnavailable, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkUnavailable", "doctor", "read", "read_stream", "register", "session"]


def register(spark: "SparkSession") -> None:
    """Registers the formats in a session that does not find them."""
    from topics.spark.data_sources import StreamsDataSource, TopicsDataSource

    spark.dataSource.register(TopicsDataSource)
    spark.dataSource.register(StreamsDataSource)


def read(spark: "SparkSession", **options: Any) -> "DataFrame":
    """Records of topics, as a snapshot of the moment of the first action. Options by name; see docs/spark.md."""
    return spark.read.format("topics").options(**options).load()


def read_stream(spark: "SparkSession", **options: Any) -> "DataFrame":
    """Records of topics as a stream."""
    return spark.readStream.format("topics").options(**options).load()


def doctor(spark: "SparkSession", endpoint: str | None = None) -> Any:
    """What works here and what does not: Java, Python and packages on driver and executor, the server."""
    from topics.spark.jobs import doctor as job
    from topics.spark.jobs.job_options import DoctorOptions

    return job.run(spark, DoctorOptions(endpoint=endpoint))
