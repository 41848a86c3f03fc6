"""Polls and stored offsets of consumers and of members of consumer groups.

The lock of `Commands` is held for groups and for stores, never while messages are read. So a purge, a deleted group or
a rebalance may come between the read and the commit of its offset; each commit checks for that. A single consumer
polls without the lock: it does not wait for a command that creates or deletes many partitions.
"""

from dataclasses import dataclass
from typing import NamedTuple

from topics.formats.stream_command import Identifier
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.consumer_offsets import ConsumerKind, check_offset, consumer_file_id
from topics.streams.consumers.polling import Consumer, PollingStrategy, StrategyKind
from topics.streams.metadata.commands import Commands
from topics.streams.partitions.message_view import PolledMessages
from topics.streams.partitions.must_wait import MustWait
from topics.streams.running.running_topic import RunningPartition, RunningTopic
from topics.streams.running.running_topics import RunningTopics


@dataclass(frozen=True, slots=True)
class StoredOffset:
    partition_id: int
    current_offset: int
    stored_offset: int


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
        """Polls for a single consumer; `_poll_as_member` is the same for a member of a group."""
        if consumer.kind is ConsumerKind.GROUP:
            return self._poll_as_member(
                stream, topic, consumer.id, strategy, count, partition_id, client_id, auto_commit=auto_commit
            )
        self._commands.check_open()
        running = self._topics.find(stream, topic)
        consumer_id = consumer_file_id(consumer.id)
        purges_count = running.purges_count
        found = running.partition(partition_id or 0)
        polled = _read(found, consumer.kind, consumer_id, strategy, count)
        if auto_commit and (last_offset := polled.last_offset) is not None:
            found.offsets.store(consumer.kind, consumer_id, last_offset)
            if running.purges_count != purges_count:
                # The messages that were read are purged. Their offset would skip messages that are sent now.
                found.offsets.discard(consumer.kind, consumer_id)
        return polled

    def poll_nowait(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        strategy: PollingStrategy,
        count: int,
        *,
        partition_id: int | None,
    ) -> PolledMessages:
        """The same for a single consumer without auto-commit. Raises `MustWait` if the messages are not in memory."""
        self._commands.check_open()
        running = self._topics.find(stream, topic).partition(partition_id or 0)
        if strategy.kind is StrategyKind.OFFSET:
            offset = strategy.value
        elif strategy.kind is StrategyKind.NEXT:
            stored = running.offsets.get(consumer.kind, consumer_file_id(consumer.id))
            offset = 0 if stored is None else stored + 1
        else:
            raise MustWait
        return running.partition.reader.poll_offset_nowait(offset, count)

    def _poll_as_member(
        self,
        stream: Identifier,
        topic: Identifier,
        group_identifier: Identifier,
        strategy: PollingStrategy,
        count: int,
        partition_id: int | None,
        client_id: int,
        *,
        auto_commit: bool,
    ) -> PolledMessages:
        with self._commands.lock:
            self._commands.check_open()
            running = self._topics.find(stream, topic)
            group_id = running.info.groups.resolve(group_identifier).id
            group = running.groups[group_id]
            target = group.poll_target(client_id, partition_id)
            if target is None:
                return PolledMessages(0, 0, 0, [])
            found = running.partition(target)
            purges_count = running.purges_count
        polled = _read(found, ConsumerKind.GROUP, group_id, strategy, count)
        last_offset = polled.last_offset
        if last_offset is None:
            return polled
        with self._commands.lock:
            is_current = running.groups.get(group_id) is group and running.purges_count == purges_count
            if not is_current or not group.owns(client_id, target):
                # The partition changed hands during the read: its new owner gets these messages.
                return PolledMessages(target, polled.current_offset, 0, [])
            group.note_sent(target, last_offset)
            if auto_commit:
                found.offsets.store(ConsumerKind.GROUP, group_id, last_offset)
                group.note_stored(target, last_offset)
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
            slot = _find_slot(self._topics.find(stream, topic), consumer, partition_id, client_id)
            partition = slot.running.partition
            check_offset(offset, current_offset=partition.current_offset, has_messages=partition.has_messages)
            slot.running.offsets.store(consumer.kind, slot.consumer_id, offset)
            if slot.group is not None:
                slot.group.note_stored(slot.partition_id, offset)

    def delete_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, *, partition_id: int | None, client_id: int
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            slot = _find_slot(self._topics.find(stream, topic), consumer, partition_id, client_id)
            slot.running.offsets.delete(consumer.kind, slot.consumer_id)
            if slot.group is not None:
                slot.group.note_stored(slot.partition_id, None)


class _OffsetSlot(NamedTuple):
    """The stored offset of one consumer or group in one partition. `group` is None for a single consumer."""

    partition_id: int
    running: RunningPartition
    consumer_id: int
    group: ConsumerGroup | None


def _find_slot(running: RunningTopic, consumer: Consumer, partition_id: int | None, client_id: int) -> _OffsetSlot:
    consumer_id = _consumer_id(running, consumer)
    if consumer.kind is not ConsumerKind.GROUP:
        partition_id = partition_id or 0
        return _OffsetSlot(partition_id, running.partition(partition_id), consumer_id, None)
    group = running.groups[consumer_id]
    target = group.store_target(client_id, partition_id)
    return _OffsetSlot(target, running.partition(target), consumer_id, group)


def _consumer_id(running: RunningTopic, consumer: Consumer) -> int:
    if consumer.kind is ConsumerKind.GROUP:
        return running.info.groups.resolve(consumer.id).id
    return consumer_file_id(consumer.id)


def _read(
    running: RunningPartition, kind: ConsumerKind, consumer_id: int, strategy: PollingStrategy, count: int
) -> PolledMessages:
    reader = running.partition.reader
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
            stored = running.offsets.get(kind, consumer_id)
            return reader.poll_first(count) if stored is None else reader.poll_offset(stored + 1, count)
