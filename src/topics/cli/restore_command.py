"""`topics restore` for typer: the command is in `backup`, beside the commands that it belongs to."""

from typing import Final

import typer

from topics.cli.backup import restore

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command()(restore)
