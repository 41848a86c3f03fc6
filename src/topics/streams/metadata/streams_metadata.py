"""Streams, their topics, and the partitions and consumer groups of topics, as the entries of the state log made them.

Defaults are resolved when a command is applied, never stored: an expiry or a size of 0 is the value of the settings, a
replication factor of 0 is 1.

Not thread-safe: the caller holds the lock of `Commands`.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from topics.formats.stream_command import (
    COMPRESSION_CODE_MAX,
    COMPRESSION_CODE_MIN,
    CreateConsumerGroup,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    DeleteConsumerGroup,
    DeletePartitions,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    Identifier,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)
from topics.formats.stream_permissions import U32_MAX
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.command_handler import CommandHandler, change_nothing
from topics.streams.metadata.registry import Registry
from topics.streams.metadata.values import check_name, check_u64
from topics.streams.settings import UNLIMITED
from topics.streams.settings.sections import SystemSettings

PARTITIONS_PER_REQUEST_MAX: Final = 1000
REPLICATION_FACTOR_MAX: Final = 255


@dataclass(slots=True)
class PartitionInfo:
    id: int
    created_at: int


@dataclass(slots=True)
class GroupInfo:
    id: int
    name: str

    def rename(self, name: str) -> None:
        self.name = name


def _groups() -> "Registry[GroupInfo]":
    return Registry(
        StreamStatus.CONSUMER_GROUP_ID_NOT_FOUND, StreamStatus.CONSUMER_GROUP_NAME_ALREADY_EXISTS, "consumer group"
    )


@dataclass(slots=True)
class TopicInfo:
    """`message_expiry` (microseconds) and `max_size` (bytes) are resolved: 2^64-1 is never and unlimited."""

    id: int
    name: str
    stream_id: int
    created_at: int
    message_expiry: int
    max_size: int
    # The code of the algorithm that the topic asked for. Which one is used depends on the settings as well.
    compression: int
    replication_factor: int
    partitions: list[PartitionInfo] = field(default_factory=list)
    groups: Registry[GroupInfo] = field(default_factory=_groups)

    def rename(self, name: str) -> None:
        self.name = name

    def update(self, *, message_expiry: int, max_size: int, compression: int, replication_factor: int) -> None:
        self.message_expiry = message_expiry
        self.max_size = max_size
        self.compression = compression
        self.replication_factor = replication_factor


def _topics() -> "Registry[TopicInfo]":
    return Registry(StreamStatus.TOPIC_ID_NOT_FOUND, StreamStatus.TOPIC_NAME_ALREADY_EXISTS, "topic")


@dataclass(slots=True)
class StreamInfo:
    id: int
    name: str
    created_at: int
    topics: Registry[TopicInfo] = field(default_factory=_topics)

    def rename(self, name: str) -> None:
        self.name = name


class IdUsers(Protocol):
    """Keeps things by the ids of streams and topics, and is told when an id becomes free."""

    def forget_stream(self, stream_id: int) -> None: ...

    def forget_topic(self, stream_id: int, topic_id: int) -> None: ...


class StreamsMetadata:
    def __init__(self, settings: SystemSettings, id_users: IdUsers) -> None:
        self.streams: Registry[StreamInfo] = Registry(
            StreamStatus.STREAM_ID_NOT_FOUND, StreamStatus.STREAM_NAME_ALREADY_EXISTS, "stream"
        )
        self._settings = settings
        self._id_users = id_users

    def handlers(self) -> tuple[CommandHandler[Any], ...]:
        return (
            CommandHandler(CreateStream, self._check_create_stream, self._create_stream),
            CommandHandler(DeleteStream, self._check_stream, self._delete_stream),
            CommandHandler(UpdateStream, self._check_update_stream, self._update_stream),
            CommandHandler(PurgeStream, self._check_stream, change_nothing),
            CommandHandler(CreateTopic, self._check_create_topic, self._create_topic),
            CommandHandler(DeleteTopic, self._check_topic, self._delete_topic),
            CommandHandler(UpdateTopic, self._check_update_topic, self._update_topic),
            CommandHandler(PurgeTopic, self._check_topic, change_nothing),
            CommandHandler(CreatePartitions, self._check_create_partitions, self._create_partitions),
            CommandHandler(DeletePartitions, self._check_delete_partitions, self._delete_partitions),
            CommandHandler(DeleteSegments, self._check_delete_segments, change_nothing),
            CommandHandler(CreateConsumerGroup, self._check_create_group, self._create_group),
            CommandHandler(DeleteConsumerGroup, self._check_delete_group, self._delete_group),
        )

    def resolve_topic(self, stream_id: Identifier, topic_id: Identifier) -> TopicInfo:
        return self.streams.resolve(stream_id).topics.resolve(topic_id)

    def resolve_partition(self, stream_id: Identifier, topic_id: Identifier, partition_id: int) -> PartitionInfo:
        topic = self.resolve_topic(stream_id, topic_id)
        if not 0 <= partition_id < len(topic.partitions):
            raise StreamsError(
                StreamStatus.PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {partition_id}"
            )
        return topic.partitions[partition_id]

    def resolve_group(self, stream_id: Identifier, topic_id: Identifier, group_id: Identifier) -> GroupInfo:
        return self.resolve_topic(stream_id, topic_id).groups.resolve(group_id)

    # Streams.

    def _check_stream(self, _user_id: int, command: DeleteStream | PurgeStream) -> None:
        self.streams.resolve(command.stream_id)

    def _check_create_stream(self, _user_id: int, command: CreateStream) -> None:
        check_name(command.name, StreamStatus.INVALID_STREAM_NAME)
        self.streams.check_new(command.stream_id, command.name)

    def _create_stream(self, timestamp: int, _user_id: int, command: CreateStream) -> None:
        self.streams.add(StreamInfo(command.stream_id, command.name, timestamp))

    def _delete_stream(self, _timestamp: int, _user_id: int, command: DeleteStream) -> None:
        stream = self.streams.resolve(command.stream_id)
        self.streams.drop(stream)
        self._id_users.forget_stream(stream.id)

    def _check_update_stream(self, _user_id: int, command: UpdateStream) -> None:
        stream = self.streams.resolve(command.stream_id)
        check_name(command.name, StreamStatus.INVALID_STREAM_NAME)
        self.streams.check_name(command.name, stream)

    def _update_stream(self, _timestamp: int, _user_id: int, command: UpdateStream) -> None:
        self.streams.rename(self.streams.resolve(command.stream_id), command.name)

    # Topics.

    def _check_topic(self, _user_id: int, command: DeleteTopic | PurgeTopic) -> None:
        self.resolve_topic(command.stream_id, command.topic_id)

    def _check_create_topic(self, _user_id: int, command: CreateTopic) -> None:
        stream = self.streams.resolve(command.stream_id)
        check_name(command.name, StreamStatus.INVALID_TOPIC_NAME)
        if not 0 <= command.partitions_count <= PARTITIONS_PER_REQUEST_MAX:
            _refuse_partitions_count(command.partitions_count)
        self._check_topic_options(command)
        stream.topics.check_new(command.topic_id, command.name)

    def _create_topic(self, timestamp: int, _user_id: int, command: CreateTopic) -> None:
        stream = self.streams.resolve(command.stream_id)
        topic = TopicInfo(
            command.topic_id,
            command.name,
            stream.id,
            timestamp,
            self._resolved_expiry(command.message_expiry),
            self._resolved_max_size(command.max_topic_size),
            command.compression_algorithm,
            command.replication_factor or 1,
            [PartitionInfo(partition_id, timestamp) for partition_id in range(command.partitions_count)],
        )
        stream.topics.add(topic)

    def _delete_topic(self, _timestamp: int, _user_id: int, command: DeleteTopic) -> None:
        topic = self.resolve_topic(command.stream_id, command.topic_id)
        self.streams[topic.stream_id].topics.drop(topic)
        self._id_users.forget_topic(topic.stream_id, topic.id)

    def _check_update_topic(self, _user_id: int, command: UpdateTopic) -> None:
        topics = self.streams.resolve(command.stream_id).topics
        topic = topics.resolve(command.topic_id)
        check_name(command.name, StreamStatus.INVALID_TOPIC_NAME)
        self._check_topic_options(command)
        topics.check_name(command.name, topic)

    def _update_topic(self, _timestamp: int, _user_id: int, command: UpdateTopic) -> None:
        topics = self.streams.resolve(command.stream_id).topics
        topic = topics.resolve(command.topic_id)
        topics.rename(topic, command.name)
        topic.update(
            message_expiry=self._resolved_expiry(command.message_expiry),
            max_size=self._resolved_max_size(command.max_topic_size),
            compression=command.compression_algorithm,
            replication_factor=command.replication_factor or 1,
        )

    def _check_topic_options(self, command: CreateTopic | UpdateTopic) -> None:
        check_u64(command.message_expiry)
        check_u64(command.max_topic_size)
        if not COMPRESSION_CODE_MIN <= command.compression_algorithm <= COMPRESSION_CODE_MAX:
            raise StreamsError(
                StreamStatus.INVALID_COMMAND, f"{command.compression_algorithm} is no code of a compression algorithm"
            )
        if not 0 <= command.replication_factor <= REPLICATION_FACTOR_MAX:
            raise StreamsError(StreamStatus.INVALID_COMMAND, f"{command.replication_factor} is no replication factor")
        segment_bytes = self._settings.segment.size
        if command.max_topic_size not in (0, UNLIMITED) and command.max_topic_size < segment_bytes:
            raise StreamsError(
                StreamStatus.INVALID_TOPIC_SIZE,
                f"a topic of {command.max_topic_size} bytes could not hold a segment of {segment_bytes}",
            )

    def _resolved_expiry(self, message_expiry: int) -> int:
        return message_expiry or self._settings.topic.message_expiry_us

    def _resolved_max_size(self, max_topic_size: int) -> int:
        return max_topic_size or self._settings.topic.max_size

    # Partitions.

    def _check_create_partitions(self, _user_id: int, command: CreatePartitions) -> None:
        self.resolve_topic(command.stream_id, command.topic_id)
        if not 1 <= command.partitions_count <= PARTITIONS_PER_REQUEST_MAX:
            _refuse_partitions_count(command.partitions_count)

    def _create_partitions(self, timestamp: int, _user_id: int, command: CreatePartitions) -> None:
        partitions = self.resolve_topic(command.stream_id, command.topic_id).partitions
        first_id = len(partitions)
        partitions += [
            PartitionInfo(partition_id, timestamp)
            for partition_id in range(first_id, first_id + command.partitions_count)
        ]

    def _check_delete_partitions(self, _user_id: int, command: DeletePartitions) -> None:
        topic = self.resolve_topic(command.stream_id, command.topic_id)
        if command.partitions_count < 1:
            _refuse_partitions_count(command.partitions_count)
        if command.partitions_count > len(topic.partitions):
            raise StreamsError(
                StreamStatus.INVALID_PARTITIONS_COUNT,
                f"topic {topic.name!r} has {len(topic.partitions)} partitions, not {command.partitions_count}",
            )

    def _delete_partitions(self, _timestamp: int, _user_id: int, command: DeletePartitions) -> None:
        partitions = self.resolve_topic(command.stream_id, command.topic_id).partitions
        del partitions[max(0, len(partitions) - command.partitions_count) :]

    def _check_delete_segments(self, _user_id: int, command: DeleteSegments) -> None:
        self.resolve_partition(command.stream_id, command.topic_id, command.partition_id)
        if not 0 <= command.segments_count <= U32_MAX:
            raise StreamsError(StreamStatus.INVALID_COMMAND, f"{command.segments_count} is no count of segments")

    # Consumer groups.

    def _check_create_group(self, _user_id: int, command: CreateConsumerGroup) -> None:
        topic = self.resolve_topic(command.stream_id, command.topic_id)
        check_name(command.name, StreamStatus.INVALID_CONSUMER_GROUP_NAME)
        topic.groups.check_new(command.group_id, command.name)

    def _create_group(self, _timestamp: int, _user_id: int, command: CreateConsumerGroup) -> None:
        groups = self.resolve_topic(command.stream_id, command.topic_id).groups
        groups.add(GroupInfo(command.group_id, command.name))

    def _check_delete_group(self, _user_id: int, command: DeleteConsumerGroup) -> None:
        self.resolve_group(command.stream_id, command.topic_id, command.group_id)

    def _delete_group(self, _timestamp: int, _user_id: int, command: DeleteConsumerGroup) -> None:
        groups = self.resolve_topic(command.stream_id, command.topic_id).groups
        groups.drop(groups.resolve(command.group_id))


def _refuse_partitions_count(count: int) -> None:
    raise StreamsError(
        StreamStatus.TOO_MANY_PARTITIONS, f"{count} partitions in one request: {PARTITIONS_PER_REQUEST_MAX} at most"
    )
