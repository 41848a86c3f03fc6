"""Reads on Spark beside Spark's Kafka source: the same records in the same session, the broker on the same machine.

`make bench-spark` fills the folder of the jars: `broker/` with those of a broker, `source/` with those of the source.
"""

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from topics.bench.processes import running_kafka
from topics.bench.report import Row, not_measured
from topics.bench.setting import Setting
from topics.bench.spark import ROUNDS, TOPIC, filled, missing, record_count, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One for each core of the session, so that every core reads.
PARTITIONS: Final = 2


def reads(setting: Setting) -> list[Row]:
    names = (
        "spark: read, all columns, times Kafka's source",
        "spark: count, times Kafka's source",
        "spark: read over HTTP, times Kafka's source",
    )
    jars = setting.kafka_jars
    if (why := missing(setting)) is not None:
        return [not_measured(what, why) for what in names]
    if jars is None or not Path(jars, "source").is_dir():
        return [not_measured(what, "--kafka-jars names no folder with jars of Kafka") for what in names]
    records = record_count(setting)
    with (
        filled(setting) as endpoint,
        running_kafka(setting.directory, f"{jars}/broker", partitions=PARTITIONS) as kafka,
        session(setting) as spark,
    ):
        broker = f"127.0.0.1:{kafka.port}"
        _copy(spark, endpoint, broker)
        in_place = spark.read.format("topics").options(endpoint=endpoint, subscribe=TOPIC)
        over_http = spark.read.format("topics").options(endpoint=endpoint, subscribe=TOPIC, access="http")
        theirs = spark.read.format("kafka").options(subscribe=TOPIC).option("kafka.bootstrap.servers", broker)
        rows: list[Row] = []
        for name, ours, read in zip(
            names, (in_place, in_place, over_http), (_read_all, _count, _read_all), strict=True
        ):
            # In turns, so that both have the same moments of a shared machine. The first turn is a warm-up.
            turns = [(read(ours.load(), records), read(theirs.load(), records)) for _ in range(1 + ROUNDS)][1:]
            best, best_of_kafka = (max(rates) / 1e6 for rates in zip(*turns, strict=True))
            rows.append(Row(name, best, "M records/s", peer=best_of_kafka))
    return rows


def _copy(spark: "SparkSession", endpoint: str, broker: str) -> None:
    records = spark.read.format("topics").options(endpoint=endpoint, subscribe=TOPIC).load().selectExpr("data AS value")
    records.write.format("kafka").options(topic=TOPIC).option("kafka.bootstrap.servers", broker).save()


def _read_all(frame: "DataFrame", records: int) -> float:
    """Every column of every record reaches the JVM and is dropped there."""
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return records / (perf_counter() - began)


def _count(frame: "DataFrame", records: int) -> float:
    began = perf_counter()
    found = frame.count()
    assert found == records, found
    return records / (perf_counter() - began)
