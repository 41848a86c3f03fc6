"""`topics pipeline doctor`, `verify` and `stats`: what works here, what is damaged, what there is."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.pipeline_frame import Common, Topics, job_command, open_session, pipeline_command, print_report

if TYPE_CHECKING:
    from topics.spark.jobs import stats, verify
    from topics.spark.jobs.doctor import Config
    from topics.spark.jobs.job import Report


@pipeline_command("doctor")
def doctor(
    common: Common,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Look for the files of this topic.", show_default=False)
    ] = None,
) -> int:
    """Say what works here: Java, Python and packages on driver and executor, the server and its files.

    Exit code 0 when jobs can run, 1 when they cannot. Notes cost speed only.

    \b
    Examples:
      topics pipeline doctor
      topics pipeline doctor --endpoint http://127.0.0.1:4000 --master spark://host:7077 --json
    """
    from topics.spark.jobs.doctor import Config

    config = Config(**common.server(), topic=topic)
    report = _visit(common, config)
    width = max(len(check["name"]) for check in report.detail["checks"])
    lines = []
    for check in report.detail["checks"]:
        lines.append(f"{check['result']:4}  {check['name']:{width}}  {check['found']}")
        if check["fix"]:
            lines.append(f"{'':4}  {'':{width}}  {check['fix']}")
    print_report(report, as_json=common.as_json, lines=lines)
    return report.exit_code


def _visit(common: Common, config: "Config") -> "Report":
    from topics.spark import SparkUnavailable
    from topics.spark.jobs.doctor import run

    try:
        with open_session("doctor", common) as spark:
            return run(spark, config)
    except SparkUnavailable:
        # Why is what the checks find out about.
        return run(None, config)


@job_command("verify", "topics.spark.jobs.verify")
def verify_(
    common: Common,
    topic: Topics = None,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", help="A data directory without a server.", show_default=False)
    ] = None,
    cold: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The cold tier of --path.", show_default=False)
    ] = None,
    copies: Annotated[
        list[str] | None,
        typer.Option("--copy", metavar="PATH", help="Compare with copies there; may be repeated.", show_default=False),
    ] = None,
    lake: Annotated[
        list[str] | None, typer.Option(metavar="LAKE", help="A lake; may be repeated.", show_default=False)
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A directory of streams; may be repeated.", show_default=False),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where verify.json and verify.parquet go.", show_default=False),
    ] = None,
) -> "verify.Config":
    """Check every segment, lake file and partition, bit by bit. Nothing is changed; exit code 2 for findings.

    \b
    Examples:
      topics pipeline verify --endpoint http://127.0.0.1:4000
      topics pipeline verify --path ./topics-data --copy s3://bucket/backup --lake ./lake --report ./report
    """
    from topics.spark.jobs.verify import Config

    return Config(
        **common.server(),
        topics=tuple(topic or ()),
        path=path,
        cold=cold,
        copies=tuple(copies or ()),
        lakes=tuple(lake or ()),
        streams=tuple(streams or ()),
        report=report,
        dry_run=common.dry_run,
    )


@job_command("stats", "topics.spark.jobs.stats")
def stats_(
    common: Common,
    topic: Topics = None,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", help="A data directory without a server.", show_default=False)
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where the page and its JSON go.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="How many tags and nodes.")] = 15,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page.")] = "Topics",
) -> "stats.Config":
    """Count what topics hold: rates, sizes, tags, deleted shares, tiers, gaps; as JSON and a page with plots.

    \b
    Example:
      topics pipeline stats --topic orders --out ./report
    """
    from topics.spark.jobs.stats import Config

    return Config(**common.server(), topics=tuple(topic or ()), path=path, out=out, top=top, title=title)
