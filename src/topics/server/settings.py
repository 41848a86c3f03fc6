"""From flags, environment and `topics.toml` to `ServerSettings`, with the origin of each value.

Rules:
1. A flag wins over the environment, the environment wins over `topics.toml`, and `topics.toml` wins over the default.
2. A wrong value is an error wherever it is, also where another place wins over it. All errors are reported at once. A
   default instead of the value that was meant could be another port, another limit, or no authentication.
3. An unknown key in `topics.toml` is an error. An unknown variable `TOPICS_…` is a warning: it may belong to another
   program. `TOPICS_TEST_…` belongs to tests and is ignored.
4. A port inside `host` belongs to the source of `host`, and wins over `port` of that source.
5. API keys may be in a file that is named instead (`TOPICS_API_KEYS_FILE`). A file that cannot be read or has no key is
   an error from every source: the default would be a server without authentication.
6. No message repeats a secret. The caller reads files: this module gets their text.
"""

import errno
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, Literal

from topics.errors import SettingsError
from topics.server.origins import ANY_ORIGIN, parse_origins
from topics.server.settings_schema import (
    ENV_PREFIX,
    PORT_MAX,
    SETTINGS,
    KeyList,
    ServerSettings,
    Setting,
    StreamsConfig,
)

if TYPE_CHECKING:
    from topics.engine.settings import EngineSettings

__all__ = [
    "SETTINGS",
    "KeyList",
    "LoadedSettings",
    "ServerSettings",
    "Setting",
    "check_safe",
    "engine_settings",
    "is_loopback",
    "load_settings",
]

TOML_NAME: Final = "topics.toml"

# The table of `topics.toml` with the settings of the partitioned engine, and the prefix of their variables.
STREAMS_TABLE: Final = "streams"
IGGY_PREFIX: Final = "IGGY_"

_TEST_PREFIX: Final = ENV_PREFIX + "TEST_"
# What the command line reads as a client, and what a build reads. A user who has set them for the shell may start a
# server there, too.
_OTHER_VARIABLES: Final = frozenset(
    {"TOPICS_CA_FILE", "TOPICS_COMPILE", "TOPICS_CONTEXT", "TOPICS_KEY", "TOPICS_NODE", "TOPICS_URL"}
)
# More digits than any setting takes, and few enough to parse quickly.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_HOST: Final = re.compile(r"([^\s:\[\]]*)(?::([0-9]{1,5}))?")
_BRACKETED: Final = re.compile(r"\[([^\s\[\]]+)\](?::([0-9]{1,5}))?")
_ON: Final = frozenset({"1", "true"})
_OFF: Final = frozenset({"", "0", "false"})
_VALUE_CHARS_SHOWN: Final = 60
_NAMES: Final = frozenset(
    name for setting in SETTINGS for name in (setting.name, setting.file_name) if name is not None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    settings: ServerSettings
    # By name: "flag --port", "environment TOPICS_PORT", "topics.toml" or "default".
    origins: Mapping[str, str]
    warnings: tuple[str, ...]
    streams: StreamsConfig = field(default_factory=StreamsConfig)


def load_settings(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    toml_text: str | None,
    toml_path: str | None = None,
    *,
    read_text: Callable[[str], str] | None = None,
) -> LoadedSettings:
    """Raises `SettingsError` with all problems. A flag that is None was not given.

    `read_text` returns the text of the file at a path, or raises `OSError`.
    """
    loader = _Loader(read_text or _refuse_to_read)
    return loader.load(
        loader.flags(flags),
        loader.environment(environ),
        loader.file(toml_text, toml_path or TOML_NAME),
    )


def engine_settings(settings: ServerSettings) -> "EngineSettings":
    from topics.engine.settings import EngineSettings

    return EngineSettings(
        wal_shards=settings.wal_shards,
        segment_events_max=settings.segment_max_events,
        segment_bytes_max=settings.segment_max_bytes,
        segment_age_ms_max=settings.segment_max_age_ms,
        cold_dir=settings.cold_dir,
        hot_retain_segments=settings.hot_retain_segments,
        hot_retain_bytes=settings.hot_retain_bytes,
        topics_max=settings.max_topics,
        routers_max=settings.max_routers,
        total_bytes_max=settings.max_total_bytes,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than `localhost` may resolve to any address, so it
    does not count.
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def check_safe(settings: ServerSettings) -> None:
    """Refuses a server without keys that other machines can reach."""
    if settings.api_keys.count or settings.allow_insecure_no_auth or is_loopback(settings.host):
        return
    raise SettingsError(
        f'host "{settings.host}" can be reached by other machines, and there are no API keys: '
        "set TOPICS_API_KEYS, listen on 127.0.0.1, or start with --allow-insecure-no-auth"
    )


class _Unusable(Exception):
    """A value that its setting does not accept. The text says what it accepts."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One source of settings: raw values by name, and how the source spells a name."""

    place: Literal["flag", "environment", "file"]
    values: Mapping[str, Any]
    path: str = ""

    def label(self, name: str) -> str:
        """The setting as messages name it."""
        match self.place:
            case "flag":
                return "--" + name.replace("_", "-")
            case "environment":
                return ENV_PREFIX + name.upper()
            case "file":
                return f"{self.path}: {name}"

    def origin(self, name: str) -> str:
        return self.path if self.place == "file" else f"{self.place} {self.label(name)}"


@dataclass(frozen=True, slots=True)
class _Found:
    value: Any
    origin: str
    # Position in the order of sources: a lower rank wins.
    rank: int


class _Loader:
    """Collects problems and warnings, so that all of them are reported at once."""

    def __init__(self, read_text: Callable[[str], str]) -> None:
        self._read_text = read_text
        self._problems: list[str] = []
        self._warnings: list[str] = []
        self._streams_table: Mapping[str, Any] = {}
        self._iggy_variables: Mapping[str, str] = {}

    def load(self, *sources: _Source) -> LoadedSettings:
        found = {setting.name: self._find(setting, sources) for setting in SETTINGS}
        self._split_host(found)
        if (found["tls_cert"].value is None) != (found["tls_key"].value is None):
            self._problems.append("tls_cert and tls_key belong together: set both, or none for plain HTTP")
        if ANY_ORIGIN in parse_origins(found["cors_origins"].value or "") and not found["api_keys"].value.count:
            self._problems.append(
                "cors_origins is *, and there are no API keys: every web page could use the server; list the origins"
            )
        if self._problems:
            raise SettingsError(*self._problems)
        return LoadedSettings(
            settings=ServerSettings(**{name: entry.value for name, entry in found.items()}),
            origins={name: entry.origin for name, entry in found.items()},
            warnings=tuple(self._warnings),
            streams=StreamsConfig(table=self._streams_table, environ=self._iggy_variables),
        )

    # Sources.

    def flags(self, flags: Mapping[str, Any]) -> _Source:
        given = {name: value for name, value in flags.items() if value is not None}
        assert given.keys() <= _NAMES, "flags are made from the schema"
        return _Source("flag", given)

    def environment(self, environ: Mapping[str, str]) -> _Source:
        given: dict[str, str] = {}
        self._iggy_variables = {name: text for name, text in environ.items() if name.startswith(IGGY_PREFIX)}
        for variable, text in sorted(environ.items()):
            if not variable.startswith(ENV_PREFIX):
                continue
            name = variable.removeprefix(ENV_PREFIX).lower()
            if name in _NAMES and variable.isupper():
                given[name] = text
            elif not variable.startswith(_TEST_PREFIX) and variable not in _OTHER_VARIABLES:
                close = _closest(variable)
                hint = f"; did you mean {ENV_PREFIX}{close.upper()}?" if close else ""
                self._warnings.append(f"{variable} is no setting of this server{hint}")
        return _Source("environment", given)

    def file(self, text: str | None, path: str) -> _Source:
        given: dict[str, Any] = {}
        try:
            given = tomllib.loads(text or "")
        except tomllib.TOMLDecodeError as error:
            self._problems.append(f"{path} is not TOML: {error}")
        streams = given.pop(STREAMS_TABLE, {})
        if isinstance(streams, dict):
            self._streams_table = streams
        else:
            self._problems.append(f"{path}: {STREAMS_TABLE} is a table, not a value")
        for key in sorted(given.keys() - _NAMES):
            hint = f"; did you mean {close}?" if (close := _closest(key)) else ""
            if isinstance(given[key], dict):
                hint = "; settings stand at the top of the file, not in a table"
            self._problems.append(f'{path}: "{key}" is no setting{hint}')
        return _Source("file", given, path)

    # Values.

    def _find(self, setting: Setting, sources: Sequence[_Source]) -> _Found:
        """The value from the source that wins. A wrong value is reported even if another source wins."""
        strongest: _Found | None = None
        for rank, source in enumerate(sources):
            maybe = self._maybe_keys(setting, source, rank) if setting.kind == "keys" else None
            maybe = maybe or self._maybe_value(setting, source, rank)
            strongest = strongest or maybe
        return strongest or _Found(setting.make_default(), "default", len(sources))

    def _maybe_value(self, setting: Setting, source: _Source, rank: int) -> _Found | None:
        raw = source.values.get(setting.name)
        if raw is None or (setting.kind == "keys" and raw == ""):
            # An empty list of keys counts as absent: it must not switch off the keys of the next source.
            return None
        label = source.label(setting.name)
        is_text = isinstance(raw, str) and source.place != "file"
        try:
            value = _value_of(setting, _parsed(setting, raw) if is_text else raw)
        except _Unusable as unusable:
            problem = f"{label} is {_quoted(raw)}: " if setting.kind != "keys" else f"{label}: "
            self._problems.append(problem + str(unusable))
            return _Found(setting.make_default(), "default", rank)
        return _Found(value, source.origin(setting.name), rank)

    def _maybe_keys(self, setting: Setting, source: _Source, rank: int) -> _Found | None:
        """Keys from the file that a source names. Each line is an entry."""
        assert setting.file_name is not None
        path = source.values.get(setting.file_name)
        if not path:
            return None
        label = source.label(setting.file_name)
        keys = KeyList()
        if not isinstance(path, str):
            self._problems.append(f"{label} must be the path of a file")
        elif source.values.get(setting.name):
            self._problems.append(f"{label} and {source.label(setting.name)} exclude each other: keep one of them")
        else:
            try:
                keys = KeyList(",".join(self._read_text(path).splitlines()))
            except OSError as error:
                self._problems.append(f"{label}: {path}: {error.strerror or error}")
            except UnicodeDecodeError:
                self._problems.append(f"{label}: {path} is not text in UTF-8")
            else:
                if not keys.count:
                    self._problems.append(f"{label}: {path} holds no key")
        return _Found(keys, source.origin(setting.file_name), rank)

    def _split_host(self, found: dict[str, _Found]) -> None:
        host, port = found["host"], found["port"]
        name, own_port = _host_and_port(host.value)
        found["host"] = replace(host, value=name)
        if own_port is None or port.rank < host.rank:
            return
        if port.rank == host.rank and port.value != own_port:
            self._warnings.append(f"host has the port {own_port} and port is {port.value}: {own_port} is used")
        found["port"] = replace(host, value=own_port)


def _parsed(setting: Setting, text: str) -> Any:
    """A text from the command line or the environment as the value that TOML would give."""
    if setting.kind == "number":
        return int(text) if _WHOLE_NUMBER.fullmatch(text.strip()) else text
    if setting.kind == "switch":
        return text in _ON if text in _ON | _OFF else text
    return text


def _value_of(setting: Setting, value: Any) -> Any:
    """The value in the type of the setting. Raises `_Unusable`."""
    match setting.kind:
        case "number" if value == "off" and setting.is_optional:
            return None
        case "number":
            is_usable = type(value) is int and setting.smallest <= value <= setting.largest
        case "switch":
            is_usable = type(value) is bool
        case "choice":
            is_usable = value in setting.choices
        case "keys":
            is_usable = isinstance(value, str)
        case "text":
            is_usable = isinstance(value, str) and "\0" not in value
    if not is_usable:
        raise _Unusable(f"it must be {setting.accepted()}")
    if setting.name == "host":
        _host_and_port(value)
    elif setting.name == "cors_origins" and value:
        _check_origins(value)
    elif setting.kind == "text" and not value:
        if not setting.is_optional:
            raise _Unusable("it must not be empty")
        return None
    return KeyList(value) if setting.kind == "keys" else value


def _host_and_port(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[address]`, `[address]:port` or a bare IPv6 address, which has no port."""
    if _is_ipv6(text):
        return text, None
    match = _HOST.fullmatch(text) or _BRACKETED.fullmatch(text)
    if match is None or (text.startswith("[") and not _is_ipv6(match[1])):
        raise _Unusable('it must be "host", "host:port" or "[::1]:port"')
    host, port = match.groups()
    if port is None:
        return host, None
    if int(port) > PORT_MAX:
        raise _Unusable(f"its port must be a whole number from 0 to {PORT_MAX}")
    return host, int(port)


def _check_origins(text: str) -> None:
    try:
        parse_origins(text)
    except ValueError as error:
        raise _Unusable(
            f'"{error}" is no origin: write scheme://host or scheme://host:port without a path, as the browser shows it'
        ) from None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _closest(name: str) -> str | None:
    """The setting whose name is closest."""
    wanted = name.lower().replace("-", "_").removeprefix(ENV_PREFIX.lower())
    return next(iter(get_close_matches(wanted, sorted(_NAMES), n=1, cutoff=0.7)), None)


def _quoted(raw: Any) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    text = str(raw)
    text = text if len(text) <= _VALUE_CHARS_SHOWN else f"{text[:_VALUE_CHARS_SHOWN]}…"
    return f'"{text}"' if isinstance(raw, str) else text


def _refuse_to_read(path: str) -> str:
    raise OSError(errno.ENOTSUP, "files are not read here", path)
