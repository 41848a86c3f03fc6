"""Groups of commands, and commands that are imported when they are called: others start without them."""

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import typer
from typer.core import TyperGroup

from topics.cli.output import Output

# A first sentence is never cut.
SUMMARY_CHARACTERS_MAX: Final = 300


class Late(NamedTuple):
    """A command in another module, which has it as `app`. `summary` is its line in the list of commands."""

    module: str
    summary: str


class LateGroup(TyperGroup):
    """A group whose commands are declared as usual, or named in `late`."""

    late: ClassVar[dict[str, Late]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.late, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = self.late.get(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else loaded(found.module)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and (near := get_close_matches(name, self.list_commands(ctx), n=1)):
            ctx.fail(f"No such command '{name}', did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, entry.summary) for name, entry in self.late.items()]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            rows.append((name, "" if command is None else command.get_short_help_str(SUMMARY_CHARACTERS_MAX)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@cache
def loaded(module: str) -> Any:
    return typer.main.get_command(import_module(module).app)


def command_group(text: str, kind: type[LateGroup] = LateGroup) -> typer.Typer:
    """A group with this help, which it also prints when no command is given."""
    app = typer.Typer(cls=kind, rich_markup_mode=None, add_completion=False, help=text)

    @app.callback(invoke_without_command=True)
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            Output().line_block(context.get_help())

    return app
