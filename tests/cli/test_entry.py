"""The start of the command `topics`: which command lines need typer, and what a server imports before it serves."""

import subprocess
import sys
from typing import Any

import pytest

from topics.cli.entry import plain_flags
from topics.cli.form import running_form
from topics.version import VERSION


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("serve", {}),
        ("serve --port 5000", {"port": "5000"}),
        ("serve --port=5000 --data-dir ./d", {"port": "5000", "data_dir": "./d"}),
        ("serve --port 1 --port 2", {"port": "2"}),
        ("serve --config a.toml", {"config": "a.toml"}),
        ("serve --api-keys-file=/run/k", {"api_keys_file": "/run/k"}),
        ("serve --probe-auth", {"probe_auth": True}),
        ("serve --probe-auth --no-probe-auth", {"probe_auth": False}),
        ("serve --cold-dir=", {"cold_dir": ""}),
    ],
)
def test_plain_flags_of_serve_are_read_without_typer(line: str, flags: dict[str, Any]) -> None:
    assert plain_flags(line.split()) == flags


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "version",
        "serve --help",
        "serve --port",
        "serve --port --host",
        "serve --prot 1",
        "serve here",
        "serve --probe-auth=1",
        "serve -- --port",
    ],
)
def test_typer_reads_other_commands_and_explains_what_is_wrong(line: str) -> None:
    assert plain_flags(line.split()) is None


def test_the_package_runs_as_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "topics", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"topics {VERSION} ({running_form()})\n"


def test_a_start_imports_only_what_it_needs() -> None:
    code = "import topics.cli.entry, topics.cli.serve, topics.server.serve, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    late = {
        "typer",
        "pydantic",
        "rich",
        "h2",
        "websockets",
        "topics.server.openapi.document",
        "importlib.metadata",
        "pyspark",
    }
    assert "topics.engine.engine" in found
    assert not late & set(found)
