"""What a partitioned engine is opened with: names and defaults of the 0.8.0 server, in its sections, plus our own.

`StreamsSettings` holds values that are ready for use: sizes in bytes, times in microseconds (`_us`). `from_mapping`
reads them as people write them, under their names without a unit (`message_saver.interval = "30 s"`), and tells every
problem at once. `check` refuses what an engine cannot or must not start with; whoever opens one calls it.

Sizes are a number and a unit (`KB` = 1000, `KiB` = 1024, case and spaces do not matter), plain numbers are bytes.
Durations are numbers with units (`1 m`, `2 days 4 hours`); `0`, `none`, `disabled` and `unlimited` are zero. As the
default of topics, zero and `never_expire` mean that nothing expires. A number without a unit other than 0 is refused as
a duration: it would be seconds to one reader and milliseconds to the next.

Unit choices that the specification leaves open: months are 30.44 days and years 365.25, as in the tools that users of
0.8.0 know; parts of a microsecond or of a byte are dropped.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from topics.errors import SettingsError
from topics.formats.message_cipher import KEY_BYTES, Cipher
from topics.limits import KIB, MIB, U64_MAX

GIB: Final = 1024 * MIB
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US

# No limit and no expiry, as topics store them.
UNLIMITED: Final = U64_MAX

SEGMENT_BYTES_MAX: Final = GIB
SEGMENT_BYTES_STEP: Final = 512
POOL_BYTES_MIN: Final = 512 * MIB
POOL_BYTES_STEP: Final = 4 * KIB
BUCKET_CAPACITY_MIN: Final = 128
ENV_PREFIX: Final = "IGGY_"

FlavourName = Literal["page", "iggy"]
CacheIndexes = Literal["all", "open_segment", "none"]
CompressionName = Literal["none", "gzip", "lz4", "zstd"]
ArchiverKind = Literal["disk", "s3"]

# Numbers by how people write them. What they count is in the name of the member, or bytes.
Size = Annotated[int, "size"]
TopicSize = Annotated[int, "size of a topic"]
Duration = Annotated[int, "duration"]
Expiry = Annotated[int, "expiry"]


# --- values as people write them ----------------------------------------------------------------------------

_SIZE: Final = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)
_SIZE_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
}

_DURATION_PART: Final = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµ]+)")
_DAY_US: Final = 24 * 60 * MINUTE_US
_DURATION_UNITS: Final[dict[str, Fraction]] = {
    unit: Fraction(us)
    for units, us in (
        (("ns", "nsec", "nanos"), Fraction(1, 1000)),
        (("us", "µs", "usec", "micros"), 1),
        (("ms", "msec", "millis"), 1000),
        (("s", "sec", "secs", "second", "seconds"), SECOND_US),
        (("m", "min", "mins", "minute", "minutes"), MINUTE_US),
        (("h", "hr", "hrs", "hour", "hours"), 60 * MINUTE_US),
        (("d", "day", "days"), _DAY_US),
        (("w", "wk", "week", "weeks"), 7 * _DAY_US),
        (("M", "month", "months"), Fraction("30.44") * _DAY_US),
        (("y", "yr", "year", "years"), Fraction("365.25") * _DAY_US),
    )
    for unit in units
}
_ZERO_WORDS: Final = frozenset({"0", "none", "disabled", "unlimited"})
_NEVER_WORDS: Final = _ZERO_WORDS | {"never_expire", "never"}


def parse_size(value: int | str) -> int:
    """Bytes. Raises `ValueError` for what is no size."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError('a size, such as "1 GiB", "500 MB" or a number of bytes')
    return int(Fraction(match[1]) * unit)


def parse_duration_us(value: int | str) -> int:
    """Microseconds. Raises `ValueError` for what is no duration."""
    if value == 0 and not isinstance(value, bool):
        return 0
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() in _ZERO_WORDS:
        return 0
    total, at = Fraction(0), 0
    while match := _DURATION_PART.match(text, at):
        unit = _DURATION_UNITS.get(match[2]) or _DURATION_UNITS.get(match[2].lower())
        if unit is None:
            break
        total += Fraction(match[1]) * unit
        at = match.end()
    if at == 0 or text[at:].strip():
        raise ValueError('a duration, such as "30 s", "1 m" or "2 days 4 hours"')
    return int(total)


def parse_expiry_us(value: int | str) -> int:
    """As topics store it: microseconds, or `UNLIMITED` when nothing expires."""
    if isinstance(value, str) and value.strip().lower() in _NEVER_WORDS:
        return UNLIMITED
    return parse_duration_us(value) or UNLIMITED


def parse_topic_size(value: int | str) -> int:
    """As topics store it: bytes, or `UNLIMITED`."""
    if isinstance(value, str) and value.strip().lower() in ("unlimited", "none"):
        return UNLIMITED
    return parse_size(value)


def parse_flag(value: object) -> bool:
    """TOML has them; in the environment they are words."""
    if isinstance(value, bool):
        return value
    if value in ("true", "1"):
        return True
    if value in ("false", "0"):
        return False
    raise ValueError("true or false")


def parse_count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,20}\s*", value, re.ASCII):
        return int(value)
    raise ValueError("a whole number")


def parse_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("text")


def parse_choice(options: tuple[str, ...], value: object) -> str:
    text = value.lower() if isinstance(value, str) else value
    if text in options:
        return str(text)
    raise ValueError("one of " + ", ".join(f'"{option}"' for option in options))


def parse_cache_indexes(value: object) -> str:
    """Older configurations say true or false."""
    named = {"true": "all", "false": "none"}.get(str(value).lower(), value)
    return parse_choice(get_args(CacheIndexes), named)


# --- the sections -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibilitySettings:
    """Read for old configurations, without effect."""

    path: str = "compatibility"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    path: str = "backup"
    compatibility: CompatibilitySettings = field(default_factory=CompatibilitySettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    enforce_fsync: bool = False
    # Read for old configurations, without effect, like the next one.
    max_file_operation_retries: int = 1
    retry_delay_us: Duration = SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    path: str = "runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    path: str = "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    path: str = "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    path: str = "topics"
    # What 0 in a request means, resolved: `UNLIMITED` or bytes, and `UNLIMITED` or microseconds.
    max_size: TopicSize = UNLIMITED
    message_expiry_us: Expiry = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    path: str = "partitions"
    enforce_fsync: bool = False
    validate_checksum: bool = False
    messages_required_to_save: int = 1024
    size_of_messages_required_to_save: Size = MIB
    max_poll_bytes: Size = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings:
    size: Size = GIB
    cache_indexes: CacheIndexes = "open_segment"
    archive_expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    enabled: bool = False
    # Standard base64 of 32 bytes.
    key: str = field(default="", repr=False)

    def cipher(self) -> Cipher | None:
        """None while it is not enabled. Raises `StreamsError` for what is no key."""
        return Cipher(self.key) if self.enabled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    default_algorithm: CompressionName = "none"
    allow_override: bool = False
    # Compress in the `iggy` flavour, too, although no other server can read that.
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeduplicationSettings:
    enabled: bool = False
    # Per partition; 0: no bound.
    max_entries: int = 10_000
    # 0: an id is remembered for good.
    expiry_us: Duration = MINUTE_US


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoolSettings:
    enabled: bool = True
    size: Size = 4 * GIB
    bucket_capacity: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    recreate_missing_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    path: str = "local_data"
    # Of a directory that has none yet.
    flavour: FlavourName = "page"
    backup: BackupSettings = field(default_factory=BackupSettings)
    state: StateSettings = field(default_factory=StateSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    topic: TopicSettings = field(default_factory=TopicSettings)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    segment: SegmentSettings = field(default_factory=SegmentSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    message_deduplication: MessageDeduplicationSettings = field(default_factory=MessageDeduplicationSettings)
    memory_pool: MemoryPoolSettings = field(default_factory=MemoryPoolSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSaverSettings:
    enabled: bool = True
    enforce_fsync: bool = True
    interval_us: Duration = 30 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskArchiverSettings:
    # Empty: `system.backup.path` below the directory of the engine.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3ArchiverSettings:
    key_id: str = field(default="", repr=False)
    key_secret: str = field(default="", repr=False)
    bucket: str = ""
    endpoint: str = ""
    region: str = ""
    tmp_upload_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverSettings:
    enabled: bool = False
    kind: ArchiverKind = "disk"
    disk: DiskArchiverSettings = field(default_factory=DiskArchiverSettings)
    s3: S3ArchiverSettings = field(default_factory=S3ArchiverSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesMaintenanceSettings:
    cleaner_enabled: bool = False
    archiver_enabled: bool = False
    interval_us: Duration = MINUTE_US
    # Keep segments that some consumer or group has not read to the end.
    keep_unconsumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMaintenanceSettings:
    messages: MessagesMaintenanceSettings = field(default_factory=MessagesMaintenanceSettings)
    archiver: ArchiverSettings = field(default_factory=ArchiverSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    rebalancing_timeout_us: Duration = 30 * SECOND_US
    rebalancing_check_interval_us: Duration = 5 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCleanerSettings:
    enabled: bool = True
    interval_us: Duration = MINUTE_US


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalAccessTokenSettings:
    max_tokens_per_user: int = 100
    cleaner: TokenCleanerSettings = field(default_factory=TokenCleanerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    enabled: bool = False
    interval_us: Duration = 5 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSettings:
    system: SystemSettings = field(default_factory=SystemSettings)
    message_saver: MessageSaverSettings = field(default_factory=MessageSaverSettings)
    data_maintenance: DataMaintenanceSettings = field(default_factory=DataMaintenanceSettings)
    consumer_group: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    personal_access_token: PersonalAccessTokenSettings = field(default_factory=PersonalAccessTokenSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)

    def check(self) -> None:
        """Raises `SettingsError`, which refuses the start, with everything that is wrong."""
        if problems := list(_problems(self)):
            raise SettingsError(*problems)


# --- reading them -------------------------------------------------------------------------------------------


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
    """Nested sections with values as people write them; what is not there has its default."""
    problems: list[str] = []
    settings = _read_section(StreamsSettings, values, "", problems)
    if problems:
        raise SettingsError(*problems)
    assert isinstance(settings, StreamsSettings)
    return settings


def environment_mapping(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the variables `IGGY_…` say, for `from_mapping`. Others that begin so are not ours to judge."""
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
    for name, member in _members(kind).items():
        if member.section is not None:
            yield from _names_below(member.section, f"{prefix}{name}.")
        else:
            yield prefix + name


def to_toml(settings: StreamsSettings) -> str:
    """All of them as `from_mapping` would read them back, but for secrets, which are left out."""
    return "".join(_toml_section(settings, StreamsSettings, ""))


def _toml_section(section: Any, kind: type[Any], path: str) -> Iterator[str]:
    members = _members(kind)
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
    # The escapes of JSON are escapes of TOML, too.
    return msgspec.json.encode(value).decode()


class _Member(NamedTuple):
    """How a part of a section is filled: its attribute, and the section it is or what makes its value."""

    attribute: str
    section: type[Any] | None
    parse: Callable[[Any], Any] | None
    is_secret: bool


def _members(kind: type[Any]) -> dict[str, _Member]:
    """By the names that people write: times have no unit there."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        member.name.removesuffix("_us"): _Member(
            member.name,
            hint if isinstance(hint, type) and is_dataclass(hint) else None,
            _PARSERS.get(hint),
            not member.repr,
        )
        for member, hint in ((member, hints[member.name]) for member in fields(kind))
    }


def _read_section(kind: type[Any], values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    members = _members(kind)
    problems += [_unknown(prefix, str(name), members) for name in values if name not in members]
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


def _unknown(prefix: str, name: str, siblings: Iterable[str]) -> str:
    path = prefix + name
    close = get_close_matches(name, list(siblings), 1)
    suggestion = prefix + close[0] if close else next(iter(get_close_matches(path, list(setting_names()), 1)), None)
    return f"{path} is no setting" + (f"; did you mean {suggestion}?" if suggestion else "")


# --- what an engine does not start with ---------------------------------------------------------------------


def _problems(settings: StreamsSettings) -> Iterator[str]:
    yield from _out_of_range(settings, "")
    system = settings.system
    yield from _segment_problems(system)
    yield from _pool_problems(system.memory_pool)
    yield from _directory_problems(system)
    if system.partition.messages_required_to_save < 1:
        yield "system.partition.messages_required_to_save must be 1 or more"
    if system.partition.max_poll_bytes < 1:
        yield "system.partition.max_poll_bytes must be 1 or more"
    if system.encryption.enabled and not _is_key(system.encryption.key):
        yield f"system.encryption.key must be the base64 of exactly {KEY_BYTES} bytes"
    yield from _interval_problems(settings)
    yield from _archive_problems(settings)
    archiver = settings.data_maintenance.archiver
    if archiver.enabled and archiver.kind == "s3" and not archiver.s3.bucket:
        yield "data_maintenance.archiver.s3.bucket must be set to archive to S3"


def _out_of_range(section: Any, prefix: str) -> Iterator[str]:
    for name, member in _members(type(section)).items():
        value = getattr(section, member.attribute)
        if member.section is not None:
            yield from _out_of_range(value, f"{prefix}{name}.")
        elif isinstance(value, int) and not 0 <= value <= U64_MAX:
            yield f"{prefix}{name} is {value}: it must be between 0 and {U64_MAX}"


def _segment_problems(system: SystemSettings) -> Iterator[str]:
    size = system.segment.size
    if not SEGMENT_BYTES_STEP <= size <= SEGMENT_BYTES_MAX or size % SEGMENT_BYTES_STEP:
        yield (
            f"system.segment.size is {size}: it must be a multiple of {SEGMENT_BYTES_STEP} bytes, "
            f"{SEGMENT_BYTES_MAX} (1 GiB) at most"
        )
    if system.topic.max_size < size:
        yield (
            f"system.topic.max_size is {system.topic.max_size}: "
            f'it must be "unlimited", or {size} (system.segment.size) or more'
        )


def _pool_problems(pool: MemoryPoolSettings) -> Iterator[str]:
    if not pool.enabled:
        return
    if pool.size < POOL_BYTES_MIN or pool.size % POOL_BYTES_STEP:
        yield (
            f"system.memory_pool.size is {pool.size}: "
            f"it must be {POOL_BYTES_MIN} (512 MiB) or more, and a multiple of {POOL_BYTES_STEP}"
        )
    capacity = pool.bucket_capacity
    if capacity < BUCKET_CAPACITY_MIN or capacity & (capacity - 1):
        yield (
            f"system.memory_pool.bucket_capacity is {capacity}: "
            f"it must be a power of two, {BUCKET_CAPACITY_MIN} or more"
        )


def _directory_problems(system: SystemSettings) -> Iterator[str]:
    """Names of folders. `runtime` is emptied at every start, so it must be nobody else's."""
    top = {
        "system.backup.path": system.backup.path,
        "system.runtime.path": system.runtime.path,
        "system.logging.path": system.logging.path,
        "system.stream.path": system.stream.path,
    }
    inner = {"system.topic.path": system.topic.path, "system.partition.path": system.partition.path}
    for name, value in (top | inner).items():
        if not value or "/" in value or "\0" in value or value in (".", ".."):
            yield f"{name} is {value!r}: it must be the name of one folder"
    if not system.path:
        yield "system.path is empty: it must be a folder"
    taken = {"state": "the state log"}
    for name, value in top.items():
        if value in taken:
            yield f"{name} is {value!r}, which belongs to {taken[value]}"
        taken.setdefault(value, name)


def _interval_problems(settings: StreamsSettings) -> Iterator[str]:
    saver, messages = settings.message_saver, settings.data_maintenance.messages
    cleaner, heartbeat = settings.personal_access_token.cleaner, settings.heartbeat
    works_at_intervals = (
        ("message_saver.interval", saver.interval_us, saver.enabled),
        (
            "data_maintenance.messages.interval",
            messages.interval_us,
            messages.cleaner_enabled or messages.archiver_enabled,
        ),
        ("personal_access_token.cleaner.interval", cleaner.interval_us, cleaner.enabled),
        ("heartbeat.interval", heartbeat.interval_us, heartbeat.enabled),
        (
            "consumer_group.rebalancing_check_interval",
            settings.consumer_group.rebalancing_check_interval_us,
            True,
        ),
    )
    for name, interval_us, is_enabled in works_at_intervals:
        if is_enabled and interval_us == 0:
            yield f"{name} must not be 0 while it is enabled"


def _archive_problems(settings: StreamsSettings) -> Iterator[str]:
    maintenance = settings.data_maintenance
    archives = maintenance.archiver.enabled and maintenance.messages.archiver_enabled
    if settings.system.segment.archive_expired and not archives:
        yield (
            "system.segment.archive_expired keeps every segment until it is archived, and nothing archives: set "
            "data_maintenance.archiver.enabled and data_maintenance.messages.archiver_enabled as well"
        )


def _is_key(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == KEY_BYTES
    except ValueError:
        return False
