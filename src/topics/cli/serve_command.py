"""`topics serve` for typer: help, completion and wrong usage. `entry` starts a server without it."""

from typing import Final

import typer

from topics.cli.serve import serve
from topics.cli.setting_flags import SettingsCommand, takes_settings

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command(cls=SettingsCommand)(takes_settings(serve))
