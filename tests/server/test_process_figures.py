"""Numbers of the process, of the disk and of the cold tier, as a running server shows them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import topics
from topics.testing.server_process import ServerProcess

# In a process of its own: the threads of a server of another test open and close files at any time.
MEASURED = """
import os
from topics.server.process_figures import process_figures

before = process_figures()
ballast = bytearray(64 << 20)
with open(os.devnull, "rb") as _:
    after = process_figures()
assert after.resident_bytes - before.resident_bytes > len(ballast) // 2, (before, after)
assert after.open_files - before.open_files == 1, (before, after)
assert after.cpu_seconds >= before.cpu_seconds > 0, (before, after)
"""


def test_the_process_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tier", ["folder", None])
def test_a_server_shows_them_and_its_cold_tier(tmp_path: Path, tier: str | None) -> None:
    settings = {} if tier is None else {"cold_dir": str(tmp_path / "cold")}
    with ServerProcess(**settings) as server, topics.Client(server.url) as client:
        values = {
            sample.name: sample.value
            for family in text_string_to_metric_families(client.metrics())
            for sample in family.samples
        }
        disk = os.statvfs(server.data_dir)
    assert values["topics_disk_total_bytes"] == disk.f_blocks * disk.f_frsize
    assert values["process_resident_memory_bytes"] > 10 << 20
    assert values["process_open_fds"] <= values["process_max_fds"]
    assert {name for name in values if name.startswith("topics_cold_")} == (
        set()
        if tier is None
        else {
            "topics_cold_segments",
            "topics_cold_bytes",
            "topics_cold_moves_total",
            "topics_cold_move_failures_total",
        }
    )
