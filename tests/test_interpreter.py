"""A Python that leaves out asserts: nothing opens a log in it. Real processes, because tests run with asserts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OPEN = "import sys, topics; topics.open(sys.argv[1])"
OPEN_ASYNC = """
import asyncio, sys, topics
async def main():
    async with topics.open_async(sys.argv[1]):
        pass
asyncio.run(main())
"""
OPEN_STREAMS = "import sys, topics.streams; topics.streams.open(sys.argv[1])"
REFUSAL = (
    "topics does not run in a Python that leaves out asserts, because they stop it before a bug damages a log: start "
    "Python without -O, and without the variable PYTHONOPTIMIZE"
)


def run(*arguments: str, optimize: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONOPTIMIZE": optimize}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("program", [OPEN, OPEN_ASYNC, OPEN_STREAMS], ids=["sync", "async", "streams"])
def test_no_log_is_opened_without_asserts(tmp_path: Path, program: str) -> None:
    ended = run("-O", "-c", program, str(tmp_path / "data"))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"topics.errors.StartRefused: {REFUSAL}"
    assert not (tmp_path / "data").exists()


def test_the_variable_leaves_out_asserts_like_the_flag(tmp_path: Path) -> None:
    ended = run("-c", OPEN, str(tmp_path / "data"), optimize="1")
    assert ended.stderr.splitlines()[-1] == f"topics.errors.StartRefused: {REFUSAL}"


@pytest.mark.parametrize("level", ["-O", "-OO"])
def test_no_server_starts_without_asserts(tmp_path: Path, level: str) -> None:
    data = tmp_path / "data"
    ended = run(level, "-m", "topics.cli.entry", "serve", "--data-dir", str(data), "--port", "0", "--streams")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"topics: {REFUSAL}\n")
    assert not data.exists()


def test_a_client_needs_no_asserts() -> None:
    ended = run("-O", "-c", "import topics; topics.Client('http://127.0.0.1:1').close()")
    assert (ended.returncode, ended.stderr) == (0, "")
