"""Flags for every setting, made from the schema.

A command takes `**flags`; `takes_settings` gives it the signature that typer reads, `SettingsCommand` groups the flags
in the help. Values stay text until `topics.server.settings` reads them, so that a wrong value gets the same message in
a flag, a variable and a file.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from topics.cli.loading import CONFIG_NAME
from topics.server.settings_schema import SETTINGS, STREAMS_PORT_USUAL, Setting

ConfigPath = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Settings in TOML; {CONFIG_NAME} of this folder by default.",
        show_default=False,
    ),
]

_FILE_METAVARS: Final = {"data_dir": "DIR", "streams_dir": "DIR", "cold_dir": "ADDRESS", "host": "HOST"}


def takes_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Replaces `**flags` in the signature by one option per setting, and gives `config` its option."""
    signature = inspect.signature(function)
    own = [
        parameter.replace(annotation=ConfigPath) if parameter.name == "config" else parameter
        for parameter in signature.parameters.values()
        if parameter.kind != inspect.Parameter.VAR_KEYWORD
    ]
    made = [_option("streams", bool, "--streams", f"Open port {STREAMS_PORT_USUAL} for clients of Apache Iggy.", None)]
    made += [parameter for setting in SETTINGS for parameter in _parameters(setting)]
    function.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
    return function


def _parameters(setting: Setting) -> Iterator[inspect.Parameter]:
    default = "" if setting.shown_default.startswith("(") else f" [default: {setting.shown_default}]"
    if setting.kind == "switch":
        no_flag = setting.flag.replace("--", "--no-", 1)
        yield _option(setting.name, bool, f"{setting.flag}/{no_flag}", setting.meaning, None)
        return
    yield _option(setting.name, str, setting.flag, setting.meaning + default, _metavar(setting))
    if setting.file_name is not None:
        flag = "--" + setting.file_name.replace("_", "-")
        yield _option(setting.file_name, str, flag, "File with the keys; arguments can be seen by others.", "FILE")


def _option(name: str, kind: type, flag: str, text: str, metavar: str | None) -> inspect.Parameter:
    option = typer.Option(flag, help=text.replace("`", ""), metavar=metavar, show_default=False)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(setting: Setting) -> str:
    match setting.kind:
        case "number":
            return "N"
        case "choice":
            return "|".join(setting.choices)
        case "keys":
            return "KEYS"
        case _:
            return _FILE_METAVARS.get(setting.name, "FILE")


class SettingsCommand(TyperCommand):
    """Help with the options of the command first, then the settings, group by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(_GROUPS.get(parameter.name or "", "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


_GROUPS: Final = {"streams": "Network"} | {
    name: setting.group for setting in SETTINGS for name in (setting.name, setting.file_name) if name is not None
}
