"""Which partition of a topic a send goes to. All messages of one send go to the same partition."""

import threading
from dataclasses import dataclass
from typing import Final

from xxhash import xxh32_intdigest

from topics.stream_errors import StreamsError, StreamStatus

KEY_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Balanced:
    """The partitions take turns."""


@dataclass(frozen=True, slots=True)
class PartitionId:
    id: int


@dataclass(frozen=True, slots=True)
class MessagesKey:
    """Equal keys go to the same partition, as long as the number of partitions stays the same."""

    key: bytes

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= KEY_BYTES_MAX:
            raise StreamsError(
                StreamStatus.INVALID_COMMAND, f"a messages key has 1 to {KEY_BYTES_MAX} bytes, not {len(self.key)}"
            )


Partitioning = Balanced | PartitionId | MessagesKey


class RoundRobin:
    """Which partition of a topic is next. Not persisted. Thread-safe."""

    __slots__ = ("_lock", "_next_id")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_id = 0

    def take(self, partitions_count: int) -> int:
        with self._lock:
            # Partitions may have been deleted since the last call.
            chosen = self._next_id % partitions_count
            self._next_id = (chosen + 1) % partitions_count
            return chosen


def choose(partitioning: Partitioning, partitions_count: int, counter: RoundRobin) -> int:
    """The id of the partition. `counter` is that of the topic."""
    match partitioning:
        case Balanced():
            if partitions_count == 0:
                raise StreamsError(StreamStatus.TOPIC_ID_NOT_FOUND, "the topic has no partitions to balance over")
            return counter.take(partitions_count)
        case PartitionId(partition_id):
            if not 0 <= partition_id < partitions_count:
                raise StreamsError(StreamStatus.PARTITION_NOT_FOUND, f"there is no partition {partition_id}")
            return partition_id
        case MessagesKey(key):
            if partitions_count == 0:
                raise StreamsError(StreamStatus.NO_PARTITIONS, "the topic has no partitions to choose from by key")
            return xxh32_intdigest(key) % partitions_count
