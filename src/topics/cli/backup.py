"""`topics backup` and `topics restore`."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from topics.cli.output import Output, fail, message
from topics.cli.remote.forms import Column, Form, print_rows
from topics.cli.remote.session import ContextName
from topics.cli.remote.target import Target, find_target

if TYPE_CHECKING:
    from topics.backup.plan import RestoreOrder
    from topics.backup.source import Source
    from topics.errors import Damaged

EXIT_DAMAGE: Final = 2


class _Group(TyperGroup):
    """`topics backup DEST` is `topics backup take DEST`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["take", *args]
        return super().parse_args(ctx, args)


app: Final = typer.Typer(
    cls=_Group,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Back up a log to a folder or a bucket, while its server runs; list and check backups.

\b
Examples:
  topics backup ./backup --server http://127.0.0.1:4000
  topics backup s3://bucket/prefix --data-dir ./topics-data
  topics backup ls ./backup
  topics backup verify ./backup
  topics restore ./backup --data-dir ./restored
""",
)

Place = Annotated[str, typer.Argument(metavar="SRC", help="The backup: a folder or s3://bucket/prefix.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        Output().line_block(context.get_help())


@app.command()
def take(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A folder or s3://bucket/prefix.", show_default=False)],
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", help="The running server. Also: TOPICS_URL, or a context.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="A key of the server with scope admin and read; better TOPICS_KEY, or a context.",
            show_default=False,
        ),
    ] = None,
    context: ContextName = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="A data directory that is not open.", show_default=False),
    ] = None,
    cold: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --data-dir: its cold tier.", show_default=False),
    ] = None,
    http_only: Annotated[
        bool, typer.Option("--http-only", help="Copy everything over HTTP, also files that this machine sees.")
    ] = False,
    verify_all: Annotated[
        bool, typer.Option("--verify-all", help="Read back all files of the backup, not only the new ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a backup, or bring one up to date. `topics backup DEST` is the same.

    The second run copies only what is new. Every byte that was written is read back and checked. A run that was killed
    is run again and goes on. Exit code 2: the log or the backup is damaged.

    \b
    Examples:
      topics backup take ./backup --server http://127.0.0.1:4000
      TOPICS_KEY=secret topics backup s3://bucket/prefix --server https://topics.example.com
      topics backup ./backup --context prod
      topics backup ./backup --data-dir ./topics-data
    """
    from time import perf_counter

    from topics.backup.store import open_backup
    from topics.backup.taking import take_backup
    from topics.backup.times import time_text
    from topics.cli.progress import Bar
    from topics.clock import SystemClock
    from topics.errors import Damaged
    from topics.storage.fs import RealFs

    started = perf_counter()
    # With a directory, a server of the environment or of a context is not meant.
    target = None if data_dir is not None else _target(server, key, context)
    store = open_backup(dest, RealFs())
    with ExitStack() as stack:
        source = stack.enter_context(_closing(_source(stack, target, data_dir, cold, http_only=http_only)))
        bar = stack.enter_context(Bar("backup"))
        try:
            report = take_backup(source, store, SystemClock().now_ms(), verify_all=verify_all, progress=bar)
        except Damaged as damage:
            bar.pause()
            _fail_damaged(damage)
    for note in report.notes:
        message(f"topics: note: {note}")
    for text in report.damage:
        message(f"topics: the log is damaged, and the backup has all but these records: {text}")
    seconds = perf_counter() - started
    output = Output()
    if as_json:
        output.line(_json({**_members(report), "time": time_text(report.ts), "seconds": round(seconds, 3)}))
    else:
        output.line(
            f"backup: point {time_text(report.ts)}: {report.topics} topics, {report.records} records, "
            f"{report.size_bytes} bytes"
        )
        output.line(
            f"backup: {report.new_files} new files with {report.new_bytes} bytes copied; {report.verified_files} files "
            f"with {report.verified_bytes} bytes read back and verified; {seconds:.2f} s"
        )
    output.flush()
    if report.damage:
        raise typer.Exit(EXIT_DAMAGE)


@app.command("ls")
def list_points(
    src: Place,
    form: Annotated[Form, typer.Option("--output", "-o", help="The form of the data on stdout.")] = Form.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="As -o jsonl.")] = False,
) -> None:
    """List the points in time that a backup can restore, oldest first.

    \b
    Examples:
      topics backup ls ./backup
      topics backup ls ./backup -o json
    """
    from topics.backup.store import open_backup
    from topics.backup.times import time_text
    from topics.storage.fs import RealFs

    store = open_backup(src, RealFs())
    store.require()
    rows = [
        {
            "time": time_text(point.ts),
            "ts": point.ts,
            "topics": len(point.topics),
            "records": sum(ref.records for ref in point.topics),
            "bytes": sum(ref.size_bytes for ref in point.topics),
            "new_bytes": point.new_bytes,
        }
        for point in map(store.point, store.point_names())
    ]
    columns = [
        Column("time", "TIME"),
        Column("topics", "TOPICS"),
        Column("records", "RECORDS"),
        Column("bytes", "BYTES"),
        Column("new_bytes", "NEW BYTES"),
    ]
    output = Output()
    print_rows(output, Form.JSONL if as_json else form, columns, rows)
    output.flush()


@app.command("verify")
def check(src: Place, as_json: AsJson = False) -> None:
    """Check every byte of a backup: sizes, XXH3-64, SHA-256, and the checksum of each record.

    Exit code 0: no damage. 2: damage, each object named.

    \b
    Example:
      topics backup verify s3://bucket/prefix
    """
    from topics.backup.checking import BackupCheck
    from topics.backup.store import open_backup
    from topics.cli.progress import Bar
    from topics.storage.fs import RealFs

    output = Output()
    with Bar("verify") as bar:
        checked = BackupCheck(open_backup(src, RealFs()), bar)
        for damage in checked.run():
            bar.pause()
            output.line(_json({"kind": "damage", "message": _text(damage)}) if as_json else f"damage: {_text(damage)}")
    totals = checked.totals
    if as_json:
        output.line(_json({"kind": "summary", **_members(totals)}))
    else:
        result = f"{totals.damage} damaged objects" if totals.damage else "no damage"
        output.line(f"verify: {totals.points} points, {totals.files} files, {totals.size_bytes} bytes: {result}")
    output.flush()
    if totals.damage:
        raise typer.Exit(EXIT_DAMAGE)


def restore(
    src: Place,
    data_dir: Annotated[
        str, typer.Option("--data-dir", metavar="DIR", help="The new data directory.", show_default=False)
    ],
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only records up to this time: 2026-11-17T02:10:11Z.", show_default=False),
    ] = None,
    until_seq: Annotated[
        list[str] | None,
        typer.Option(
            "--until-seq", metavar="TOPIC=N", help="Only records of a topic up to this seq.", show_default=False
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a data directory from a backup, for a server to start on. Never over existing data.

    Seqs, times, tags, nodes, metas, floors, groups, routers and idempotency keys are as they were. Records that the
    backup knows as deleted stay deleted. A restore that was killed is run again and goes on.

    \b
    Examples:
      topics restore ./backup --data-dir ./restored
      topics restore ./backup --data-dir ./restored --until 2026-11-17T02:10:11Z
      topics restore s3://bucket/prefix --data-dir ./restored --topic orders --until-seq orders=1000
    """
    from secrets import token_hex
    from time import perf_counter

    from topics.backup.restoring import restore_backup
    from topics.backup.store import open_backup
    from topics.backup.times import time_text
    from topics.cli.progress import Bar
    from topics.errors import Damaged
    from topics.storage.fs import RealFs

    started = perf_counter()
    directory = os.path.abspath(data_dir)
    order = _order(until, until_seq or [], topic or [])
    fs = RealFs()
    with Bar("restore") as bar:
        try:
            report = restore_backup(
                open_backup(src, fs), fs, directory, order, new_store_id=lambda: token_hex(16), progress=bar
            )
        except Damaged as damage:
            bar.pause()
            _fail_damaged(damage)
    for note in report.notes:
        message(f"topics: note: {note}")
    output = Output()
    seconds = perf_counter() - started
    if as_json:
        output.line(_json({**_members(report), "time": time_text(report.ts), "seconds": round(seconds, 3)}))
    elif report.is_repeated:
        output.line(f"restore: {directory} has this restore already; nothing was changed")
    else:
        output.line(
            f"restore: {report.topics} topics, {report.records} records of point {time_text(report.ts)} "
            f"in {directory}; {seconds:.2f} s"
        )
    output.flush()


def _target(server: str | None, key: str | None, context: str | None) -> Target:
    """The server that is named by a flag, the environment or a context. The default of other commands is not taken."""
    target = find_target(server, key, context)
    if target.is_default:
        fail("say what to back up: --server URL for a running server, or --data-dir DIR for a closed directory")
    return target


def _source(
    stack: ExitStack,
    target: Target | None,
    data_dir: str | None,
    cold: str | None,
    *,
    http_only: bool,
) -> "Source":
    from tempfile import TemporaryDirectory

    from topics.backup.source import PIN_MS, DirectorySource, ServerSource
    from topics.client.sync.client import Client
    from topics.storage.fs import RealFs

    if data_dir is None:
        assert target is not None
        # The picture of a large log may come slowly. When its pin ends, it is of no use.
        client = Client(target.url, token=target.key, ca_file=target.ca_file, deadline_s=PIN_MS / 1000)
        return ServerSource(client, RealFs(), reads_files=not http_only)
    scratch = stack.enter_context(TemporaryDirectory(prefix="topics-backup-"))
    return DirectorySource(RealFs(), os.path.abspath(data_dir), scratch, cold=cold)


def _text(damage: "Damaged") -> str:
    """Without the advice for a damaged data directory."""
    return f"{damage.path}: damaged at offset {damage.offset}: expected {damage.expected}, found {damage.found}"


def _fail_damaged(damage: "Damaged") -> NoReturn:
    message(f"topics: the backup is damaged: {_text(damage)}; `topics backup verify` names all damaged objects")
    raise typer.Exit(EXIT_DAMAGE) from damage


def _closing(source: "Source") -> Any:
    from contextlib import closing

    return closing(source)


def _order(until: str | None, until_seqs: list[str], topics: list[str]) -> "RestoreOrder":
    from topics.backup.plan import RestoreOrder
    from topics.backup.times import parse_time

    seqs: dict[str, int] = {}
    for text in until_seqs:
        name, equals, seq = text.rpartition("=")
        if not equals or not seq.isascii() or not seq.isdecimal():
            fail(f"--until-seq {text}: write TOPIC=N, such as orders=1000")
        seqs[name] = int(seq)
    return RestoreOrder(until_ms=None if until is None else parse_time(until), until_seqs=seqs, topics=topics)


def _members(value: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _json(value: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
