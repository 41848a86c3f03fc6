"""`topics context`: names for servers and their keys."""

import os
import sys
from typing import Annotated, Final, NoReturn

import typer

from topics.cli.late import command_group
from topics.cli.output import Output, errors_as_messages, fail, message
from topics.cli.remote.complete import complete_contexts
from topics.cli.remote.contexts import Context, ContextNotFound, check_name, contexts_path, load_contexts, save_contexts
from topics.cli.remote.forms import Column, Form, print_one, print_rows
from topics.cli.remote.nearest import explained
from topics.cli.remote.session import RETRIES
from topics.cli.remote.target import Target, find_target
from topics.errors import TopicsError

app: Final = command_group(
    """Names for servers and their keys, kept in a file that only you can read. Keys are never printed.

\b
Examples:
  topics context add prod --server https://topics.example:4000 --key-file ./key
  topics context use prod
  topics topic ls --context prod
""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the context.", autocompletion=complete_contexts)]
OutputForm = Annotated[Form, typer.Option("--output", "-o", help="The form of the data on stdout.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of your choice.")],
    server: Annotated[str, typer.Option("--server", metavar="URL", help="Its address, like http://host:4000.")],
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Its API key. Others can see arguments: see --key-file.")
    ] = None,
    key_file: Annotated[
        str | None, typer.Option("--key-file", metavar="FILE", help="A file with the key; - reads it from stdin.")
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option("--ca-file", metavar="FILE", help="Certificates (PEM) to trust in place of the system's."),
    ] = None,
    is_used: Annotated[bool, typer.Option("--use", help="Use it from now on, as the first context is.")] = False,
) -> None:
    """Add a context, or replace one of the same name.

    \b
    Examples:
      topics context add local --server http://127.0.0.1:4000
      topics context add prod --server https://topics.example:4000 --key-file ./key --use
    """
    from topics.client.endpoint import Endpoint

    with errors_as_messages():
        check_name(name)
        if key is not None and key_file is not None:
            fail("give --key or --key-file, not both")
        if key_file is not None:
            key = _key_of(key_file)
        # Says what is wrong before anything is kept.
        Endpoint.parse(server, key)
        contexts = load_contexts()
        contexts.by_name[name] = Context(server, key or "", os.path.abspath(ca_file) if ca_file else "")
        if is_used or not contexts.current:
            contexts.current = name
        save_contexts(contexts)
    used = "in use" if contexts.current == name else f"use it with `topics context use {name}`"
    message(f'context "{name}" is kept in {contexts_path()}; {used}')


@app.command()
def use(name: Name) -> None:
    """Use a context from now on: commands without --server, --context and TOPICS_URL ask its server.

    \b
    Example:
      topics context use prod
    """
    with errors_as_messages():
        contexts = load_contexts()
        contexts.current = name
        server = _found(name).server
        save_contexts(contexts)
    message(f'context "{name}" is in use: {server}')


@app.command("ls")
def list_contexts(form: OutputForm = Form.TABLE) -> None:
    """List the contexts. A star marks the one in use.

    \b
    Examples:
      topics context ls
      topics context ls -o json
    """
    with errors_as_messages():
        contexts = load_contexts()
    rows = [
        {"context": name, "current": name == contexts.current, "server": one.server, "key": bool(one.key)}
        for name, one in sorted(contexts.by_name.items())
    ]
    columns = [
        Column("context", "CONTEXT"),
        Column("current", "USED", lambda is_current: "*" if is_current else ""),
        Column("server", "SERVER"),
        Column("key", "KEY"),
    ]
    output = Output()
    print_rows(output, form, columns, rows)
    output.flush()
    if not rows:
        message("there is no context; add one with: topics context add NAME --server URL")


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The one in use by default.", autocompletion=complete_contexts),
    ] = None,
    form: OutputForm = Form.TABLE,
) -> None:
    """Show which server a command would ask, and where that is written. The key is not shown.

    \b
    Examples:
      topics context show
      topics context show prod -o json
    """
    target = _target(name)
    output = Output()
    row = {"server": target.url, "key": bool(target.key), "ca_file": target.ca_file, "from": target.origin}
    print_one(output, form, row, {})
    output.flush()


@app.command()
def rm(name: Name) -> None:
    """Remove a context. The server is not asked.

    \b
    Example:
      topics context rm old
    """
    with errors_as_messages():
        _found(name)
        contexts = load_contexts()
        del contexts.by_name[name]
        was_used = contexts.current == name
        if was_used:
            contexts.current = ""
        save_contexts(contexts)
    message(f'context "{name}" is removed' + ("; no context is in use now" if was_used else ""))


@app.command("test")
def ask(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The one in use by default.", autocompletion=complete_contexts),
    ] = None,
) -> None:
    """Ask the server of a context, with its key, and say what it answers.

    \b
    Examples:
      topics context test
      topics context test prod
    """
    from time import perf_counter

    from topics.client.sync.client import Client

    target = _target(name)
    try:
        with Client(target.url, token=target.key, ca_file=target.ca_file, retries=RETRIES) as client:
            started = perf_counter()
            health = client.health()
            took_ms = (perf_counter() - started) * 1000
            # A health answer needs no key; a list does.
            next(client.topic_list(), None)
    except TopicsError as error:
        fail(_explained(error, target))
    output = Output()
    key = "the key is accepted" if target.key else "no key is needed"
    output.line(f"{target.url} answers in {took_ms:.1f} ms: topics {health.version}, {key}")
    output.flush()


def _key_of(path: str) -> str:
    if path == "-":
        return sys.stdin.readline().strip()
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()


def _target(name: str | None) -> Target:
    try:
        return find_target(context=name)
    except TopicsError as error:
        fail(_explained(error, Target("", None, None, "")))


def _found(name: str) -> Context:
    try:
        return load_contexts().find(name)
    except ContextNotFound as error:
        fail(_explained(error, Target("", None, None, "")))


def _explained(error: TopicsError, target: Target) -> str:
    def no_client() -> NoReturn:
        raise TopicsError("the names of a server are not needed here")

    return explained(error, target, no_client)
