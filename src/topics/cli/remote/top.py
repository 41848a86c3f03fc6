"""`topics top`: a live view of rates, depths and lags."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Annotated, Any, Final

import msgspec
import typer

from topics.cli.output import has_colours, message
from topics.cli.remote.complete import complete_topics
from topics.cli.remote.forms import Column, Form, Row
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import parse_span_ms, show_bytes, show_span
from topics.client.retrying import Unreachable

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLUMNS: Final = [
    Column("topic", "TOPIC"),
    Column("type", "TYPE"),
    Column("count", "RECORDS"),
    Column("bytes", "BYTES", show_bytes),
    Column("writes_per_s", "WRITES/S", lambda rate: f"{rate:.1f}"),
    Column("ready", "READY"),
    Column("in_flight", "IN FLIGHT"),
    Column("oldest_ms", "OLDEST", show_span),
    Column("lag", "LAG"),
]


@app.command()
@asks_server
def top(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only topics that begin so.", autocompletion=complete_topics)
    ] = "",
    interval: Annotated[str, typer.Option("--interval", "-i", metavar="SPAN", help="Time between two looks.")] = "2s",
    count: Annotated[
        int | None, typer.Option("--number", "-n", metavar="N", min=1, help="End after N looks.", show_default=False)
    ] = None,
) -> None:
    """Watch the topics: writes a second, jobs, ages and lags; the busiest first. Ctrl+C ends.

    Without a terminal each look is a table, or what -o says. Rates need two looks, so the first has none.

    \b
    Examples:
      topics top
      topics top orders. --interval 5s
      topics top -n 2 -i 10s -o jsonl
    """
    pause_s = parse_span_ms(interval) / 1000
    look = _Look(session, prefix)
    with _screen(session) as show:
        for number in _rounds(count):
            if number:
                sleep(pause_s)
            try:
                show(look.rows())
            except Unreachable as error:
                if not number:
                    raise
                message(f"topics: {session.explain(error)}")
            if session.output.is_closed:
                return


def _rounds(count: int | None) -> Iterator[int]:
    number = 0
    while count is None or number < count:
        yield number
        number += 1


class _Look:
    """The topics of a server, with rates since the last look."""

    def __init__(self, session: Session, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._heads: dict[str, int] = {}
        self._seen_s = 0.0

    def rows(self) -> list[Row]:
        entries = list(self._session.client.topic_list(self._prefix))
        now_s = monotonic()
        passed_s = max(now_s - self._seen_s, 0.001)
        rows: list[dict[str, Any]] = []
        for entry in entries:
            queue = None if entry.queue is msgspec.UNSET else entry.queue
            written = entry.head_seq - self._heads.get(entry.topic, entry.head_seq)
            rows.append(
                {
                    "topic": entry.topic,
                    "type": entry.type,
                    "count": entry.count,
                    "bytes": entry.bytes,
                    "writes_per_s": max(0.0, written / passed_s),
                    "ready": None if queue is None else queue.ready,
                    "in_flight": None if queue is None else queue.in_flight,
                    "oldest_ms": None if queue is None else queue.oldest_ready_age_ms,
                    "lag": None if entry.groups is msgspec.UNSET else entry.groups.lag_max,
                }
            )
        self._heads = {entry.topic: entry.head_seq for entry in entries}
        self._seen_s = now_s
        return sorted(rows, key=lambda row: (-row["writes_per_s"], row["topic"]))


@contextmanager
def _screen(session: Session) -> Iterator[Callable[[list[Row]], None]]:
    """A function that shows rows: in place on a terminal, else one below the other."""
    if not sys.stdout.isatty() or session.form() is not Form.TABLE or os.environ.get("TERM") == "dumb":

        def print_below(rows: list[Row]) -> None:
            session.print_rows(_COLUMNS, rows)
            session.output.flush()

        yield print_below
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from topics.cli.output import escaped

    console = Console(no_color=not has_colours())
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(rows: list[Row]) -> None:
            table = Table(title=f"topics top: {session.target.url}", expand=True)
            for place, column in enumerate(_COLUMNS):
                table.add_column(column.title, justify="left" if place < 2 else "right")
            for row in rows[: max(1, console.height - 5)]:
                table.add_row(*(Text(escaped(column.show(row[column.member]))) for column in _COLUMNS))
            live.update(table, refresh=True)

        yield draw
