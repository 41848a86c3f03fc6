"""Topics on Spark: reads, writes and jobs on two cores, of records with 100 bytes of JSON.

One server process has the topics. Spark runs in a JVM of this process and its Python workers. A first query warms the
session up. The best of several runs counts, because the machine is shared.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

import topics
from topics.bench.report import Row, not_measured
from topics.bench.setting import Setting
from topics.bench.storage import payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MASTER: Final = "local[2]"
TOPIC: Final = "a"
TOPICS_WATCHED: Final = 100
ROUNDS: Final = 3
BATCH_RECORDS: Final = 1000
TRIGGERS: Final = 6


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Records per second in one process, as a task reads them."""

    verified: float
    seq_and_ts: float


def missing(setting: Setting) -> str | None:
    """Why Spark cannot be measured here, or None."""
    if setting.python_path is not None:
        return "tasks run with the package of this process"
    from topics.spark.session import SparkUnavailable, require_java, require_packages

    try:
        require_packages()
        require_java()
    except SparkUnavailable as error:
        return error.message
    return None


def decode(setting: Setting) -> list[Row]:
    """The work of a task, without Spark."""
    names = ("spark: decode in one process, verified", "spark: decode in one process, seq and ts")
    if (why := missing(setting)) is not None:
        return [not_measured(what, why) for what in names]
    with filled(setting) as endpoint:
        rates = decode_rates(endpoint)
    return [
        Row(names[0], rates.verified / 1e6, "M records/s", floor=5),
        Row(names[1], rates.seq_and_ts / 1e6, "M records/s", floor=8),
    ]


def aggregates(setting: Setting) -> list[Row]:
    names = ("spark: aggregate, local[2], no checksums", "spark: aggregate, local[2], verified")
    if (why := missing(setting)) is not None:
        return [not_measured(what, why) for what in names]
    records = record_count(setting)
    with filled(setting) as endpoint, session(setting) as spark:
        # Imports modules and starts workers.
        _total(spark, endpoint, verify=True)
        plain = _best(lambda: _aggregate(spark, endpoint, records, verify=False))
        verified = _best(lambda: _aggregate(spark, endpoint, records, verify=True))
    return [
        Row(names[0], plain / 1e6, "M records/s", floor=1.5),
        Row(names[1], verified / 1e6, "M records/s", floor=2.5),
    ]


def jobs(setting: Setting) -> list[Row]:
    """Archive, verify, writes and triggers."""
    if (why := missing(setting)) is not None:
        return [not_measured("spark: jobs", why)]
    setting = replace(setting, scale=setting.scale / 2)
    records = record_count(setting)
    written = max(1, records // 4)
    with filled(setting) as endpoint, session(setting) as spark:
        _total(spark, endpoint, verify=True)
        trigger_one_s, trigger_all_s = _triggers(spark, endpoint, setting.directory)
        archived = _archive(spark, endpoint, setting.directory, records)
        verified_bytes = _best(lambda: _verify(spark, endpoint))
        null_written = _best(lambda: _null_write(spark, written))
        staged = _staged_write(spark, endpoint, written)
    return [
        Row("spark: archive to Parquet (zstd), verified", archived / 1e6, "M records/s", floor=1),
        Row("spark: verify", verified_bytes / 1e6, "MB/s", floor=300),
        Row("spark: write to a sink that drops all", null_written / 1e6, "M records/s"),
        Row("spark: staged write into one server", staged / 1e6, "M records/s", floor=0.15),
        Row(f"spark: trigger, {TOPICS_WATCHED} topics, news in one", trigger_one_s, "s", ceiling=0.5),
        Row(f"spark: trigger, {TOPICS_WATCHED} topics, news in all", trigger_all_s, "s", ceiling=0.4),
    ]


def record_count(setting: Setting) -> int:
    records = max(BATCH_RECORDS, setting.count(5_000_000 if setting.is_full else 2_000_000))
    return records - records % BATCH_RECORDS


@contextmanager
def filled(setting: Setting) -> Iterator[str]:
    """A server with one topic in sealed segments. Yields its endpoint."""
    fill(setting.directory, record_count(setting))
    with setting.server() as server:
        yield f"http://127.0.0.1:{server.port}"


def _best(run: Callable[[], float], rounds: int = ROUNDS) -> float:
    return max(run() for _ in range(rounds))


@contextmanager
def session(setting: Setting) -> "Iterator[SparkSession]":
    """Each session has the jars of Kafka's source: Spark loads them only into a JVM that it starts with them."""
    import topics.spark

    directory = setting.directory
    jars = sorted(Path(setting.kafka_jars, "source").glob("*.jar")) if setting.kafka_jars else []
    conf = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.local.dir": f"{directory}/local",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars": ",".join(map(str, jars)),
    }
    spark = topics.spark.session("topics bench", master=MASTER, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def fill(directory: str, records: int) -> None:
    """A topic in sealed segments of the default size, for a server on the directory."""
    batch = payloads(BATCH_RECORDS)
    with topics.open(f"{directory}/data") as log:
        log.create(TOPIC)
        for _ in range(records // BATCH_RECORDS):
            log.append(TOPIC, batch)


# Reading.


def decode_rates(endpoint: str) -> DecodeResult:
    """The work of tasks on the topic, one after the other in this process."""
    return DecodeResult(
        verified=_best(lambda: _decode(endpoint)),
        seq_and_ts=_best(lambda: _decode(endpoint, columns="seq,ts", verify="false")),
    )


def _decode(endpoint: str, **chosen: str) -> float:
    from topics.spark import schemas
    from topics.spark.options import parse_options
    from topics.spark.reading.locate import read_partition
    from topics.spark.reading.plan import plan_batch
    from topics.spark.reading.source import take_manifests

    given = {"endpoint": endpoint, "subscribe": TOPIC, "access": "files", **chosen}
    options = parse_options(given, mode="batch")
    schema = schemas.schema_of(options)
    partitions = plan_batch(take_manifests(options), options)
    began = perf_counter()
    count: int = sum(batch.num_rows for partition in partitions for batch in read_partition(partition, options, schema))
    rate = count / (perf_counter() - began)
    assert count == sum(partition.record_count for partition in partitions)
    return rate


def _total(spark: "SparkSession", endpoint: str, *, verify: bool) -> tuple[int, int]:
    """(records, bytes of their data), with all columns in the JVM."""
    from pyspark.sql import functions as F  # noqa: N812

    import topics.spark

    frame = topics.spark.read(spark, endpoint=endpoint, subscribe=TOPIC, verify=verify)
    row = frame.agg(F.count("seq"), F.sum(F.octet_length("data"))).first()
    assert row is not None
    return row[0], row[1]


def _aggregate(spark: "SparkSession", endpoint: str, records: int, *, verify: bool) -> float:
    began = perf_counter()
    found = _total(spark, endpoint, verify=verify)
    seconds = perf_counter() - began
    assert found == (records, records * 100), found
    return records / seconds


# Jobs.


def _archive(spark: "SparkSession", endpoint: str, directory: str, records: int) -> float:
    from topics.spark.jobs import archive
    from topics.spark.jobs.job_options import ArchiveOptions

    def run(number: int) -> float:
        lake = f"{directory}/lake-{number}"
        report = archive.run(spark, ArchiveOptions(lake=lake, topics=(TOPIC,), endpoint=endpoint, seal=True))
        assert report.records == records, report
        return records / report.seconds

    return max(run(number) for number in range(ROUNDS))


def _verify(spark: "SparkSession", endpoint: str) -> float:
    """Bytes per second."""
    from topics.spark.jobs import verify
    from topics.spark.jobs.job_options import VerifyOptions

    report = verify.run(spark, VerifyOptions(endpoint=endpoint))
    assert report.exit_code == 0, report
    return report.bytes / report.seconds


# Writing.


def _rows(spark: "SparkSession", records: int) -> "DataFrame":
    """Rows that the JVM makes, in two partitions."""
    pad = "x" * 76
    return spark.range(10_000_000, 10_000_000 + records, numPartitions=2).selectExpr(
        f"""concat('{{"id":', id, ',"pad":"{pad}"}}') AS data"""
    )


def _null_write(spark: "SparkSession", records: int) -> float:
    """The same rows into a Python sink that drops them: the limit that Spark sets."""
    from topics.bench.spark_null_sink import NullDataSource

    spark.dataSource.register(NullDataSource)
    rows = _rows(spark, records)
    began = perf_counter()
    rows.write.format(NullDataSource.name()).mode("append").save()
    return records / (perf_counter() - began)


def _staged_write(spark: "SparkSession", endpoint: str, records: int) -> float:
    from topics.client.sync.client import Client

    def run(number: int) -> float:
        rows = _rows(spark, records)
        topic = f"written-{number}"
        began = perf_counter()
        rows.write.format("topics").mode("append").options(
            endpoint=endpoint, topic=topic, writerId="bench", createTopic=True
        ).save()
        seconds = perf_counter() - began
        with Client(endpoint) as client:
            assert client.state(topic).count == records
        return records / seconds

    return max(run(number) for number in range(ROUNDS))


# Streaming.


def _triggers(spark: "SparkSession", endpoint: str, directory: str) -> tuple[float, float]:
    """Median seconds of a trigger with new records in one of many topics, and in all of them."""
    from topics.client.sync.client import Client

    def append(numbers: Iterable[int]) -> None:
        for number in numbers:
            client.append_encoded(f"many-{number:03d}", b'[{"data":1}]')

    with Client(endpoint) as client:
        append(range(TOPICS_WATCHED))
        query = (
            spark.readStream.format("topics")
            .options(endpoint=endpoint, subscribePattern="many-.*", startingOffsets="latest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            # Long enough to write to all topics between two triggers.
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            # Otherwise the query may begin after the first records.
            query.processAllAvailable()
            one = [_trigger_s(query, partial(append, [number])) for number in range(TRIGGERS)]
            all_of_them = [_trigger_s(query, partial(append, range(TOPICS_WATCHED))) for _ in range(TRIGGERS)]
        finally:
            query.stop()
    # The first triggers of each kind are a warm-up.
    return median(one[1:]), median(all_of_them[1:])


def _trigger_s(query: "StreamingQuery", append: Callable[[], None]) -> float:
    """The seconds of the longest trigger that read the appended records."""
    known = len(_batches_ms(query))
    append()
    query.processAllAvailable()
    return max(_batches_ms(query)[known:]) / 1e3


def _batches_ms(query: "StreamingQuery") -> list[int]:
    return [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
