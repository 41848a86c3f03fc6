"""What a user may do.

An action is allowed by any one of its flags, given for all streams, for the stream, or for the topic. The root user may
do everything, whatever its permissions are. Flags are looked up in each request, so a change takes effect at once.
"""

from enum import Enum, unique
from typing import NamedTuple

from topics.formats.stream_permissions import Permissions
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.users_metadata import ROOT_USER_ID, UserInfo


class _Flags(NamedTuple):
    """The names of flags; any one of them allows the action."""

    everywhere: tuple[str, ...]
    stream: tuple[str, ...] = ()
    topic: tuple[str, ...] = ()


@unique
class Action(Enum):
    """What a request does, with the flags that allow it."""

    GET_STREAMS = _Flags(("manage_streams", "read_streams"))
    GET_STREAM = _Flags(("manage_streams", "read_streams"), ("manage_stream", "read_stream"))
    CREATE_STREAM = _Flags(("manage_streams",))
    # Update, delete, purge.
    CHANGE_STREAM = _Flags(("manage_streams",), ("manage_stream",))
    GET_TOPICS = _Flags(
        ("manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("manage_stream", "read_stream", "manage_topics", "read_topics"),
    )
    # Also all commands on consumer groups.
    GET_TOPIC = _Flags(
        ("manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("manage_stream", "read_stream", "manage_topics", "read_topics"),
        ("manage_topic", "read_topic"),
    )
    CREATE_TOPIC = _Flags(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"))
    # Update, delete, purge; partitions; deleting segments.
    CHANGE_TOPIC = _Flags(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"), ("manage_topic",))
    # Also stored offsets.
    POLL = _Flags(
        ("poll_messages", "manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("poll_messages", "manage_stream", "read_stream", "manage_topics", "read_topics"),
        ("poll_messages", "manage_topic", "read_topic"),
    )
    # Also flushing.
    SEND = _Flags(
        ("send_messages", "manage_streams", "manage_topics"),
        ("send_messages", "manage_stream", "manage_topics"),
        ("send_messages", "manage_topic"),
    )
    READ_USERS = _Flags(("manage_users", "read_users"))
    MANAGE_USERS = _Flags(("manage_users",))
    # Statistics and clients.
    READ_SERVERS = _Flags(("manage_servers", "read_servers"))


def is_allowed(
    permissions: Permissions | None, action: Action, stream_id: int | None = None, topic_id: int | None = None
) -> bool:
    """The ids are numbers, not names. An action that is not about a stream or topic has none."""
    if permissions is None:
        return False
    flags = action.value
    if any(getattr(permissions, flag) for flag in flags.everywhere):
        return True
    if stream_id is None or permissions.streams is None:
        return False
    stream = permissions.streams.get(stream_id)
    if stream is None:
        return False
    if any(getattr(stream, flag) for flag in flags.stream):
        return True
    if topic_id is None or stream.topics is None:
        return False
    topic = stream.topics.get(topic_id)
    return topic is not None and any(getattr(topic, flag) for flag in flags.topic)


def authorize(user: UserInfo, action: Action, stream_id: int | None = None, topic_id: int | None = None) -> None:
    """Raises `StreamsError` with `UNAUTHORIZED` if the user may not do it."""
    if user.id != ROOT_USER_ID and not is_allowed(user.permissions, action, stream_id, topic_id):
        raise StreamsError(
            StreamStatus.UNAUTHORIZED, f"user {user.name!r} lacks the permission to {action.name.lower()}"
        )
