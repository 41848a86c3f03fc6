"""What a user of the partitioned engine may do: flags for everything, for a stream, for a topic.

On the wire, and in the state log of the `iggy` flavour:

    10 x u8  the flags of `Permissions`, in its order
    u8       1: streams follow
      repeat: stream_id u32, 6 x u8 the flags of `StreamPermissions`
              u8 1: topics follow
                repeat: topic_id u32, 4 x u8 the flags of `TopicPermissions`, u8 another topic follows
              u8 another stream follows

A flag that is not 0 is set. Ids are written in ascending order; if an id comes twice, the last one counts. An empty map
is written as an absent one, because the wire cannot tell them apart.

In the state log of the `page` flavour permissions are the MessagePack map of the struct: the ten flags and `streams`,
which is nil or a map from the id (an integer) to six flags and `topics`, which is nil or a map from the id to four
flags.
"""

from struct import Struct
from typing import Annotated, Any, Final, TypeVar

import msgspec

from topics.formats.buffers import Buffer
from topics.stream_errors import StreamsError, StreamStatus

U32_MAX: Final = 2**32 - 1
U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]


class TopicPermissions(msgspec.Struct, frozen=True):
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True):
    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[U32, TopicPermissions] | None = None


class Permissions(msgspec.Struct, frozen=True):
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    streams: dict[U32, StreamPermissions] | None = None


_GLOBAL: Final = Struct("<10?")
_STREAM: Final = Struct("<I6?")
_TOPIC: Final = Struct("<I4?")

GLOBAL_FLAGS: Final = Permissions.__struct_fields__[:10]
STREAM_FLAGS: Final = StreamPermissions.__struct_fields__[:6]
TOPIC_FLAGS: Final = TopicPermissions.__struct_fields__

# The permissions of the root user: all ten flags, which need no flags for single streams.
ALL_PERMISSIONS: Final = Permissions(True, True, True, True, True, True, True, True, True, True)

V = TypeVar("V")


def ascending(permissions: Permissions) -> Permissions:
    """The same permissions with ids in ascending order and without empty maps, as they are encoded and decoded."""
    streams = {
        stream_id: msgspec.structs.replace(stream, topics=_ascending(stream.topics))
        for stream_id, stream in (_ascending(permissions.streams) or {}).items()
    }
    return msgspec.structs.replace(permissions, streams=streams or None)


def _ascending(members: dict[int, V] | None) -> dict[int, V] | None:
    return dict(sorted(members.items())) if members else None


def without_stream(permissions: Permissions, stream_id: int) -> Permissions:
    """The same permissions without the flags for this stream and its topics."""
    if permissions.streams is None or stream_id not in permissions.streams:
        return permissions
    streams = {key: stream for key, stream in permissions.streams.items() if key != stream_id}
    return msgspec.structs.replace(permissions, streams=streams or None)


def without_topic(permissions: Permissions, stream_id: int, topic_id: int) -> Permissions:
    """The same permissions without the flags for this topic."""
    stream = (permissions.streams or {}).get(stream_id)
    if stream is None or stream.topics is None or topic_id not in stream.topics:
        return permissions
    topics = {key: topic for key, topic in stream.topics.items() if key != topic_id}
    changed = msgspec.structs.replace(stream, topics=topics or None)
    return msgspec.structs.replace(permissions, streams={**(permissions.streams or {}), stream_id: changed})


def encode_permissions(permissions: Permissions) -> bytes:
    ordered = ascending(permissions)
    parts = [_GLOBAL.pack(*(getattr(ordered, flag) for flag in GLOBAL_FLAGS))]
    for stream_id, stream in (ordered.streams or {}).items():
        # The 1 before the first one says that some follow; the 1 before each other one that another follows.
        parts += [b"\1", _STREAM.pack(stream_id, *(getattr(stream, flag) for flag in STREAM_FLAGS))]
        for topic_id, topic in (stream.topics or {}).items():
            parts += [b"\1", _TOPIC.pack(topic_id, *(getattr(topic, flag) for flag in TOPIC_FLAGS))]
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)


def decode_permissions(data: Buffer) -> Permissions:
    """Decodes all of `data`. Missing bytes and extra bytes are INVALID_FORMAT."""
    try:
        permissions, end = _decode_global(bytes(data))
    except (IndexError, ValueError) as error:
        raise StreamsError(StreamStatus.INVALID_FORMAT, "the permissions end too early") from error
    if end != len(data):
        raise StreamsError(StreamStatus.INVALID_FORMAT, f"{len(data) - end} bytes too many after the permissions")
    return permissions


def _decode_global(data: bytes) -> tuple[Permissions, int]:
    flags = _flags(data, 0, 10)
    at = 10
    streams: dict[int, StreamPermissions] = {}
    has_stream = data[at] == 1
    at += 1
    while has_stream:
        stream_id = _id(data, at)
        streams[stream_id], at = _decode_stream(data, at + 4)
        has_stream = data[at] != 0
        at += 1
    return Permissions(*flags, *[streams or None]), at


def _decode_stream(data: bytes, at: int) -> tuple[StreamPermissions, int]:
    flags = _flags(data, at, 6)
    at += 6
    topics: dict[int, TopicPermissions] = {}
    has_topic = data[at] == 1
    at += 1
    while has_topic:
        topic_id = _id(data, at)
        topics[topic_id] = TopicPermissions(*_flags(data, at + 4, 4))
        has_topic = data[at + 8] != 0
        at += 9
    return StreamPermissions(*flags, *[topics or None]), at


def _flags(data: bytes, at: int, count: int) -> list[Any]:
    if at + count > len(data):
        raise ValueError
    return [byte != 0 for byte in data[at : at + count]]


def _id(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + 4], "little")
