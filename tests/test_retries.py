"""CI retries a failed test once, if it has real processes, and prints what failed first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

FAILS_ONCE = """
import pathlib, pytest

def fails_once(name):
    mark = pathlib.Path(__file__).with_name(name)
    if not mark.exists():
        mark.touch()
        raise RuntimeError("a slow machine: " + name)

@pytest.fixture(scope="module")
def server():
    fails_once("fixture")

def test_fixture(server): ...
def test_call(): fails_once("call")
"""


def run(folder: Path, body: str, *, ci: str) -> tuple[int, str]:
    folder.mkdir(parents=True)
    (folder / "test_made_up.py").write_text(body)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.retries", "-n", "1", "--rootdir", "."],
        cwd=folder.parents[1],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_a_failure_with_real_processes_is_retried_and_printed(tmp_path: Path) -> None:
    code, said = run(tmp_path / "tests" / "process", FAILS_ONCE, ci="true")
    assert code == 0, said
    assert "2 passed, 2 retried" in said
    for name in ("fixture", "call"):
        assert f"first failure of tests/process/test_made_up.py::test_{name}" in said
        assert f"a slow machine: {name}" in said


@pytest.mark.parametrize(("folder", "ci"), [("engine", "true"), ("process", "")])
def test_no_other_failure_is_retried(tmp_path: Path, folder: str, ci: str) -> None:
    code, said = run(tmp_path / "tests" / folder, FAILS_ONCE, ci=ci)
    assert code == 1, said
    assert "1 failed, 1 error" in said


def test_a_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    code, said = run(tmp_path / "tests" / "process", "def test_call(): raise RuntimeError('broken')", ci="true")
    assert code == 1, said
    assert "1 failed, 1 retried" in said
