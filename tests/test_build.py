"""The two forms of the package: what `hatch_build.py` compiles, and what it says where it cannot."""

import ast
import importlib.util
import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import pytest

import topics
from hatch_build import declared
from topics.cli.form import running_form

ROOT: Final = Path(__file__).resolve().parents[1]
MODULES: Final[list[str]] = declared(ROOT)["modules"]
KERNELS: Final[list[str]] = declared(ROOT)["kernels"]


def source_of(module: str) -> Path:
    return ROOT / "src" / (module.replace(".", "/") + ".py")


def test_the_modules_to_compile_are_listed_once_each() -> None:
    assert sorted(set(MODULES)) == MODULES
    assert [module for module in MODULES if not source_of(module).is_file()] == []


def test_no_compiled_module_defines_a_struct() -> None:
    """A compiled Struct loses its class keywords, such as `frozen`."""
    found = [
        (module, node.name)
        for module in MODULES
        for node in ast.walk(ast.parse(source_of(module).read_text()))
        if isinstance(node, ast.ClassDef) and "Struct" in "".join(map(ast.unparse, node.bases))
    ]
    assert found == []


def test_the_package_that_runs_has_all_listed_modules_compiled_or_none() -> None:
    package = Path(topics.__file__).parent
    compiled = {
        ".".join((*path.relative_to(package.parent).parent.parts, path.name.partition(".")[0]))
        for path in package.rglob("*")
        if path.name.endswith(tuple(EXTENSION_SUFFIXES))
    }
    if running_form() == "plain Python":
        assert compiled == set()
    else:
        assert compiled == {*MODULES, *KERNELS}
        assert running_form() == f"compiled, {len(compiled)} modules"


def test_processes_of_the_tests_run_the_tested_package_wherever_they_start(tmp_path: Path) -> None:
    """`PYTHONPATH=src` is relative. In another folder an installed package would be found instead."""
    show = [sys.executable, "-c", "import topics; print(topics.__file__)"]
    found = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == Path(topics.__file__)


def hatch_build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "hatch_build.py"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_compiler_the_packages_that_bring_one_are_named() -> None:
    done = hatch_build(TOPICS_COMPILE="1", CC="/missing/cc")
    assert done.returncode == 1
    assert "on Debian: apt-get install gcc libc6-dev" in done.stderr
    assert hatch_build("--packages", CC="/missing/cc").stdout.startswith("gcc libc6-dev")


def test_a_wish_that_is_no_wish_is_refused() -> None:
    done = hatch_build(TOPICS_COMPILE="yes")
    assert (done.returncode, done.stderr) == (1, "topics: TOPICS_COMPILE is 0, 1 or not set, not 'yes'\n")


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_a_plain_wheel_has_every_source_and_runs_everywhere(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        env={**os.environ, "TOPICS_COMPILE": "0"},
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=True,
    )
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"topics_log-{topics.__version__}-py3-none-any.whl"
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert files == {name for name in sources if "__pycache__" not in name}
