"""`topics pipeline run` and `sql`: queries of users, as a project and one by one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.output import Output
from topics.cli.pipeline_frame import Common, job_command, name_and_value, pipeline_command, print_report

if TYPE_CHECKING:
    from topics.spark.jobs import sql
    from topics.spark.jobs.job import Report


@pipeline_command("run")
def run(
    common: Common,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="spark-pipeline.yml, or the folder that it is in.")],
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Compute everything again, from the beginning.")
    ] = False,
) -> int:
    """Run a project of Spark Declarative Pipelines, with topics as sources and sinks.

    As `spark-pipelines run`, with a catalog that is still there in the next run. A cluster is a Connect server:
    give --remote.

    \b
    Examples:
      topics pipeline run examples/pipeline --endpoint http://127.0.0.1:4000
      topics pipeline run spark-pipeline.yml --remote sc://host:15002
    """
    from topics.spark.jobs import run as job
    from topics.spark.session import require_java, require_packages

    if common.master is not None:
        raise typer.BadParameter("a pipeline has no --master; start a Connect server on the cluster, and give --remote")
    require_packages()
    if common.remote is None:
        require_java()
    output = Output()

    def tell(line: str) -> None:
        if not common.as_json:
            output.line(line)
            output.flush()

    config = job.Config(
        spec=spec,
        remote=common.remote,
        conf=dict(name_and_value("--conf", pair) for pair in common.conf or ()),
        endpoint=common.endpoint,
        full_refresh=full_refresh,
        state=common.state,
        dry_run=common.dry_run,
    )
    report = job.run(None, config, tell=tell)
    lines = [f"run: {report.items_done} flows completed, {report.items_skipped} skipped in {report.seconds:.1f} s"]
    print_report(report, as_json=common.as_json, lines=lines)
    return report.exit_code


def _rows(report: "Report") -> Sequence[str]:
    """Rows that go nowhere else are what the command prints."""
    rows: Sequence[str] = report.detail.get("rows", ())
    return rows


@job_command("sql", "topics.spark.jobs.sql", lines=_rows)
def sql_(
    common: Common,
    query: Annotated[str, typer.Argument(metavar="SELECT", help="One query over the inputs.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="VIEW=SOURCE",
            help="topic:NAME, lake:ADDRESS or parquet:PATH as a view; may be repeated.",
            show_default=False,
        ),
    ] = None,
    input_option: Annotated[
        list[str] | None,
        typer.Option(metavar="VIEW.NAME=VALUE", help="An option of a read; may be repeated.", show_default=False),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Where rows go; by default they are shown.", show_default=False),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="As a stream: availableNow, or every 5s.", show_default=False),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where a stream goes on.", show_default=False)
    ] = None,
    writer_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="By which a rerun is known.", show_default=False)
    ] = None,
    epoch: Annotated[int, typer.Option(metavar="N", min=0, help="Number of this run.")] = 0,
    create: Annotated[bool, typer.Option("--create", help="Create a topic that is not there.")] = False,
    mode: Annotated[
        Literal["errorifexists", "append", "overwrite"], typer.Option(help="When the target has something.")
    ] = "errorifexists",
    rows: Annotated[int, typer.Option(metavar="N", min=0, help="How many rows are shown.")] = 100,
) -> "sql.Config":
    """Run one SELECT over topics, lakes and files; show the rows, or write them to a topic, a lake or files.

    \b
    Examples:
      topics pipeline sql "select tag, count(*) from orders group by tag" --input orders=topic:orders
      topics pipeline sql "select data, tag from orders where tag = 'vip'" --input orders=topic:orders \\
        --into topic:vips --create --trigger availableNow --checkpoint ./vips
    """
    from topics.spark.jobs.sql import Config

    options: dict[str, dict[str, str]] = {}
    for text in input_option or ():
        name, value = name_and_value("--input-option", text)
        view, dot, option = name.partition(".")
        if not dot:
            raise typer.BadParameter(f"--input-option takes VIEW.NAME=VALUE, not {text!r}")
        options.setdefault(view, {})[option] = value
    return Config(
        **common.server(),
        query=query,
        inputs=tuple(name_and_value("--input", text) for text in inputs or ()),
        input_options=options,
        into=into,
        trigger=trigger,
        checkpoint=checkpoint,
        writer_id=writer_id,
        epoch=epoch,
        create_topic=create,
        mode=mode,
        rows_shown=rows,
    )
