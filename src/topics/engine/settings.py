"""Settings of an engine: sizes, intervals, limits, and the address of the cold tier."""

import os
from dataclasses import dataclass, field
from typing import Final

from topics.errors import InvalidRequest
from topics.limits import (
    CHECKPOINT_INTERVAL_MS,
    CHECKPOINT_WAL_BYTES,
    COLD_CALL_MS_MAX,
    COMMIT_TURN_BYTES,
    HOT_RETAIN_SEGMENTS,
    LONG_WRITE_BYTES,
    LONG_WRITE_TURN_BYTES,
    MIB,
    ROUTERS_MAX,
    SEGMENT_AGE_MS_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_EVENTS_MAX,
    TOPICS_MAX,
    U64_MAX,
    WAL_FILE_BYTES,
    WAL_SHARDS_MAX,
)


def default_wal_shards() -> int:
    return min(os.cpu_count() or 1, WAL_SHARDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    wal_shards: int = field(default_factory=default_wal_shards)
    wal_file_bytes: int = WAL_FILE_BYTES
    segment_events_max: int = SEGMENT_EVENTS_MAX
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    segment_age_ms_max: int = SEGMENT_AGE_MS_MAX
    checkpoint_wal_bytes: int = CHECKPOINT_WAL_BYTES
    checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS
    # A path or an s3:// address; None = no cold tier.
    cold_dir: str | None = None
    hot_retain_segments: int = HOT_RETAIN_SEGMENTS
    # 0 = no limit by bytes.
    hot_retain_bytes: int = 0
    # How long one call may wait for the cold tier.
    cold_call_ms_max: int = COLD_CALL_MS_MAX
    # 0 = unlimited.
    topics_max: int = TOPICS_MAX
    # 0 = unlimited.
    routers_max: int = ROUTERS_MAX
    # Live bytes over all topics; 0 = unlimited.
    total_bytes_max: int = 0
    # Most bytes of checkpointed records that stay in memory, per topic. Records without a checkpoint always stay.
    tail_cache_bytes: int = MIB
    # Bytes that a commit of staged records puts into the log in one turn.
    commit_turn_bytes: int = COMMIT_TURN_BYTES
    # A batch with more bytes than the first limit is logged over several turns, the second limit in each turn.
    long_write_bytes: int = LONG_WRITE_BYTES
    long_write_turn_bytes: int = LONG_WRITE_TURN_BYTES

    def __post_init__(self) -> None:
        """Refuses a value that cannot work, by its name, before it breaks anything."""
        for name, (smallest, largest) in _RANGES.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise InvalidRequest(f"{name} is {value}: it must be between {smallest} and {largest}")


# Bounds from the file formats: a shard directory has a number of two digits, an index entry has a 32-bit offset.
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "wal_shards": (1, 64),
    "wal_file_bytes": (1024, 2**32),
    "segment_events_max": (1, 2**27),
    "segment_bytes_max": (1, 2**32 - 1),
    "segment_age_ms_max": (0, U64_MAX),
    "checkpoint_wal_bytes": (1, U64_MAX),
    "checkpoint_interval_ms": (1, U64_MAX),
    "hot_retain_segments": (0, U64_MAX),
    "hot_retain_bytes": (0, U64_MAX),
    "cold_call_ms_max": (1, U64_MAX),
    "topics_max": (0, U64_MAX),
    "routers_max": (0, U64_MAX),
    "total_bytes_max": (0, U64_MAX),
    "tail_cache_bytes": (0, U64_MAX),
    "commit_turn_bytes": (1, U64_MAX),
    "long_write_bytes": (1, U64_MAX),
    "long_write_turn_bytes": (1, U64_MAX),
}
