"""Rows of files become records."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.jobs.records import all_records
from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.import_data import ImportChunk, SortKey, format_of, pack, parse_key, run
from topics.spark.jobs.job import Progress
from topics.spark.jobs.job_options import ImportOptions
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Pure parts.


def test_files_are_packed_in_the_order_of_their_names_and_a_large_one_is_alone() -> None:
    files = [("c", 30), ("a", 40), ("b", 50), ("d", 500), ("e", 1)]
    assert list(pack(files, 100)) == [
        ImportChunk(["a", "b"], 90),
        ImportChunk(["c"], 30),
        ImportChunk(["d"], 500),
        ImportChunk(["e"], 1),
    ]
    assert list(pack([], 100)) == []


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["a.jsonl", "b.json.gz"], "json"),
        (["s3a://bucket/x/*.parquet"], "parquet"),
        (["A.CSV"], "csv"),
        (["notes.txt"], "text"),
    ],
)
def test_the_names_of_files_tell_their_format(paths: list[str], name: str) -> None:
    assert format_of(paths) == name


@pytest.mark.parametrize("paths", [["folder"], ["a.csv", "b.json"], []])
def test_names_that_do_not_tell_are_refused(paths: list[str]) -> None:
    with pytest.raises(BadOption, match="give it with --format"):
        format_of(paths)


def test_a_key_may_say_its_direction() -> None:
    assert parse_key("price") == SortKey("price", is_descending=False)
    assert parse_key("lower(name)  DESC") == SortKey("lower(name)", is_descending=True)
    assert parse_key("a + b asc") == SortKey("a + b", is_descending=False)


# With Spark.


def write_lines(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_import_that_was_killed_goes_on_with_the_files_of_its_first_run(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "in put"
    for part in range(3):
        rows = [{"n": 100 * part + each, "who": f"u{each % 3}", "at": 1_767_225_600_000 + each} for each in range(100)]
        write_lines(folder, f"part {part}.jsonl", list(rows))
    config = ImportOptions(
        endpoint=server.url,
        paths=(str(folder),),
        format="json",
        topic="orders",
        create_topic=True,
        data="named_struct('n', n)",
        tag="who",
        node="'importer'",
        time="at",
        chunk_bytes=6000,
        state=str(tmp_path / "state"),
    )
    planned = run(spark, replace(config, dry_run=True))
    assert planned.detail["epochs"] == 3

    def kill(progress: Progress) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(spark, config, report=kill)
    write_lines(folder, "late.jsonl", [{"n": -1, "who": "u9", "at": 0}])
    told: list[Progress] = []
    report = run(spark, config, report=told.append)
    assert (report.items_skipped, report.items_done, report.records) == (1, 2, 200)
    assert [step.done for step in told] == [1, 2]
    with Client(server.url) as client:
        records = all_records(client, "orders")
        assert sorted(record["data"]["n"] for record in records) == list(range(300))
        for record in records:
            each = record["data"]["n"] % 100
            assert (record["tag"], record["node"]) == (f"u{each % 3}", "importer")
            assert record["meta"] == {"_topics_origin": {"ts": 1_767_225_600_000 + each}}
        assert run(spark, config).items_done == 0
        assert client.state("orders").count == 300


@pytest.fixture(scope="module")
def typed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("typed-import") / "data") as running:
        yield running


def test_one_file_is_imported(spark: "SparkSession", server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "my orders.csv"
    file.write_text("id,customer\n1,a\n2,b\n")
    config = ImportOptions(
        endpoint=server.url, paths=(str(file),), topic="orders", create_topic=True, state=str(tmp_path / "state")
    )
    assert run(spark, config).records == 2
    with Client(server.url) as client:
        assert [record["data"] for record in all_records(client, "orders")] == [
            {"id": "1", "customer": "a"},
            {"id": "2", "customer": "b"},
        ]


CSV = "id,price,at\n007,1.50,2026-01-31\n8,2.25,2026-02-01\n"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (
            CSV,
            {"infer": True},
            [{"id": 7, "price": 1.5, "at": "2026-01-31"}, {"id": 8, "price": 2.25, "at": "2026-02-01"}],
        ),
        (
            CSV,
            {"schema": "id string, price decimal(10,2), at date"},
            [{"id": "007", "price": 1.5, "at": "2026-01-31"}, {"id": "8", "price": 2.25, "at": "2026-02-01"}],
        ),
        ("1,a\n2,b\n", {"header": False, "schema": "i int, n string"}, [{"i": 1, "n": "a"}, {"i": 2, "n": "b"}]),
    ],
)  # fmt: skip
def test_columns_of_csv_are_texts_or_have_the_types_that_were_asked_for(
    text: str,
    options: dict[str, Any],
    expected: list[dict[str, Any]],
    spark: "SparkSession",
    typed_server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text(text)
    topic = f"typed-{tmp_path.name[-20:]}"
    # The path is the whole address: the JVM was started in another folder.
    config = ImportOptions(
        endpoint=typed_server.url,
        paths=(f"{tmp_path}/orders.csv",),
        topic=topic,
        create_topic=True,
        state=str(tmp_path / "state"),
        **options,
    )
    assert run(spark, config).records == 2
    with Client(typed_server.url) as client:
        assert [record["data"] for record in all_records(client, topic)] == expected


@pytest.mark.parametrize(
    ("text", "schema"), [("id,price\nx,1\n", "id int, price double"), ("price,id\n1,2\n", "id int, price int")]
)
def test_a_value_of_another_type_or_a_column_in_another_place_fails_the_import(
    text: str, schema: str, spark: "SparkSession", typed_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "orders.csv").write_text(text)
    config = ImportOptions(
        endpoint=typed_server.url,
        paths=(f"{tmp_path}/orders.csv",),
        topic="none",
        create_topic=True,
        schema=schema,
        state=str(tmp_path / "state"),
    )
    with pytest.raises(Exception, match=r"(?i)malformed|header does not conform"):
        run(spark, config)
    with Client(typed_server.url) as client:
        assert "none" not in client.topics() or client.state("none").count == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"paths": ("a.parquet",), "schema": "id int"}, "--schema is for CSV and JSON"),
        ({"paths": ("a.json",), "infer": True}, "--infer is for CSV"),
        ({"paths": ("a.orc",), "header": False}, "--header is for CSV"),
    ],
)
def test_types_are_for_formats_that_have_none(
    options: dict[str, Any], problem: str, typed_server: ServerProcess
) -> None:
    config = ImportOptions(endpoint=typed_server.url, topic="none", dry_run=True, **options)
    with pytest.raises(BadOption, match=problem):
        run(None, config)  # type: ignore[arg-type]


def test_an_order_is_kept_over_all_chunks_and_rows_may_name_their_topic(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    keys = [(number * 7919) % 400 for number in range(400)]
    for part in range(2):
        lines = [f"{key},{'left' if key % 2 else 'right'}" for key in keys[part * 200 : part * 200 + 200]]
        (tmp_path / f"{part}.csv").write_text("\n".join(["key,side", *lines]))
    report = run(
        spark,
        ImportOptions(
            endpoint=server.url,
            paths=(str(tmp_path / "*.csv"),),
            topic_expression="concat('side-', side)",
            create_topic=True,
            data="cast(key as int)",
            order_by=("cast(key as int) desc",),
            chunk_bytes=1500,
            state=str(tmp_path / "state"),
        ),
    )
    assert report.detail["epochs"] >= 2
    assert report.records == 400
    with Client(server.url) as client:
        for side, parity in (("left", 1), ("right", 0)):
            found = [record["data"] for record in all_records(client, f"side-{side}")]
            assert found == [key for key in range(399, -1, -1) if key % 2 == parity]


def test_a_line_that_cannot_be_read_fails_the_import_instead_of_becoming_nulls(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"n":1}\n{"n":\n')
    config = ImportOptions(
        endpoint=server.url,
        paths=(str(tmp_path / "bad.json"),),
        topic="orders",
        create_topic=True,
        state=str(tmp_path / "state"),
    )
    with pytest.raises(Exception, match=r"(?i)malformed"):
        run(spark, config)
    with Client(server.url) as client:
        assert "orders" not in client.topics() or client.state("orders").count == 0
