"""Answers of the HTTP interface about streams of the partitioned engine, declared once.

Times are microseconds since 1970, as in the engine. A page of messages is rendered as text from `message_members`:
tests/server/contract/test_streams.py holds it to its struct.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from topics.protocol.member_types import U64
from topics.protocol.response_body import TimeSpent

StreamId = Annotated[int, Meta(ge=0, description="Number of the stream.")]
StreamName = Annotated[str, Meta(description="Name of the stream.")]
TopicId = Annotated[int, Meta(ge=0, description="Number of the topic in its stream.")]
StreamTopicName = Annotated[str, Meta(description="Name of the topic.")]
PartitionId = Annotated[int, Meta(ge=0, description="Number of the partition, from 0.")]
CreatedAt = Annotated[U64, Meta(description="When it was created, in microseconds since 1970.")]
MessageCount = Annotated[U64, Meta(description="Messages that can be read.")]
MessageBytes = Annotated[U64, Meta(description="Bytes of these messages, as stored.")]
# A number as long as a double can hold it exactly, otherwise a text.
Exact = int | str


class StreamEntry(Struct, kw_only=True):
    """One stream of a list."""

    id: StreamId
    name: StreamName
    created_at: CreatedAt
    topics: Annotated[U64, Meta(description="How many topics it has.")]
    messages: MessageCount
    bytes: MessageBytes


class StreamList(Struct, kw_only=True):
    streams: Annotated[list[StreamEntry], Meta(description="Streams that the key may see, by name.")]
    next_cursor: Annotated[str | UnsetType, Meta(description="Where the next page begins; absent on the last.")] = UNSET
    performance: TimeSpent


class StreamTopicEntry(Struct, kw_only=True):
    """One topic of a stream."""

    id: TopicId
    name: StreamTopicName
    created_at: CreatedAt
    partitions: Annotated[U64, Meta(description="How many partitions it has.")]
    messages: MessageCount
    bytes: MessageBytes


class StreamState(Struct, kw_only=True):
    id: StreamId
    name: StreamName
    created_at: CreatedAt
    messages: MessageCount
    bytes: MessageBytes
    topics: Annotated[list[StreamTopicEntry], Meta(description="Its topics, by number.")]
    performance: TimeSpent


class StreamPartitionEntry(Struct, kw_only=True):
    """The numbers of a partition."""

    id: PartitionId
    created_at: CreatedAt
    earliest_offset: Annotated[Exact, Meta(description="Offset of the oldest message that can be read.")]
    end_offset: Annotated[Exact, Meta(description="Offset of the next message that is sent to it.")]
    messages: MessageCount
    bytes: MessageBytes
    segments: Annotated[U64, Meta(description="How many files its messages are in.")]
    unsaved_messages: Annotated[U64, Meta(description="Messages that are only in memory yet.")]
    is_writable: Annotated[bool, Meta(description="False if it takes no messages until a restart.")]


class StreamGroupEntry(Struct, kw_only=True):
    """One consumer group of a topic."""

    id: Annotated[int, Meta(ge=0, description="Number of the group in its topic.")]
    name: Annotated[str, Meta(description="Name of the group.")]
    members: Annotated[U64, Meta(description="How many clients are in it now.")]


class StreamTopicState(Struct, kw_only=True):
    stream_id: StreamId
    stream: StreamName
    id: TopicId
    name: StreamTopicName
    created_at: CreatedAt
    message_expiry_us: Annotated[Exact | None, Meta(description="Age at which messages expire; null = never.")]
    max_bytes: Annotated[Exact | None, Meta(description="Bytes that it may have; null = unlimited.")]
    compression: Annotated[str, Meta(description="The algorithm that it was created with.")]
    replication_factor: Annotated[int, Meta(description="As it was asked for. There is one copy.")]
    messages: MessageCount
    bytes: MessageBytes
    partitions: Annotated[list[StreamPartitionEntry], Meta(description="Its partitions, by number.")]
    groups: Annotated[list[StreamGroupEntry], Meta(description="Its consumer groups, by number.")]
    performance: TimeSpent


class StreamPartitionState(StreamPartitionEntry, kw_only=True):
    stream_id: StreamId
    stream: StreamName
    topic_id: TopicId
    topic: StreamTopicName
    performance: TimeSpent


class StreamHeader(Struct, kw_only=True):
    """One user header of a message."""

    key: Annotated[Any | UnsetType, Meta(description="The key; absent if it is bytes.")] = UNSET
    key_base64: Annotated[str | UnsetType, Meta(description="A key that is bytes.")] = UNSET
    key_kind: Annotated[str | UnsetType, Meta(description="Type of the key; absent for `string`.")] = UNSET
    kind: Annotated[str, Meta(description="Type of the value: `string`, `uint32` and so on.")]
    value: Annotated[Any | UnsetType, Meta(description="The value; absent if it is bytes.")] = UNSET
    value_base64: Annotated[str | UnsetType, Meta(description="A value that is bytes.")] = UNSET


class StreamMessage(Struct, kw_only=True):
    offset: Annotated[Exact, Meta(description="Its place in the partition.")]
    id: Annotated[str, Meta(description="Its id of 128 bits, in decimal.")]
    timestamp: Annotated[Exact, Meta(description="When it was appended, in microseconds since 1970.")]
    origin_timestamp: Annotated[Exact, Meta(description="The time that its sender gave.")]
    headers: Annotated[list[StreamHeader] | UnsetType, Meta(description="User headers; absent if it has none.")] = UNSET
    payload_bytes: Annotated[U64, Meta(description="Length of the payload.")]
    payload: Annotated[Any | UnsetType, Meta(description="A payload that is JSON text, as it was sent.")] = UNSET
    payload_base64: Annotated[
        str | UnsetType,
        Meta(description="Any other payload. Both are absent for a payload that is too large for this interface."),
    ] = UNSET


class StreamMessages(Struct, kw_only=True):
    stream: StreamName
    topic: StreamTopicName
    partition: PartitionId
    messages: Annotated[list[StreamMessage], Meta(description="Messages in the order of their offsets.")]
    next_offset: Annotated[Exact, Meta(description="`offset` of the next page.")]
    end_offset: Annotated[Exact, Meta(description="Offset of the next message that is sent to the partition.")]
    performance: TimeSpent
