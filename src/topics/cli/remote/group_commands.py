"""`topics group`: cursors of a topic that the server keeps for its readers."""

from typing import Annotated, Any, Final

import typer

from topics.cli.late import command_group
from topics.cli.output import fail, message
from topics.cli.remote.complete import complete_groups, complete_topics
from topics.cli.remote.forms import Column, Form
from topics.cli.remote.session import Session, asks_server, confirm_name
from topics.cli.remote.shown import show_time
from topics.results import GroupCursor, Start

app: Final = command_group(
    """Consumer groups: named cursors of a topic. The lag of a group is its distance to the last record.

\b
Examples:
  topics group ls orders
  topics group move orders billing start
  topics read orders --group billing
"""
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.", autocompletion=complete_topics)]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.", autocompletion=complete_groups)]


def _row(cursor: GroupCursor) -> dict[str, Any]:
    return cursor._asdict()


@app.command("ls")
@asks_server
def list_groups(session: Session, topic: Topic) -> None:
    """List the consumer groups of a topic, with cursor and lag.

    \b
    Examples:
      topics group ls orders
      topics group ls orders -o csv
    """
    columns = [
        Column("group", "GROUP"),
        Column("seq", "SEQ"),
        Column("head_seq", "HEAD"),
        Column("lag", "LAG"),
        Column("last_commit_ts", "LAST COMMIT", show_time),
    ]
    rows = [_row(cursor) for cursor in session.client.groups(topic)]
    session.print_rows(columns, rows)
    if not rows and session.form() is Form.TABLE:
        message(f'topic "{topic}" has no group; `topics group move {topic} NAME start` makes one')


@app.command()
@asks_server
def show(session: Session, topic: Topic, group: Group) -> None:
    """Show the cursor of a group.

    \b
    Example:
      topics group show orders billing
    """
    session.print_one(_row(session.client.group(topic, group)), {"last_commit_ts": show_time})


@app.command()
@asks_server
def commit(
    session: Session,
    topic: Topic,
    group: Group,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="The last seq that is done.")],
) -> None:
    """The group is done with everything up to a seq. A lower seq than before changes nothing; see `topics group move`.

    \b
    Example:
      topics group commit orders billing 17
    """
    done = session.client.commit(topic, group, seq)
    cursor = done.cursor
    message(
        f'group "{group}" is at seq {cursor.seq}, lag {cursor.lag}'
        + ("" if done.moved else f"; it was there before: `topics group move {topic} {group} {seq}` moves it back")
    )


@app.command()
@asks_server
def move(
    session: Session,
    topic: Topic,
    group: Group,
    at: Annotated[str, typer.Argument(metavar="start|head|SEQ", help="Where to: the last seq that is done.")],
) -> None:
    """Move the cursor of a group to any place, or create the group there.

    \b
    Examples:
      topics group move orders billing start
      topics group move orders billing 17
    """
    place: int | Start
    match at:
        case "start" | "head":
            place = at
        case _ if at.isdecimal():
            place = int(at)
        case _:
            fail(f'"{at}" is no place: give start, head or a seq')
    done = session.client.create_group(topic, group, at=place)
    what = "is created" if done.created else "is moved"
    message(f'group "{group}" {what}: seq {done.cursor.seq}, lag {done.cursor.lag}')


@app.command()
@asks_server
def rm(
    session: Session,
    topic: Topic,
    group: Group,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a group and its cursor. The records stay.

    \b
    Example:
      topics group rm orders billing --yes
    """
    if not session.is_curl:
        session.reader.group(topic, group)
        confirm_name("group", group, is_confirmed=is_confirmed)
    session.client.drop_group(topic, group)
    message(f'group "{group}" is removed')
