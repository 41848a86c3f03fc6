"""The benchmarks run, at a toy size: so they cannot rot."""

import json
import os
import signal
from pathlib import Path

import pytest

from topics.bench import main
from topics.bench.main import BENCHMARKS, Options, chosen_names, run_benchmarks
from topics.bench.report import Row
from topics.bench.setting import Setting

TINY = 0.001
# The same code as other benchmarks, at another size.
TWINS = {"live.sse-1", "live.sse-100", "serve.append-100", "live.call"}


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in TWINS and not name.startswith("spark.")])
def test_a_benchmark_runs_and_its_figures_are_numbers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "report.json"
    assert run_benchmarks([name], Options(scale=TINY, json=str(saved))) == 0
    rows = json.loads(saved.read_text())["rows"]
    assert rows
    for row in rows:
        assert row["value"] is not None or "is not installed" in row["note"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["benchmark", "measured", "unit", "target"]
    assert [line.startswith(row["what"]) for line, row in zip(lines[2:], rows, strict=True)] == [True] * len(rows)


def test_a_name_is_a_benchmark_or_a_group() -> None:
    assert chosen_names(["live.call"]) == ["live.call"]
    assert chosen_names(["steady", "append"]) == ["append", "steady.deletes", "steady.appends"]
    assert chosen_names([]) == list(BENCHMARKS)


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmarks(["speed"]) == 1
    assert capsys.readouterr().err == (
        "topics: no benchmark is called 'speed': choose among append, read, fsync, open, serve, live, steady, "
        "sustained, routers, stalls, idle, streams, spark, or see --list\n"
    )


def test_a_file_that_is_no_report_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("1.5 times faster")
    assert run_benchmarks(["append"], Options(compare=str(tmp_path / "notes"))) == 1
    printed = capsys.readouterr()
    assert printed.err == f"topics: {tmp_path}/notes is not a report that `topics bench --save` has saved\n"
    assert not printed.out


def test_the_row_of_a_server_that_died_says_so_and_the_next_row_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(setting: Setting) -> list[Row]:
        with setting.server() as server:
            os.kill(server.pid, signal.SIGKILL)
            server.request("POST", "/v0/topics/a", b'{"records":[{"data":1}]}')
        return []

    monkeypatch.setattr(main, "BENCHMARKS", {"killed": killed, "serve.memory": BENCHMARKS["serve.memory"]})
    assert run_benchmarks([], Options(scale=TINY)) == 1
    died, next_row = capsys.readouterr().out.splitlines()[2:]
    assert died.split(maxsplit=1) == ["killed", "failed: the server ended with status -9"]
    assert next_row.startswith("serve: resident memory")


def test_two_packages_are_measured_in_turns_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(Path(main.__file__).parents[2])
    assert run_benchmarks(["serve.memory"], Options(scale=TINY, beside=source, rounds=2)) == 0
    compared = capsys.readouterr().out.splitlines()[-1].split()
    assert compared[:4] == ["serve:", "resident", "memory,", "idle"]
    assert float(compared[-1]) == pytest.approx(1, abs=0.5)
