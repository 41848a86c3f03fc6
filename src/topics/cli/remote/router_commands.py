"""`topics router`: copies from one topic to another."""

from typing import Annotated, Final

import msgspec
import typer

from topics.cli.late import command_group
from topics.cli.output import message
from topics.cli.remote.complete import complete_routers, complete_topics
from topics.cli.remote.forms import Column, Form
from topics.cli.remote.session import Session, asks_server, confirm_name
from topics.cli.remote.shown import parse_tag

app: Final = command_group(
    """Routers: each copies the records of one topic, the source, to another, the dest, from now on.

\b
Examples:
  topics router create acme orders orders.acme --tag 'acme:*'
  topics router ls
"""
)

Router = Annotated[
    str, typer.Argument(metavar="ROUTER", help="The name of the router.", autocompletion=complete_routers)
]


@app.command("ls")
@asks_server
def list_routers(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.", autocompletion=complete_routers)
    ] = "",
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TOPIC", help="Only from this topic.", autocompletion=complete_topics),
    ] = None,
    dest: Annotated[
        str | None, typer.Option("--dest", metavar="TOPIC", help="Only to this topic.", autocompletion=complete_topics)
    ] = None,
) -> None:
    """List routers, how many records each has copied, and how many it has not looked at yet.

    \b
    Examples:
      topics router ls
      topics router ls --source orders -o json
    """
    columns = [
        Column("router", "ROUTER"),
        Column("source", "SOURCE"),
        Column("dest", "DEST"),
        Column("guarantee", "GUARANTEE"),
        Column("forwarded_total", "FORWARDED"),
        Column("lag", "LAG"),
    ]
    rows = [msgspec.to_builtins(entry) for entry in session.client.routers(prefix, source=source, dest=dest)]
    session.print_rows(columns, rows)
    if not rows and session.form() is Form.TABLE:
        message("there is no router")


@app.command()
@asks_server
def show(session: Session, router: Router) -> None:
    """Show what a router copies, and how much it has copied.

    \b
    Example:
      topics router show acme
    """
    state = msgspec.to_builtins(session.client.router(router))
    del state["performance"]
    session.print_one(state)


@app.command()
@asks_server
def create(
    session: Session,
    router: Annotated[str, typer.Argument(metavar="ROUTER", help="The name of the router.")],
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The topic to copy from.", autocompletion=complete_topics)
    ],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The topic to copy to.", autocompletion=complete_topics)],
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Only records with this tag; acme:* is a prefix.")
    ] = None,
    is_once: Annotated[
        bool, typer.Option("--exactly-once", help="Skip a record that a live record of the dest is a copy of.")
    ] = False,
    allow_cycle: Annotated[bool, typer.Option("--allow-cycle", help="The router may close a cycle.")] = False,
    create_dest: Annotated[
        bool, typer.Option("--create-dest/--no-create-dest", help="Whether a missing dest is created.")
    ] = True,
) -> None:
    """Create a router, or replace one of the same name. It copies records that are written from now on.

    \b
    Examples:
      topics router create copies orders orders.copy
      topics router create acme orders orders.acme --tag 'acme:*' --exactly-once
    """
    exact, prefix = parse_tag(tag)
    is_new = session.client.create_router(
        router,
        source,
        dest,
        tag=exact,
        tag_prefix=prefix,
        allow_cycle=allow_cycle,
        guarantee="exactly_once" if is_once else "at_least_once",
        create_dest=create_dest,
    )
    message(f'router "{router}" is {"created" if is_new else "replaced"}: "{source}" -> "{dest}"')


@app.command()
@asks_server
def rm(
    session: Session,
    router: Router,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a router. Its copies stay.

    \b
    Example:
      topics router rm acme --yes
    """
    if not session.is_curl:
        session.reader.router(router)
        confirm_name("router", router, is_confirmed=is_confirmed)
    session.client.drop_router(router)
    message(f'router "{router}" is removed')
