"""`topics demo`: something to look at, in one command."""

from typing import Annotated, Final

import typer

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Fill this server instead; it is not killed.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", envvar="TOPICS_KEY", help="Its API key.", show_envvar=False),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Keep the data there; else it is removed.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port of the server; 4000 if it is free.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", min=0, help="End after so long; else at Ctrl+C.")
    ] = None,
) -> None:
    """Start a server and fill it: topics, a tree of routers, a queue with failing jobs, groups, a live producer.

    In the middle the server is killed with kill -9 and started again. Everything goes on, and the demo counts what was
    answered and what is there. Exit code 1 if anything is missing. Open the printed address to see the console.

    \b
    Examples:
      topics demo
      topics demo --seconds 30
      topics demo --server http://127.0.0.1:4000
    """
    from topics.demos.live import Options, run

    raise typer.Exit(run(Options(server=server, token=key, data_dir=data_dir, port=port, seconds=seconds)))
