"""Runs benchmarks by name and prints their rows: measured values, targets, and whether each target is met."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from topics.bench import actors, embedded, http, live, report, routers, stalls, steady
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
        from topics.bench import spark
    except ModuleNotFoundError as error:
        return [report.not_measured(f"spark: {name}", f"{error.name} is not installed")]
    measure: Benchmark = getattr(spark, name)
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
    "streams": _streams,
    "spark.decode": partial(_spark, "decode"),
    "spark.aggregate": partial(_spark, "aggregates"),
    "spark.jobs": partial(_spark, "jobs"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """As on the command line. `scale` is below 1 in tests."""

    is_full: bool = False
    json: str | None = None
    compare: str | None = None
    show: str | None = None
    is_markdown: bool = False
    python_path: str | None = None
    beside: str | None = None
    rounds: int = 1
    scale: float = 1.0


def print_names() -> int:
    print(*BENCHMARKS, sep="\n")
    return 0


def chosen_names(names: Sequence[str]) -> list[str]:
    """Benchmarks by their names or the names of their groups, in the order of the table. Raises KeyError."""
    for name in names:
        if not any(_is_in(benchmark, name) for benchmark in BENCHMARKS):
            raise KeyError(name)
    return [benchmark for benchmark in BENCHMARKS if not names or any(_is_in(benchmark, name) for name in names)]


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
    except KeyError as error:
        known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in BENCHMARKS))
        print(f"no benchmark is called {error}: choose among {known}, or see --list", file=sys.stderr)
        return 1
    except report.UnreadableReport as error:
        print(error, file=sys.stderr)
        return 1
    if shown is not None:
        _print_report(shown, options)
        measured, other = shown, None
    else:
        measured, other = _measure_all(benchmarks, options)
    for before in (earlier, other):
        if before is not None:
            compared = report.comparison_markdown if options.is_markdown else report.comparison
            print(f"\n{compared(before, measured)}", end="", flush=True)
    if options.json is not None:
        measured.save(options.json)
    return 1 if any(row.is_failed for row in measured.rows) else 0


def _print_report(shown: Report, options: Options) -> None:
    if options.is_markdown:
        print(f"{shown.machine}\n\n{report.markdown(shown)}", end="", flush=True)
        return
    print(f"# {shown.machine}\n{report.head_line()}")
    for row in shown.rows:
        print(report.line(row))


def _measure_all(benchmarks: Sequence[str], options: Options) -> tuple[Report, Report | None]:
    """The report, and the one of the package beside it if there is one. Rows of text are printed as they come."""
    if not options.is_markdown:
        print(f"# {report.this_machine()}\n{report.head_line()}", flush=True)
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
    measured = report.make_report(rows)
    if options.is_markdown:
        _print_report(measured, options)
    return measured, report.make_report(rows_beside) if options.beside is not None else None


def _measure(name: str, options: Options, python_path: str | None) -> list[Row]:
    directory = tempfile.mkdtemp(prefix="topics-bench-")
    try:
        return BENCHMARKS[name](Setting(directory, options.scale, options.is_full, python_path))
    except (ProcessFailed, OSError) as error:
        return [report.failed(name, str(error))]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
