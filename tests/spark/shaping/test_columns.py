"""Typed columns in a real Spark session: of a topic, of a lake, and of a stream that is started again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import topics.spark
from tests.spark.in_process import InProcess
from tests.spark.queries import run_to_end
from tests.spark.world import World, world
from topics.spark.errors import BadOption
from topics.spark.jobs.archive import Archiver
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.lake import lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = "id bigint, amount double, at timestamp, lines array<struct<sku:string,n:int>>, price decimal(10,2)"
WHOLE = 300
ODD = [
    '{"id":"x","amount":2}',
    '{"id":9223372036854775808}',
    '{"id":1,"more":{"deep":[[[1]]]}}',
    '{"id":1,"id":2}',
    '{"price":0.001}',
    "[1]",
    "null",
]


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "amount": number / 4,
        "at": f"2026-01-31T08:{number % 60:02}:00+01:00",
        "lines": [{"sku": "a", "n": number % 7}, None],
        "price": 12.5,
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("typed")) as made:
        records = [json.dumps({"data": order(number), "meta": {"n": number, "s": "x"}}) for number in range(WHOLE)]
        records += [f'{{"data":{text}}}' for text in ODD]
        made.client.append_encoded("t", f"[{','.join(records)}]".encode())
        made.checkpoint()
        yield made


def summary(rows: DataFrame) -> tuple[Any, ...]:
    found = rows.selectExpr(
        "count(*)", "sum(data.id)", "sum(data.amount)", "max(data.at)", "sum(data.lines[0].n)", "count(_rescued)",
        "sum(cast(meta['n'] AS int))", "sum(data.price)",
    )  # fmt: skip
    return tuple(found.collect()[0])


def rescued(rows: DataFrame) -> list[str]:
    return [row[0] for row in rows.where("_rescued IS NOT NULL").orderBy("seq").select("_rescued").collect()]


def test_topic_lake_and_stream_have_the_same_typed_rows(spark: SparkSession, place: World, tmp_path: Path) -> None:
    archive = ArchiveOptions(endpoint=place.url, lake=str(tmp_path / "lake"), topics=("t",), seal=True)
    Archiver(archive, InProcess()).run()
    text = topics.spark.read(spark, endpoint=place.url, subscribe="t")
    by_option = topics.spark.read(spark, endpoint=place.url, subscribe="t", schema=DDL)
    by_function = topics.spark.typed(text, DDL)
    assert by_option.schema == by_function.schema
    rows = by_option.orderBy("seq").collect()
    assert rows == by_function.orderBy("seq").collect()
    assert [row["data"].asDict(recursive=True) for row in rows[:WHOLE:50]] == [
        {**order(number), "at": rows[number]["data"]["at"], "price": rows[number]["data"]["price"]}
        for number in range(0, WHOLE, 50)
    ]
    in_lake = topics.spark.typed(lake.read(spark, str(tmp_path / "lake"), topics=["t"]), DDL)
    stream = topics.spark.read_stream(spark, endpoint=place.url, subscribe="t", schema=DDL)
    run_to_end(stream.writeStream.format("memory").queryName("typed_rows").trigger(availableNow=True).start)
    streamed = spark.table("typed_rows")
    expected = summary(by_option)
    # The ids of whole records, and those that fit although the rest of their record does not.
    ids = sum(range(WHOLE)) + 1 + 2
    assert expected[:2] == (WHOLE + len(ODD), ids)
    assert expected[5] == len(ODD)
    for other in (by_function, in_lake, streamed):
        assert summary(other) == expected
        assert rescued(other) == ODD


def test_a_variant_has_every_record_but_those_that_spark_refuses(spark: SparkSession, place: World) -> None:
    rows = topics.spark.read(spark, endpoint=place.url, subscribe="t", schema="variant")
    assert dict(rows.dtypes)["data"] == "variant"
    assert rescued(rows) == ['{"id":1,"id":2}']
    found = rows.where("_rescued IS NULL").selectExpr("sum(try_variant_get(data, '$.id', 'decimal(38,0)'))")
    assert found.collect()[0][0] == sum(range(WHOLE)) + 2**63 + 1
    digits = "1" * 39
    wide = topics.spark.typed(spark.createDataFrame([(f'{{"n":{digits}}}',), ('{"n":0.5}',)], "data string"), "variant")
    assert [row["_rescued"] for row in wide.collect()] == [f'{{"n":{digits}}}', None]


def test_a_stream_keeps_the_schema_that_it_inferred_at_its_first_start(
    spark: SparkSession, place: World, tmp_path: Path
) -> None:
    place.client.create("growing")
    place.client.append_encoded("growing", b'[{"data":{"id":1}}]')

    def run() -> list[tuple[Any, ...]]:
        rows = topics.spark.read_stream(
            spark, endpoint=place.url, subscribe="growing", schema="infer", schemaLocation=str(tmp_path / "schema")
        )
        writer = rows.selectExpr("data.*", "_rescued").writeStream.format("json")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        run_to_end(lambda: writer.start(str(tmp_path / "out")))
        found = spark.read.schema("id bigint, _rescued string").json(str(tmp_path / "out"))
        return sorted((row["id"], row["_rescued"]) for row in found.collect())

    assert run() == [(1, None)]
    place.client.append_encoded("growing", b'[{"data":{"id":2,"name":"x"}}]')
    assert run() == [(1, None), (2, '{"id":2,"name":"x"}')]
    read = partial(topics.spark.read_stream, spark, endpoint=place.url, subscribe="growing", schema="infer")
    with pytest.raises(PySparkException, match="needs `schemaLocation`"):
        run_to_end(lambda: read().writeStream.format("noop").start())
    # Without a place to keep it, a batch infers a schema of its own.
    batch = topics.spark.read(spark, endpoint=place.url, subscribe="growing", schema="infer")
    assert dict(batch.dtypes)["data"] == "struct<id:bigint,name:string>"
    sampled = topics.spark.typed(topics.spark.read(spark, endpoint=place.url, subscribe="growing"), sample=1)
    assert dict(sampled.dtypes)["data"] == "struct<id:bigint>"


def test_wrong_uses_are_told(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("null", 1)], "data string, seq bigint")
    stream = spark.readStream.format("rate").load().selectExpr("'{}' AS data")
    for frame, given, problem in (
        (rows.select("seq"), {"schema": "id int"}, "no column `data`"),
        (rows.selectExpr("data", "data AS _rescued"), {"schema": "id int"}, "a column `_rescued` already"),
        (rows, {}, "give `schema`, or `sample`"),
        (rows, {"schema": "id int", "sample": 10}, "give `schema` or `sample`"),
        (rows, {"sample": 10}, "no record yet"),
        (stream, {"sample": 10}, "a stream has no first records"),
    ):
        with pytest.raises(BadOption, match=problem):
            topics.spark.typed(frame, **given)  # type: ignore[arg-type]
