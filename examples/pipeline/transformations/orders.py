"""Orders come from a topic, are counted by customer, and the large ones go to a topic of their own.

The server is that of TOPICS_URL. Formats are found by their names: a pipeline never registers them.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, lit, struct, to_json
from pyspark.sql.functions import sum as total

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every order, once: a run goes on after the last order that it has read."""
    records = spark.readStream.format("topics").option("subscribe", "orders").load()
    order = from_json(col("data"), "customer string, amount bigint")
    return records.select("seq", "ts", order.alias("order")).select("seq", "ts", "order.*")


@dp.materialized_view
def customers() -> DataFrame:
    """What each customer ordered so far."""
    return spark.table("orders").groupBy("customer").agg(count(lit(1)).alias("orders"), total("amount").alias("amount"))


dp.create_sink("large_orders", "topics", {"topic": "large-orders", "createTopic": "true"})


@dp.append_flow(target="large_orders", name="find_large_orders")
def find_large_orders() -> DataFrame:
    """Orders of 100 and more, tagged with their customer."""
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.select(to_json(struct("seq", "amount")).alias("data"), col("customer").alias("tag"))
