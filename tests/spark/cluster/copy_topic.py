"""A program that a user of a cluster might write: counts a topic, copies it as a stream, adds a batch.

copy_topic.py MASTER_OR_REMOTE ENDPOINT CHECKPOINT
"""

import json
import sys

import topics.spark


def main(address: str, endpoint: str, checkpoint: str) -> None:
    if address.startswith("sc://"):
        spark = topics.spark.session("copy", remote=address)
    else:
        conf = {"spark.executor.memory": "512m", "spark.driver.memory": "600m", "spark.driver.host": "127.0.0.1"}
        spark = topics.spark.session("copy", master=address, conf=conf)
    try:
        source = {"endpoint": endpoint, "subscribe": "in"}
        frame = topics.spark.read(spark, **source)
        (counted,) = frame.selectExpr("count(*) AS records", "sum(cast(data AS bigint)) AS total").collect()
        stream = topics.spark.read_stream(spark, **source, maxRecordsPerTrigger="60").select("data", "tag")
        writer = stream.writeStream.format("topics").options(endpoint=endpoint, topic="out")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(300)
        problem = query.exception()
        moved = sum(progress.numInputRows for progress in query.recentProgress)
        batch = frame.where("seq <= 3").select("data").coalesce(1)
        batch.write.format("topics").options(endpoint=endpoint, topic="more", writerId="w").mode("append").save()
        print(json.dumps([counted.records, counted.total, moved, None if problem is None else str(problem)]))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
