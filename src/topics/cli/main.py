"""The command `topics`.

Exit codes: 0 no error, 2 damage was found, 1 any other error. A command imports its modules when it runs, so that
`--help` and completion are fast.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from topics.cli import config, serve
from topics.cli.form import running_form
from topics.cli.output import Output, errors_as_messages, fail, message
from topics.cli.pipeline.app import app as pipeline_app
from topics.cli.setting_flags import SettingsCommand, takes_settings
from topics.version import VERSION

if TYPE_CHECKING:
    from topics.cli.progress import Bar
    from topics.storage.inspect.findings import Finding, Totals
    from topics.storage.inspect.repair_plan import RepairPlan
    from topics.storage.inspect.verify import Verifier
    from topics.storage.tiers.store import SegmentStore
    from topics.streams.verify import StreamsVerifier

EXIT_DAMAGE: Final = 2

_HELP: Final = """A durable event log: serve it, look at its files, check them, mend them.

\b
Examples:
  topics serve --data-dir ./topics-data    start the server
  topics config show                       each setting and where it comes from
  topics verify ./topics-data              check every checksum, index and floor
  topics doctor ./topics-data              say what is wrong, and what can be done
  topics doctor ./topics-data --repair     do it
  topics dump topics-data/wal/wal-0000000000000001.log | head
  topics bench append                      measure this machine
"""


class _Group(TyperGroup):
    """An error is one sentence on stderr and exit code 1. Exit code 2 means damage, not wrong usage."""

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
            fail(f"{text[:1].lower()}{text[1:]}; see `topics --help`")
        sys.exit(result if isinstance(result, int) else 0)


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

app.command(cls=SettingsCommand)(takes_settings(serve.serve))
app.add_typer(config.app, name="config")
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
        Output().line_block(context.get_help())


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

    A directory of the partitioned engine (streams) is recognised; its settings come from IGGY_… in the environment.
    Exit code 0: no damage. 2: damage, each place named by file, offset and seq. 1: it could not be checked.

    \b
    Examples:
      topics verify ./topics-data
      topics verify ./local_data
      topics verify ./topics-data --cold s3://bucket/prefix
      topics verify ./topics-data --json | jq 'select(.severity == "damage")'
    """
    from time import perf_counter

    from topics.cli.progress import Bar

    started = perf_counter()
    root = os.path.abspath(directory)
    output = Output()
    with Bar("verify") as bar:
        verifier = _streams_verifier(root, bar) if _holds_streams(root) else _verifier(root, cold, bar)
        for finding in verifier.run():
            bar.pause()
            output.line(_json_line("finding", finding) if as_json else finding.line())
    seconds = perf_counter() - started
    output.line(_json_line("summary", verifier.totals) if as_json else _summary("verify", verifier.totals, seconds))
    output.flush()
    if verifier.totals.damage:
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
    that is lost, and writes that down in repair-NNNN.json. Exit code 2 while damage is left.

    \b
    Examples:
      topics doctor ./topics-data
      topics doctor ./topics-data --repair
      topics doctor ./topics-data --repair --accept-loss --yes
    """
    from time import perf_counter

    from topics.cli.progress import Bar
    from topics.storage.fs import RealFs
    from topics.storage.inspect.doctor import Doctor
    from topics.storage.inspect.repair import repair

    started = perf_counter()
    root = os.path.abspath(directory)
    output = Output()
    fs = RealFs()
    store = _open_cold(cold)
    with Bar("doctor") as bar:
        visit = Doctor(fs, root, cold=store, host=fs, progress=bar)
        for finding in visit.diagnose():
            bar.pause()
            _print_with_advice(output, finding)
    output.line(_summary("doctor", visit.verifier.totals, perf_counter() - started))
    output.line(f"topics {VERSION} ({running_form()})")
    plan = visit.plan(accept_loss=accept_loss)
    _print_plan(output, plan, is_repair=is_repair)
    output.flush()
    if not is_repair or not plan.steps:
        raise typer.Exit(EXIT_DAMAGE if visit.verifier.totals.damage else 0)
    if not is_confirmed and sys.stdin.isatty() and not typer.confirm("Do this now?", err=True):
        raise typer.Abort
    repair(fs, root, cold=store, accept_loss=accept_loss, say=lambda text: output.line(f"repair: {text}"))
    raise typer.Exit(_check_again(output, root, store))


@app.command()
def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A WAL, segment, index, tags or snapshot file.")],
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after N lines.")] = None,
    no_data: Annotated[bool, typer.Option("--no-data", help="Leave the payloads out.")] = False,
) -> None:
    """Print the frames of one file as JSON lines. Bad bytes are lines too, and what follows them is looked for.

    \b
    Examples:
      topics dump topics-data/wal/wal-0000000000000001.log
      topics dump topics-data/topics/00000001/seg-0000000000000001.data --limit 10 --no-data
      topics dump topics-data/meta/snapshot.0001.bin | jq .
    """
    from itertools import islice

    import msgspec

    from topics.storage.fs import RealFs
    from topics.storage.inspect.dump import dump as dump_file

    encode = msgspec.json.Encoder().encode
    output = Output()
    for row in islice(dump_file(RealFs(), os.path.realpath(file), with_data=not no_data), limit):
        output.line(encode(row).decode("utf-8", "backslashreplace"))
        if output.is_closed:
            break
    output.flush()


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks or groups of them; all by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Long loads in their full length.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Save the report.")] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="FILE", help="Show a saved report beside this run.")
    ] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="FILE", help="Measure nothing, show a saved report.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    python_path: Annotated[
        str | None, typer.Option("--python-path", metavar="DIR", help="Measure the package `topics` in this folder.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option("--beside", metavar="DIR", help="Measure the package in this folder, too, in turns, and compare."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Repeat each benchmark; medians count.")] = 1,
    list_names: Annotated[bool, typer.Option("--list", help="List the names.")] = False,
) -> None:
    """Measure speed and size on this machine.

    \b
    Examples:
      topics bench
      topics bench serve live.call --json before.json
      topics bench serve live.call --compare before.json
      topics bench serve.append-1 --beside ../before/src --rounds 3
    """
    from importlib import import_module

    try:
        main = import_module("topics.bench.main")
    except ModuleNotFoundError as error:
        fail(f"the benchmarks are not part of this installation ({error.name} is missing)")
    options = main.Options(
        is_full=full,
        json=json,
        compare=compare,
        show=show,
        is_markdown=markdown,
        python_path=python_path,
        beside=beside,
        rounds=rounds,
    )
    raise typer.Exit(main.print_names() if list_names else main.run_benchmarks(names or [], options))


def _open_cold(address: str | None) -> "SegmentStore | None":
    if address is None:
        return None
    from topics.storage.fs import RealFs
    from topics.storage.tiers.addresses import open_store

    return open_store(address, RealFs())


def _json_line(kind: str, value: "Finding | Totals") -> str:
    import msgspec

    return msgspec.json.encode({"kind": kind, **msgspec.to_builtins(value)}).decode()


def _holds_streams(root: str) -> bool:
    return any(os.path.exists(os.path.join(root, *path)) for path in (("state.messages",), ("state", "log")))


def _verifier(root: str, cold: str | None, bar: "Bar") -> "Verifier":
    from topics.storage.fs import RealFs
    from topics.storage.inspect.verify import Verifier

    return Verifier(RealFs(), root, cold=_open_cold(cold), progress=bar)


def _streams_verifier(root: str, bar: "Bar") -> "StreamsVerifier":
    from topics.storage.fs import RealFs
    from topics.streams.settings import environment_mapping, from_mapping
    from topics.streams.verify import StreamsVerifier

    settings = from_mapping(environment_mapping(os.environ))
    return StreamsVerifier(RealFs(), root, settings=settings, cipher=settings.system.encryption.cipher(), progress=bar)


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


def _print_plan(output: Output, plan: "RepairPlan", *, is_repair: bool) -> None:
    for refusal in plan.refusals:
        output.line(f"not repaired: {refusal}")
    if not plan.steps:
        if is_repair:
            message("topics: there is nothing to repair")
        return
    if not is_repair:
        output.line("`--repair` would do this:")
        for line in [*plan.lost_lines, *(step.text for step in plan.steps)]:
            output.line(f"- {line}")


def _check_again(output: Output, root: str, cold: "SegmentStore | None") -> int:
    """The exit code after a repair: 2 when damage is left."""
    from topics.storage.fs import RealFs
    from topics.storage.inspect.verify import Verifier

    verifier = Verifier(RealFs(), root, cold=cold)
    for finding in verifier.run():
        if finding.severity == "damage":
            _print_with_advice(output, finding)
    left = f"{verifier.totals.damage} damaged places are left" if verifier.totals.damage else "no damage is left"
    output.line(f"repair: done, {left}")
    output.flush()
    return EXIT_DAMAGE if verifier.totals.damage else 0
