"""What our sources are built around: facts about Spark that no contract of it states.

A version of Spark that changes one of them turns the test red; then what was built around it can go, or must change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.queries import run_to_end
from tests.spark.toy_sources import ROWS, Toy, ToyTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ADAPTIVE = "spark.sql.adaptive.enabled"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(Toy)
    spark.dataSource.register(ToyTable)


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
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run_three_batches() -> StreamingQuery:
        query = writer.start()
        try:
            while query.isActive and not any((tmp_path / "checkpoint" / "commits").glob("2")):
                query.awaitTermination(0.05)
        finally:
            query.stop()
        return query

    run_to_end(run_three_batches)
    assert any((tmp_path / "checkpoint" / "commits").glob("2"))


def test_a_commit_of_a_source_comes_late_and_not_for_the_last_batch(
    spark: SparkSession, notes: Path, tmp_path: Path
) -> None:
    """The initial offset is asked for twice."""
    stream = spark.readStream.format("toy").options(notes=str(notes)).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_end(writer.trigger(availableNow=True).start)
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


# Tables.


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    """`toys.a` has numbers from 0 on, `toys.b` from 5 on."""
    spark.sql("CREATE DATABASE toys")
    for name, base in (("a", 0), ("b", 5)):
        spark.sql(f"CREATE TABLE toys.{name} USING toy_table OPTIONS (base '{base}')")
    yield
    spark.sql("DROP DATABASE toys CASCADE")


def numbers(spark: SparkSession, query: str) -> list[int]:
    return sorted(row[0] for row in spark.sql(query).collect())


def test_a_table_has_its_options_only_in_the_comments_of_its_columns(spark: SparkSession, tables: None) -> None:
    """Two tables have two readers, in one query, too."""
    assert numbers(spark, "SELECT * FROM toys.a") == list(range(10))
    assert numbers(spark, "SELECT n FROM toys.a JOIN toys.b USING (n)") == list(range(5, 10))
    assert numbers(spark, "SELECT * FROM toys.a UNION ALL SELECT * FROM toys.b") == sorted([*range(10), *range(5, 15)])
    spark.sql("CREATE TABLE toys.c (n bigint) USING toy_table OPTIONS (base '7')")
    with pytest.raises(PySparkException):
        spark.sql("SELECT * FROM toys.c").collect()


def test_a_table_named_twice_with_different_options_has_the_rows_of_the_first_place(
    spark: SparkSession, tables: None
) -> None:
    """That is wrong. Spark looks up a name once for each query, and both places share one source, which keeps its plan.

    The source takes no lock: with adaptive execution both places of a join plan at the same time, and most joins are
    right by chance. So options next to the name of a table are refused, and each topic has a table of its own.
    """
    query = "SELECT * FROM toys.a WITH (base '{}') UNION ALL SELECT * FROM toys.a WITH (base '{}')"
    assert numbers(spark, query.format(100, 200)) == sorted([*range(100, 110)] * 2)
    spark.sql("CREATE VIEW toys.from_2 AS SELECT * FROM toys.a WITH (base '2')")
    spark.sql("CREATE VIEW toys.from_6 AS SELECT * FROM toys.a WITH (base '6')")
    spark.conf.set(ADAPTIVE, "false")
    try:
        of_views = "SELECT n FROM toys.from_2 JOIN toys.from_6 USING (n)"
        assert numbers(spark, of_views) == list(range(2, 12))  # Right are 6 to 11.
    finally:
        spark.conf.unset(ADAPTIVE)


def test_rows_of_an_insert_have_the_comments_of_the_table_they_come_from(
    spark: SparkSession, tables: None, tmp_path: Path
) -> None:
    """So a comment does not tell where rows of an INSERT go."""
    notes = tmp_path / "notes"
    insert = f"INSERT INTO toys.a WITH (notes '{notes}')"
    spark.sql(f"{insert} VALUES (1)")
    assert notes.read_text() == "0"
    spark.sql(f"{insert} SELECT * FROM toys.b")
    assert notes.read_text() == "5"
