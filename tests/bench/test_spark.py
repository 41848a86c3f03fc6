"""The benchmarks on Spark run, at a toy size. Those that need a JVM take half a minute at any size."""

from pathlib import Path

import pytest

from topics.bench.http import running_server
from topics.bench.main import run_benchmarks
from topics.bench.spark import decode_rates, fill


def test_what_a_task_does_is_measured_without_a_jvm(tmp_path: Path) -> None:
    fill(str(tmp_path), 3000)
    with running_server(str(tmp_path)) as (port, _):
        rates = decode_rates(f"http://127.0.0.1:{port}")
    assert rates.verified > 0
    assert rates.seq_and_ts > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_benchmark_runs_and_prints_its_rows(java: None, capsys: pytest.CaptureFixture[str]) -> None:
    run_benchmarks(["spark"], scale=0.001)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 10
    assert all(row.startswith("spark: ") for row in rows)
