"""Runs benchmarks by name and prints their rows: measured values, targets, and whether each target is met."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from topics.bench import actors, embedded, http, live, report, routers, stalls, steady, streams_wire
from topics.bench.any_server import SERVER_BENCHMARKS, ServerLoad, ask_server, measure_server
from topics.bench.processes import ProcessFailed
from topics.bench.report import Report, Row
from topics.bench.setting import Setting

Benchmark = Callable[[Setting], list[Row]]


def _streams(setting: Setting) -> list[Row]:
    try:
        from topics.bench import streams
    except ModuleNotFoundError as error:
        return [report.not_measured("streams", f"{error.name} is not installed")]
    return streams.measure(setting)


def _spark(name: str, setting: Setting) -> list[Row]:
    try:
        from topics.bench import spark, spark_kafka
    except ModuleNotFoundError as error:
        return [report.not_measured(f"spark: {name}", f"{error.name} is not installed")]
    measure: Benchmark = spark_kafka.reads if name == "kafka" else getattr(spark, name)
    return measure(setting)


# By name. The part before the point is the name of the group.
BENCHMARKS: dict[str, Benchmark] = {
    "append": embedded.append_batches,
    "read": embedded.read_pages,
    "fsync": embedded.fsync_writers,
    "open": embedded.reopen,
    "serve.append-1": http.append_one,
    "serve.append-100": http.append_hundred,
    "serve.append-fsync": http.append_fsync,
    "serve.lone-append": http.lone_append,
    "serve.caught-up-diff": http.caught_up_diff,
    "serve.diff-1000": http.diff_thousand,
    "serve.memory": http.idle_memory,
    "live.sse-1": partial(live.sse, watchers=1),
    "live.sse-10": partial(live.sse, watchers=10),
    "live.sse-100": partial(live.sse, watchers=100),
    "live.sse-1000": partial(live.sse, watchers=1000),
    "live.call": live.call,
    "live.call-full-speed": live.call_at_full_speed,
    "live.actors": actors.actors,
    "live.many-topics": actors.many_topics,
    "live.jobs": live.jobs,
    "live.routed-writes": live.routed_writes,
    "steady.deletes": steady.steady_deletes,
    "steady.appends": steady.steady_appends,
    "sustained": steady.sustained,
    "routers": routers.measure,
    "stalls": stalls.measure,
    "idle": live.idle_topics,
    "streams.engine": _streams,
    "streams.wire": streams_wire.measure,
    "spark.decode": partial(_spark, "decode"),
    "spark.aggregate": partial(_spark, "aggregates"),
    "spark.jobs": partial(_spark, "jobs"),
    "spark.kafka": partial(_spark, "kafka"),
}


class UnknownBenchmark(Exception):
    """The message has the name, and the names that there are."""


@dataclass(frozen=True, slots=True)
class Options:
    """As on the command line. `form` and `form_beside` say whether the measured packages are compiled. `scale` is below
    1 in tests."""

    is_full: bool = False
    json: str | None = None
    compare: str | None = None
    show: str | None = None
    is_markdown: bool = False
    python_path: str | None = None
    beside: str | None = None
    kafka_jars: str | None = None
    rounds: int = 1
    form: str = ""
    form_beside: str = ""
    scale: float = 1.0


def print_names(*, is_server: bool = False) -> int:
    print(*(SERVER_BENCHMARKS if is_server else BENCHMARKS), sep="\n")
    return 0


def chosen_names(names: Sequence[str], known: Iterable[str] | None = None) -> list[str]:
    """Benchmarks by their names or the names of their groups, in the order of the table. Raises `UnknownBenchmark`."""
    known = list(BENCHMARKS if known is None else known)
    for name in names:
        if not any(_is_in(benchmark, name) for benchmark in known):
            groups = ", ".join(dict.fromkeys(benchmark.partition(".")[0] for benchmark in known))
            raise UnknownBenchmark(f"no benchmark is called '{name}': choose among {groups}, or see --list")
    return [benchmark for benchmark in known if not names or any(_is_in(benchmark, name) for name in names)]


def _is_in(benchmark: str, name: str) -> bool:
    return benchmark == name or benchmark.startswith(f"{name}.")


def run_benchmarks(names: Sequence[str], options: Options | None = None) -> int:
    """Prints the tables on stdout; the exit status.

    A missed target is marked in the table. It is not an error, because machines differ. A benchmark that failed is an
    error, and the others run all the same.
    """
    options = options or Options()
    try:
        benchmarks = chosen_names(names)
        earlier = report.load(options.compare) if options.compare is not None else None
        shown = report.load(options.show) if options.show is not None else None
    except (UnknownBenchmark, report.UnreadableReport) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    if shown is not None:
        _print_report(shown, options)
        measured, other = shown, None
    else:
        measured, other = _measure_all(benchmarks, options)
    return _conclude(measured, [earlier, other], options)


def run_server(names: Sequence[str], options: Options, **load: Any) -> int:
    """Measures a running server: see `ServerLoad` for `load`. Raises `TopicsError` if it cannot be asked."""
    try:
        benchmarks = chosen_names(names, SERVER_BENCHMARKS)
        earlier = report.load(options.compare) if options.compare is not None else None
    except (UnknownBenchmark, report.UnreadableReport) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    wanted = ServerLoad(**load)
    measured = ask_server(wanted)
    if not options.is_markdown:
        _print_report(measured, options)
    rows: list[Row] = []
    with closing(measure_server(benchmarks, wanted, options.rounds)) as found:
        for row in found:
            rows.append(row)
            if not options.is_markdown:
                print(report.line(row), flush=True)
    measured = replace(measured, rows=tuple(rows))
    if options.is_markdown:
        _print_report(measured, options)
    return _conclude(measured, [earlier], options)


def _conclude(measured: Report, earlier: Iterable[Report | None], options: Options) -> int:
    """Compares and saves the report; the exit status."""
    for before in earlier:
        if before is not None:
            compared = report.comparison_markdown if options.is_markdown else report.comparison
            print(f"\n{compared(before, measured)}", end="", flush=True)
    if options.json is not None:
        measured.save(options.json)
    return 1 if any(row.is_failed for row in measured.rows) else 0


def _print_report(shown: Report, options: Options) -> None:
    if options.is_markdown:
        print(f"{shown.heading}\n\n{report.markdown(shown)}", end="", flush=True)
        return
    print(f"# {shown.heading}\n{report.head_line()}", flush=True)
    for row in shown.rows:
        print(report.line(row))


def _measure_all(benchmarks: Sequence[str], options: Options) -> tuple[Report, Report | None]:
    """The report, and the one of the package beside it if there is one. Rows of text are printed as they come."""
    if not options.is_markdown:
        print(f"# {report.make_report([], options.form).heading}\n{report.head_line()}", flush=True)
    rows: list[Row] = []
    rows_beside: list[Row] = []
    for name in benchmarks:
        here: list[list[Row]] = []
        there: list[list[Row]] = []
        for _ in range(options.rounds):
            here.append(_measure(name, options, options.python_path))
            if options.beside is not None:
                there.append(_measure(name, options, options.beside))
        found = report.medians(here)
        rows += found
        rows_beside += report.medians(there) if there else []
        if not options.is_markdown:
            for row in found:
                print(report.line(row), flush=True)
    measured = report.make_report(rows, options.form)
    if options.is_markdown:
        _print_report(measured, options)
    return measured, report.make_report(rows_beside, options.form_beside) if options.beside is not None else None


def _measure(name: str, options: Options, python_path: str | None) -> list[Row]:
    directory = tempfile.mkdtemp(prefix="topics-bench-")
    try:
        return BENCHMARKS[name](Setting(directory, options.scale, options.is_full, python_path, options.kafka_jars))
    except (ProcessFailed, OSError) as error:
        return [report.failed(name, str(error))]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
