"""Each row of the table of permissions."""

from collections.abc import Iterator
from typing import Final

import pytest

from topics.formats.stream_command import UserStatus
from topics.formats.stream_permissions import (
    ALL_PERMISSIONS,
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.permissions import Action, authorize, is_allowed
from topics.streams.metadata.users_metadata import UserInfo

_READS_TOPICS: Final = (
    "manage_streams read_streams manage_topics read_topics",
    "manage_stream read_stream manage_topics read_topics",
)
_MANAGES_TOPICS: Final = ("manage_streams manage_topics", "manage_stream manage_topics")
TABLE: Final[dict[Action, tuple[str, str, str]]] = {
    Action.GET_STREAMS: ("manage_streams read_streams", "", ""),
    Action.GET_STREAM: ("manage_streams read_streams", "manage_stream read_stream", ""),
    Action.CREATE_STREAM: ("manage_streams", "", ""),
    Action.CHANGE_STREAM: ("manage_streams", "manage_stream", ""),
    Action.GET_TOPICS: (*_READS_TOPICS, ""),
    Action.GET_TOPIC: (*_READS_TOPICS, "manage_topic read_topic"),
    Action.CREATE_TOPIC: (*_MANAGES_TOPICS, ""),
    Action.CHANGE_TOPIC: (*_MANAGES_TOPICS, "manage_topic"),
    Action.POLL: (
        "poll_messages manage_streams read_streams manage_topics read_topics",
        "poll_messages manage_stream read_stream manage_topics read_topics",
        "poll_messages manage_topic read_topic",
    ),
    Action.SEND: (
        "send_messages manage_streams manage_topics",
        "send_messages manage_stream manage_topics",
        "send_messages manage_topic",
    ),
    Action.READ_USERS: ("manage_users read_users", "", ""),
    Action.MANAGE_USERS: ("manage_users", "", ""),
    Action.READ_SERVERS: ("manage_servers read_servers", "", ""),
}


def single_flags() -> Iterator[tuple[int, str, Permissions]]:
    """Every flag alone: its column in the table, its name, and permissions with only this flag (stream 5, topic 6)."""
    for flag in GLOBAL_FLAGS:
        yield 0, flag, Permissions(**{flag: True})  # type: ignore[arg-type]
    for flag in STREAM_FLAGS:
        yield 1, flag, Permissions(streams={5: StreamPermissions(**{flag: True})})  # type: ignore[arg-type]
    for flag in TOPIC_FLAGS:
        topics = {6: TopicPermissions(**{flag: True})}
        yield 2, flag, Permissions(streams={5: StreamPermissions(topics=topics)})


@pytest.mark.parametrize("action", Action)
def test_an_action_is_allowed_by_each_flag_of_its_row_and_by_no_other(action: Action) -> None:
    for column, flag, permissions in single_flags():
        expected = flag in TABLE[action][column].split()
        assert is_allowed(permissions, action, 5, 6) == expected, f"{flag} in column {column}"
        # For another stream only global flags count; for another topic also those of the stream.
        assert is_allowed(permissions, action, 4, 6) == (expected and column == 0)
        assert is_allowed(permissions, action, 5, 7) == (expected and column < 2)
        assert is_allowed(permissions, action) == (expected and column == 0)


def user_with(permissions: Permissions | None, user_id: int = 1) -> UserInfo:
    return UserInfo(user_id, "bob", "hash", UserStatus.ACTIVE, permissions, created_at=0)


@pytest.mark.parametrize("action", Action)
def test_root_may_do_everything_and_a_user_without_permissions_nothing(action: Action) -> None:
    authorize(user_with(None, user_id=0), action, 1, 1)
    authorize(user_with(ALL_PERMISSIONS), action, 1, 1)
    for permissions in (None, Permissions(), Permissions(streams={}), Permissions(streams={1: StreamPermissions()})):
        with pytest.raises(StreamsError) as refused:
            authorize(user_with(permissions), action, 1, 1)
        assert refused.value.number is StreamStatus.UNAUTHORIZED
