"""What `make` installs: in which order, when again, and what it says first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import make_env
from make_env import MAKERS, PARTS, digest, in_order

ROOT = Path(__file__).resolve().parents[1]


def test_a_part_comes_after_the_parts_that_it_needs_and_once() -> None:
    for name in PARTS:
        order = in_order([name, name])
        assert order[-1] == name
        assert len(set(order)) == len(order)
        for part in order:
            assert all(order.index(needed) < order.index(part) for needed in PARTS[part].needs)


def test_every_part_can_be_made() -> None:
    assert MAKERS.keys() == PARTS.keys()


def test_the_makefile_asks_for_parts_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = " ".join(re.findall(r"\$\(NEED\) (.*)", makefile) + re.findall(r"TEST_PARTS := (.*)", makefile)).split()
    assert len(asked) > 10
    assert {part for part in asked if part != "$(TEST_PARTS)"} <= PARTS.keys()


def test_a_server_needs_no_spark_and_no_tools() -> None:
    assert in_order(["kernels"]) == ["venv", "packages", "kernels"]


def test_lint_needs_no_spark() -> None:
    assert "spark" not in in_order(["tools"])


def test_a_part_is_made_again_when_one_of_its_inputs_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_env, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    before = digest(("src",))
    (tmp_path / "src" / "kernel.so").write_text("compiled")
    assert digest(("src",)) == before
    (tmp_path / "src" / "a.py").write_text("2")
    assert digest(("src",)) != before


def test_what_is_missing_and_how_long_it_takes_is_said_before_anything_is_installed(tmp_path: Path) -> None:
    """In a clone without an environment, in which making one fails at once."""
    for name in ("make_env.py", "setup.py", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".venv").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "make_env.py", "kernels", "test-programs"],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"setting up, once: about \d+ s on two cores", lines[0])
    assert lines[1:4] == [f"  - {PARTS[name].words}" for name in ("venv", "packages", "kernels")]
    assert lines[4].startswith("  - a browser and other programs of the tests (Debian: chromium ")
    assert lines[5] == "[1/4] a Python environment in .venv"
    assert "this failed: " in done.stderr
