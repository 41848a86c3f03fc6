"""Declarative pipeline projects."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.spark.jobs.records import all_records
from topics.client.sync.client import Client
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job_options import RunOptions
from topics.spark.jobs.run import check_project, command_line, find_spec, require_free_port, run, with_storage
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


def test_a_project_without_a_place_for_checkpoints_gets_one_below_itself(tmp_path: Path) -> None:
    """So two users of one machine do not share it."""
    project = Path(shutil.copytree(EXAMPLE, tmp_path / "project"))
    spec = find_spec(RealFs(), str(project))
    options = RunOptions(spec=spec)
    copy = with_storage(RealFs(), spec, options)
    assert Path(copy).parent == project, "globs of the spec are relative to its folder"
    assert f"{project}/.topics-pipeline/storage" in Path(copy).read_text()
    assert find_spec(RealFs(), str(project)) == spec
    Path(spec).write_text("name: x\nstorage: file:///elsewhere\n")
    assert with_storage(RealFs(), spec, options) == spec


def test_a_second_local_pipeline_is_told_why_it_cannot_run_now() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port} of this machine is in use, probably by another `topics"):
            require_free_port(port)
    require_free_port(port)


@pytest.mark.slow
def test_the_example_runs_and_a_second_run_adds_nothing_twice(
    java: None, server: ServerProcess, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)

    def order(first: int, count: int) -> None:
        records = [{"data": {"customer": f"c{each % 3}", "amount": each}} for each in range(first, first + count)]
        client.append_encoded("orders", json.dumps(records).encode())

    with Client(server.url) as client:
        client.create("orders")
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
