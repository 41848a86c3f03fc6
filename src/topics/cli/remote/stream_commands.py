"""`topics stream`: look at the streams of a server. Nothing is changed: clients of Apache Iggy write."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from topics.cli.late import command_group
from topics.cli.output import fail, message
from topics.cli.remote.complete import complete_streams
from topics.cli.remote.forms import Column, Form, print_rows
from topics.cli.remote.nearest import nearest
from topics.cli.remote.record_options import Since
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import parse_span_ms, parse_time_ms, show_bytes, show_span, show_time
from topics.cli.remote.stream_reading import Gone, Item, StreamReading
from topics.client.retrying import Unreachable
from topics.clock import SystemClock
from topics.errors import InvalidRequest, NotFound, NotReady, TopicsError

if TYPE_CHECKING:
    from topics.cli.remote.stream_messages import Matches, MessagePrinter

app: Final = command_group(
    """Streams: the partitioned engine, which clients of Apache Iggy write to. Look at topics, partitions and messages.

A stream, or a topic of it, is given by its name, or by its number: orders/events, 0/0.

\b
Examples:
  topics stream ls
  topics stream show orders/events
  topics stream read orders/events --last -n 20
  topics stream tail orders/events
"""
)

MESSAGES_DEFAULT: Final = 10

Path = Annotated[
    str, typer.Argument(metavar="STREAM/TOPIC", help="The topic of a stream.", autocompletion=complete_streams)
]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition.", show_default="all"),
]
Offset = Annotated[
    int | None,
    typer.Option("--offset", metavar="OFFSET", min=0, help="Begin at this offset of a partition.", show_default=False),
]
Match = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="WHAT",
        help="Only these: header.trace=t-*, a member of the payload (customer.id=7), or text in it. Repeatable.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="A line per message: %p partition, %o offset, %T time, %m time in ms, %i id, %h headers, %d payload, "
        "%t STREAM/TOPIC; \\n, \\t.",
        show_default=False,
    ),
]


def _show_time_us(time_us: int | None) -> str:
    return show_time(None if time_us is None else time_us // 1000)


# What there is.


@app.command("ls")
@asks_server
def list_streams(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.", autocompletion=complete_streams)
    ] = "",
) -> None:
    """List the streams.

    \b
    Examples:
      topics stream ls
      topics stream ls -o json
    """
    columns = [
        Column("name", "STREAM"),
        Column("id", "ID"),
        Column("topics", "TOPICS"),
        Column("messages", "MESSAGES"),
        Column("bytes", "BYTES", show_bytes),
        Column("created_at", "CREATED", _show_time_us),
    ]
    with _explained(session, "", None):
        rows = [msgspec.to_builtins(entry) for entry in session.client.streams(prefix)]
    session.print_rows(columns, rows)
    if not rows and session.form() is Form.TABLE:
        message("there is no stream" + (f' whose name begins with "{prefix}"' if prefix else ""))


@app.command()
@asks_server
def show(
    session: Session,
    path: Annotated[
        str,
        typer.Argument(
            metavar="STREAM[/TOPIC]", help="A stream, or a topic of a stream.", autocompletion=complete_streams
        ),
    ],
) -> None:
    """Show a stream and its topics, or a topic and its partitions.

    \b
    Examples:
      topics stream show orders
      topics stream show orders/events
      topics stream show orders/events -o json | jq .partitions
    """
    stream, topic = _split(path)
    with _explained(session, stream, topic):
        if topic is None:
            state = msgspec.to_builtins(session.client.stream(stream))
        else:
            state = msgspec.to_builtins(session.client.stream_topic(stream, topic))
    del state["performance"]
    if session.form() is not Form.TABLE:
        session.print_one(state)
        return
    lists = {name: state.pop(name) for name in ("topics", "partitions", "groups") if name in state}
    shows = {
        "created_at": _show_time_us,
        "bytes": show_bytes,
        "max_bytes": lambda size: "-" if size is None else show_bytes(int(size)),
        "message_expiry_us": lambda span: "-" if span is None else show_span(int(span) / 1000),
    }
    session.print_one(state, shows)
    for name, rows in lists.items():
        if rows:
            session.output.line("")
            print_rows(session.output, Form.TABLE, _INNER_COLUMNS[name], rows)


_INNER_COLUMNS: Final = {
    "topics": [
        Column("name", "TOPIC"),
        Column("id", "ID"),
        Column("partitions", "PARTITIONS"),
        Column("messages", "MESSAGES"),
        Column("bytes", "BYTES", show_bytes),
    ],
    "partitions": [
        Column("id", "PARTITION"),
        Column("earliest_offset", "EARLIEST"),
        Column("end_offset", "END"),
        Column("messages", "MESSAGES"),
        Column("bytes", "BYTES", show_bytes),
        Column("segments", "SEGMENTS"),
        Column("unsaved_messages", "UNSAVED"),
        Column("is_writable", "WRITABLE"),
    ],
    "groups": [Column("name", "GROUP"), Column("id", "ID"), Column("members", "MEMBERS")],
}


# Messages.


@app.command()
@asks_server
def read(
    session: Session,
    path: Path,
    partition: Partition = None,
    offset: Offset = None,
    is_first: Annotated[bool, typer.Option("--first", help="Begin with the oldest message, which is the default.")] = (
        False
    ),
    is_last: Annotated[bool, typer.Option("--last", help="The newest messages: -n of them, 10 by default.")] = False,
    since: Since = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--number", "-n", metavar="N", help="N messages at most; -n -20: the last 20.", show_default=False
        ),
    ] = None,
    match: Match = None,
    template: Format = None,
) -> None:
    """Print the messages of a topic of a stream, up to the last one. Partitions are merged by the time of the messages.

    On a terminal the form is a table, in a pipe JSON lines. `-o raw` prints payloads as they were sent. No offset is
    stored, and no consumer group notices.

    \b
    Examples:
      topics stream read orders/events
      topics stream read orders/events --partition 0 --offset 1000 -n 20
      topics stream read orders/events --last -n 20 --match header.trace=t-1
      topics stream read orders/events --since 1h --format '%p/%o %T %d'
    """
    from topics.cli.remote.stream_messages import MessagePrinter, matcher

    is_last = is_last or (count is not None and count < 0)
    if sum((offset is not None, is_first, is_last, since is not None)) > 1:
        fail("give one beginning only: --offset, --first, --last (or -n with a negative number), or --since")
    stream, topic = _topic_path(session, path)
    is_wanted = matcher(match or [])
    last = (MESSAGES_DEFAULT if count is None else abs(count)) if is_last else None
    left = None if is_last else count
    with _explained(session, stream, topic):
        reading = StreamReading(session.reader, stream, topic, partition)
        items = _begin(session, reading, offset, since, last)
        # The first page comes before the heading, so that an error is not below a heading.
        item = next(items, None)
    if session.is_curl:
        return
    printer = MessagePrinter(session.output, session.record_form(), path, template)
    while item is not None and left != 0 and not printer.is_closed:
        if _is_printed(printer, item, is_wanted):
            left = None if left is None else left - 1
        item = next(items, None)
    printer.end()


@app.command()
@asks_server
def tail(
    session: Session,
    path: Path,
    partition: Partition = None,
    offset: Offset = None,
    since: Since = None,
    count: Annotated[
        int | None,
        typer.Option("--number", "-n", metavar="N", min=0, help="Begin with the last N messages.", show_default="10"),
    ] = None,
    match: Match = None,
    template: Format = None,
    interval: Annotated[
        str, typer.Option("--interval", "-i", metavar="SPAN", help="Time between two looks.")
    ] = "500ms",
    is_following: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new messages, until Ctrl+C.")
    ] = True,
) -> None:
    """Print the last messages of a topic of a stream, and new ones as they come. Messages that are gone are named.

    The server is asked twice a second whether there is something new. After a restart of it the command goes on with
    the next message. Ctrl+C ends it.

    \b
    Examples:
      topics stream tail orders/events
      topics stream tail orders/events --partition 0 --offset 1000
      topics stream tail orders/events -n 0 --format '%T %d'
    """
    from topics.cli.remote.stream_messages import MessagePrinter, matcher

    if sum(one is not None for one in (offset, since, count)) > 1:
        fail("give one beginning only: --offset, --since or -n")
    form = session.record_form()
    if is_following and form is Form.JSON:
        fail("a tail has no end, and JSON needs one: use -o jsonl, or --no-follow")
    pause_s = parse_span_ms(interval) / 1000
    stream, topic = _topic_path(session, path)
    is_wanted = matcher(match or [])
    last = MESSAGES_DEFAULT if count is None else count
    with _explained(session, stream, topic):
        reading = StreamReading(session.reader, stream, topic, partition)
        items = _begin(session, reading, offset, since, last if offset is None and since is None else None)
        if session.is_curl:
            return
        printer = MessagePrinter(session.output, form, path, template)
        _print_all(session, printer, items, is_wanted)
        is_waiting = False
        while is_following and not printer.is_closed:
            sleep(pause_s)
            try:
                _print_all(session, printer, reading.items(reading.news()), is_wanted)
                is_waiting = False
            except (Unreachable, NotReady) as error:
                if not is_waiting:
                    message(f"topics: {session.explain(error)}; waiting for it")
                is_waiting = True
    printer.end()


def _begin(
    session: Session, reading: StreamReading, offset: int | None, since: str | None, last: int | None
) -> Iterator[Item]:
    """The messages that a command begins with. With `--curl` there are none, and their requests are printed."""
    if offset is not None:
        sources = reading.from_offset(offset)
    elif since is not None:
        sources = reading.since(parse_time_ms(since, SystemClock().now_ms()) * 1000)
    elif last is not None:
        sources = reading.last(last)
    else:
        sources = reading.first()
    if session.is_curl:
        from topics.cli.remote.curl import curl_line

        for source in sources:
            line = curl_line(session.target.url, reading.call(source), has_key=session.target.key is not None)
            session.output.line(line)
        return iter(())
    return reading.items(sources) if last is None else reading.newest(sources, last)


def _print_all(session: Session, printer: "MessagePrinter", items: Iterator[Item], is_wanted: "Matches") -> None:
    for item in items:
        _is_printed(printer, item, is_wanted)
        if printer.is_closed:
            return
    session.output.flush()


def _is_printed(printer: "MessagePrinter", item: Item, is_wanted: "Matches") -> bool:
    """Whether a message was printed. What is gone is told, and does not count."""
    if isinstance(item, Gone):
        printer.gone(item)
        return False
    if not is_wanted(item):
        return False
    printer.record(item)
    return True


# Names.


def _split(path: str) -> tuple[str, str | None]:
    """`STREAM` or `STREAM/TOPIC`. A name with a slash cannot be given: its number can."""
    stream, slash, topic = path.partition("/")
    if not stream or (slash and not topic):
        fail(f'"{path}" is no path: give STREAM or STREAM/TOPIC, by names or numbers')
    return stream, topic or None


def _topic_path(session: Session, path: str) -> tuple[str, str]:
    stream, topic = _split(path)
    if topic is not None:
        return stream, topic
    with _explained(session, stream, None):
        topics = session.reader.stream(stream).topics
    topic_said = f"like {path}/{topics[0].name}" if topics else "once it has one"
    raise InvalidRequest(f'"{path}" is a stream: give a topic of it, {topic_said}')


@contextmanager
def _explained(session: Session, stream: str, topic: str | None) -> Iterator[None]:
    """A name that is not there is told with the nearest one; a server without streams with how it gets them."""
    try:
        yield
    except NotFound as error:
        client = session.brief_client()
        try:
            names = [one.name for one in client.streams()]
        except NotFound:
            fail(error.message)
        except TopicsError:
            fail(error.message)
        if not stream.isdigit() and stream not in names:
            fail(f'stream "{stream}" does not exist' + nearest(stream, names, "topics stream ls"))
        if topic is None or topic.isdigit():
            fail(error.message)
        topics = [one.name for one in client.stream(stream).topics]
        if topic in topics:
            fail(error.message)
        fail(f'stream "{stream}" has no topic "{topic}"' + nearest(topic, topics, f"topics stream show {stream}"))
