"""`topics read`: the records of a topic, up to the last one."""

from typing import Annotated, Final

import typer

from topics.cli.output import fail
from topics.cli.remote.record_options import FromSeq, Match, Since, Template, Topic
from topics.cli.remote.records import RecordPrinter, matcher, seq_before, seq_before_last
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import parse_time_ms
from topics.clock import SystemClock
from topics.results import Tombstone

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@asks_server
def read(
    session: Session,
    topic: Topic,
    from_seq: FromSeq = None,
    since: Since = None,
    count: Annotated[
        int | None,
        typer.Option("--number", "-n", metavar="N", help="N records at most; -n -20: the last 20.", show_default=False),
    ] = None,
    match: Match = None,
    template: Template = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Begin after the cursor of a consumer group.")
    ] = None,
) -> None:
    """Print the records of a topic, oldest first, up to the last one. Lost records are named in their place.

    On a terminal the form is a table, in a pipe JSON lines. `-o raw` prints payloads only.

    \b
    Examples:
      topics read orders
      topics read orders -n -20 --match tag=customer-7
      topics read orders --since 1h -o csv > orders.csv
      topics read orders --format '%s %T %j'
    """
    if sum(one is not None for one in (from_seq, since, group)) > 1 or (
        count is not None and count < 0 and (from_seq, since, group) != (None, None, None)
    ):
        fail("give one beginning only: --from-seq, --since, --group, or -n with a negative number")
    if since is not None:
        from_seq = seq_before(session.reader, topic, parse_time_ms(since, SystemClock().now_ms()))
    elif group is not None:
        from_seq = session.reader.group(topic, group).seq
    elif count is not None and count < 0:
        from_seq = seq_before_last(session.reader, topic, -count)
        count = None
    is_wanted = matcher(match or [])
    items = session.client.read_all(topic, from_seq or 0)
    printer: RecordPrinter | None = None
    left = count
    # The first page comes before the heading, so that an error is not below a heading.
    item = next(items, None)
    printer = RecordPrinter(session.output, session.record_form(), topic, template)
    while item is not None and left != 0 and not printer.is_closed:
        if isinstance(item, Tombstone):
            printer.tombstone(item)
        elif is_wanted(item):
            printer.record(item)
            left = None if left is None else left - 1
        item = next(items, None)
    printer.end()
