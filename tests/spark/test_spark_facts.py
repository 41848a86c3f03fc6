"""What our sources are built around: facts about Spark that no contract of it states.

A version of Spark that changes one of them turns the test red; then what was built around it can go, or must change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.toy_sources import ROWS, Toy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(Toy)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").touch()
    return tmp_path / "notes"


def load(spark: SparkSession, notes: Path, **options: str) -> DataFrame:
    return spark.read.format("toy").options(notes=str(notes), **options).load()


def test_a_pushed_filter_stays_with_the_dataframe_so_we_push_none(spark: SparkSession, notes: Path) -> None:
    """A second use of a DataFrame gets the rows of the first filter. That is wrong, and is why."""
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(spark, notes, pushes="yes").count()
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load(spark, notes, pushes="yes")
        assert frame.where("n > 79").count() == 20
        assert frame.count() == 20  # Of 100.
        assert load(spark, notes, pushes="yes").count() == ROWS
    finally:
        spark.conf.unset(PUSHDOWN)


def test_partitions_are_planned_once_per_load(spark: SparkSession, notes: Path) -> None:
    """A DataFrame is one snapshot."""
    frame = load(spark, notes)
    assert notes.read_text() == ""
    assert frame.count() == ROWS
    assert frame.where("n > 49").count() == 50
    assert notes.read_text() == "partitions\n"
    assert load(spark, notes).count() == ROWS
    assert notes.read_text() == "partitions\npartitions\n"


def test_offsets_are_compared_as_text(spark: SparkSession, notes: Path, tmp_path: Path) -> None:
    """Another order of the keys is a new batch, again and again."""
    stream = spark.readStream.format("toy").options(notes=str(notes), restless="yes").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        while not any((tmp_path / "checkpoint" / "commits").glob("2")):
            assert query.isActive, query.exception()
            query.awaitTermination(0.05)
    finally:
        query.stop()


def test_a_commit_of_a_source_comes_late_and_not_for_the_last_batch(
    spark: SparkSession, notes: Path, tmp_path: Path
) -> None:
    """The initial offset is asked for twice."""
    stream = spark.readStream.format("toy").options(notes=str(notes)).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    told = notes.read_text().split("\n")[:-1]
    assert told.count("initialOffset") == 2
    assert told.count("prepare") == 1
    assert [line for line in told if line.startswith("commit")] == ["commit 10", "commit 20"]


def test_a_commit_that_fails_is_followed_by_an_abort(spark: SparkSession, notes: Path) -> None:
    """So an abort must first ask whether the commit was done."""
    frame = spark.range(7)
    with pytest.raises(PySparkException, match="the answer is lost"):
        frame.selectExpr("id AS n").write.format("toy").option("notes", str(notes)).mode("append").save()
    assert notes.read_text() == "commit 7\nabort 7\n"
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.selectExpr("id AS n").write.format("toy").option("notes", str(notes)).save()
