"""Consumer groups of all topics: created, deleted, joined and left."""

from collections.abc import Callable
from typing import NamedTuple

from topics.clock import Clock
from topics.formats.stream_command import CreateConsumerGroup, DeleteConsumerGroup, Identifier
from topics.streams.consumers.consumer_group import ConsumerGroup
from topics.streams.consumers.consumer_offsets import ConsumerKind
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.streams_metadata import GroupInfo
from topics.streams.running.running_topics import RunningTopics


class Membership(NamedTuple):
    stream_id: int
    topic_id: int
    group_id: int


class Groups:
    """Any thread may call."""

    def __init__(self, commands: Commands, topics: RunningTopics, clock: Clock) -> None:
        self._commands = commands
        self._metadata = commands.metadata
        self._topics = topics
        self._clock = clock

    def create(self, stream: Identifier, topic: Identifier, name: str, *, user_id: int) -> GroupInfo:
        with self._commands.changing():
            running = self._topics.find(stream, topic)
            command = CreateConsumerGroup(stream, topic, self._metadata.next_group_id(stream, topic), name)
            self._metadata.check(user_id, command)
            for partition in running.partitions:
                # An earlier group with this id may have left a file that could not be deleted.
                partition.offsets.discard(ConsumerKind.GROUP, command.group_id)
            self._commands.log_and_apply(user_id, command)
            running.add_group(command.group_id)
            return running.info.groups[command.group_id]

    def delete(self, stream: Identifier, topic: Identifier, group: Identifier, *, user_id: int) -> None:
        command = DeleteConsumerGroup(stream, topic, group)
        with self._commands.changing():
            self._metadata.check(user_id, command)
            group_id = self._metadata.resolve_group(stream, topic, group).id
            self._commands.log_and_apply(user_id, command)
            self._topics.find(stream, topic).drop_group(group_id)

    def join(
        self,
        stream: Identifier,
        topic: Identifier,
        group: Identifier,
        client_id: int,
        *,
        is_connected: Callable[[int], bool] | None,
    ) -> None:
        with self._commands.lock:
            self._commands.check_open()
            self.find(stream, topic, group).join(
                client_id, now_us=self._clock.monotonic_ms() * 1000, is_connected=is_connected
            )

    def leave(self, stream: Identifier, topic: Identifier, group: Identifier, client_id: int) -> None:
        with self._commands.lock:
            self._commands.check_open()
            self.find(stream, topic, group).leave(client_id)

    def forget_client(self, client_id: int) -> None:
        """Leaves all groups of a client whose connection has ended."""
        with self._commands.lock:
            for topic in self._topics.all():
                for group in topic.groups.values():
                    if group.is_member(client_id):
                        group.leave(client_id)

    def memberships(self) -> dict[int, list[Membership]]:
        """The groups that each client has joined."""
        found: dict[int, list[Membership]] = {}
        with self._commands.lock:
            for topic in self._topics.all():
                for group_id, group in topic.groups.items():
                    for member in group.members:
                        membership = Membership(topic.info.stream_id, topic.info.id, group_id)
                        found.setdefault(member.client_id, []).append(membership)
        return found

    def find(self, stream: Identifier, topic: Identifier, group: Identifier) -> ConsumerGroup:
        with self._commands.lock:
            return self._topics.find(stream, topic).groups[self._metadata.resolve_group(stream, topic, group).id]
