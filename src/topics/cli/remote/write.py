"""`topics write`: lines, JSON lines or CSV as records of a topic."""

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from time import monotonic
from typing import Annotated, BinaryIO, Final
from uuid import uuid4

import typer

from topics.cli.output import fail, message
from topics.cli.progress import Bar
from topics.cli.remote.complete import complete_topics
from topics.cli.remote.forms import Form
from topics.cli.remote.session import EXIT_INTERRUPTED, Session, asks_server
from topics.cli.remote.shown import counted, show_bytes
from topics.cli.remote.sources import Batch, Fixed, Kind, batches, kind_of, size_of
from topics.errors import TopicsError
from topics.limits import BATCH_RECORDS_MAX

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

# Once a batch is written, the server is worth waiting for: up to 13 seconds of pauses.
RETRIES: Final = 7
TELL_EVERY_S: Final = 10.0


@app.command()
@asks_server
def write(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The name of the topic.", autocompletion=complete_topics)
    ],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Files; - is stdin, which is the default.")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            "--from",
            help="What the lines are. auto: by the ending of the file; a line that is a JSON object or array stays "
            "JSON, any other line becomes a string. records: lines of `topics read -o jsonl`.",
        ),
    ] = Kind.AUTO,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="A tag for every record.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Who writes them.")] = None,
    batch_records: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=BATCH_RECORDS_MAX, help="Records of one request at most.")
    ] = 1000,
    skip: Annotated[int, typer.Option("--skip", metavar="N", min=0, help="Leave out the first N lines.")] = 0,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Makes stdin resumable: a name in place of a file's."),
    ] = None,
    is_again: Annotated[
        bool, typer.Option("--again", help="Write also what the same file has written a moment ago.")
    ] = False,
    is_creating: Annotated[
        bool, typer.Option("--create/--no-create", help="Whether a missing topic is created.")
    ] = True,
) -> None:
    """Write records to a topic: a record for each line, or for each row of CSV.

    A command that was interrupted can be run again: lines that are already there are not written twice. The server
    recognises them by file, line numbers and content, for the topic's idempotency window (two minutes by default; see
    `topics topic set --idempotency-window`). After that, go on with --skip, which the error names.

    \b
    Examples:
      echo '{"id": 1}' | topics write orders
      topics write orders orders.jsonl --tag import
      topics write orders orders.csv
      tail -f app.log | topics write app.log --from lines
      topics read orders | topics write copies --from records
    """
    total = _Written(session, topic, is_creating=is_creating)
    with Bar("write") as bar:
        total.bar = bar
        for path in files or ["-"]:
            source = name or (None if path == "-" else os.path.realpath(path))
            with ExitStack() as closing:
                file = sys.stdin.buffer if path == "-" else closing.enter_context(open(path, "rb"))
                _check_terminal(file)
                shown = "stdin" if path == "-" else path
                total.begin(shown, size_of(file), None if is_again else source)
                made = batches(file, shown, kind_of(path, kind), Fixed(tag, node), records_max=batch_records, skip=skip)
                total.take(made)
    total.tell()


def _check_terminal(file: BinaryIO) -> None:
    if file.isatty():
        message("topics: type a record in each line; Ctrl+D ends")


class _Written:
    """What was written so far, and the progress of it."""

    def __init__(self, session: Session, topic: str, *, is_creating: bool) -> None:
        self.bar: Bar | None = None
        self._session = session
        self._client = session.client
        self._topic = topic
        self._is_creating = is_creating
        self._started_s = self._told_s = monotonic()
        self._source = ""
        self._key: str | None = None
        self._line = 0
        self._size: int | None = None
        self._file_bytes = 0
        self._records = self._bytes = self._deduped = self._first_seq = self._last_seq = 0

    def begin(self, source: str, size: int | None, key: str | None) -> None:
        self._source, self._size, self._key = source, size, key
        self._line = self._file_bytes = 0

    def take(self, made: Iterable[Batch]) -> None:
        try:
            for batch in made:
                self._write(batch)
        except TopicsError as error:
            fail(self._session.explain(error) + self._place())
        except KeyboardInterrupt:
            message(f"topics: stopped{self._place()}")
            raise SystemExit(EXIT_INTERRUPTED) from None

    def _write(self, batch: Batch) -> None:
        key = uuid4().hex if self._key is None else batch.key(self._key)
        if self._session.is_curl:
            from topics.cli.remote.curl import curl_line
            from topics.client import calls

            call = calls.append(self._topic, batch.text, key, create=self._is_creating)
            target = self._session.target
            self._session.output.line(curl_line(target.url, call, has_key=target.key is not None))
            return
        answer = self._client.append_encoded(self._topic, batch.text, key=key, create=self._is_creating)
        if not self._records:
            self._client = self._client.with_options(retries=RETRIES)
        self._first_seq = self._first_seq or answer.first_seq
        self._last_seq = max(self._last_seq, answer.last_seq)
        self._deduped += len(batch.records) if answer.deduped else 0
        self._records += len(batch.records)
        self._bytes += batch.size_bytes
        self._file_bytes += batch.size_bytes
        self._line = batch.last_line
        self._progress()

    def _progress(self) -> None:
        assert self.bar is not None
        self.bar(self._file_bytes, self._size, f"{self._rate(self._records):,.0f} records/s")
        if not sys.stderr.isatty() and monotonic() - self._told_s > TELL_EVERY_S:
            self._told_s = monotonic()
            message(f"line {self._line} of {self._source}: {self._sum()}")

    def _rate(self, amount: int) -> float:
        return amount / max(monotonic() - self._started_s, 0.001)

    def _sum(self) -> str:
        rates = f"{self._rate(self._records):,.0f} records/s, {show_bytes(self._rate(self._bytes))}/s"
        return f"{counted(self._records, 'record')}, {show_bytes(self._bytes)} ({rates})"

    def _place(self) -> str:
        """Where to go on after an error."""
        if not self._line:
            return f"; nothing of {self._source} was written"
        return f"; {self._source} is written up to line {self._line}: --skip {self._line} goes on after it"

    def tell(self) -> None:
        if self._session.is_curl:
            return
        if self._session.form() is not Form.TABLE:
            members = {"topic": self._topic, "records": self._records, "deduped": self._deduped}
            self._session.print_one(members | {"first_seq": self._first_seq, "last_seq": self._last_seq})
        if not self._records:
            message("nothing to write")
            return
        seqs = f"seqs {self._first_seq} to {self._last_seq}" if self._records > 1 else f"seq {self._first_seq}"
        message(f'written to "{self._topic}": {self._sum()}, {seqs}')
        if self._deduped:
            message(f"{self._deduped} of them were there already (same file and lines); --again writes them once more")
