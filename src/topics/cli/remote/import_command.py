"""`topics import`: the entries of a log of another system as records of a topic, each once."""

import sys
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from topics.cli.output import fail, message
from topics.cli.progress import Bar
from topics.cli.remote.complete import complete_topics
from topics.cli.remote.forms import Form
from topics.cli.remote.importing.group_places import take_over
from topics.cli.remote.importing.ledger import Ledger, Place
from topics.cli.remote.importing.source import Entry, Source, SourceAway
from topics.cli.remote.session import EXIT_INTERRUPTED, Session, asks_server
from topics.cli.remote.shown import counted
from topics.errors import TopicNotFound, TopicsError
from topics.limits import BATCH_RECORDS_MAX, MIB

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

# Once the server has answered, it is worth waiting for: up to 13 seconds of pauses.
RETRIES: Final = 7
TELL_EVERY_S: Final = 10.0
# How often the position is committed by itself while an import runs.
NOTE_EVERY_S: Final = 10.0
EPOCH_BYTES_MAX: Final = 4 * MIB
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0


@app.command("import")
@asks_server
def import_source(
    session: Session,
    address: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="redis://HOST:PORT/DB/STREAM, nats://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC; rediss:// and "
            "kafkas:// for TLS.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="The topic that gets the records; created if it is missing.",
            autocompletion=complete_topics,
            show_default=False,
        ),
    ],
    is_following: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new entries as they come, until Ctrl+C.")
    ] = False,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="NAME",
            help="Of Redis: this field is the payload, as JSON if it is JSON.",
            show_default=False,
        ),
    ] = None,
    tag_field: Annotated[
        str | None,
        typer.Option(
            "--tag-field", metavar="NAME", help="Of Redis: this field is the tag of the record.", show_default=False
        ),
    ] = None,
    has_groups: Annotated[
        bool, typer.Option("--groups/--no-groups", help="Whether its consumer groups become groups of the topic.")
    ] = True,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="A name of the source in place of its address, for a source whose address changes.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="ID", help="Begin after this entry, where no import has been.", show_default=False
        ),
    ] = None,
    batch_entries: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=BATCH_RECORDS_MAX, help="Entries of one write at most.")
    ] = 1000,
) -> None:
    """Import a stream of Redis or NATS JetStream, or a topic of Kafka: a record for each entry, each once.

    The fields of an entry of Redis become an object; the payload of a message of NATS or Kafka stays as it is, and its
    subject or key is the tag. The id of the entry is in the meta of the record. An import that is killed, or that is
    run again later, goes on after the last entry: the topic itself remembers it. Consumer groups (of NATS: durable
    consumers) become groups of the topic at the same entry, or before the oldest entry that they have not acknowledged.

    \b
    Examples:
      topics import redis://127.0.0.1:6379/0/orders --topic orders
      topics import redis://127.0.0.1/orders --topic orders --field data --tag-field customer
      topics import rediss://redis.example/0/orders --topic orders --follow
      topics import nats://127.0.0.1:4222/ORDERS --topic orders
      topics import kafka://127.0.0.1:9092/orders --topic orders
    """
    if session.is_curl:
        fail("an import is many requests; docs/http.md shows them: staged writes")
    source = _source(address, name=name, field=field, tag_field=tag_field, batch_entries=batch_entries)
    try:
        _Import(session, topic, source, is_following=is_following, has_groups=has_groups).run(after)
    finally:
        source.close()


def _source(address: str, *, name: str | None, field: str | None, tag_field: str | None, batch_entries: int) -> Source:
    scheme = urlsplit(address).scheme
    if scheme in {"redis", "rediss"}:
        from topics.cli.remote.importing import redis_source

        given = redis_source.parse_address(address)
        return redis_source.RedisSource(given, name=name, field=field, tag_field=tag_field, batch_entries=batch_entries)
    if scheme not in {"nats", "kafka", "kafkas"}:
        forms = "redis://HOST:PORT/DB/STREAM, nats://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC"
        fail(f'"{address}" is no source: give {forms}')
    if field is not None or tag_field is not None:
        fail("messages of NATS and Kafka have no fields: --field and --tag-field are for Redis")
    if scheme != "nats":
        from topics.cli.remote.importing import kafka_source

        return kafka_source.KafkaSource(kafka_source.parse_address(address), name=name, batch_entries=batch_entries)
    from topics.cli.remote.importing import nats_source

    return nats_source.NatsSource(nats_source.parse_address(address), name=name, batch_entries=batch_entries)


class _Import:
    """One run of the command, and its progress."""

    def __init__(self, session: Session, topic: str, source: Source, *, is_following: bool, has_groups: bool) -> None:
        self._session = session
        self._client = session.client
        self._topic = topic
        self._source = source
        self._is_following = is_following
        self._has_groups = has_groups
        self._total: int | None = None
        self._started_s = self._told_s = self._noted_s = monotonic()
        self._place = Place(None, 0)
        self._noted = self._place
        self._records = self._first_seq = self._last_seq = 0

    def run(self, after: str | None) -> None:
        if after is not None:
            self._check_position(after)
        entry_count = self._source.open()
        self._make_topic()
        self._client = self._client.with_options(retries=RETRIES)
        ledger = Ledger(self._client, self._topic, self._source)
        self._place = self._noted = ledger.find(after)
        if self._place.position is None:
            self._total = entry_count
        else:
            message(f"going on after entry {self._place.position}")
        try:
            with Bar("import", unit="items") as bar:
                self._copy(ledger, bar)
            self._note(ledger)
            self._take_groups()
        except TopicsError as error:
            fail(f"{self._session.explain(error)}{self._ending()}")
        except KeyboardInterrupt:
            message(f"topics: stopped{self._ending()}")
            raise SystemExit(EXIT_INTERRUPTED) from None
        self._tell()

    def _check_position(self, after: str) -> None:
        try:
            self._source.check_position(after)
        except ValueError:
            fail(f'"{after}" is no id of an entry; an id is like {self._source.position_example}')

    def _make_topic(self) -> None:
        try:
            self._client.state(self._topic)
        except TopicNotFound:
            self._client.create(self._topic)
            message(f'topic "{self._topic}" is created')

    # Copying.

    def _copy(self, ledger: Ledger, bar: Bar) -> None:
        while True:
            is_whole = True
            for entries in self._batches():
                written = ledger.write(entries, self._place) if entries else None
                if written is not None:
                    self._place = written.place
                    self._first_seq = self._first_seq or written.first_seq
                    self._last_seq = written.last_seq
                    self._records += len(entries)
                elif entries:
                    # Another import of the same source is running: this one goes on where the other one is.
                    self._place = ledger.find(None)
                    is_whole = False
                    break
                elif self._is_following:
                    # All that was there is imported.
                    bar.pause()
                    self._take_groups()
                self._progress(bar)
                if monotonic() - self._noted_s > NOTE_EVERY_S:
                    self._note(ledger)
            if is_whole:
                return

    def _batches(self) -> Iterator[list[Entry]]:
        """Batches of the source, cut to what one write may have. With `--follow` it waits for a source that is away."""
        pause_s = PAUSE_S_MIN
        while True:
            try:
                if self._place.position is not None and self._place.epoch:
                    self._source.check_same(self._place.position, self._place.meta)
                for entries in self._source.batches(self._place.position, follow=self._is_following):
                    pause_s = PAUSE_S_MIN
                    yield from _cut(entries)
                return
            except SourceAway as error:
                if not self._is_following:
                    raise
                message(f"topics: {error.message}; next try in {pause_s:g} s")
                sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _note(self, ledger: Ledger) -> None:
        self._noted_s = monotonic()
        if self._place != self._noted:
            ledger.note(self._place)
            self._noted = self._place

    def _take_groups(self) -> None:
        if not self._has_groups:
            return
        self._has_groups = False
        if self._client.state(self._topic).type == "queue":
            message(f'topic "{self._topic}" is a queue, so that groups are left out')
            return
        take_over(self._client, self._topic, self._source)

    # Telling.

    def _progress(self, bar: Bar) -> None:
        bar(self._records, self._total, f"{self._rate():,.0f} records/s")
        if not sys.stderr.isatty() and monotonic() - self._told_s > TELL_EVERY_S:
            self._told_s = monotonic()
            message(f"entry {self._place.position}: {self._sum()}")

    def _rate(self) -> float:
        return self._records / max(monotonic() - self._started_s, 0.001)

    def _sum(self) -> str:
        return f"{counted(self._records, 'record')} ({self._rate():,.0f} records/s)"

    def _ending(self) -> str:
        """What an interrupted import has done."""
        if not self._records:
            return "; nothing was imported"
        return f"; imported up to entry {self._place.position}: run it again to go on"

    def _tell(self) -> None:
        if self._session.form() is not Form.TABLE:
            members = {"topic": self._topic, "source": self._source.name, "records": self._records}
            seqs = {"first_seq": self._first_seq, "last_seq": self._last_seq}
            self._session.print_one(members | seqs | {"position": self._place.position})
        if not self._records:
            message("there is nothing new to import")
            return
        seqs_told = f"seqs {self._first_seq} to {self._last_seq}" if self._records > 1 else f"seq {self._first_seq}"
        message(f'imported to "{self._topic}": {self._sum()}, {seqs_told}, up to entry {self._place.position}')


def _cut(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Parts that are small enough for one write. Nothing to cut is one part, so that a source without news is told."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + len(entry.data) > EPOCH_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry.data)
    yield part
