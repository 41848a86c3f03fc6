"""The group `topics pipeline`. Its commands are made when they are used.

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict, 1 any other error.
"""

from functools import cached_property
from typing import Any, Final

import typer
from typer.core import TyperGroup

from topics.cli.output import Output


class _JobsGroup(TyperGroup):
    """Makes the commands late: they cost about 20 ms, and other commands of `topics` do not need them."""

    @cached_property
    def _jobs(self) -> Any:
        from topics.cli.pipeline.commands import jobs

        return typer.main.get_command(jobs)

    def list_commands(self, ctx: Any) -> list[str]:
        names: list[str] = self._jobs.list_commands(ctx)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._jobs.get_command(ctx, cmd_name)


app: Final = typer.Typer(
    cls=_JobsGroup,
    rich_markup_mode=None,
    help="""Jobs on Spark: copy, check, archive and restore topics, many segments at a time.

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict with another program, 1 any other error. After Ctrl-C the
running wave ends, then the job stops; a second Ctrl-C stops it at once. The same command goes on where it was.

\b
Examples:
  topics pipeline doctor --endpoint http://127.0.0.1:4000
  topics pipeline import orders.parquet --topic orders
  topics pipeline replay orders --to orders-again --speed 10x
""",
)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        Output().line_block(context.get_help())
