"""An open topic: its partitions, the offsets stored in them, its consumer groups, and which partition is next.

The metadata describe a topic; a `RunningTopic` has its open files. Partitions have locks of their own. The list of
partitions and the groups change under the lock of `Commands`.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from topics.formats.message_codec import Codec
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_group import ConsumerGroup, MemberInfo
from topics.streams.consumers.consumer_offsets import ConsumerKind, ConsumerOffsets
from topics.streams.metadata.streams_metadata import GroupInfo, StreamInfo, TopicInfo
from topics.streams.partitions.partition import Partition
from topics.streams.partitions.partitioning import RoundRobin
from topics.streams.retention.cleaner import RetainedPartition, RetainedTopic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The numbers of a partition, buffered messages included."""

    id: int
    created_at: int
    segments_count: int
    earliest_offset: int
    current_offset: int
    size_bytes: int
    messages_count: int
    has_messages: bool
    unsaved_messages_count: int
    is_writable: bool

    @property
    def end_offset(self) -> int:
        """The offset of the next message."""
        return self.current_offset + 1 if self.has_messages else 0


@dataclass(frozen=True, slots=True)
class TopicState:
    info: TopicInfo
    partitions: list[PartitionState]
    # How often the topic was purged since it was opened.
    purges_count: int

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def messages_count(self) -> int:
        return sum(partition.messages_count for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """The sums over the partitions of a topic."""

    stream: str
    topic: str
    partitions_count: int
    messages_count: int
    size_bytes: int
    # Messages that were ever sent to it, since its last purge.
    sent_count: int
    unsaved_messages_count: int
    # Partitions that take no messages until a restart.
    stopped_count: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream and all of its topics, in the order of their ids."""

    info: StreamInfo
    topics: list[TopicState]

    @property
    def size_bytes(self) -> int:
        return sum(topic.size_bytes for topic in self.topics)

    @property
    def messages_count(self) -> int:
        return sum(topic.messages_count for topic in self.topics)


@dataclass(frozen=True, slots=True)
class GroupState:
    """`members` are in the order of their joins."""

    info: GroupInfo
    partitions_count: int
    members: list[MemberInfo]


@dataclass(frozen=True, slots=True)
class RunningPartition:
    """An open partition and the offsets stored in it. `key` is the path of its folder below the data directory."""

    key: str
    partition: Partition
    offsets: ConsumerOffsets

    def drop(self) -> None:
        """Closes it without saving anything. Later appends and stored offsets are refused."""
        self.partition.drop()
        self.offsets.drop()

    def state(self, created_at: int) -> PartitionState:
        partition = self.partition
        segments = partition.segments
        return PartitionState(
            partition.partition_id,
            created_at,
            len(segments),
            segments[0].start_offset if segments else 0,
            partition.current_offset,
            partition.size_bytes,
            partition.messages_count,
            partition.has_messages,
            partition.unsaved_messages_count,
            partition.stopped is None,
        )

    def retained(self) -> RetainedPartition:
        return RetainedPartition(key=self.key, partition=self.partition, offsets=self.offsets)


class RunningTopic:
    def __init__(
        self, info: TopicInfo, codec: Codec, partitions: Iterable[RunningPartition], *, rebalancing_timeout_us: int
    ) -> None:
        self.info = info
        self.codec = codec
        self.partitions = list(partitions)
        self.groups: dict[int, ConsumerGroup] = {}
        self.round_robin = RoundRobin()
        # How often the topic was purged. A poll compares it: an offset from before a purge must not be stored after it.
        self.purges_count = 0
        self._rebalancing_timeout_us = rebalancing_timeout_us

    def partition(self, partition_id: int) -> RunningPartition:
        """Any thread may ask, without a lock."""
        try:
            if partition_id >= 0:
                return self.partitions[partition_id]
        except IndexError:
            pass
        raise StreamsError(
            StreamStatus.PARTITION_NOT_FOUND, f"topic {self.info.name!r} has no partition {partition_id}"
        )

    def state(self) -> TopicState:
        return TopicState(
            self.info,
            [
                running.state(info.created_at)
                for info, running in zip(self.info.partitions, self.partitions, strict=True)
            ],
            self.purges_count,
        )

    def figures(self, stream: str) -> TopicFigures:
        """Any thread may ask, without a lock."""
        partitions = [running.partition for running in list(self.partitions)]
        return TopicFigures(
            stream,
            self.info.name,
            len(partitions),
            sum(partition.messages_count for partition in partitions),
            sum(partition.size_bytes for partition in partitions),
            sum(partition.current_offset + partition.has_messages for partition in partitions),
            sum(partition.unsaved_messages_count for partition in partitions),
            sum(partition.stopped is not None for partition in partitions),
        )

    def group_state(self, group: GroupInfo) -> GroupState:
        return GroupState(group, len(self.partitions), self.groups[group.id].members)

    # Partitions.

    def add_partitions(self, opened: Iterable[RunningPartition]) -> None:
        self.partitions += opened
        self._reassign_partitions()

    def take_last_partitions(self, count: int) -> list[RunningPartition]:
        """Removes the partitions with the highest ids from the topic and returns them."""
        first = len(self.partitions) - count
        taken = self.partitions[first:]
        del self.partitions[first:]
        self._reassign_partitions()
        return taken

    def set_codec(self, codec: Codec) -> None:
        self.codec = codec
        for running in self.partitions:
            running.partition.set_codec(codec)

    def purge(self) -> None:
        self.purges_count += 1
        for running in self.partitions:
            # Offsets are deleted before the messages: after a crash in between, an old offset would skip new messages.
            # They are deleted once more afterwards, because a consumer may have stored one meanwhile.
            running.offsets.delete_all()
            running.partition.purge()
            running.offsets.delete_all()
        for group in self.groups.values():
            group.note_purged()

    # Groups.

    def _reassign_partitions(self) -> None:
        for group in self.groups.values():
            group.set_partitions(len(self.partitions))

    def add_group(self, group_id: int) -> None:
        stored = {
            place: offset
            for place, running in enumerate(self.partitions)
            if (offset := running.offsets.get(ConsumerKind.GROUP, group_id)) is not None
        }
        self.groups[group_id] = ConsumerGroup(
            len(self.partitions), rebalancing_timeout_us=self._rebalancing_timeout_us, stored=stored
        )

    def drop_group(self, group_id: int) -> None:
        del self.groups[group_id]
        for running in self.partitions:
            try:
                running.offsets.discard(ConsumerKind.GROUP, group_id)
            except StreamsError as error:
                # The group is deleted all the same. The next start, or the next group with this id, deletes the file.
                logger.warning("%s: an offset of group %d stays for now: %s", running.key, group_id, error.message)

    # The end.

    def save(self, *, fsync: bool) -> None:
        """Flushes every partition. A partition that cannot be saved is logged, and the others are still saved."""
        for running in list(self.partitions):
            try:
                running.partition.save(fsync=fsync)
            except StreamsError as error:
                logger.warning("%s: not saved: %s", running.key, error.message)

    def close(self) -> list[StreamsError]:
        """Flushes and syncs every partition. Returns all errors."""
        problems: list[StreamsError] = []
        for running in self.partitions:
            stopped = running.partition.stopped
            try:
                running.partition.close()
            except StreamsError as error:
                problems.append(error)
            else:
                if stopped is not None:
                    problems.append(
                        StreamsError(StreamStatus.CANNOT_SYNC_FILE, f"{running.key}: not all is saved: {stopped}")
                    )
        return problems

    def drop(self) -> None:
        """Closes it without saving anything."""
        for running in self.partitions:
            running.drop()

    def retained(self) -> RetainedTopic:
        return RetainedTopic(
            message_expiry_us=self.info.message_expiry,
            max_bytes=self.info.max_size,
            partitions=[running.retained() for running in self.partitions],
        )
