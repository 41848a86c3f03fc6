"""The benchmarks on Spark run, at a toy size. Those that need a JVM take half a minute at any size."""

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from topics.bench.main import Options, run_benchmarks
from topics.bench.processes import running_server
from topics.bench.spark import decode_rates, fill


def test_what_a_task_does_is_measured_without_a_jvm(tmp_path: Path) -> None:
    fill(str(tmp_path), 3000)
    with running_server(str(tmp_path)) as server:
        rates = decode_rates(f"http://127.0.0.1:{server.port}")
    assert rates.verified > 0
    assert rates.seq_and_ts > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_benchmarks_run_and_print_their_rows(java: None, capsys: pytest.CaptureFixture[str]) -> None:
    """`make test-full` gets the jars of Kafka."""
    assert run_benchmarks(["spark"], Options(scale=0.001, kafka_jars=f"{REPOSITORY}/build/kafka")) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 13
    assert all(row.startswith("spark: ") for row in rows)
    measured = {row.partition("  ")[0]: "not measured" not in row for row in rows}
    has_kafka = (REPOSITORY / "build" / "kafka").is_dir()
    assert [name for name, was in measured.items() if was != (has_kafka or "Kafka" not in name)] == []
