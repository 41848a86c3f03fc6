"""Polls and stored offsets of consumers and of members of consumer groups.

The lock of `Commands` is held to look things up, never while messages are read. So a purge, a deleted group or a
rebalance may come between the read and the commit of its offset; each commit checks for that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from topics.formats.stream_command import Identifier
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.consumer_offsets import ConsumerKind, check_offset, consumer_file_id
from topics.streams.consumers.polling import Consumer, PollingStrategy, StrategyKind
from topics.streams.metadata.commands import Commands
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.running.running_topic import RunningPartition, RunningTopic
from topics.streams.running.running_topics import RunningTopics


@dataclass(frozen=True, slots=True)
class StoredOffset:
    partition_id: int
    current_offset: int
    stored_offset: int


class _OffsetSlot(NamedTuple):
    """The stored offset of one consumer or group in one partition. `group` is None for a single consumer."""

    partition_id: int
    partition: RunningPartition
    kind: ConsumerKind
    consumer_id: int
    group: ConsumerGroup | None

    def get(self) -> int | None:
        return self.partition.offsets.get(self.kind, self.consumer_id)

    def store(self, offset: int) -> None:
        self.partition.offsets.store(self.kind, self.consumer_id, offset)
        if self.group is not None:
            self.group.note_stored(self.partition_id, offset)

    def delete(self) -> None:
        self.partition.offsets.delete(self.kind, self.consumer_id)
        if self.group is not None:
            self.group.note_stored(self.partition_id, None)

    def discard(self) -> None:
        """Deletes the offset if there is one."""
        self.partition.offsets.discard(self.kind, self.consumer_id)


class Consuming:
    """Any thread may call. `client_id` tells the members of a group apart."""

    def __init__(self, commands: Commands, topics: RunningTopics) -> None:
        self._commands = commands
        self._topics = topics

    # Polls.

    def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        strategy: PollingStrategy,
        count: int,
        *,
        partition_id: int | None,
        auto_commit: bool,
        client_id: int,
    ) -> PolledMessages:
        with self._commands.lock:
            self._commands.check_open()
            running = self._topics.find(stream, topic)
            slot = _slot_to_poll(running, consumer, partition_id, client_id)
            purges_count = running.purges_count
        if slot is None:
            return PolledMessages(0, 0, 0, [])
        polled = _read(slot, strategy, count)
        last_offset = polled.last_offset
        if last_offset is None:
            return polled
        if slot.group is not None:
            return self._deliver_to_member(
                running, slot, slot.group, polled, last_offset, purges_count, client_id, auto_commit=auto_commit
            )
        if auto_commit:
            slot.store(last_offset)
            if running.purges_count != purges_count:
                # The messages that were read are purged. Their offset would skip messages that are sent now.
                slot.discard()
        return polled

    def _deliver_to_member(
        self,
        running: RunningTopic,
        slot: _OffsetSlot,
        group: ConsumerGroup,
        polled: PolledMessages,
        last_offset: int,
        purges_count: int,
        client_id: int,
        *,
        auto_commit: bool,
    ) -> PolledMessages:
        """The messages, if the member still owns the partition; otherwise none: the new owner gets these messages."""
        with self._commands.lock:
            is_current = running.groups.get(slot.consumer_id) is group and running.purges_count == purges_count
            if not is_current or not group.owns(client_id, slot.partition_id):
                return PolledMessages(slot.partition_id, polled.current_offset, 0, [])
            group.note_sent(slot.partition_id, last_offset)
            if auto_commit:
                slot.store(last_offset)
        return polled

    # Stored offsets.

    def get_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, *, partition_id: int | None
    ) -> StoredOffset | None:
        partition_id = partition_id or 0
        with self._commands.lock:
            self._commands.check_open()
            running = self._topics.find(stream, topic)
            consumer_id = _consumer_id(running, consumer)
            found = running.partition(partition_id)
        stored = found.offsets.get(consumer.kind, consumer_id)
        return None if stored is None else StoredOffset(partition_id, found.partition.current_offset, stored)

    def store_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        offset: int,
        *,
        partition_id: int | None,
        client_id: int,
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            slot = _slot_to_store(self._topics.find(stream, topic), consumer, partition_id, client_id)
            partition = slot.partition.partition
            check_offset(offset, current_offset=partition.current_offset, has_messages=partition.has_messages)
            slot.store(offset)

    def delete_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, *, partition_id: int | None, client_id: int
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            _slot_to_store(self._topics.find(stream, topic), consumer, partition_id, client_id).delete()


def _consumer_id(running: RunningTopic, consumer: Consumer) -> int:
    if consumer.kind is ConsumerKind.GROUP:
        return running.info.groups.resolve(consumer.id).id
    return consumer_file_id(consumer.id)


def _slot_to_poll(
    running: RunningTopic, consumer: Consumer, partition_id: int | None, client_id: int
) -> _OffsetSlot | None:
    """None when the member of a group has no partition to read now."""
    consumer_id = _consumer_id(running, consumer)
    if consumer.kind is not ConsumerKind.GROUP:
        partition_id = partition_id or 0
        return _OffsetSlot(partition_id, running.partition(partition_id), consumer.kind, consumer_id, None)
    group = running.groups[consumer_id]
    target = group.poll_target(client_id, partition_id)
    if target is None:
        return None
    return _OffsetSlot(target, running.partition(target), consumer.kind, consumer_id, group)


def _slot_to_store(running: RunningTopic, consumer: Consumer, partition_id: int | None, client_id: int) -> _OffsetSlot:
    consumer_id = _consumer_id(running, consumer)
    if consumer.kind is not ConsumerKind.GROUP:
        partition_id = partition_id or 0
        return _OffsetSlot(partition_id, running.partition(partition_id), consumer.kind, consumer_id, None)
    group = running.groups[consumer_id]
    target = group.store_target(client_id, partition_id)
    return _OffsetSlot(target, running.partition(target), consumer.kind, consumer_id, group)


def _read(slot: _OffsetSlot, strategy: PollingStrategy, count: int) -> PolledMessages:
    reader = slot.partition.partition.reader
    match strategy.kind:
        case StrategyKind.OFFSET:
            return reader.poll_offset(strategy.value, count)
        case StrategyKind.TIMESTAMP:
            return reader.poll_timestamp(strategy.value, count)
        case StrategyKind.FIRST:
            return reader.poll_first(count)
        case StrategyKind.LAST:
            return reader.poll_last(count)
        case StrategyKind.NEXT:
            stored = slot.get()
            return reader.poll_first(count) if stored is None else reader.poll_offset(stored + 1, count)
