"""`topics pipeline`: its options, and what it says where Spark cannot run. Jobs themselves: tests/spark/jobs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from topics.cli.main import app
from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

JOBS = (
    *("archive", "compact", "convert-lake", "doctor", "import", "optimize", "rebuild-index", "reencode", "replay"),
    *("restore", "run", "sql", "stats", "vacuum", "verify"),
)
PACKAGES = Path(pytest.__file__).parents[1]


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *(str(arg) for arg in args)])


def start(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own, with this added to the environment."""
    command = [sys.executable, "-m", "topics.cli.entry", "pipeline", *(str(arg) for arg in args)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110, check=False
    )


# Help and options.


def test_help_names_every_job_and_each_has_an_example() -> None:
    text = run("--help").stdout
    assert [job for job in JOBS if f"\n  {job} " not in text] == []
    for job in JOBS:
        shown = run(job, "--help")
        assert shown.exit_code == 0, job
        assert f"topics pipeline {job} " in shown.stdout, job
        assert "--dry-run" in shown.stdout, job


def test_help_comes_without_spark() -> None:
    script = (
        "import sys, topics.cli.main\n"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "a.json", "--topic", "t", "--conf", "spark"], "--conf takes NAME=VALUE, not 'spark'"),
        (["import", "a.json", "--topic", "t", "--chunk", "much"], "--chunk must be a number above 0"),
        (["import", "a.json", "--topic", "t", "--master", "local", "--remote", "sc://h"], "--master or --remote"),
        (["replay", "a", "--to", "b", "--as-of", "yesterday"], "--as-of must be milliseconds or ISO 8601"),
        (["replay", "a", "--to", "b", "--as-of", "2026-01-31T08:00:00"], "--as-of must have a time zone"),
        (["restore", "--topic-config", "[]"], "--topic-config must be a JSON object"),
        (["vacuum", "lake", "--older-than", "soon"], "--older-than must be a number with or without a unit"),
        (["compact"], "give --purge or --latest-by-tag"),
        (["compact", "--latest-by-tag"], "--latest-by-tag takes one --topic, and --into"),
        (["sql", "select 1", "--input-option", "a=b"], "--input-option takes VIEW.NAME=VALUE"),
        (["sql", "select 1", "--dry-run"], "`sql` has no --dry-run"),
        (["vacuum", "lake", "--state", "x"], "`vacuum` has no --state"),
        (["run", ".", "--master", "local"], "a pipeline has no --master"),
    ],
)
def test_a_wrong_option_is_one_line_that_says_what_is_wrong(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("java")
def test_a_pipeline_that_is_not_there_is_named() -> None:
    result = run("run", "/nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "/nowhere is not there" in result.stderr


# Where Spark cannot run.


def fake_java(folder: Path, modules: str) -> str:
    """A JAVA_HOME whose Java lists these modules."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '{modules}'\n")
    java.chmod(0o755)
    return str(folder)


def packages_without(folder: Path, *names: str) -> Path:
    """All installed packages but some: what an environment without them looks like to Python."""
    folder.mkdir()
    for entry in PACKAGES.iterdir():
        if entry.name.split("-")[0].lower() not in names and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def start_with(packages: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """With these packages alone: `-S` keeps those of the environment out."""
    # Names the folder of `topics` when the package is not among the installed ones.
    sources = filter(None, [os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, "-S", "-m", "topics.cli.entry", "pipeline", *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sources, str(packages)])},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


IMPORT = ("import", "a.json", "--topic", "t", "--endpoint", "http://127.0.0.1:9")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_without_java_a_job_says_what_to_install() -> None:
    line = one_line(start(*IMPORT, PATH="/nowhere", JAVA_HOME=""))
    assert line.startswith("topics: there is no Java: install a JRE 17 or newer, or set JAVA_HOME; ")


def test_a_java_home_that_leads_nowhere_is_named() -> None:
    line = one_line(start(*IMPORT, JAVA_HOME="/nowhere"))
    assert line.startswith("topics: /nowhere/bin/java cannot be started")


def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    line = one_line(start(*IMPORT, JAVA_HOME=fake_java(tmp_path, "java.base@11.0.2\\n")))
    assert f"{tmp_path}/bin/java is version 11; Spark needs a JRE 17 or newer" in line


def test_a_java_without_the_module_that_spark_needs_is_named(tmp_path: Path) -> None:
    line = one_line(start(*IMPORT, JAVA_HOME=fake_java(tmp_path, "java.base@17.0.15\\njava.sql@17.0.15\\n")))
    assert f"{tmp_path}/bin/java has no module jdk.incubator.vector" in line


def test_without_the_extra_a_job_says_how_to_install_it(tmp_path: Path) -> None:
    packages = packages_without(tmp_path / "packages", "pyspark", "pandas")
    assert one_line(start_with(packages, *IMPORT)) == (
        "topics: pyspark and pandas missing: pip install 'topics-log[spark]'"
    )


def test_a_wrong_pandas_is_named_with_the_versions_that_work(tmp_path: Path) -> None:
    packages = packages_without(tmp_path / "packages", "pandas")
    described = packages / "pandas-3.0.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 3.0.1\n")
    assert one_line(start_with(packages, *IMPORT)) == (
        "topics: pandas 3.0.1 is installed, Spark needs >=2.2,<3: pip install 'topics-log[spark]'"
    )


def test_the_doctor_shows_what_is_wrong_where_spark_cannot_run() -> None:
    done = start("doctor", "--json", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["detail"]["checks"]}
    assert checks["driver packages"]["result"] == "ok"
    assert checks["java"]["result"] == "bad"
    assert "there is no Java" in checks["java"]["found"]
    assert "spark" not in checks


# A job.


def progress_lines(stderr: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        yield running


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_wave_and_the_same_command_goes_on(server: ServerProcess, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text("".join(f'{{"n":{number},"i":{each}}}\n' for each in range(100)))
    arguments = ["import", *sorted(map(str, tmp_path.glob("*.jsonl"))), "--topic", "t", "--create", "--chunk", "1k"]
    arguments += ["--endpoint", server.url, "--state", str(tmp_path / "state"), "--master", "local[2]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "topics.cli.entry", "pipeline", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{"):
            # To the JVM and its workers as well, as a terminal does it.
            os.killpg(process.pid, signal.SIGINT)
            break
    _, rest = process.communicate(timeout=600)
    with Client(server.url) as client:
        assert process.returncode == 1, rest
        assert "run the same command again to go on" in rest.splitlines()[-1]
        seen = client.state("t").count
        assert 100 <= seen < 400
        again = subprocess.run(
            [sys.executable, "-m", "topics.cli.entry", "pipeline", *arguments],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert again.returncode == 0, again.stderr
        assert progress_lines(again.stderr)[-1]["records"] == 400 - seen
        assert client.state("t").count == 400
