"""Workers and servers that are killed: every job is done at least once, and an acked one never again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

import topics
from docs_build.recording import free_port
from tests.client.every_log import KINDS, PATIENCE_S
from tests.server.running import running
from topics.testing.server_process import ServerProcess

SCRIPT = Path(__file__).with_name("job_worker.py")
JOBS = 80


def notes_of(path: Path) -> list[tuple[int, int]]:
    if not path.exists():
        return []
    lines = path.read_text("ascii").splitlines()
    return [(int(seq), int(deliveries)) for seq, deliveries in (line.split() for line in lines)]


def start(kind: str, where: str, notes: Path, jobs_max: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), kind, where, "q", str(notes), str(jobs_max)])


def wait_for(is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Waits until it is so, while the process lives. Nothing tells when another process has written to its file."""
    deadline_s = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < deadline_s
        try:
            status = process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"the worker ended with status {status}")


def check(notes: list[tuple[int, int]], jobs: int) -> None:
    """Every job was done. A job that was done again had not been acked: at most two were under way at the kill."""
    assert {seq for seq, _ in notes} == set(range(1, jobs + 1))
    assert len(notes) <= jobs + 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed_loses_no_job_and_repeats_no_acked_one(kind: str, tmp_path: Path) -> None:
    notes, data = tmp_path / "notes", tmp_path / "data"
    with topics.open(data) as log:
        log.create("q", type="queue")
        log.append("q", list(range(JOBS)))

    def kill_once(where: str) -> None:
        process = start(kind, where, notes, jobs_max=20)
        wait_for(lambda: len(notes_of(notes)) >= 20, process)
        process.kill()
        process.wait()
        process = start(kind, where, notes)
        wait_for(lambda: {seq for seq, _ in notes_of(notes)} == set(range(1, JOBS + 1)), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    if "client" in kind:
        with running(data) as server:
            kill_once(server.url)
    else:
        kill_once(str(data))
    check(notes_of(notes), JOBS)
    with topics.open(data) as log:
        assert log.state("q").count == 0


def test_a_server_that_is_killed_under_its_workers_loses_no_job(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    port = free_port()
    with ServerProcess(tmp_path / "data", port=port) as server:
        with topics.Client(server.url) as client:
            client.create("q", type="queue")
            client.append("q", list(range(JOBS)))
            url = client.url
        process = start("async client", url, notes)
        wait_for(lambda: len(notes_of(notes)) >= 20, process)
        server.kill()
    with ServerProcess(tmp_path / "data", port=port) as server:
        with topics.Client(server.url) as client:
            # A job that was noted may come again: its ack may have been lost with the server.
            wait_for(lambda: client.state("q").count == 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    check(notes_of(notes), JOBS)
