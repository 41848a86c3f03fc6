"""`topics check`: the state of a server as monitoring wants it, with exit codes 0, 1, 2 and 3."""

import shutil
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from topics.cli.remote.complete import complete_topics
from topics.cli.remote.forms import Form
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import counted, parse_span_ms, show_span
from topics.client.retrying import Unreachable
from topics.errors import InvalidRequest, NotReady, TopicsError

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

TIMEOUT_S: Final = 10.0
# What a line tells when all is well.
TOLD_MAX: Final = 4


class Level(IntEnum):
    """The exit code of a check."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Finding(NamedTuple):
    level: Level
    text: str


class Bounds(NamedTuple):
    """From which value on there is a warning, and from which one it is critical; None: never."""

    warning: float | None
    critical: float | None

    def level(self, value: float) -> Level:
        if self.critical is not None and value >= self.critical:
            return Level.CRITICAL
        return Level.WARNING if self.warning is not None and value >= self.warning else Level.OK


def parse_bounds(text: str | None, parse: Callable[[str], float]) -> Bounds | None:
    """`WARN,CRIT`; each may be left out."""
    if text is None:
        return None
    first, _, second = text.partition(",")
    return Bounds(parse(first) if first else None, parse(second) if second else None)


def _number(text: str) -> float:
    if not text.isdecimal():
        raise InvalidRequest(f'"{text}" is no number: bounds are like 1000,10000')
    return int(text)


def _percent(text: str) -> float:
    return _number(text.removesuffix("%"))


def _bounds_option(flag: str, metavar: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar=metavar, help=text, show_default=False)
    return option


@app.command()
@partial(asks_server, waits=False)
def check(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only topics that begin so.", autocompletion=complete_topics)
    ] = "",
    lag: Annotated[str | None, _bounds_option("--lag", "WARN,CRIT", "Lag of a consumer group, in seqs.")] = None,
    depth: Annotated[str | None, _bounds_option("--depth", "WARN,CRIT", "Ready jobs of a queue.")] = None,
    age: Annotated[str | None, _bounds_option("--age", "WARN,CRIT", "Age of the oldest ready job, like 5m,1h.")] = None,
    disk: Annotated[
        str | None, _bounds_option("--disk", "WARN,CRIT", "Used percent of the disk of --data-dir, like 80,95.")
    ] = None,
    data_dir: Annotated[
        str, typer.Option("--data-dir", metavar="DIR", help="The data directory, where this is its machine.")
    ] = ".",
) -> None:
    """Say whether the server is well: one line, and an exit code for monitoring.

    Exit code 0: all is well. 1: warning. 2: critical, also when the server does not answer, recovers, or takes no
    writes. 3: unknown, because the check itself is wrong: a bound, or the key.

    \b
    Examples:
      topics check
      topics check --lag 1000,10000 --depth 100,1000 --age 5m,1h
      topics check jobs --age ,10m -o json
      topics check --disk 80,95 --data-dir /var/lib/topics
    """
    try:
        bounds = parse_bounds(lag, _number), parse_bounds(depth, _number), parse_bounds(age, parse_span_ms)
        disk_bounds = parse_bounds(disk, _percent)
        findings = _findings(session, prefix, *bounds)
        if disk_bounds is not None:
            findings.append(_disk(data_dir, disk_bounds))
    except (Unreachable, NotReady) as error:
        findings = [Finding(Level.CRITICAL, session.explain(error))]
    except (TopicsError, OSError) as error:
        text = session.explain(error) if isinstance(error, TopicsError) else str(error)
        findings = [Finding(Level.UNKNOWN, text)]
    level = max(finding.level for finding in findings)
    _tell(session, level, findings)
    session.output.flush()
    raise typer.Exit(level)


def _findings(
    session: Session, prefix: str, lag: Bounds | None, depth: Bounds | None, age: Bounds | None
) -> list[Finding]:
    client = session.client.with_options(timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S, retries=0)
    ready = client.ready()
    found = [Finding(Level.OK, f"ready, {counted(ready.topics, 'topic')}")]
    if "\ntopics_wal_read_only 1" in client.metrics():
        found.append(Finding(Level.CRITICAL, "the log is read-only after a failed write: check the disk, then restart"))
    for entry in client.topic_list(prefix):
        if entry.groups is not msgspec.UNSET and lag is not None:
            value = entry.groups.lag_max
            found.append(Finding(lag.level(value), f"lag {value} of {entry.topic}"))
        if entry.queue is not msgspec.UNSET and depth is not None:
            found.append(
                Finding(depth.level(entry.queue.ready), f"{counted(entry.queue.ready, 'job')} ready in {entry.topic}")
            )
        if entry.queue is not msgspec.UNSET and age is not None:
            oldest_ms = entry.queue.oldest_ready_age_ms
            text = f"oldest job of {entry.topic} waits {show_span(oldest_ms)}"
            found.append(Finding(age.level(oldest_ms or 0), text))
    return found


def _disk(data_dir: str, bounds: Bounds) -> Finding:
    usage = shutil.disk_usage(data_dir)
    percent = 100 * (usage.total - usage.free) / usage.total
    return Finding(bounds.level(percent), f"disk of {data_dir} {percent:.0f} % used")


def _tell(session: Session, level: Level, findings: list[Finding]) -> None:
    """The findings of the worst level; with all well, the first ones."""
    if session.form() is not Form.TABLE:
        rows = [{"level": one.level.name.lower(), "text": one.text} for one in findings]
        session.print_one({"status": level.name.lower(), "findings": rows})
        return
    told = [one.text for one in sorted(findings, key=lambda one: -one.level) if one.level == level]
    if level is Level.OK:
        told = [one.text for one in findings[:TOLD_MAX]]
        if len(findings) > TOLD_MAX:
            told.append(f"{len(findings) - TOLD_MAX} more without a problem")
    session.output.line(f"{level.name} - {'; '.join(told)}")
