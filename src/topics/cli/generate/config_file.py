"""`topics.toml` with every setting, commented out, made from the schema of the settings."""

from textwrap import wrap
from typing import Any, Final

from topics.server.settings_schema import SETTINGS, Setting
from topics.version import VERSION

# Settings that only tests of the server need.
FOR_TESTS: Final = "test_"

_COLUMNS: Final = 100

_HEAD: Final = (
    f"Settings of `topics serve` {VERSION}. A line without a space after its # is a setting with its default: remove "
    "the # to change it. A flag wins over an environment variable, the variable wins over this file. `topics config "
    "check --config FILE` says whether a server would start, `topics config show --config FILE` where each value comes "
    "from."
)

_STREAMS: Final = (
    "Settings of the streams, the partitioned engine for clients of Apache Iggy, are in tables at the end of the file, "
    "such as the next two lines. docs/streams.md has all of them. Variables IGGY_... win over the file."
)

_STREAMS_EXAMPLE: Final = """#[streams.system.partition]
#enforce_fsync = true"""


def config_file() -> str:
    parts = [_comment(_HEAD)]
    group = None
    for setting in SETTINGS:
        if setting.name.startswith(FOR_TESTS):
            continue
        if setting.group != group:
            group = setting.group
            parts.append(f"# ---- {group} ----")
        parts.append(_entry(setting))
    parts.append(f"# ---- Streams ----\n\n{_comment(_STREAMS)}\n{_STREAMS_EXAMPLE}")
    return "\n\n".join(parts) + "\n"


def _entry(setting: Setting) -> str:
    lines = [_comment(f"{setting.meaning} Takes {setting.accepted()}.{_notes(setting)}")]
    default = "off" if setting.shown_default == "off" else setting.make_default()
    lines.append(f"#{setting.name} = {_toml(default)}")
    return "\n".join(lines)


def _notes(setting: Setting) -> str:
    notes = []
    if setting.file_name is not None:
        notes.append(f'Better: {setting.file_name} = "FILE", a file that only the server can read.')
    if setting.shown_default != _plain(setting.make_default()):
        notes.append(f"Default: {'not set' if setting.shown_default.startswith('(') else setting.shown_default}.")
    if setting.is_reloaded:
        notes.append("A running server reads it again at SIGHUP.")
    return "".join(f" {note}" for note in notes)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: Any) -> str:
    """The default as a value of TOML. An optional setting that is not set is an empty text."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case _:
            return '""'


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in wrap(text, _COLUMNS, break_on_hyphens=False, break_long_words=False))
