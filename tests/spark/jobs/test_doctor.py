"""What works here and what does not."""

import json
from typing import TYPE_CHECKING

import pytest

import topics.spark
from topics.client.sync.client import Client
from topics.spark.jobs.doctor import Interpreter, _compare, run
from topics.spark.jobs.job_options import DoctorOptions
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.jobs.job import Report


def results(report: "Report") -> dict[str, str]:
    return {check["name"]: check["result"] for check in report.detail["checks"]}


def test_all_is_well_beside_a_server_and_its_files_are_seen_by_executors(
    spark: "SparkSession", server: ServerProcess
) -> None:
    with Client(server.url) as client:
        client.create("orders")
        client.append_encoded("orders", json.dumps([{"data": number} for number in range(300)]).encode())
    # What is in the log goes into segments.
    server.stop()
    server.start()
    report = topics.spark.doctor(spark, server.url)
    assert report.exit_code == 0
    assert set(results(report).values()) == {"ok"}
    assert {"java", "executor python", "executor packages", "server features", "executor http", "executor files"} <= (
        results(report).keys()
    )


@pytest.mark.usefixtures("java")
def test_a_server_that_is_not_there_is_bad_and_none_at_all_is_a_note() -> None:
    report = run(None, DoctorOptions(endpoint="http://127.0.0.1:9"))
    assert report.exit_code == 1
    assert results(report)["server"] == "bad"
    assert report.findings[0]["name"] == "server"
    alone = run(None, DoctorOptions())
    assert alone.exit_code == 0
    assert results(alone)["server"] == "note"


@pytest.mark.usefixtures("java")
def test_a_server_without_segments_is_no_reason_to_worry(server: ServerProcess) -> None:
    report = run(None, DoctorOptions(endpoint=server.url))
    assert (report.exit_code, results(report)["server files"]) == (0, "note")


@pytest.mark.usefixtures("java")
def test_files_of_another_store_are_read_over_http(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create("orders")
        client.append_encoded("orders", json.dumps([{"data": number} for number in range(300)]).encode())
    server.stop()
    server.start()
    (server.data_dir / "STORE").write_text(json.dumps({"format": 1, "store_id": "0" * 32}))
    report = run(None, DoctorOptions(endpoint=server.url, topic="orders"))
    found = {check["name"]: check for check in report.detail["checks"]}["driver files"]
    assert report.exit_code == 0
    assert found["result"] == "note"
    assert "another store" in found["found"]


def test_another_python_or_a_missing_package_on_the_executor_is_bad_and_another_version_a_note() -> None:
    packages: dict[str, str | None] = {
        "pyspark": "4.3.0",
        "pandas": "2.3",
        "pyarrow": "20",
        "numpy": "2",
        "msgspec": "0.20",
        "xxhash": "3",
    }
    own = Interpreter("3.11.7", "/driver/python", packages)

    def compared(version: str, **others: str | None) -> list[str]:
        return [check.result for check in _compare(own, Interpreter(version, "/python", {**packages, **others}))]

    assert compared("3.11.9") == ["ok", "ok"]
    assert compared("3.12.1") == ["bad", "ok"]
    assert compared("3.11.7", pyarrow="21") == ["ok", "note"]
    assert compared("3.11.7", pyarrow=None) == ["ok", "bad"]
    # Executors have their own Spark, and need no package of it.
    assert compared("3.11.7", pyspark=None) == ["ok", "note"]
