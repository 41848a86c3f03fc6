"""Which package the tests run: the installed wheel under `make test`, the source tree with PYTHONPATH=src.

`make test` installs the built wheel into the environment of the tests, so what the examples of the docs run (this
process, the servers, the commands in a shell) is what a user has installed. tests/test_installation.py asserts it.
"""

import os
import sys
from pathlib import Path


def commands_path() -> str:
    """PATH for a shell in which `topics` is the command that the wheel has installed, and `python` the Python of the
    tests."""
    folder = Path(sys.executable).parent
    assert (folder / "topics").exists(), f"there is no command {folder / 'topics'}: run the tests with `make test`"
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
