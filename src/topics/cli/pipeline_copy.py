"""`topics pipeline import` and `replay`: records into topics, from files and from other topics."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from topics.cli.pipeline_frame import Common, job_command, name_and_value, size_bytes, time_ms

if TYPE_CHECKING:
    from topics.spark.jobs import import_data, replay

_Create = Annotated[bool, typer.Option("--create", help="Create topics that are not there.")]
_Id = Annotated[
    str | None,
    typer.Option("--id", metavar="NAME", help="Begin another one of the same options.", show_default=False),
]


def _sql(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="SQL", help=what, show_default=False)


@job_command("import", "topics.spark.jobs.import_data")
def import_(
    common: Common,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files or folders, as Spark takes them.")],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where the records go.", show_default=False)
    ] = None,
    topic_expression: Annotated[str | None, _sql("--topic-expr", "Where a record goes, by its row.")] = None,
    data_format: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Of Spark; by the names of the files.", show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the format; may be repeated.", show_default=False),
    ] = None,
    data: Annotated[str | None, _sql("--data", "The payload, JSON or a structure; by default the whole row.")] = None,
    data_text: Annotated[str | None, _sql("--data-text", "The payload, as a JSON string.")] = None,
    tag: Annotated[str | None, _sql("--tag", "The tag.")] = None,
    node: Annotated[str | None, _sql("--node", "The node.")] = None,
    meta: Annotated[str | None, _sql("--meta", "The meta, JSON or a structure.")] = None,
    time: Annotated[str | None, _sql("--time", "The original time; it goes into the meta.")] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(metavar="SQL", help="Keep this order; may be repeated.", show_default=False),
    ] = None,
    chunk: Annotated[str, typer.Option(metavar="SIZE", help="Input of one commit.")] = "128m",
    create: _Create = False,
    job_id: _Id = None,
) -> "import_data.Config":
    """Make records of the rows of files.

    The list of files is written down at the first run (--state). The same command again goes on where it stopped, and
    adds nothing when all is there.

    \b
    Examples:
      topics pipeline import orders.parquet --topic orders --tag customer --time ordered_at
      topics pipeline import 's3a://bucket/events/*.jsonl' --topic-expr "concat('events-', kind)" --create
      topics pipeline import log.csv --topic log --order-by time --order-by line --option sep=';'
    """
    from topics.spark.jobs.import_data import Config

    return Config(
        **common.server(),
        paths=tuple(paths),
        topic=topic,
        topic_expression=topic_expression,
        format=data_format,
        options_of_format=dict(name_and_value("--option", pair) for pair in option or ()),
        data=data,
        data_text=data_text,
        tag=tag,
        node=node,
        meta=meta,
        time=time,
        order_by=tuple(order_by or ()),
        chunk_bytes=size_bytes("--chunk", chunk),
        create_topic=create,
        id=job_id,
        state=common.state,
        dry_run=common.dry_run,
    )


@job_command("replay", "topics.spark.jobs.replay")
def replay_(
    common: Common,
    source: Annotated[str, typer.Argument(metavar="TOPIC", help="What to replay.")],
    target: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where it goes.", show_default=False)],
    from_seq: Annotated[int | None, typer.Option(metavar="SEQ", help="The first one.", show_default=False)] = None,
    to_seq: Annotated[int | None, typer.Option(metavar="SEQ", help="The last one.", show_default=False)] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only what was there then: ms, or ISO 8601.", show_default=False),
    ] = None,
    speed: Annotated[str, typer.Option(metavar="N", help="1x as it was, 10x faster, or max.")] = "max",
    tick: Annotated[int, typer.Option(metavar="MS", min=1, help="How often, when not at max.")] = 1000,
    chunk_records: Annotated[int, typer.Option(metavar="N", min=1, help="Records of one commit.")] = 100_000,
    skip_gaps: Annotated[
        bool, typer.Option("--skip-gaps", help="Go on behind records that are gone; exit code 3.")
    ] = False,
    create: _Create = False,
    job_id: _Id = None,
) -> "replay.Config":
    """Copy a range of a topic into a topic, at the pace it had or faster, each record once.

    The range is written down at the first run (--state). The same command again goes on where it stopped.

    \b
    Examples:
      topics pipeline replay orders --to orders-again --create
      topics pipeline replay orders --to load-test --speed 10x --from-seq 120000
      topics pipeline replay orders --to orders-then --as-of 2026-01-31T08:00:00Z
    """
    from topics.spark.jobs.replay import Config

    return Config(
        **common.server(),
        source=source,
        target=target,
        from_seq=from_seq,
        to_seq=to_seq,
        as_of_ms=None if as_of is None else time_ms("--as-of", as_of),
        speed=speed,
        tick_ms=tick,
        chunk_records=chunk_records,
        gaps="skip" if skip_gaps else "fail",
        create_topic=create,
        id=job_id,
        state=common.state,
        dry_run=common.dry_run,
    )
