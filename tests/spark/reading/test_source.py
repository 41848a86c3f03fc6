"""The data source in a real Spark session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.spark.queries import run_to_end
from tests.spark.world import World, gaps, short, world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1) as made:
        yield made


def load(spark: SparkSession, place: World, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("topics").options(endpoint=place.url, **texts).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("topic", "seq").collect()]


def test_a_dataframe_is_one_snapshot_and_equals_a_diff_while_a_writer_goes_on(
    spark: SparkSession, place: World
) -> None:
    """Tasks read files of both tiers and the tail while records are written, sealed, moved."""
    place.fill("t", 450)
    place.relocate()
    place.fill("t", 30)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            place.fill("t", 60)
            place.relocate()

    frame = load(spark, place, subscribe="t", minPartitions=3)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        count = frame.count()
        assert count >= 480
        found = rows_of(frame)
    finally:
        over.set()
        writer.join()
    assert len(found) == count
    assert short(found) == place.rows("t", count)
    place.fill("t", 1)
    assert load(spark, place, subscribe="t").count() > count


def test_tables_and_sql_tell_about_topics_and_segments(spark: SparkSession, place: World) -> None:
    place.client.create("c", cap_records=20)
    place.fill("c", 50)
    place.fill("t", 250)
    place.checkpoint()
    segments = load(spark, place, subscribe="t", table="segments").orderBy("first_seq").collect()
    assert [(row.first_seq, row.last_seq, row.records, row.sealed) for row in segments] == [
        (1, 100, 100, True),
        (101, 200, 100, True),
        (201, 250, 50, False),
    ]
    topics = load(spark, place, subscribePattern="[ct]", table="topics").orderBy("name").collect()
    assert [(row.name, row.head_seq, row["count"], row.evict_floor) for row in topics] == [
        ("c", 50, 20, 31),
        ("t", 250, 250, 1),
    ]
    assert [tuple(row) for row in load(spark, place, subscribe="c", table="gaps").collect()] == [("c", 1, 30, "cap")]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW c USING topics OPTIONS (endpoint '{place.url}', subscribe 'c')")
    (row,) = spark.sql(
        "SELECT count(*) AS records, min(seq) AS first, max(get_json_object(data, '$.n')::int) AS last FROM c"
    ).collect()
    assert (row.records, row.first, row.last) == (20, 31, 49)


def test_a_directory_is_read_without_its_server(spark: SparkSession, tmp_path: Path) -> None:
    with world(tmp_path) as place:
        place.fill("t", 130)
        expected = place.rows("t")
    frame = spark.read.format("topics").option("path", str(place.root)).load()
    assert short(rows_of(frame.where("topic = 't'"))) == expected
    topics = spark.read.format("topics").option("path", str(place.root)).option("table", "topics").load()
    assert {row.name: row["count"] for row in topics.collect()}["t"] == 130


def test_only_columns_that_are_asked_for_are_decoded(spark: SparkSession, place: World) -> None:
    place.fill("t", 10)
    frame = load(spark, place, subscribe="t", columns="seq,checksum,value")
    assert frame.columns == ["seq", "checksum", "value"]
    assert frame.where("value IS NOT NULL").count() == 10
    reader = spark.read.format("topics").schema("seq bigint, data string")
    frame = reader.options(endpoint=place.url, subscribe="t").load()
    assert frame.orderBy("seq").first() == (1, '{"n":0}')


def test_gaps_fail_with_our_sentence_or_are_rows(spark: SparkSession, place: World) -> None:
    place.client.create("c", cap_records=20)
    place.fill("c", 50)
    options = {"subscribe": "c", "startingOffsets": '{"c":11}'}
    with pytest.raises(PySparkException, match=r'data loss: topic "c": seqs 11-30 are evicted.*gaps=rows'):
        load(spark, place, **options).count()
    rows = rows_of(load(spark, place, **options, gaps="rows"))
    assert gaps(rows) == [(11, 30, "cap")]
    assert short(rows) == place.rows("c")


WRONG_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"subscirbe": "t"}, "there is no option `subscirbe` for format `topics`; did you mean `subscribe`?"),
    ({"subscribe": "t", "apiKey": "x"}, "option `apiKey` is refused"),
    ({}, "give `subscribe` or `subscribePattern`, or `path` alone"),
    ({"subscribe": "t", "access": "disk"}, "option `access` must be one of auto, files, http"),
    ({"subscribe": "t", "startingOffsets": "latest"}, "option `startingOffsets` can be latest in streaming reads"),
    ({"subscribe": "t", "columns": "sequence"}, "option `columns` has `sequence`, which is none of topic, seq"),
    ({"subscribe": "nowhere"}, 'topic "nowhere"'),
    ({"subscribe": "t", "tokenEnv": "NO_SUCH_VARIABLE"}, "there is no variable NO_SUCH_VARIABLE on this machine"),
]


def test_a_wrong_option_is_an_error_with_our_sentence_in_it(spark: SparkSession, place: World) -> None:
    for options, sentence in WRONG_OPTIONS:
        with pytest.raises(PySparkException) as caught:
            load(spark, place, **options).count()
        assert sentence in str(caught.value), options
    with pytest.raises(PySparkException, match="column `data` as int, it is string"):
        spark.read.format("topics").schema("data int").options(endpoint=place.url, subscribe="t").load().count()
    stream = spark.readStream.format("topics").options(endpoint=place.url, subscribe="t", endingOffsets="latest")
    with pytest.raises(PySparkException, match="option `endingOffsets` is for batch reads only"):
        run_to_end(lambda: stream.load().writeStream.format("noop").trigger(availableNow=True).start())


def test_a_stream_with_limits_ends_at_the_heads_and_goes_on_from_its_checkpoint(
    spark: SparkSession, place: World, tmp_path: Path
) -> None:
    names = ("s1", "s2", "s3")
    for number, name in enumerate(names, start=1):
        place.client.create(name)
        place.fill(name, 40 * number)

    def run(**more: str) -> tuple[int, int]:
        """Batches and rows."""
        stream = spark.readStream.format("topics").options(
            endpoint=place.url, subscribePattern="s.", maxRecordsPerTrigger="100", **more
        )
        writer = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = run_to_end(writer.start)
        moved = [progress for progress in query.recentProgress if progress.numInputRows]
        return len(moved), sum(progress.numInputRows for progress in moved)

    assert run() == (3, 240)
    assert run() == (0, 0)
    place.client.create("s4")
    place.fill("s4", 5)
    assert run() == (1, 5)
    found = rows_of(spark.read.parquet(str(tmp_path / "out")))
    for name in (*names, "s4"):
        assert short([row for row in found if row["topic"] == name]) == place.rows(name)
    place.client.drop("s4")
    with pytest.raises(PySparkException, match=r'data loss: topic "s4": seqs 6-… are gone with the topic'):
        run()
