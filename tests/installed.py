"""Which package the tests run: the compiled wheel under `make test`, and the sources without PYTHONPATH.

`make test` unpacks the built wheel into build/compiled and puts that first in PYTHONPATH, so what the examples of the
docs run (this process, the servers, the commands in a shell) is what a user has installed. tests/test_installation.py
asserts it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# All that a wheel is built from.
BUILD_INPUTS: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")


def commands_path() -> str:
    """PATH for a shell in which `topics` is the command of the tested package, and `python` the Python of the tests."""
    folder = Path(sys.executable).parent
    assert (folder / "topics").exists(), f"there is no command {folder / 'topics'}: run the tests with `make test`"
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def copy_of(sources: tuple[str, ...], folder: Path) -> Path:
    """A copy, because a build leaves files behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
            )
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def build_plain_wheel(folder: Path) -> Path:
    """The wheel of this tree, in plain Python."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(folder / "wheel"), "."],
        cwd=copy_of(BUILD_INPUTS, folder / "sources"),
        env={**os.environ, "TOPICS_COMPILE": "0"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "wheel").iterdir()
    return wheel
