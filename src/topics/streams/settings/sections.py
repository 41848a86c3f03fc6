"""The settings of the partitioned engine: names and defaults of the Apache Iggy 0.8.0 server, plus our own.

`StreamsSettings` holds values that are ready for use: sizes in bytes, times in microseconds (`_us`).
"""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from topics.formats.message_cipher import Cipher
from topics.limits import MIB
from topics.streams.settings.units import MINUTE_US, SECOND_US, UNLIMITED

GIB: Final = 1024 * MIB

FlavourName = Literal["page", "iggy"]
CacheIndexes = Literal["all", "open_segment", "none"]
CompressionName = Literal["none", "gzip", "lz4", "zstd"]
ArchiverKind = Literal["disk", "s3"]

# Numbers, by the form in which people write them. A name with `_us` counts microseconds, every other one bytes.
Size = Annotated[int, "size"]
TopicSize = Annotated[int, "size of a topic"]
Duration = Annotated[int, "duration"]
Expiry = Annotated[int, "expiry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    path: str = "backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    enforce_fsync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    path: str = "runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    path: str = "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    path: str = "topics"
    # What 0 in a request means: bytes or `UNLIMITED`, and microseconds or `UNLIMITED`.
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
        """None if encryption is not enabled. Raises `StreamsError` if the key is invalid."""
        return Cipher(self.key) if self.enabled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    default_algorithm: CompressionName = "none"
    allow_override: bool = False
    # Compress in the `iggy` flavour, too. An Apache Iggy server cannot read that.
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeduplicationSettings:
    enabled: bool = False
    # Per partition; 0: no limit.
    max_entries: int = 10_000
    # 0: an id is remembered for ever.
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
    # The flavour of a fresh directory.
    flavour: FlavourName = "page"
    backup: BackupSettings = field(default_factory=BackupSettings)
    state: StateSettings = field(default_factory=StateSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
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
    # Empty: `system.backup.path` below the data directory.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3ArchiverSettings:
    key_id: str = field(default="", repr=False)
    key_secret: str = field(default="", repr=False)
    bucket: str = ""
    endpoint: str = ""
    region: str = ""


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
    # Keep segments that a consumer or group has not read to the end.
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
