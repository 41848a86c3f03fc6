"""`topics pipeline rebuild-index`, `compact` and `reencode`: files and topics written again."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.pipeline_frame import Common, Topics, job_command

if TYPE_CHECKING:
    from topics.spark.jobs import compact_latest, purge, rebuild_index, reencode


@job_command("rebuild-index", "topics.spark.jobs.rebuild_index")
def rebuild_index_(
    common: Common,
    topic: Topics = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A data directory or archive without a server.", show_default=False),
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A directory of streams; may be repeated.", show_default=False),
    ] = None,
) -> "rebuild_index.Config":
    """Write index files again from the records. Exit code 3 when records themselves are damaged.

    \b
    Examples:
      topics pipeline rebuild-index --path ./topics-data
      topics pipeline rebuild-index --streams ./local_data
    """
    from topics.spark.jobs.rebuild_index import Config

    return Config(
        **common.server(), topics=tuple(topic or ()), path=path, streams=tuple(streams or ()), dry_run=common.dry_run
    )


@job_command("compact", "topics.spark.jobs.compact")
def compact_(
    common: Common,
    topic: Topics = None,
    is_purge: Annotated[
        bool, typer.Option("--purge", help="Write segments again without their deleted records.")
    ] = False,
    min_deleted: Annotated[
        float, typer.Option(metavar="SHARE", min=0.0, max=1.0, help="With --purge: leave those with less alone.")
    ] = 0.3,
    latest_by_tag: Annotated[bool, typer.Option("--latest-by-tag", help="Copy the last record of each tag.")] = False,
    into: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="topic:NAME, lake:ADDRESS or parquet:PATH.", show_default=False),
    ] = None,
    untagged: Annotated[Literal["keep", "drop"], typer.Option(help="Records without a tag.")] = "keep",
    epoch: Annotated[int, typer.Option(metavar="N", min=0, help="Number of this run, for a rerun later.")] = 0,
    mode: Annotated[
        Literal["errorifexists", "append", "overwrite"], typer.Option(help="When the target has something.")
    ] = "errorifexists",
) -> "purge.Config | compact_latest.Config":
    """Free what deleted records take (--purge), or copy the last record of each tag (--latest-by-tag).

    \b
    Examples:
      topics pipeline compact --purge --topic orders --min-deleted 0.5
      topics pipeline compact --latest-by-tag --topic prices --into topic:prices-now
    """
    from topics.spark.jobs import compact_latest, purge

    if is_purge == latest_by_tag:
        raise typer.BadParameter("give --purge or --latest-by-tag")
    if is_purge:
        return purge.Config(
            **common.server(), topics=tuple(topic or ()), min_deleted=min_deleted, dry_run=common.dry_run
        )
    if topic is None or len(topic) != 1 or into is None:
        raise typer.BadParameter("--latest-by-tag takes one --topic, and --into")
    return compact_latest.Config(
        **common.server(),
        topic=topic[0],
        into=into,
        untagged=untagged,
        epoch=epoch,
        mode=mode,
        dry_run=common.dry_run,
    )


@job_command("reencode", "topics.spark.jobs.reencode")
def reencode_(
    common: Common,
    source: Annotated[str, typer.Argument(metavar="DIR", help="A directory of streams that nobody serves.")],
    target: Annotated[str, typer.Argument(metavar="NEW_DIR", help="Where the new one is made.")],
    source_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable with its key.", show_default=False)
    ] = None,
    source_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with its key.", show_default=False)
    ] = None,
    target_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable with the new key.", show_default=False)
    ] = None,
    target_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the new key.", show_default=False)
    ] = None,
    decrypt: Annotated[bool, typer.Option("--decrypt", help="Make a plain directory.")] = False,
    compression: Annotated[
        Literal["keep", "none", "gzip", "lz4", "zstd"], typer.Option(help="Of the payloads.")
    ] = "keep",
    flavour: Annotated[Literal["keep", "page", "iggy"], typer.Option(help="Of the new directory.")] = "keep",
    force: Annotated[
        bool, typer.Option("--force", help="Compress in flavour iggy, which no other server can read.")
    ] = False,
) -> "reencode.Config":
    """Make a new directory of streams with another key, compression or flavour. The old one is left as it is.

    Keys are looked up on each machine, and are in no plan.

    \b
    Examples:
      topics pipeline reencode ./local_data ./local_data.new --target-key-env NEW_KEY
      topics pipeline reencode ./local_data ./plain --source-key-file old.key --decrypt
    """
    from topics.spark.jobs.reencode import Config

    return Config(
        source=source,
        target=target,
        source_key_env=source_key_env,
        source_key_file=source_key_file,
        target_key_env=target_key_env,
        target_key_file=target_key_file,
        decrypt=decrypt,
        compression=compression,
        flavour=flavour,
        force=force,
        dry_run=common.dry_run,
    )
