"""Declarative pipeline projects."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.spark.jobs.records import all_records
from topics.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import RunOptions
from topics.spark.jobs.run import check_project, command_line, find_spec, run
from topics.storage.fs import RealFs
from topics.testing.server_process import ServerProcess

EXAMPLE = REPOSITORY / "examples" / "pipeline"


def test_a_spec_is_found_in_its_folder_and_by_its_name() -> None:
    expected = str(EXAMPLE / "spark-pipeline.yml")
    assert find_spec(RealFs(), str(EXAMPLE)) == expected
    assert find_spec(RealFs(), expected) == expected


def test_a_folder_without_a_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"has no spark-pipeline\.yml; `spark-pipelines init"):
        find_spec(RealFs(), str(tmp_path))


def test_a_project_that_registers_a_source_is_refused_with_the_line(tmp_path: Path) -> None:
    check_project(RealFs(), str(EXAMPLE))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "a.py").write_text("# no dataSource.register(x) here\n")
    check_project(RealFs(), str(tmp_path))
    (tmp_path / "transformations" / "b.py").write_text("import x\nspark.dataSource.register(x.Source)\n")
    with pytest.raises(BadOption, match=r"transformations/b\.py:2: a pipeline must not register data sources"):
        check_project(RealFs(), str(tmp_path))


def test_a_master_in_the_spec_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(
        "name: a\nstorage: file:///x\nconfiguration:\n  spark.master: local[2]\n"
    )
    with pytest.raises(BadOption, match="a pipeline has no master"):
        run(None, RunOptions(spec=str(tmp_path)))


def test_the_command_never_has_a_master_and_a_remote_comes_first() -> None:
    command = command_line("/p/spark-pipeline.yml", RunOptions(spec="/p", remote="sc://host:15002"), {"a": "b"})
    assert command[1:] == ["run", "--remote", "sc://host:15002", "--conf", "a=b", "--spec", "/p/spark-pipeline.yml"]
    assert "--master" not in command
    assert command_line("/p/s.yml", RunOptions(spec="/p", dry_run=True), {})[1] == "dry-run"


@pytest.mark.slow
def test_the_example_runs_and_a_second_run_adds_nothing_twice(
    java: None, server: ServerProcess, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/topics-example-pipeline", (tmp_path / "storage").as_uri()))

    def order(first: int, count: int) -> None:
        records = [{"data": {"customer": f"c{each % 3}", "amount": each}} for each in range(first, first + count)]
        client.append("orders", json.dumps(records).encode())

    with Client(server.url) as client:
        client.put_topic("orders")
        order(0, 150)
        config = RunOptions(spec=str(project), endpoint=server.url)
        told: list[str] = []
        report = run(None, config, tell=told.append)
        assert sorted(told) == [
            "find_large_orders: completed",
            "spark_catalog.default.customers: completed",
            "spark_catalog.default.orders: completed",
        ]
        assert (report.items_done, report.exit_code) == (3, 0)
        assert [record["data"]["amount"] for record in all_records(client, "large-orders")] == list(range(100, 150))
        order(150, 10)
        assert run(None, config).items_done == 3
        amounts = [record["data"]["amount"] for record in all_records(client, "large-orders")]
        assert amounts == list(range(100, 160))
