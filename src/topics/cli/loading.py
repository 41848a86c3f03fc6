"""The settings of one call, from its flags, the environment and `topics.toml`."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from topics.cli.output import message
from topics.server.settings_schema import STREAMS_PORT_USUAL

if TYPE_CHECKING:
    from topics.server.settings import LoadedSettings

CONFIG_NAME: Final = "topics.toml"


def load(config: str | None, flags: dict[str, Any]) -> "LoadedSettings":
    """The settings of this call, from flags, environment and file. Raises `SettingsError`, or `OSError` of the file.

    The flag `streams` opens the usual port, if no other port is set.
    """
    from topics.server.settings import load_settings

    path = config or CONFIG_NAME
    try:
        text = _read_text(path)
    except FileNotFoundError:
        if config is not None:
            raise
        text = None
    except UnicodeDecodeError as error:
        from topics.errors import SettingsError

        raise SettingsError(f"{path} is not text in UTF-8") from error
    is_streams_wanted = flags.get("streams")
    flags = {name: value for name, value in flags.items() if name != "streams"}
    loaded = load_settings(flags, os.environ, text, path, read_text=_read_text)
    if is_streams_wanted and loaded.settings.streams_port is None:
        return replace(
            loaded,
            settings=replace(loaded.settings, streams_port=STREAMS_PORT_USUAL),
            origins={**loaded.origins, "streams_port": "flag --streams"},
        )
    return loaded


def warn(loaded: "LoadedSettings") -> None:
    for warning in loaded.warnings:
        message(f"topics: warning: {warning}")


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
