"""docs/cli.md and docs/backup.md: their examples print what the pages say, and every command for a server has one."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import topics.streams
from tests.conftest import REPOSITORY
from tests.installed import commands_path
from tests.server.openapi.test_document_page import examples
from topics.cli.late import loaded
from topics.cli.main import LATE, app
from topics.streams import NewMessage
from topics.testing.server_process import ServerProcess

PAGE: Final = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
BACKUP_PAGE: Final = (REPOSITORY / "docs" / "backup.md").read_text("utf-8")
ADDRESS: Final = "http://127.0.0.1:4000"


def output_of(command: str, *, patience_s: int = 60) -> str:
    """Of a plain command of ours in this process, which is faster; of anything else in a shell. A job on Spark would
    stop the session of this process."""
    if re.match(r"topics (?!work|pipeline)[^|;>$]*$", command):
        return CliRunner().invoke(app, shlex.split(command)[1:]).output
    shell = ["/bin/sh", "-c", f"exec 2>&1; {command}"]
    done = subprocess.run(shell, stdout=subprocess.PIPE, timeout=patience_s, check=False)
    return done.stdout.decode()


def send_messages(folder: Path) -> None:
    """What the section about streams takes for granted."""
    with topics.streams.open(folder) as streams:
        streams.create_stream("shop")
        streams.create_topic("shop", "events", partitions=2)
        streams.send("shop", "events", [NewMessage(b'{"id":42}', 7, {"trace": "t-1"})], partition=0)
        streams.send("shop", "events", [NewMessage(b'{"id":43}', 8)], partition=1)


def test_every_example_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", commands_path())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    wrong = []
    server = ServerProcess(streams_port=0)
    send_messages(server.data_dir / "streams")
    with server:
        monkeypatch.setenv("TOPICS_URL", server.url)
        # The second page backs up what the first one has written.
        for example in [*examples(PAGE), *examples(BACKUP_PAGE)]:
            if example.command.startswith("topics serve"):
                continue
            printed = output_of(example.command.replace(ADDRESS, server.url)).replace(server.url, ADDRESS).strip()
            expected = [".*?".join(map(re.escape, line.split("…"))) for line in example.output.splitlines()]
            # Messages and data may come in either order: they are two streams.
            if not re.fullmatch("\n".join(expected), printed, re.DOTALL) and not sorted_match(expected, printed):
                wrong.append(f"$ {example.command}\n{printed}")
    assert wrong == []


def sorted_match(expected: list[str], printed: str) -> bool:
    """Whether each expected line is printed somewhere, and nothing else is."""
    lines = printed.splitlines()
    return len(lines) == len(expected) and all(any(re.fullmatch(one, line) for line in lines) for one in expected)


def test_the_page_has_an_example_of_every_command_for_a_server() -> None:
    told = " ".join(example.command for example in examples(PAGE))
    for name, late in LATE.items():
        if not late.module.startswith("topics.cli.remote."):
            continue
        command = loaded(late.module)
        for verb in getattr(command, "commands", {}) or [""]:
            assert f"topics {name} {verb}".strip() in told
