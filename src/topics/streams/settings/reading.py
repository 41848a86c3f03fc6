"""Settings from nested mappings and environment variables, and settings as TOML.

`from_mapping` takes values as people write them, under their names without a unit
(`message_saver.interval = "30 s"`), and reports every problem at once.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import msgspec

from topics.errors import SettingsError
from topics.streams.settings.sections import (
    ArchiverKind,
    CacheIndexes,
    CompressionName,
    Duration,
    Expiry,
    FlavourName,
    Size,
    StreamsSettings,
    TopicSize,
)
from topics.streams.settings.units import (
    UNLIMITED,
    parse_choice,
    parse_count,
    parse_duration_us,
    parse_expiry_us,
    parse_flag,
    parse_size,
    parse_text,
    parse_topic_size,
)

logger = logging.getLogger(__name__)

ENV_PREFIX: Final = "IGGY_"

# Configuration files of Apache Iggy have these settings. They are accepted, with a warning.
WITHOUT_EFFECT: Final = frozenset(
    {
        "system.backup.compatibility.path",
        "system.logging.path",
        "system.state.max_file_operation_retries",
        "system.state.retry_delay",
        "data_maintenance.archiver.s3.tmp_upload_dir",
    }
)


def parse_cache_indexes(value: object) -> str:
    """Older configuration files have true or false."""
    named = {"true": "all", "false": "none"}.get(str(value).lower(), value)
    return parse_choice(get_args(CacheIndexes), named)


_PARSERS: Final[dict[object, Callable[[Any], Any]]] = {
    bool: parse_flag,
    int: parse_count,
    str: parse_text,
    Size: parse_size,
    TopicSize: parse_topic_size,
    Duration: parse_duration_us,
    Expiry: parse_expiry_us,
    CacheIndexes: parse_cache_indexes,
    **{kind: partial(parse_choice, get_args(kind)) for kind in (FlavourName, CompressionName, ArchiverKind)},
}


def from_mapping(values: Mapping[str, Any]) -> StreamsSettings:
    """Settings from nested sections with values as people write them. Missing ones have their defaults."""
    problems: list[str] = []
    settings = _read_section(StreamsSettings, values, "", problems)
    if problems:
        raise SettingsError(*problems)
    assert isinstance(settings, StreamsSettings)
    return settings


def environment_mapping(environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of variables `IGGY_…`, for `from_mapping`. Variables that name no setting are ignored."""
    values: dict[str, Any] = {}
    for path in setting_names():
        variable = ENV_PREFIX + path.replace(".", "_").upper()
        if variable in environ:
            *sections, name = path.split(".")
            section = values
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = environ[variable]
    return values


def setting_names() -> Iterator[str]:
    """Every setting by its path, such as `system.segment.size`."""
    return _names_below(StreamsSettings, "")


def _names_below(kind: type[Any], prefix: str) -> Iterator[str]:
    for name, member in members_of(kind).items():
        if member.section is not None:
            yield from _names_below(member.section, f"{prefix}{name}.")
        else:
            yield prefix + name


def to_toml(settings: StreamsSettings) -> str:
    """All settings, as `from_mapping` reads them, without secrets."""
    return "".join(_toml_section(settings, StreamsSettings, ""))


def _toml_section(section: Any, kind: type[Any], path: str) -> Iterator[str]:
    members = members_of(kind)
    hints = get_type_hints(kind, include_extras=True)
    lines = [
        f"{name} = {_toml_value(getattr(section, member.attribute), hints[member.attribute])}\n"
        for name, member in members.items()
        if member.section is None and not member.is_secret
    ]
    if lines:
        yield f"[{path}]\n" + "".join(lines) + "\n"
    for name, member in members.items():
        if member.section is not None:
            below = f"{path}.{name}" if path else name
            yield from _toml_section(getattr(section, member.attribute), member.section, below)


def _toml_value(value: Any, hint: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if hint in (TopicSize, Expiry) and value == UNLIMITED:
        return '"unlimited"'
    if hint in (Duration, Expiry):
        return f'"{value} us"'
    # TOML has the escapes of JSON.
    return msgspec.json.encode(value).decode()


class SectionMember(NamedTuple):
    """A member of a section: its attribute, and either its own section or the parser of its value."""

    attribute: str
    section: type[Any] | None
    parse: Callable[[Any], Any] | None
    is_secret: bool


def members_of(kind: type[Any]) -> dict[str, SectionMember]:
    """The members of a section by the names that people write: times have no unit there."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        member.name.removesuffix("_us"): SectionMember(
            member.name,
            hint if isinstance(hint, type) and is_dataclass(hint) else None,
            _PARSERS.get(hint),
            not member.repr,
        )
        for member, hint in ((member, hints[member.name]) for member in fields(kind))
    }


def _read_section(kind: type[Any], values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    members = members_of(kind)
    for name, value in values.items():
        if name not in members and not _is_without_effect(f"{prefix}{name}", value):
            problems.append(_unknown(prefix, str(name), members))
    known: dict[str, Any] = {}
    for name, member in members.items():
        if name not in values:
            continue
        value = values[name]
        if member.parse is not None:
            try:
                known[member.attribute] = member.parse(value)
            except ValueError as error:
                shown = "" if member.is_secret else f" is {value!r}"
                problems.append(f"{prefix}{name}{shown}: it must be {error}")
        elif member.section is not None and isinstance(value, Mapping):
            known[member.attribute] = _read_section(member.section, value, f"{prefix}{name}.", problems)
        else:
            problems.append(f"{prefix}{name} is a section, not a value")
    return kind(**known)


def _is_without_effect(path: str, value: Any) -> bool:
    """Whether this is a setting without effect, or a section that has nothing else."""
    if isinstance(value, Mapping):
        return bool(value) and all(_is_without_effect(f"{path}.{name}", below) for name, below in value.items())
    if path in WITHOUT_EFFECT:
        logger.warning("%s has no effect here", path)
        return True
    return False


def _unknown(prefix: str, name: str, siblings: Iterable[str]) -> str:
    path = prefix + name
    close = get_close_matches(name, list(siblings), 1)
    suggestion = prefix + close[0] if close else next(iter(get_close_matches(path, list(setting_names()), 1)), None)
    return f"{path} is not a setting" + (f"; did you mean {suggestion}?" if suggestion else "")
