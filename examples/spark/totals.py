"""Sums of a topic by tag, as a table and into another topic: a program for `spark-submit`.

spark-submit totals.py http://localhost:4000 orders totals
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import topics.spark


def main(endpoint: str, source: str, target: str) -> None:
    spark = SparkSession.builder.appName(f"{source} → {target}").getOrCreate()
    orders = topics.spark.read(spark, endpoint=endpoint, subscribe=source, schema="id bigint, amount double")
    sums = (f.sum("data.amount").alias("total"), f.count("_rescued").alias("rescued"))
    totals = orders.groupBy("tag").agg(*sums).orderBy("tag")
    totals.show()
    (
        totals.selectExpr("to_json(struct(*)) AS data", "tag")
        .write.format("topics")
        .options(endpoint=endpoint, topic=target, writerId=f"totals:{source}", createTopic="true")
        .mode("append")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
