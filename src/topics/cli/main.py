"""The command `topics`.

Exit codes: 0 no error, 2 damage was found, 1 any other error, 130 after Ctrl+C; `topics check` has its own. A command
imports its modules when it runs, so that `--help` and completion are fast.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.form import running_form
from topics.cli.late import Late, LateGroup
from topics.cli.output import Output, errors_as_messages, fail, message
from topics.cli.pipeline.app import app as pipeline_app
from topics.version import VERSION

if TYPE_CHECKING:
    from topics.cli.directory_parts import StreamsPart, TopicsPart
    from topics.storage.inspect.findings import Finding, Totals
    from topics.storage.inspect.repair_plan import RepairPlan
    from topics.storage.tiers.store import SegmentStore

EXIT_DAMAGE: Final = 2

# What `topics` alone prints.
_EXAMPLES: Final = """A durable event log. To begin:

  topics serve                               start a server on this machine
  echo '{"id": 1}' | topics write orders     write a record to the topic orders
  topics tail orders                         print its records, and new ones as they come
  topics topic ls                            list the topics of the server
  topics work jobs -- ./resize.sh            run a program for each job of the queue jobs

`topics --help` lists all commands, `topics COMMAND --help` explains one.
"""

_HELP: Final = """A durable event log: serve it, use it, look at its files, check them, mend them.

\b
Examples:
  topics serve --data-dir ./topics-data    start the server
  topics demo                              look at a sample shop in the console
  topics demo --spark                      watch the pipeline on Spark
  topics write orders orders.jsonl         write the lines of a file
  topics tail orders --since 10m           print records, and new ones as they come
  topics topic ls                          list the topics of the server
  topics work jobs -- ./resize.sh          run a program for each job of a queue
  topics verify ./topics-data              check every checksum, index and floor
  topics doctor ./topics-data --repair     say what is wrong, and do what can be done
  topics backup ./backup                   copy the log of the server, only what is new
  topics bench append                      measure this machine

Exit codes: 0 no error, 2 damage was found, 1 any other error, 130 after Ctrl+C. `topics check` has its own.
"""

LATE: Final = {
    "serve": Late("topics.cli.serve_command", "Start the server."),
    "demo": Late("topics.cli.demo", "A sample shop to look at, or the pipeline on Spark."),
    "config": Late("topics.cli.config", "Settings: each value and where it comes from."),
    "topic": Late("topics.cli.remote.topic_commands", "Topics: list, show, create, change, remove."),
    "write": Late("topics.cli.remote.write", "Write records: lines, JSON lines or CSV, from stdin or files."),
    "import": Late("topics.cli.remote.import_command", "Import a stream of another system, each entry once."),
    "read": Late("topics.cli.remote.read", "Print the records of a topic."),
    "tail": Late("topics.cli.remote.tail", "Print the last records of a topic, and new ones as they come."),
    "queue": Late("topics.cli.remote.queue_commands", "Queues: look at jobs, claim and settle them, redrive."),
    "work": Late("topics.cli.remote.work", "Run a program for each job of a queue."),
    "router": Late("topics.cli.remote.router_commands", "Routers: copies from one topic to another."),
    "group": Late("topics.cli.remote.group_commands", "Consumer groups: cursors of a topic, and their lag."),
    "stream": Late("topics.cli.remote.stream_commands", "Streams: look at topics, partitions and messages."),
    "backup": Late("topics.cli.backup", "Back up a log to a folder or a bucket; list and check backups."),
    "restore": Late("topics.cli.restore_command", "Restore a backup into a new data directory."),
    "generate": Late("topics.cli.generate.app", "Files to run and watch a server: systemd, Docker, Grafana, alerts."),
    "check": Late("topics.cli.remote.check", "Is the server well? One line, and an exit code for monitoring."),
    "top": Late("topics.cli.remote.top", "Watch rates, depths and lags."),
    "errors": Late("topics.cli.remote.errors", "What the error codes mean."),
    "context": Late("topics.cli.remote.context_commands", "Names for servers and their keys."),
    "bench": Late("topics.cli.bench", "Measure speed and size of this machine, or of a server."),
}


class _Group(LateGroup):
    """An error is one sentence on stderr and exit code 1. Exit code 2 means damage, not wrong usage."""

    late = LATE

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        call = partial(super().main, args, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        if not standalone_mode:
            return call(standalone_mode=False)
        try:
            with errors_as_messages():
                result = call(standalone_mode=False)
        except typer.Abort:
            fail("stopped; nothing more was done")
        except Exception as error:
            # Errors of click. Typer may bring its own copy of click, so that the class is not known.
            describe = getattr(error, "format_message", None)
            if describe is None:
                raise
            text = str(describe()).rstrip(".") or "give a command"
            fail(f"{text[:1].lower()}{text[1:]}; see `{_path_of(getattr(error, 'ctx', None))} --help`")
        sys.exit(result if isinstance(result, int) else 0)


def _path_of(context: Any) -> str:
    """The names of the command that a context of click is for. The root goes by the name of the program file."""
    if context is None or context.parent is None:
        return "topics"
    return f"{_path_of(context.parent)} {context.info_name}"


app: Final = typer.Typer(
    cls=_Group,
    help=_HELP,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data directory.", show_default=False)]
Cold = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Its cold tier: a path or s3://bucket/prefix.", show_default=False),
]

app.add_typer(pipeline_app, name="pipeline")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    is_version_asked: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if is_version_asked:
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        Output().line_block(_EXAMPLES)


@app.command()
def version() -> None:
    """Print the version, and whether the hot modules are compiled.

    \b
    Example:
      topics version
    """
    Output().line(f"topics {VERSION} ({running_form()})")


@app.command()
def verify(
    directory: Directory,
    cold: Cold = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding, then the summary.")] = False,
) -> None:
    """Check every checksum, index, number and floor of a data directory. Nothing is changed.

    A directory of streams is recognised, and so are streams in a directory of topics. Their settings come from IGGY_…
    in the environment. A server may have the directory open: what seems bad is then looked at several times.
    Exit code 0: no damage. 2: damage, each place named by file, offset and seq. 1: it could not be checked.

    \b
    Examples:
      topics verify ./topics-data
      topics verify ./local_data
      topics verify ./topics-data --cold s3://bucket/prefix
      topics verify ./topics-data --json | jq 'select(.severity == "damage")'
    """
    from time import perf_counter

    from topics.cli.directory_parts import named, parts_of
    from topics.cli.progress import Bar

    started = perf_counter()
    output = Output()
    all_totals = []
    with Bar("verify") as bar:
        for part in parts_of(os.path.abspath(directory), _open_cold(cold)):
            verifier = part.verifier(bar)
            all_totals.append(verifier.totals)
            for finding in named(verifier.run(), part.prefix):
                bar.pause()
                output.line(_json_line("finding", finding) if as_json else finding.line())
    seconds = perf_counter() - started
    totals = reduce(add, all_totals)
    output.line(_json_line("summary", totals) if as_json else _summary("verify", totals, seconds))
    output.flush()
    if totals.damage:
        raise typer.Exit(EXIT_DAMAGE)


@app.command()
def doctor(
    directory: Directory,
    is_repair: Annotated[
        bool, typer.Option("--repair", help="Do what can be done. The server must be stopped.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without segment files that are missing everywhere.")
    ] = False,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cold: Cold = None,
) -> None:
    """Say what is wrong with a data directory and what can be done about it; with --repair, do it.

    Without --repair nothing is changed. A repair keeps a copy of whatever it cuts (`.broken`), names every record
    that is lost, and writes that down in repair-NNNN.json. Streams are repaired as a start would repair them. While a
    server has the directory open, nothing is repaired. Exit code 2 while damage is left.

    \b
    Examples:
      topics doctor ./topics-data
      topics doctor ./topics-data --repair
      topics doctor ./topics-data --repair --accept-loss --yes
    """
    from time import perf_counter

    from topics.cli.directory_parts import named, parts_of
    from topics.cli.progress import Bar

    started = perf_counter()
    output = Output()
    parts = parts_of(os.path.abspath(directory), _open_cold(cold))
    visits = []
    with Bar("doctor") as bar:
        for part in parts:
            visit = part.doctor(bar)
            visits.append(visit)
            for finding in named(visit.diagnose(), part.prefix):
                bar.pause()
                _print_with_advice(output, finding)
    totals = reduce(add, (visit.verifier.totals for visit in visits))
    output.line(_summary("doctor", totals, perf_counter() - started))
    output.line(f"topics {VERSION} ({running_form()})")
    if totals.in_use:
        output.flush()
        if is_repair:
            fail(f"{os.path.abspath(directory)} is in use; stop the server first")
        if totals.damage:
            message("topics: stop the server, and `topics doctor` says what a repair would do")
        raise typer.Exit(EXIT_DAMAGE if totals.damage else 0)
    plans = [visit.plan(accept_loss=accept_loss) for visit in visits]
    _print_plans(output, parts, plans, is_repair=is_repair)
    output.flush()
    if not is_repair or not any(plan.steps for plan in plans):
        raise typer.Exit(EXIT_DAMAGE if totals.damage else 0)
    if not is_confirmed and sys.stdin.isatty() and not typer.confirm("Do this now?", err=True):
        raise typer.Abort
    for part, plan in zip(parts, plans, strict=True):
        if plan.steps:
            part.repair(partial(_say_repair, output, part), accept_loss=accept_loss)
    raise typer.Exit(_check_again(output, parts))


@app.command()
def dump(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A WAL, segment, index, tags or snapshot file, or one of streams.")
    ],
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after N lines.")] = None,
    no_data: Annotated[bool, typer.Option("--no-data", help="Leave the payloads out.")] = False,
) -> None:
    """Print the frames of one file as JSON lines. Bad bytes are lines too, and what follows them is looked for.

    \b
    Examples:
      topics dump topics-data/wal/wal-0000000000000001.log
      topics dump topics-data/topics/00000001/seg-0000000000000001.data --limit 10 --no-data
      topics dump topics-data/meta/snapshot.0001.bin | jq .
      topics dump topics-data/streams/state.messages
    """
    from itertools import islice

    import msgspec

    from topics.cli.directory_parts import dump_rows

    encode = msgspec.json.Encoder().encode
    output = Output()
    for row in islice(dump_rows(os.path.realpath(file), with_data=not no_data), limit):
        output.line(encode(row).decode("utf-8", "backslashreplace"))
        if output.is_closed:
            break
    output.flush()


def _open_cold(address: str | None) -> "SegmentStore | None":
    if address is None:
        return None
    from topics.storage.fs import RealFs
    from topics.storage.tiers.addresses import open_store

    return open_store(address, RealFs())


def _json_line(kind: str, value: "Finding | Totals") -> str:
    import msgspec

    return msgspec.json.encode({"kind": kind, **msgspec.to_builtins(value)}).decode()


def _summary(command: str, totals: "Totals", seconds: float) -> str:
    counts = (
        f"{totals.files} files, {totals.frames} frames, {totals.records} records, {totals.bytes_read} bytes "
        f"in {seconds:.2f} s"
    )
    rest = f"{totals.warnings} warnings, {totals.notes} notes"
    return f"{command}: {counts}: {f'{totals.damage} damaged places' if totals.damage else 'no damage'}, {rest}"


def _print_with_advice(output: Output, finding: "Finding") -> None:
    output.line(finding.line())
    if finding.advice:
        output.line(f"  {finding.advice}")


def _print_plans(
    output: Output, parts: "list[TopicsPart | StreamsPart]", plans: "list[RepairPlan]", *, is_repair: bool
) -> None:
    lines: list[str] = []
    for part, plan in zip(parts, plans, strict=True):
        for refusal in plan.refusals:
            output.line(f"not repaired: {part.said(refusal)}")
        lines += [part.said(line) for line in (*plan.lost_lines, *(step.text for step in plan.steps))]
    if not lines:
        if is_repair:
            message("topics: there is nothing to repair")
        return
    if not is_repair:
        output.line("`--repair` would do this:")
        for line in lines:
            output.line(f"- {line}")


def _say_repair(output: Output, part: "TopicsPart | StreamsPart", text: str) -> None:
    output.line(f"repair: {part.said(text)}")


def _check_again(output: Output, parts: "list[TopicsPart | StreamsPart]") -> int:
    """The exit code after a repair: 2 when damage is left."""
    from topics.cli.directory_parts import named

    damage = 0
    for part in parts:
        verifier = part.verifier()
        for finding in named(verifier.run(), part.prefix):
            if finding.severity == "damage":
                _print_with_advice(output, finding)
        damage += verifier.totals.damage
    output.line(f"repair: done, {f'{damage} damaged places are left' if damage else 'no damage is left'}")
    output.flush()
    return EXIT_DAMAGE if damage else 0
