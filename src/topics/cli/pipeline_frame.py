"""What all commands of `topics pipeline` share: the common options, the session, progress, summary and exit codes.

A job's command is a function from its own options to a `Config`; `job_command` adds the common ones, makes the session,
runs the job and reports. Nothing of Spark is imported before a job runs.

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict, 1 anything else that went wrong.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from topics.cli.output import Output, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.errors import TopicsError
    from topics.spark.jobs.job import Progress, Report, ReportProgress

app: Final = typer.Typer(
    rich_markup_mode=None,
    help="""Jobs on Spark: copy, check, archive and restore topics, many segments at a time.

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict with somebody else, 1 anything else. Ctrl-C lets the running
wave end, and the same command goes on from there; a second one stops at once.

\b
Examples:
  topics pipeline doctor --endpoint http://127.0.0.1:4000
  topics pipeline import orders.parquet --topic orders
  topics pipeline replay orders --to orders-again --speed 10x
""",
)


class Common(NamedTuple):
    """The options of every job."""

    master: str | None
    remote: str | None
    conf: list[str] | None
    endpoint: str | None
    token_env: str | None
    token_file: str | None
    state: str | None
    dry_run: bool
    as_json: bool

    def server(self) -> dict[str, Any]:
        """The fields of a `Connection`."""
        return {"endpoint": self.endpoint, "token_env": self.token_env, "token_file": self.token_file}


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this one; may be repeated.", show_default=False),
]

_OPTIONS: Final[dict[str, Any]] = {
    "master": Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Where Spark runs; local[*] by default.", show_default=False),
    ],
    "remote": Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Spark Connect server instead, sc://host:port.", show_default=False),
    ],
    "conf": Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.", show_default=False),
    ],
    "endpoint": Annotated[
        str | None,
        typer.Option(metavar="URL", help="The topics server; TOPICS_URL by default.", show_default=False),
    ],
    "token_env": Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Variable with the key, on driver and executors.", show_default=False),
    ],
    "token_file": Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the key, on driver and executors.", show_default=False),
    ],
    "state": Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where the job keeps what it needs to go on later.", show_default=False),
    ],
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")],
    "as_json": Annotated[bool, typer.Option("--json", help="The summary as one JSON object.")],
}
_DEFAULTS: Final[dict[str, Any]] = {"dry_run": False, "as_json": False}

assert tuple(_OPTIONS) == Common._fields


def pipeline_command(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Makes a command of a function that takes `Common` and its own options, and returns the exit code."""

    def add(function: Callable[..., int]) -> Callable[..., int]:
        def command(**given: Any) -> None:
            common = Common(**{field: given.pop(field) for field in Common._fields})
            raise typer.Exit(_reported(lambda: function(common, **given)))

        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            inspect.Parameter(
                field, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(field), annotation=annotation
            )
            for field, annotation in _OPTIONS.items()
        ]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *shared]
        )
        command.__doc__ = function.__doc__
        app.command(name)(command)
        return function

    return add


def job_command(
    name: str, module: str, *, lines: "Callable[[Report], Sequence[str]] | None" = None
) -> Callable[[Callable[..., Any]], Callable[..., int]]:
    """Makes a command of a function that takes `Common` and the job's own options, and returns its `Config`.

    `lines` says what is printed of a report, where the usual summary will not do.
    """

    def add(configure: Callable[..., Any]) -> Callable[..., int]:
        @functools.wraps(configure)
        def run_job(common: Common, **given: Any) -> int:
            from topics.spark.session import require_packages

            # Before the job's module, which may import them; and a wrong option is told before Spark starts.
            require_packages()
            config = configure(common, **given)
            for field in ("dry_run", "state"):
                # What is not asked for must not be done, and what is kept must be kept somewhere.
                if getattr(common, field) and not hasattr(config, field):
                    raise typer.BadParameter(f"`{name}` has no --{field.replace('_', '-')}")
            with open_session(name, common) as spark, _progress(name) as report:
                result = import_module(module).run(spark, config, report=report)
            print_report(result, as_json=common.as_json, lines=() if lines is None else lines(result))
            return int(result.exit_code)

        return pipeline_command(name)(run_job)

    return add


def _reported(call: Callable[[], int]) -> int:
    """The exit code; an error is one line on stderr."""
    from topics.errors import TopicsError

    try:
        return call()
    except TopicsError as error:
        return _failed(error)
    except KeyboardInterrupt:
        message("topics: stopped at once; run the same command again to go on")
        return 1
    except Exception as error:
        # Spark's own errors, which come with the stacks of two languages.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        from topics.spark.jobs.spread import task_failure

        return _failed(task_failure(error))


def _failed(error: "TopicsError") -> int:
    from topics.spark.jobs.job import exit_code_of

    message(f"topics: {error.message}")
    return exit_code_of(error)


@contextmanager
def open_session(name: str, common: Common) -> "Iterator[SparkSession]":
    from topics import spark as topics_spark

    if common.master is not None and common.remote is not None:
        raise typer.BadParameter("give --master or --remote, not both")
    spark = topics_spark.session(
        f"topics {name}",
        master=common.master or "local[*]",
        remote=common.remote,
        conf=dict(name_and_value("--conf", pair) for pair in common.conf or ()),
    )
    try:
        yield spark
    finally:
        spark.stop()


# Values.


def name_and_value(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{flag} takes NAME=VALUE, not {text!r}")
    return name, value


def size_bytes(flag: str, text: str) -> int:
    """`64m`, `512k`, or a number of bytes."""
    from topics.spark.option_values import size_bytes as parse

    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{flag} {error}") from error


def duration_ms(flag: str, text: str) -> int:
    """`30s`, `12h`, `7d`, or a number of milliseconds."""
    units = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    match = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)?", text)
    if match is None:
        raise typer.BadParameter(f"{flag} must be a number with or without a unit, such as 12h or 7d")
    return int(match[1]) * units[match[2] or ""]


def json_object(flag: str, text: str | None) -> dict[str, Any]:
    import msgspec

    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{flag} must be a JSON object") from error


def time_ms(flag: str, text: str) -> int:
    """Milliseconds, or ISO 8601 with a time zone."""
    from datetime import datetime

    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{flag} must be milliseconds or ISO 8601, such as 2026-01-31T08:00:00Z") from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{flag} must have a time zone, such as {text}Z")
    return round(moment.timestamp() * 1000)


# What is told.


@contextmanager
def _progress(name: str) -> "Iterator[ReportProgress]":
    """A bar on a terminal, else a JSON line for each wave."""
    from topics.cli.progress import Bar

    if not sys.stderr.isatty():
        yield _progress_line
        return
    with Bar(name, unit="items") as bar:
        yield lambda progress: bar(progress.done, progress.total)


def _progress_line(progress: "Progress") -> None:
    import msgspec

    message(msgspec.json.encode(progress.members()).decode())


def print_report(report: "Report", *, as_json: bool, lines: Sequence[str] = ()) -> None:
    """On stdout: JSON, or these lines, or a summary."""
    output = Output()
    if as_json:
        import msgspec

        output.line(msgspec.json.encode(report.members()).decode())
    else:
        output.line_block("\n".join(lines or _lines(report)))
    output.flush()


def _lines(report: "Report") -> Iterator[str]:
    import msgspec

    for finding in report.findings:
        yield msgspec.json.encode(finding).decode()
    for key, value in report.detail.items():
        yield f"  {key}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
    skipped = f", {report.items_skipped} skipped" if report.items_skipped else ""
    findings = f", {len(report.findings)} findings" if report.findings else ""
    yield (
        f"{report.job}: {report.items_done} done{skipped}{findings}: "
        f"{report.records} records, {report.bytes} bytes in {report.seconds:.1f} s"
    )


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        Output().line_block(context.get_help())
