"""A lake as tables of SQL. Tasks run in this process; one query runs in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import topics.spark
from tests.spark.lakes import NOW_MS, archived
from topics.spark.errors import BadOption
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.source import batch_reader, is_lake
from topics.spark.lake.state import LakeNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("seq", LongType()), StructField("topic", StringType())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = open_lake(str(tmp_path / "lake"), must_exist=False)
    parts = [archived(made, 1, 10), archived(made, 11, 25), archived(made, 5, 8, topic="o:1")]
    made.commit("test", parts, now_ms=NOW_MS)
    return made


def rows(lake: Lake, **options: str) -> list[tuple[int, str]]:
    reader = batch_reader({"path": lake.address, **options}, SCHEMA)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [(row["seq"], row["topic"]) for batch in batches for row in batch.to_pylist()]


def test_a_table_has_the_records_of_its_topic_and_files_are_spread_over_tasks(lake: Lake, tmp_path: Path) -> None:
    assert is_lake({"Path": lake.address})
    assert not is_lake({"path": str(tmp_path)})
    assert not is_lake({"subscribe": "a"})
    assert rows(lake, subscribe="o:1") == [(seq, "o:1") for seq in range(5, 9)]
    assert rows(lake, subscribe="a", batchRecords="4") == [(seq, "a") for seq in range(1, 26)]
    assert len(rows(lake)) == 29
    assert len(batch_reader({"path": lake.address, "partitionBytes": "1"}, SCHEMA).partitions()) == 3
    assert len(batch_reader({"path": lake.address}, SCHEMA).partitions()) == 1


def test_what_a_lake_does_not_have_is_refused(lake: Lake) -> None:
    with pytest.raises(BadOption, match="`tag` is not for a lake"):
        rows(lake, subscribe="a", tag="x")
    with pytest.raises(BadOption, match="no column `checksum`"):
        rows(lake, subscribe="a", columns="seq,checksum")
    with pytest.raises(LakeNotFound, match='no records of topic "b"'):
        rows(lake, subscribe="b")


def test_an_attached_lake_is_read_at_its_newest_version(spark: SparkSession, lake: Lake) -> None:
    attached = topics.spark.attach(spark, path=lake.address, database="archive")
    assert attached.tables == {"a": "a", "o_1": "o:1"}
    query = "SELECT count(*), sum(a.seq), max(a.epoch), max(o.data) FROM archive.a LEFT JOIN archive.o_1 o USING (seq)"
    assert [tuple(row) for row in spark.sql(query).collect()] == [(25, 325, 1, '{"n":8}')]
    lake.commit("test", [archived(lake, 26, 30)], now_ms=NOW_MS)
    assert spark.sql(query).first()[0] == 30  # type: ignore[index]
    topics.spark.attach(spark, path=lake.address, database="archive", topics=["a"], schema="n INT")
    assert spark.sql("SELECT sum(data.n) FROM archive.a").first()[0] == 465  # type: ignore[index]
    spark.sql("DROP DATABASE archive CASCADE")
    assert open_lake(lake.address).state.topics == ["a", "o:1"]
