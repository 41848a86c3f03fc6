"""Modules that a server imports when it is ready: what happens when they cannot be read."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

# The limit falls at the first file of the wanted kind, in the middle of the imports.
WITHOUT_DESCRIPTORS = """
import logging
import resource
import sys
import topics.server.serve
from topics.server.late_imports import import_late_modules

logging.basicConfig(format="%(message)s", stream=sys.stdout)

def fall(event, args):
    is_library = event == "import" and str(args[1]).endswith(".so")
    if is_library if sys.argv[1] == "library" else event == "open":
        print(f"the first {sys.argv[1]}", flush=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

sys.addaudithook(fall)
import_late_modules()
print("the server goes on")
"""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="shared libraries have other names elsewhere")
@pytest.mark.parametrize("kind", ["library", "file"])
def test_modules_that_cannot_be_imported_do_not_end_the_server(kind: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert lines[0] == f"the first {kind}"
    assert lines[-2:] == ["not all modules could be imported ahead of need", "the server goes on"]
