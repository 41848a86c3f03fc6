"""`topics bench --server`: it measures, saves, compares, and leaves no topic behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import topics
from topics.bench.any_server import SERVER_BENCHMARKS
from topics.cli.main import app
from topics.server.metrics import FORM
from topics.testing.server_process import ServerProcess
from topics.version import VERSION

KEYS = "all,reader:read,ours:read+write+delete+admin:bench-"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(environ={"TOPICS_API_KEYS": KEYS}) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[topics.Client]:
    with topics.Client(server.url, token="all") as made:
        yield made


def bench(server: ServerProcess, *args: str, key: str = "all") -> Result:
    return CliRunner().invoke(app, ["bench", "--server", server.url, "--key", key, "--seconds", "0.1", *args])


def test_a_report_says_what_was_measured_and_is_compared_with_the_next(
    server: ServerProcess, client: topics.Client, tmp_path: Path
) -> None:
    saved = tmp_path / "report.json"
    result = bench(server, "--save", str(saved))
    assert result.exit_code == 0, result.output
    report = json.loads(saved.read_text())
    assert (report["version"], report["form"], report["server"]) == (VERSION, FORM, server.url)
    assert "Python" in report["machine"]
    assert all(row["value"] > 0 for row in report["rows"])
    assert len(result.stdout.splitlines()) == 2 + len(report["rows"])
    assert result.stdout.startswith(f"# topics {VERSION} ({FORM}), {server.url} from ")
    assert client.topics() == []
    again = bench(server, "lone-append", "--compare", str(saved), "--markdown", "--rounds", "2").stdout
    compared = again.split("\n\n")[-1].splitlines()
    assert [line.split(" | ")[0] for line in compared[2:]] == [f"| server: lone append, p{one}" for one in (50, 99)]


def test_a_key_that_may_do_less_is_told(server: ServerProcess, client: topics.Client) -> None:
    refused = bench(server, key="wrong")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "set TOPICS_KEY" in refused.stderr
    reader = bench(server, "diff", key="reader")
    assert reader.exit_code == 1
    assert "server: diff" in reader.stdout
    assert "failed: " in reader.stdout
    assert bench(server, "diff", "--prefix", "bench-", key="ours").exit_code == 0
    assert client.topics() == []


def test_wrong_input_is_refused_before_anything_is_measured(server: ServerProcess, tmp_path: Path) -> None:
    known = ", ".join(SERVER_BENCHMARKS)
    assert bench(server, "speed").stderr == (
        f"topics: no benchmark is called 'speed': choose among {known}, or see --list\n"
    )
    assert bench(server, "--compare", str(tmp_path / "none")).exit_code == 1
    assert "leave them out with a server" in bench(server, "--full").stderr
    assert bench(server, "--list").stdout.split() == list(SERVER_BENCHMARKS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_measurement_removes_its_topics_and_saves_nothing(
    server: ServerProcess, client: topics.Client, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "topics.cli.entry", "bench", "lone-append", "tail", "--server", server.url]
    command += ["--key", "all", "--seconds", "60", "--save", str(tmp_path / "report")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        next(client.watch(["topics-bench.*"]))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (
        130,
        "topics: stopped; the temporary topics are removed, and no report is saved\n",
    )
    assert client.topics() == []
    assert not (tmp_path / "report").exists()
