"""A topic that is open: its partitions, the offsets stored in them, its consumer groups and whose turn it is.

The metadata say what a topic is; this is what runs. Partitions guard themselves; the list of them and the groups are
changed under the lock of the system.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.consumer_offsets import ConsumerKind, ConsumerOffsets
from topics.streams.metadata.metadata import TopicInfo
from topics.streams.partitions.partition import Partition
from topics.streams.partitions.partitioning import RoundRobin
from topics.streams.retention.cleaner import RetainedPartition, RetainedTopic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningPartition:
    """`key` is the path of its folder below the data directory."""

    key: str
    partition: Partition
    offsets: ConsumerOffsets

    def drop(self) -> None:
        """Closes it without saving anything. Whoever still has it can neither append nor store an offset."""
        self.partition.drop()
        self.offsets.drop()

    def retained(self) -> RetainedPartition:
        return RetainedPartition(key=self.key, partition=self.partition, offsets=self.offsets)


OpenPartition = Callable[[TopicInfo, int, Codec], RunningPartition]


class RunningTopic:
    def __init__(self, info: TopicInfo, codec: Codec, open_partition: OpenPartition, timeout_us: int) -> None:
        self.info = info
        self.partitions: list[RunningPartition] = []
        self.groups: dict[int, ConsumerGroup] = {}
        self.round_robin = RoundRobin()
        # How often offsets began anew: what was read before tells nothing about what came after.
        self.purges_count = 0
        self._codec = codec
        self._open_partition = open_partition
        self._rebalancing_timeout_us = timeout_us

    def partition(self, partition_id: int) -> RunningPartition:
        if not 0 <= partition_id < len(self.partitions):
            raise StreamsError(
                StreamStatus.PARTITION_NOT_FOUND, f"topic {self.info.name!r} has no partition {partition_id}"
            )
        return self.partitions[partition_id]

    def group(self, group_id: int) -> ConsumerGroup:
        return self.groups[group_id]

    # Partitions.

    def open_partitions(self, partition_ids: Iterable[int]) -> list[RunningPartition]:
        """Not part of the topic yet: the caller adds them once the state log has them. All or none."""
        opened: list[RunningPartition] = []
        try:
            opened.extend(self._open_partition(self.info, partition_id, self._codec) for partition_id in partition_ids)
        except (StreamsError, StartRefused, OSError):
            for running in opened:
                running.drop()
            raise
        return opened

    def add_partitions(self, opened: Iterable[RunningPartition]) -> None:
        self.partitions += opened
        self._deal_again()

    def take_last_partitions(self, count: int) -> list[RunningPartition]:
        """The highest ids, which are not part of the topic any more."""
        first = len(self.partitions) - count
        taken = self.partitions[first:]
        del self.partitions[first:]
        self._deal_again()
        return taken

    def set_codec(self, codec: Codec) -> None:
        self._codec = codec
        for running in self.partitions:
            running.partition.set_codec(codec)

    def purge(self) -> None:
        self.purges_count += 1
        for running in self.partitions:
            # Before: a crash in between must not leave offsets that skip messages to come. After: somebody may just
            # have stored one.
            running.offsets.delete_all()
            running.partition.purge()
            running.offsets.delete_all()
        for group in self.groups.values():
            group.note_purged()

    # Groups.

    def _deal_again(self) -> None:
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
                # The group is gone all the same. A start, and the next group with this id, try again.
                logger.warning("%s: an offset of group %d stays for now: %s", running.key, group_id, error.message)

    # The end.

    def save(self, *, fsync: bool) -> None:
        """What is buffered goes to the files. One partition that cannot does not keep the others from it."""
        for running in list(self.partitions):
            try:
                running.partition.save(fsync=fsync)
            except StreamsError as error:
                logger.warning("%s: not saved: %s", running.key, error.message)

    def close(self) -> list[StreamsError]:
        """Flushes and syncs every partition; what went wrong."""
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
