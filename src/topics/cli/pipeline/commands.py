"""The commands of `topics pipeline`: one for each job, made from the declaration of its options."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer

from topics.cli.output import Output
from topics.cli.pipeline.flags import members_of, parameters_of, parsed
from topics.cli.pipeline.frame import (
    CommonOptions,
    check_session,
    exit_code_of,
    open_session,
    print_report,
    progress_of,
)
from topics.cli.pipeline.reporting import leave_failure, leave_report
from topics.errors import TopicsError
from topics.spark.jobs.job_options import JOBS, DoctorOptions, Job, RunOptions

if TYPE_CHECKING:
    from topics.spark.jobs.job import Report

jobs: Final = typer.Typer(rich_markup_mode=None)

# What a command does with its options; it returns the exit code.
Runner = Callable[[CommonOptions, Any], int]


def _add_command(job: Job, run: Runner) -> None:
    def command(**given: Any) -> None:
        def call() -> int:
            common = CommonOptions(**parsed(CommonOptions, given))
            shared = members_of(job.options, common)
            options = job.options(**shared, **parsed(job.options, given))
            try:
                return run(common, options)
            except TopicsError as error:
                leave_failure(common, options, job.name, error)
                raise

        raise typer.Exit(exit_code_of(call, debug=given["debug"]))

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters_of(job.options), *parameters_of(CommonOptions)]
    )
    command.__doc__ = job.options.__doc__
    jobs.command(job.name)(command)


def _runner(job: Job) -> Runner:
    """Runs the job in a session, with progress, and prints its report."""

    def run(common: CommonOptions, options: Any) -> int:
        from topics.spark.session import require_packages

        # The modules of the jobs import packages that may be missing.
        require_packages()
        from topics.spark.jobs.sources import require_sources

        for member in ("dry_run", "state"):
            # A job without dry run would do the work, and a job without state would keep nothing.
            if getattr(common, member) and not hasattr(options, member):
                raise typer.BadParameter(f"`{job.name}` has no --{member.replace('_', '-')}")
        if job.needs_spark:
            # Before a JVM is started, which takes many seconds.
            check_session(common)
            require_sources(options)
        session = open_session(job.name, common) if job.needs_spark else nullcontext()
        with session as spark, progress_of(job.name) as report:
            result: Report = import_module(job.module).run(spark, options, report=report)
        print_report(result, as_json=common.as_json, lines=_lines_of(result))
        leave_report(common, options, result)
        return result.exit_code

    return run


def _lines_of(report: "Report") -> Sequence[str]:
    """The rows of a query without a target. Other reports get the usual summary."""
    rows: Sequence[str] = report.detail.get("rows", ())
    return rows


def _run_doctor(common: CommonOptions, options: DoctorOptions) -> int:
    from topics.spark import SparkUnavailable
    from topics.spark.jobs import doctor

    try:
        with open_session("doctor", common) as spark:
            report = doctor.run(spark, options)
    except SparkUnavailable:
        # The checks find out why.
        report = doctor.run(None, options)
    width = max(len(check["name"]) for check in report.detail["checks"])
    lines = []
    for check in report.detail["checks"]:
        lines.append(f"{check['result']:4}  {check['name']:{width}}  {check['found']}")
        if check["fix"]:
            lines.append(f"{'':4}  {'':{width}}  {check['fix']}")
    print_report(report, as_json=common.as_json, lines=lines)
    leave_report(common, options, report)
    return report.exit_code


def _run_project(common: CommonOptions, options: RunOptions) -> int:
    """A project makes its session itself. A line is printed for each flow that ends."""
    from topics.spark.session import require_java, require_packages

    if common.master is not None:
        raise typer.BadParameter("a pipeline has no --master; start a Connect server on the cluster, and give --remote")
    require_packages()
    if common.remote is None:
        require_java()
    from topics.spark.jobs import run as job

    output = Output()

    def tell(line: str) -> None:
        if not common.as_json:
            output.line(line)
            output.flush()

    report = job.run(None, options, tell=tell)
    lines = [f"run: {report.items_done} flows completed, {report.items_skipped} skipped in {report.seconds:.1f} s"]
    print_report(report, as_json=common.as_json, lines=lines)
    leave_report(common, options, report)
    return report.exit_code


_RUNNERS: Final[dict[str, Runner]] = {"doctor": _run_doctor, "run": _run_project}

for _job in JOBS:
    _add_command(_job, _RUNNERS.get(_job.name) or _runner(_job))
