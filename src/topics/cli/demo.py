"""`topics demo`: something to look at, in one command."""

from typing import Annotated, Final

import typer

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    spark: Annotated[
        bool, typer.Option("--spark", help="Show the pipeline on Spark instead; needs the extra spark and Java.")
    ] = False,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Fill this running server; it is not killed.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", envvar="TOPICS_KEY", help="Its API key.", show_envvar=False),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Keep the data there; by default it is removed.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port of the server; 4000 if it is free.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", min=0, help="End after this time; by default at Ctrl+C.")
    ] = None,
) -> None:
    """Start a server with a sample shop: topics, routers, a queue with failing jobs, groups, a live producer.

    Halfway through, the server is killed with kill -9 and restarted. The shop carries on, and the demo compares the
    acknowledged orders with what the server has. Open the printed address to see the console.

    With --spark: Spark counts page visits live, is killed with kill -9, resumes, and archives the visits to a lake that
    answers SQL. It takes a minute. The demo checks that every visit was counted exactly once.

    Exit code 1 if anything is missing.

    \b
    Examples:
      topics demo
      topics demo --spark
      topics demo --seconds 30
      topics demo --server http://127.0.0.1:4000
    """
    if spark:
        if server is not None or data_dir is not None or seconds is not None:
            raise typer.BadParameter("--spark takes no option but --port: its server is temporary")
        from topics.demos import pipeline

        raise typer.Exit(pipeline.run(port))
    from topics.demos.live import Options, run

    raise typer.Exit(run(Options(server=server, token=key, data_dir=data_dir, port=port, seconds=seconds)))
