"""Which consumer polls, and where its poll begins."""

from dataclasses import dataclass
from enum import IntEnum

from topics.formats.stream_command import Identifier
from topics.streams.consumers.consumer_offsets import ConsumerKind


@dataclass(frozen=True, slots=True)
class Consumer:
    """A single consumer by its number or name, or a consumer group of the topic."""

    id: Identifier = 0
    kind: ConsumerKind = ConsumerKind.CONSUMER

    @classmethod
    def group(cls, group_id: Identifier) -> "Consumer":
        return cls(group_id, ConsumerKind.GROUP)


class StrategyKind(IntEnum):
    """The wire protocol uses the same numbers."""

    OFFSET = 1
    TIMESTAMP = 2
    FIRST = 3
    LAST = 4
    NEXT = 5


@dataclass(frozen=True, slots=True)
class PollingStrategy:
    """Where a poll begins. `value` is the offset or the time (microseconds since 1970); the other kinds need none."""

    kind: StrategyKind
    value: int = 0

    @classmethod
    def offset(cls, offset: int) -> "PollingStrategy":
        return cls(StrategyKind.OFFSET, offset)

    @classmethod
    def timestamp(cls, timestamp_us: int) -> "PollingStrategy":
        """At the first message that is not older than the time."""
        return cls(StrategyKind.TIMESTAMP, timestamp_us)

    @classmethod
    def first(cls) -> "PollingStrategy":
        return cls(StrategyKind.FIRST)

    @classmethod
    def last(cls) -> "PollingStrategy":
        """The newest `count` messages."""
        return cls(StrategyKind.LAST)

    @classmethod
    def next(cls) -> "PollingStrategy":
        """After the consumer's stored offset; at the first message if it has none."""
        return cls(StrategyKind.NEXT)
