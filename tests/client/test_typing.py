"""The public types, as mypy and pyright see them in programs of users: both strict."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import topics
from tests.conftest import REPOSITORY

EXAMPLES = "tests/client/typing_examples.py"
MISTAKES = "tests/client/typing_mistakes.py"
WRONG_LINES = [
    number
    for number, line in enumerate((REPOSITORY / MISTAKES).read_text("utf-8").splitlines(), 1)
    if line.endswith("# wrong")
]


def mypy(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", path]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)


def pyright(path: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("pyright", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("pyright is not installed")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, path]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_examples_of_use_are_right_and_mistakes_are_found(checker: object) -> None:
    assert callable(checker)
    examples = checker(EXAMPLES)
    assert examples.returncode == 0, examples.stdout + examples.stderr
    mistakes = checker(MISTAKES)
    assert mistakes.returncode == 1, mistakes.stdout + mistakes.stderr
    found = {int(number) for number in re.findall(r"typing_mistakes\.py:(\d+):(?:\d+ -)? error", mistakes.stdout)}
    assert found == set(WRONG_LINES), mistakes.stdout


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(topics.__file__).parent / "py.typed").is_file()
