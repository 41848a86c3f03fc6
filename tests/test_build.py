"""The forms of the package: what `setup.py` compiles, and what it says where it cannot."""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import topics
from setup import KERNELS, MODULES
from tests.installed import ROOT, build_plain_wheel
from topics.cli.form import running_form

PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


def source_of(module: str) -> Path:
    return ROOT / "src" / (module.replace(".", "/") + ".py")


def test_the_modules_to_compile_are_listed_once_each() -> None:
    assert tuple(sorted(set(MODULES))) == MODULES
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


def test_at_most_thirty_modules_are_compiled() -> None:
    """Each costs a second of every build, and code that is compiled is harder to change."""
    assert len(MODULES) <= 30


def test_a_build_has_the_dependencies_whose_types_the_compiled_modules_use() -> None:
    assert set(PYPROJECT["project"]["dependencies"]) < set(PYPROJECT["build-system"]["requires"])
    assert {*PYPROJECT["dependency-groups"]["kernels"]} < set(PYPROJECT["build-system"]["requires"])


def test_the_package_that_runs_has_the_compiled_modules_of_its_form() -> None:
    package = Path(topics.__file__).parent
    compiled = {
        ".".join((*path.relative_to(package.parent).parent.parts, path.name.partition(".")[0]))
        for path in package.rglob("*")
        if path.name.endswith(tuple(EXTENSION_SUFFIXES))
    }
    assert compiled in (set(), set(KERNELS), {*KERNELS, *MODULES})
    forms = {0: "plain Python", 2: "sources with compiled kernels"}
    assert running_form() == forms.get(len(compiled), f"compiled, {len(compiled)} modules")
    if package == ROOT / "build" / "compiled" / "topics":
        assert compiled == {*KERNELS, *MODULES}


def test_processes_of_the_tests_run_the_tested_package_wherever_they_start(tmp_path: Path) -> None:
    """`PYTHONPATH=src` is relative. In another folder an installed package would be found instead."""
    show = [sys.executable, "-c", "import topics; print(topics.__file__)"]
    found = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == Path(topics.__file__)


def build(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_compiler_the_packages_that_bring_one_are_named() -> None:
    done = build(TOPICS_COMPILE="1", CC="/missing/cc")
    assert done.returncode == 1
    assert "on Debian: apt-get install gcc libc6-dev" in done.stderr


def test_without_a_compiler_a_build_is_plain_python_and_says_so() -> None:
    done = build(TOPICS_COMPILE="", CC="/missing/cc")
    assert done.returncode == 0
    assert done.stderr.startswith("topics: a build of plain Python")


def test_a_wish_that_is_no_wish_is_refused() -> None:
    done = build(TOPICS_COMPILE="yes")
    assert (done.returncode, done.stderr) == (1, "topics: TOPICS_COMPILE is 0, 1 or not set, not 'yes'\n")


def test_a_plain_wheel_has_every_source_and_runs_everywhere(tmp_path: Path) -> None:
    wheel = build_plain_wheel(tmp_path)
    assert wheel.name == f"topics_log-{topics.__version__}-py3-none-any.whl"
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()}
    left_out = {"__pycache__", "topics_log.egg-info"}
    assert files == {str(path) for path in sources if path.suffix != ".so" and left_out.isdisjoint(path.parts)}
