"""`topics bench`: speed and size, of this machine or of a server."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from topics.cli.form import running_form
from topics.cli.output import fail, message
from topics.cli.remote.session import EXIT_INTERRUPTED, ContextName

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks or groups of them; all by default.")
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Measure this server instead of this machine.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Its API key. Others can see arguments: better TOPICS_KEY."),
    ] = None,
    context: ContextName = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, max=60, help="With a server: time of each benchmark.")
    ] = 3.0,
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="TEXT", help="With a server: how the names of the temporary topics begin."),
    ] = "topics-bench.",
    durability: Annotated[
        str | None,
        typer.Option("--durability", metavar="CLASS", help="With a server: the class of the temporary topics."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Long loads in their full length.")] = False,
    save: Annotated[
        str | None, typer.Option("--save", "--json", metavar="FILE", help="Save the report, as JSON.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="FILE", help="Show a saved report beside this run.")
    ] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="FILE", help="Measure nothing, show a saved report.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    python_path: Annotated[
        str | None, typer.Option("--python-path", metavar="DIR", help="Measure the package `topics` in this folder.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option("--beside", metavar="DIR", help="Measure the package in this folder, too, in turns, and compare."),
    ] = None,
    kafka_jars: Annotated[
        str | None,
        typer.Option(
            "--kafka-jars", metavar="DIR", help="Jars of Kafka, for spark.kafka; `make bench-spark` gets them."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Repeat each benchmark; medians count.")] = 1,
    list_names: Annotated[bool, typer.Option("--list", help="List the names.")] = False,
) -> None:
    """Measure speed and size: of this machine, or of any server that speaks /v0.

    With --server or --context the load comes from this machine. It goes to topics with names of their own, which are
    removed at the end, also after Ctrl+C.

    \b
    Examples:
      topics bench
      topics bench serve live.call --save before.json
      topics bench serve live.call --compare before.json
      topics bench serve.append-1 --beside ../before/src --rounds 3
      topics bench --server http://127.0.0.1:4000 --save before.json
      topics bench append-1 tail --server http://127.0.0.1:4000 --compare before.json
    """
    main = import_module("topics.bench.main")
    is_server = server is not None or context is not None
    if list_names:
        raise typer.Exit(main.print_names(is_server=is_server))
    options = main.Options(
        is_full=full,
        json=save,
        compare=compare,
        show=show,
        is_markdown=markdown,
        python_path=python_path,
        beside=beside,
        kafka_jars=kafka_jars,
        rounds=rounds,
        form=running_form(python_path),
        form_beside="" if beside is None else running_form(beside),
    )
    if not is_server:
        raise typer.Exit(main.run_benchmarks(names or [], options))
    if full or python_path is not None or beside is not None:
        fail("--full, --python-path and --beside are for this machine: leave them out with a server")
    load = {"seconds": seconds, "prefix": prefix, "durability": durability}
    raise typer.Exit(_measure_server(main, names or [], options, (server, key, context), load))


def _measure_server(
    main: Any,
    names: Sequence[str],
    options: Any,
    given: tuple[str | None, str | None, str | None],
    load: dict[str, Any],
) -> int:
    from topics.cli.remote.nearest import explained
    from topics.cli.remote.target import Target, find_target
    from topics.errors import TopicsError

    def no_client() -> Any:
        raise TopicsError("the names of a server are not needed here")

    target = Target("", None, None, "")
    try:
        target = find_target(*given)
        code: int = main.run_server(names, options, url=target.url, key=target.key, ca_file=target.ca_file, **load)
        return code
    except TopicsError as error:
        fail(explained(error, target, no_client))
    except KeyboardInterrupt:
        message("topics: stopped; the temporary topics are removed, and no report is saved")
        return EXIT_INTERRUPTED
