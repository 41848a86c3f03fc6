"""`topics tail`: the last records of a topic, then new ones as the server pushes them."""

from typing import Annotated, Final

import typer

from topics.cli.output import fail
from topics.cli.remote.forms import Form
from topics.cli.remote.record_options import FromSeq, Match, Since, Template, Topic
from topics.cli.remote.records import RecordPrinter, matcher, seq_before, seq_before_last
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import parse_time_ms
from topics.clock import SystemClock
from topics.results import Tombstone

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

RECORDS_DEFAULT: Final = 10


@app.command()
@asks_server
def tail(
    session: Session,
    topic: Topic,
    from_seq: FromSeq = None,
    since: Since = None,
    count: Annotated[
        int | None,
        typer.Option("--number", "-n", metavar="N", min=0, help="Begin with the last N records.", show_default="10"),
    ] = None,
    match: Match = None,
    template: Template = None,
    is_following: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new records, until Ctrl+C.")
    ] = True,
) -> None:
    """Print the last records of a topic, and new ones as they come. Lost records are named in their place.

    After a broken connection or a restart of the server it goes on with the next record. Ctrl+C ends it.

    \b
    Examples:
      topics tail orders
      topics tail orders --since 10m --match tag=customer-7
      topics tail orders -n 0 | jq .data
      topics tail orders --format '%T %d'
    """
    if sum(one is not None for one in (from_seq, since, count)) > 1:
        fail("give one beginning only: --from-seq, --since or -n")
    form = session.record_form()
    if is_following and form is Form.JSON:
        fail("a tail has no end, and JSON needs one: use -o jsonl, or --no-follow")
    if since is not None:
        from_seq = seq_before(session.reader, topic, parse_time_ms(since, SystemClock().now_ms()))
    elif from_seq is None:
        from_seq = seq_before_last(session.reader, topic, RECORDS_DEFAULT if count is None else count)
    is_wanted = matcher(match or [])
    items = session.client.tail(topic, from_seq) if is_following else session.client.read_all(topic, from_seq)
    if session.is_curl:
        next(items)
    printer = RecordPrinter(session.output, form, topic, template)
    session.output.flush()
    for item in items:
        if isinstance(item, Tombstone):
            printer.tombstone(item)
        elif is_wanted(item):
            printer.record(item)
        if is_following:
            session.output.flush()
        if printer.is_closed:
            break
    printer.end()
