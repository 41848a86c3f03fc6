"""The group `topics pipeline`. Its commands are made when the group is asked for one of them.

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict, 1 anything else that went wrong.
"""

from functools import cached_property
from typing import Any, Final

import typer
from typer.core import TyperGroup

from topics.cli.output import Output


class _JobsGroup(TyperGroup):
    """To make the commands costs about 20 ms, which no other command of `topics` has to pay."""

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

Exit codes: 0 done, 2 findings, 3 data loss met, 4 conflict with somebody else, 1 anything else. Ctrl-C lets the running
wave end, and the same command goes on from there; a second one stops at once.

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
