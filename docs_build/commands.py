"""The reference of the command line: the help of each command, as the command prints it."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from topics.cli.main import app

WIDTH = 100


def commands_page() -> str:
    parts = [
        """\
The help of every command, as `topics COMMAND --help` prints it. [The command line](../cli.md) has an example of each
command for a server, with its output.
"""
    ]
    for path in command_paths():
        parts.append(f"{'##' if len(path) == 1 else '###'} {' '.join(('topics', *path))}\n")
        parts.append(f"```text\n{help_of(path)}\n```\n")
    return "\n".join(parts)


def command_paths() -> Iterator[tuple[str, ...]]:
    """Each command, a group before its own commands."""
    yield from _below(typer.main.get_command(app), ())


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _below(command.get_command(None, name), (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(app, [*path, "--help"], prog_name="topics", terminal_width=WIDTH)
    assert done.exit_code == 0, (path, done.output)
    return "\n".join(line.rstrip() for line in done.output.strip().splitlines())
