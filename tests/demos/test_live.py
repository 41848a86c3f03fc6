"""`topics demo` as a user runs it: in a process of its own, until its time is over or Ctrl+C comes."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from docs_build.recording import free_port
from topics.client.sync.client import Client
from topics.demos.shop import CLICKS, MAILS, ORDERS
from topics.results import Tombstone
from topics.testing.server_process import ServerProcess


@contextmanager
def started(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command: Sequence[str] = [sys.executable, "-m", "topics.cli.entry", "demo", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(120)
def test_after_kill_nine_in_the_middle_every_answered_order_is_there_once() -> None:
    # The server comes back to its port. One that the system chooses could be taken by a client while it is down.
    with started("--port", str(free_port()), "--seconds", "2") as process:
        printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert re.search(r"kill -9 after [1-9]\d* acknowledged orders; the server is back", printed)
    for when in ("after the kill", "at the end"):
        counts = re.search(rf"{when}: (\d+) orders acknowledged, (\d+) found, 0 missing, 0 duplicated", printed)
        assert counts is not None, printed
        assert counts[1] == counts[2]
    assert "its data is removed" in printed
    assert errors == ""


@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_demo_on_a_server_that_runs_already_and_leaves_its_topics() -> None:
    with ServerProcess() as server, started("--server", server.url) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl+C ends the demo" in line:
                break
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        assert "0 missing, 0 duplicated" in printed
        with Client(server.url) as client:
            assert client.state(ORDERS).head_seq >= 240
            assert client.groups(ORDERS)[-1].lag > 0
            assert isinstance(next(iter(client.read_all(CLICKS))), Tombstone)
            assert client.depth(MAILS).dead_letter == "demo.mails.dead"
            assert {router.source for router in client.routers("demo.")} > {ORDERS}


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with started("--server", "http://127.0.0.1:1") as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert errors.startswith("topics: ")
    assert "Traceback" not in errors
