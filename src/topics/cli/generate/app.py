"""The commands of `topics generate`. Each prints a file, or writes it where `--out` says."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from topics.cli.late import command_group
from topics.cli.output import Output, fail, message

app: Final = command_group(
    """Files to run a server and to watch it, made from its settings, metrics and commands.

\b
Examples:
  topics generate config --out topics.toml
  topics generate systemd --out /etc/systemd/system/topics.service
  topics generate grafana --out topics-dashboard.json
  topics generate alerts | promtool check rules /dev/stdin
""",
)

Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write it to this file instead of stdout.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]


@app.command()
def config(out: Out = None, force: Force = False) -> None:
    """A topics.toml with every setting: its meaning, its default, what it takes. All are commented out.

    \b
    Examples:
      topics generate config --out topics.toml
      topics generate config | less
    """
    from topics.cli.generate.config_file import config_file

    _put(config_file(), out, force=force)


@app.command()
def systemd(
    command: Annotated[
        str, typer.Option("--command", metavar="PATH", help="The command `topics` on the machine of the service.")
    ] = "/opt/topics/bin/topics",
    out: Out = None,
    force: Force = False,
) -> None:
    """A unit for systemd, with its own user and without access to anything else.

    \b
    Example:
      topics generate systemd --out /etc/systemd/system/topics.service
    """
    from topics.cli.generate.systemd_unit import systemd_unit

    if not command.startswith("/") or any(character.isspace() or character in "\"'\\%$" for character in command):
        fail(f'"{command}" is no path that a unit can have: it begins with / and has no spaces, quotes, %, $ or \\')
    _put(systemd_unit(command), out, force=force)


@app.command()
def dockerfile(
    from_source: Annotated[
        bool,
        typer.Option("--from-source", help="Build the wheel from a clone of the repository, as its Dockerfile does."),
    ] = False,
    out: Out = None,
    force: Force = False,
) -> None:
    """A Dockerfile for an image without a compiler, a root user, or anything else that a server does not need.

    \b
    Examples:
      topics generate dockerfile --out Dockerfile
      docker build -t topics .
    """
    from topics.cli.generate.image import image_file

    _put(image_file(from_source=from_source), out, force=force)


@app.command()
def compose(out: Out = None, force: Force = False) -> None:
    """A file for Docker Compose: one server, its volume, its keys as a secret.

    \b
    Examples:
      topics generate compose --out compose.yaml
      docker compose up -d
    """
    from topics.cli.generate.compose_file import compose_file

    _put(compose_file(), out, force=force)


@app.command()
def grafana(out: Out = None, force: Force = False) -> None:
    """A dashboard for Grafana: import it, and choose the Prometheus that scrapes the server.

    \b
    Example:
      topics generate grafana --out topics-dashboard.json
    """
    from topics.cli.generate.dashboard import dashboard

    _put(dashboard(), out, force=force)


@app.command()
def alerts(out: Out = None, force: Force = False) -> None:
    """Alert rules for Prometheus, with what each means and what to do.

    \b
    Examples:
      topics generate alerts --out /etc/prometheus/rules/topics.yml
      promtool check rules /etc/prometheus/rules/topics.yml
    """
    from topics.cli.generate.alert_rules import alert_rules

    _put(alert_rules(), out, force=force)


@app.command()
def man(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="[PAGE]", help="Which page: topics, topics-COMMAND or topics.toml.", show_default=False),
    ] = "topics",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write all pages to this folder.", show_default=False)
    ] = None,
) -> None:
    """Manual pages: topics(1), a page for each command, and topics.toml(5).

    \b
    Examples:
      topics generate man topics-serve | man -l -
      topics generate man --out /usr/local/share/man
    """
    from topics.cli.generate.man_pages import man_pages

    pages = man_pages(context.find_root().command)
    if out is not None:
        _write_pages(pages, out)
        return
    found = [text for (page, _), text in pages.items() if page == name]
    if not found:
        names = ", ".join(page for page, _ in pages)
        fail(f'there is no page "{name}"; there are {names}')
    _put(found[0], None, force=False)


def _put(text: str, out: str | None, *, force: bool) -> None:
    if out is None:
        output = Output()
        output.line_block(text)
        output.flush()
        return
    _write(out, text, mode="w" if force else "x")
    message(f"{out} is written")


def _write(path: str, text: str, mode: str) -> None:
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        fail(f"{path} is there already; --force replaces it")


def _write_pages(pages: Mapping[tuple[str, int], Any], folder: str) -> None:
    """Into the folders that `man` looks in: man1 and man5. Pages of an earlier version are replaced."""
    for (page, section), text in pages.items():
        path = os.path.join(folder, f"man{section}", f"{page}.{section}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, text, mode="w")
    message(f"{len(pages)} pages are written below {folder}; `man -M {folder} topics` shows the first")
