"""The benchmarks on Spark run, at a toy size. Those that need a JVM take half a minute at any size."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from topics.bench.processes import running_server
from topics.bench.spark import decode_rates, fill

KAFKA = REPOSITORY / "build" / "kafka"


def test_what_a_task_does_is_measured_without_a_jvm(tmp_path: Path) -> None:
    fill(str(tmp_path), 3000)
    with running_server(str(tmp_path)) as server:
        rates = decode_rates(f"http://127.0.0.1:{server.port}")
    assert rates.verified > 0
    assert rates.seq_and_ts > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_benchmarks_run_and_print_their_rows(java: None) -> None:
    """In a process of its own, for its own JVM. `make test-full` gets the jars of Kafka."""
    run = [
        "from topics.bench.main import Options, run_benchmarks",
        f"raise SystemExit(run_benchmarks(['spark'], Options(scale=0.001, kafka_jars={str(KAFKA)!r})))",
    ]
    ran = subprocess.run([sys.executable, "-P", "-c", "\n".join(run)], stdout=subprocess.PIPE, text=True, check=True)
    rows = ran.stdout.splitlines()[2:]
    assert len(rows) == 13
    assert all(row.startswith("spark: ") for row in rows)
    measured = {row.partition("  ")[0]: "not measured" not in row for row in rows}
    assert [name for name, was in measured.items() if was != (KAFKA.is_dir() or "Kafka" not in name)] == []
