"""`topics pipeline archive`, `optimize`, `vacuum` and `restore`: records into a lake, and back."""

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.pipeline_frame import Common, Topics, duration_ms, job_command, json_object, size_bytes

if TYPE_CHECKING:
    from topics.spark.jobs import archive, optimize, restore, vacuum

_Lake = Annotated[str, typer.Argument(metavar="LAKE", help="A path, file:///path or s3://bucket/prefix.")]


@job_command("archive", "topics.spark.jobs.archive")
def archive_(
    common: Common,
    lake: _Lake,
    topic: Topics = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Topics whose whole name matches.", show_default=False)
    ] = None,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", help="A data directory without a server.", show_default=False)
    ] = None,
    seal: Annotated[bool, typer.Option("--seal", help="Ask the server to seal what it has first.")] = False,
    apply_deletes: Annotated[
        bool, typer.Option("--apply-deletes", help="Take out what was deleted since it was archived.")
    ] = False,
) -> "archive.Config":
    """Put sealed segments that are not in the lake yet there, as Parquet by topic and day.

    Exit code 3 when seqs are missing, which are noted in the lake. Deletes reach the lake with --apply-deletes only.

    \b
    Examples:
      topics pipeline archive s3://bucket/lake
      topics pipeline archive ./lake --topic orders --seal
    """
    from topics.spark.jobs.archive import Config

    return Config(
        **common.server(),
        lake=lake,
        topics=tuple(topic or ()),
        pattern=pattern,
        path=path,
        seal=seal,
        apply_deletes=apply_deletes,
        dry_run=common.dry_run,
    )


@job_command("optimize", "topics.spark.jobs.optimize")
def optimize_(
    common: Common,
    lake: _Lake,
    topic: Topics = None,
    target: Annotated[str, typer.Option(metavar="SIZE", help="About how large files become.")] = "256m",
) -> "optimize.Config":
    """Merge small files of a lake into large ones. Old ones stay until a vacuum.

    \b
    Example:
      topics pipeline optimize s3://bucket/lake --topic orders
    """
    from topics.spark.jobs.optimize import Config

    return Config(
        lake=lake, topics=tuple(topic or ()), target_bytes=size_bytes("--target", target), dry_run=common.dry_run
    )


@job_command("vacuum", "topics.spark.jobs.vacuum")
def vacuum_(
    common: Common,
    lake: _Lake,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Only files of that age: 7d, 12h.")] = "7d",
    alone: Annotated[
        bool, typer.Option("--alone", help="Nothing else works on this lake: no age is too young.")
    ] = False,
) -> "vacuum.Config":
    """Remove files that no manifest of the lake names any more, and what broken jobs left.

    \b
    Example:
      topics pipeline vacuum s3://bucket/lake --older-than 30d --dry-run
    """
    from topics.spark.jobs.vacuum import Config

    return Config(lake=lake, older_than_ms=duration_ms("--older-than", older_than), alone=alone, dry_run=common.dry_run)


@job_command("restore", "topics.spark.jobs.restore")
def restore_(
    common: Common,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="What to restore.", show_default=False)] = None,
    lake: Annotated[
        str | None, typer.Option(metavar="LAKE", help="From a lake of `archive`.", show_default=False)
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="From a data directory or an archive of segments.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Into a new topic.", show_default=False)
    ] = None,
    into_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Into a new data directory, with the old seqs.", show_default=False),
    ] = None,
    from_seq: Annotated[int | None, typer.Option(metavar="SEQ", help="The first one.", show_default=False)] = None,
    to_seq: Annotated[int | None, typer.Option(metavar="SEQ", help="The last one.", show_default=False)] = None,
    epoch: Annotated[
        int | None, typer.Option(metavar="N", help="Which instance; the last by default.", show_default=False)
    ] = None,
    topic_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings of the new topic.", show_default=False)
    ] = None,
    chunk: Annotated[str, typer.Option(metavar="SIZE", help="Records of one commit.")] = "64m",
    job_id: Annotated[
        str | None,
        typer.Option("--id", metavar="NAME", help="Begin another one of the same options.", show_default=False),
    ] = None,
) -> "restore.Config":
    """Make a topic of what is in a lake, or in segments without a server.

    A topic gets new seqs and times; the old ones are in `_topics_origin` of the meta. A directory keeps them; start a
    server with it. Exit code 3 when seqs of the range are missing.

    \b
    Examples:
      topics pipeline restore --lake s3://bucket/lake --topic orders --to orders-2025
      topics pipeline restore --path /backup/topics-data --topic orders --into-dir ./restored
    """
    from topics.spark.jobs.restore import Config

    return Config(
        **common.server(),
        lake=lake,
        path=path,
        topic=topic,
        epoch=epoch,
        from_seq=from_seq,
        to_seq=to_seq,
        target=target,
        into_dir=into_dir,
        topic_config=json_object("--topic-config", topic_config),
        chunk_bytes=size_bytes("--chunk", chunk),
        id=job_id,
        state=common.state,
        dry_run=common.dry_run,
    )
