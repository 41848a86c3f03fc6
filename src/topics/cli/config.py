"""`topics config`: shows the settings and where each comes from, and checks whether a server would start."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.late import command_group
from topics.cli.loading import load, warn
from topics.cli.output import Output, message
from topics.cli.setting_flags import SettingsCommand, takes_settings
from topics.server.settings_schema import SETTINGS, KeyList, Setting, shown

if TYPE_CHECKING:
    from topics.server.settings import LoadedSettings

app: Final = command_group(
    """Settings: each value and where it comes from, and whether they can be used.

\b
Examples:
  topics config show --port 5000
  topics config check --config /etc/topics.toml
""",
)


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command(cls=SettingsCommand)
@takes_settings
def show(
    config: str | None = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print them.")] = Form.TABLE,
    **flags: Any,
) -> None:
    """Print each setting, its value and where it comes from. Keys are counted, not shown.

    \b
    Examples:
      topics config show
      topics config show --config /etc/topics.toml --port 5000
      topics config show --output json | jq .port
    """
    loaded = load(config, flags)
    warn(loaded)
    lines = Output()
    lines.line_block(_json(loaded) if output is Form.JSON else _table(loaded))
    lines.flush()


@app.command(cls=SettingsCommand)
@takes_settings
def check(config: str | None = None, **flags: Any) -> None:
    """Say whether a server would start with these settings: exit code 0 if it would, 1 if not, with every reason.

    \b
    Examples:
      topics config check
      topics config check --config /etc/topics.toml
    """
    from topics.errors import SettingsError
    from topics.server.auth import KeyRing
    from topics.server.settings import check_safe
    from topics.server.streams.config import check_streams, read_settings

    try:
        loaded = load(config, flags)
        warn(loaded)
        KeyRing.parse(loaded.settings.api_keys.reveal())
        check_safe(loaded.settings)
        check_streams(loaded.settings, loaded.streams)
        if loaded.settings.streams_port is not None:
            read_settings(loaded.streams)
    except SettingsError as error:
        for problem in error.problems:
            message(f"topics: {problem}")
        raise typer.Exit(1) from None
    lines = Output()
    lines.line("config: no problem found")
    lines.flush()


@app.command()
def reference() -> None:
    """Print every setting as Markdown tables, as in docs/configuration.md.

    \b
    Example:
      topics config reference
    """
    lines = Output()
    lines.line_block(_reference())
    lines.flush()


def _table(loaded: "LoadedSettings") -> str:
    rows = [(setting.name, shown(getattr(loaded.settings, setting.name))) for setting in SETTINGS]
    name_width = max(len(name) for name, _ in rows)
    value_width = max(len(value) for _, value in rows)
    return "\n".join(f"{name:{name_width}}  {value:{value_width}}  {loaded.origins[name]}" for name, value in rows)


def _json(loaded: "LoadedSettings") -> str:
    import json

    values = {setting.name: getattr(loaded.settings, setting.name) for setting in SETTINGS}
    found = {
        name: {
            "value": str(value) if isinstance(value, KeyList) else value,
            "origin": loaded.origins[name],
        }
        for name, value in values.items()
    }
    return json.dumps(found, indent=2)


def _reference() -> str:
    groups: dict[str, list[str]] = {}
    for setting in SETTINGS:
        groups.setdefault(setting.group, []).append(_reference_row(setting))
    heading = "| Key | Environment, flag | Default | Takes | Meaning |\n|---|---|---|---|---|"
    return "\n\n".join("\n".join([f"### {group}", "", heading, *rows]) for group, rows in groups.items())


def _reference_row(setting: Setting) -> str:
    names = [setting.env, setting.flag]
    if setting.file_name is not None:
        names += [f"{setting.env}_FILE", f"{setting.flag}-file"]
    default = "–" if setting.shown_default.startswith("(") else setting.shown_default
    spelled = ", ".join(f"`{name}`" for name in names)
    return f"| `{setting.name}` | {spelled} | {default} | {setting.accepted()} | {setting.meaning} |"
