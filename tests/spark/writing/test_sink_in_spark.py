"""Writes by real queries: rows of a DataFrame become records, whatever Spark does in between."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from tests.spark.queries import run_to_end
from tests.spark.writing.test_sink import stored, values
from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The first one waits for the JVM, too.
pytestmark = pytest.mark.timeout(600)


def write(frame: "DataFrame", server: ServerProcess, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("topics").option("endpoint", server.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.mode(mode).save()


def numbers(spark: "SparkSession", count: int, partitions: int = 3) -> "DataFrame":
    return spark.range(0, count, numPartitions=partitions).select(
        fn.to_json(fn.struct("id")).alias("data"),
        fn.when(fn.col("id") % 2 == 0, fn.concat(fn.lit('even "'), fn.col("id").cast("string"))).alias("tag"),
        fn.lit("n1").alias("node"),
        fn.lit('{"m":1}').alias("meta"),
    )


def test_a_staged_batch_keeps_the_order_of_the_frame_and_is_known_when_it_is_run_again(
    spark: "SparkSession", server: ServerProcess
) -> None:
    with Client(server.url) as client:
        frame = numbers(spark, 5000)
        for _ in range(2):
            write(frame, server, topic="out", createTopic="true", writerId="test", chunkRecords=600)
            assert stored(client, "out") == [
                (f'{{"id":{n}}}', None if n % 2 else f'even "{n}', "n1", '{"m":1}') for n in range(5000)
            ]


def test_errors_say_what_to_do(spark: "SparkSession", server: ServerProcess) -> None:
    frame = numbers(spark, 10)

    def refusal(frame: "DataFrame" = frame, mode: str = "append", **options: object) -> str:
        with pytest.raises(PySparkException) as caught:
            write(frame, server, mode, **options)
        return str(caught.value)

    with Client(server.url) as client:
        client.create("out")
        assert "needs `writerId`" in refusal(topic="out", token="s3cret")
        assert "option `allowTruncate=true`" in refusal(topic="out", writerId="w", mode="overwrite")
        assert "did you mean `writerId`" in refusal(topic="out", writeId="w")
        assert "no place in a record for `id`" in refusal(spark.range(1), topic="out", writerId="w")
        broken = frame.withColumn("data", fn.when(fn.col("data").contains(":7"), "{").otherwise(fn.col("data")))
        text = refusal(broken.coalesce(1), topic="out", writerId="w", token="s3cret")
        assert "partition 0, row 7: `data` is not JSON" in text
        assert "s3cret" not in text
        assert client.state("out").head_seq == 0


def stream(frame: "DataFrame", server: ServerProcess, checkpoint: Path, mode: str = "append", **options: Any) -> None:
    writer = frame.writeStream.format("topics").option("endpoint", server.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer = writer.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run_to_end(writer.start)


def test_a_stream_from_files_adds_each_batch_once_over_restarts(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    with Client(server.url) as client:
        client.create("out")
        for step in range(2):
            spark.range(step * 100, step * 100 + 100, numPartitions=1).write.mode("append").parquet(str(source))
            frame = spark.readStream.schema("id long").parquet(str(source))
            rows = frame.select(fn.col("id").cast("string").alias("data"))
            stream(rows, server, tmp_path / "checkpoint", topic="out")
            assert values(client, "out") == list(range(step * 100 + 100))
        # The driver died after the commit, and before Spark knew: the same batch again.
        (tmp_path / "checkpoint/commits/1").unlink()
        (tmp_path / "checkpoint/commits/.1.crc").unlink()
        stream(rows, server, tmp_path / "checkpoint", topic="out")
        assert values(client, "out") == list(range(200))


def test_a_complete_result_replaces_the_last_one(spark: "SparkSession", server: ServerProcess, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for count in (10, 20):
        spark.range(0, count, numPartitions=1).write.mode("append").parquet(str(source))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
    counts = frame.groupBy((fn.col("id") % 2).alias("odd")).count()
    rows = counts.select(fn.to_json(fn.struct("odd", "count")).alias("data"))
    with Client(server.url) as client:
        client.create("out")
        stream(rows, server, tmp_path / "checkpoint", "complete", topic="out", allowTruncate="true")
        assert sorted(value["count"] for value in values(client, "out")) == [15, 15]
        assert client.state("out").head_seq > 2, "there were two results"
    with pytest.raises(PySparkException, match=r'outputMode\("complete"\) deletes everything'):
        stream(rows, server, tmp_path / "other", "complete", topic="out")
