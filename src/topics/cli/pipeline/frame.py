"""How a pipeline command runs its job: the options of every job, the session, progress, summary and exit codes.

Nothing of Spark is imported before a job runs.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli.output import Output, message
from topics.spark.jobs.option_schema import MAPPING, About

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.errors import TopicsError
    from topics.spark.jobs.job import Progress, Report, ReportProgress

STOPPED_AT_ONCE: Final = "topics: stopped at once; run the same command again to go on"


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
    report_to: Annotated[str | None, About("Also append the summary to this topic of the server.", "TOPIC")] = None
    debug: Annotated[bool, About("Show what Spark logs, and whole tracebacks.")] = False


def exit_code_of(call: Callable[[], int], *, debug: bool = False) -> int:
    """Calls, and returns the exit code. An error is one line on stderr; with `debug` it is raised."""
    from topics.errors import TopicsError

    try:
        return call()
    except TopicsError as error:
        if debug:
            raise
        return _failed(error)
    except KeyboardInterrupt:
        # Another Ctrl-C must not interrupt the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        message(STOPPED_AT_ONCE)
        return 1
    except Exception as error:
        if debug:
            raise
        # Errors of Spark have the stacks of two languages.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        from topics.spark.jobs.spread import task_failure

        return _failed(task_failure(error))


def _failed(error: "TopicsError") -> int:
    from topics.spark.jobs.job import exit_code_of

    message(f"topics: {error.message}")
    return exit_code_of(error)


def check_session(common: CommonOptions) -> None:
    """Raises what is known before the start: options that contradict each other, no Java."""
    from topics.spark.session import require_java

    if common.master is not None and common.remote is not None:
        raise typer.BadParameter("give --master or --remote, not both")
    if common.remote is None:
        require_java()


@contextmanager
def open_session(name: str, common: CommonOptions) -> "Iterator[SparkSession]":
    from topics import spark as topics_spark

    check_session(common)
    with nullcontext() if common.debug or common.remote else _jvm_silenced():
        spark = topics_spark.session(
            f"topics {name}",
            master=common.master or "local[*]",
            remote=common.remote,
            conf=common.conf,
        )
    if not common.debug:
        _silence_stacks()
    try:
        yield spark
    finally:
        _stop(spark)


def _silence_stacks() -> None:
    """Spark and the library that talks to Java log errors and interrupts with their stacks, before they raise them."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addFilter(_is_no_interrupt)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _stop(spark: "SparkSession") -> None:
    """Ends the session. A Ctrl-C meanwhile ends this process at once, and the JVM ends with it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end_at_once)
    # After an interrupt the connection may be in the middle of an answer. Why the job ended is told elsewhere.
    with suppress(Exception):
        spark.stop()


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    message(STOPPED_AT_ONCE)
    os._exit(1)


@contextmanager
def _jvm_silenced() -> Iterator[None]:
    """The JVM that is started meanwhile writes what it logs to a file, which is shown only when the start fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(kept, log.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(
        ("KeyboardInterrupt while sending command", "Exception while sending command")
    )


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

        members = report.members()
        if "rows" in members["detail"]:
            # The rows of a query are JSON already.
            members["detail"]["rows"] = [msgspec.Raw(row.encode()) for row in report.detail["rows"]]
        output.line(msgspec.json.encode(members).decode())
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
