"""What the settings must be for an engine to start."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from topics.errors import SettingsError
from topics.formats.message_cipher import KEY_BYTES
from topics.limits import KIB, MIB, U64_MAX
from topics.streams.settings.reading import members_of
from topics.streams.settings.sections import GIB, MemoryPoolSettings, StreamsSettings, SystemSettings

SEGMENT_BYTES_MAX: Final = GIB
SEGMENT_BYTES_STEP: Final = 512
POOL_BYTES_MIN: Final = 512 * MIB
POOL_BYTES_STEP: Final = 4 * KIB
BUCKET_CAPACITY_MIN: Final = 128


def check_settings(settings: StreamsSettings) -> None:
    """Raises `SettingsError`, which refuses the start, with every problem."""
    if problems := list(_problems(settings)):
        raise SettingsError(*problems)


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
    for name, member in members_of(type(section)).items():
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
    """Each path is the name of one folder. Every start empties the runtime folder, so no other setting may name it."""
    top = {
        "system.backup.path": system.backup.path,
        "system.runtime.path": system.runtime.path,
        "system.stream.path": system.stream.path,
    }
    inner = {"system.topic.path": system.topic.path, "system.partition.path": system.partition.path}
    for name, value in (top | inner).items():
        if not value or "/" in value or "\0" in value or value in (".", ".."):
            yield f"{name} is {value!r}: it must be the name of one folder"
    if not system.path:
        yield "system.path is empty: it must be a folder"
    taken = {"state": "the state log", "logs": "the logs of an Apache Iggy server"}
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
