"""How a pipeline command runs its job: the options of every job, the session, progress, summary and exit codes.

Nothing of Spark is imported before a job runs.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.output import Output, message
from topics.spark.jobs.option_schema import MAPPING, About

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.errors import TopicsError
    from topics.spark.jobs.job import Progress, Report, ReportProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command. A job also gets each of them that its own options declare."""

    master: Annotated[str | None, About("Where Spark runs; local[*] by default.", "MASTER")] = None
    remote: Annotated[str | None, About("A Spark Connect server instead, sc://host:port.", "ADDRESS")] = None
    conf: Annotated[Mapping[str, str], About("A setting of Spark; may be repeated.", "NAME=VALUE", form=MAPPING)] = (
        field(default_factory=dict)
    )
    endpoint: Annotated[str | None, About("The topics server; TOPICS_URL by default.", "URL")] = None
    token_env: Annotated[str | None, About("Variable with the key, on driver and executors.", "NAME")] = None
    token_file: Annotated[str | None, About("File with the key, on driver and executors.", "FILE")] = None
    state: Annotated[str | None, About("Where the job keeps what it needs to go on later.", "ADDRESS")] = None
    dry_run: Annotated[bool, About("Say what would be done, and do nothing.")] = False
    as_json: Annotated[bool, About("The summary as one JSON object.", flag="--json")] = False


def exit_code_of(call: Callable[[], int]) -> int:
    """Calls, and returns the exit code. An error is one line on stderr."""
    from topics.errors import TopicsError

    try:
        return call()
    except TopicsError as error:
        return _failed(error)
    except KeyboardInterrupt:
        message("topics: stopped at once; run the same command again to go on")
        return 1
    except Exception as error:
        # Errors of Spark have the stacks of two languages.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        from topics.spark.jobs.spread import task_failure

        return _failed(task_failure(error))


def _failed(error: "TopicsError") -> int:
    from topics.spark.jobs.job import exit_code_of

    message(f"topics: {error.message}")
    return exit_code_of(error)


@contextmanager
def open_session(name: str, common: CommonOptions) -> "Iterator[SparkSession]":
    from topics import spark as topics_spark

    if common.master is not None and common.remote is not None:
        raise typer.BadParameter("give --master or --remote, not both")
    spark = topics_spark.session(
        f"topics {name}",
        master=common.master or "local[*]",
        remote=common.remote,
        conf=common.conf,
    )
    try:
        yield spark
    finally:
        spark.stop()


# Output.


@contextmanager
def progress_of(name: str) -> "Iterator[ReportProgress]":
    """A bar on a terminal, else a JSON line for each wave."""
    from topics.cli.progress import Bar

    if not sys.stderr.isatty():
        yield _tell_progress
        return
    with Bar(name, unit="items") as bar:
        yield lambda progress: bar(progress.done, progress.total)


def _tell_progress(progress: "Progress") -> None:
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
