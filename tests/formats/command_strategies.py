"""Strategies for property tests of state logs: permissions, and commands of every kind as the engine stores them."""

from typing import Final

from hypothesis import strategies as st

from tests.formats.strategies import u64
from topics.formats import stream_command as commands
from topics.formats import stream_wire
from topics.formats.stream_permissions import Permissions, StreamPermissions, TopicPermissions

u32: Final = st.sampled_from((0, 1, 2**31, 2**32 - 1)) | st.integers(0, 2**32 - 1)
u8: Final = st.integers(0, 255)
flags: Final = st.booleans()

# Up to 255 bytes of UTF-8, with characters of one and of several bytes.
str8: Final = st.text(max_size=12) | st.just("ä" * 127) | st.just("x" * 255)
names: Final = str8.filter(len)
identifiers: Final[st.SearchStrategy[int | str]] = u32 | names
statuses: Final = st.sampled_from(commands.UserStatus)
compressions: Final = st.integers(commands.COMPRESSION_CODE_MIN, commands.COMPRESSION_CODE_MAX)

topic_permissions: Final = st.builds(TopicPermissions, flags, flags, flags, flags)
stream_permissions: Final = st.builds(
    StreamPermissions,
    *(flags,) * 6,
    topics=st.none() | st.dictionaries(u32, topic_permissions, max_size=3),
)
permissions: Final = st.builds(
    Permissions,
    *(flags,) * 10,
    streams=st.none() | st.dictionaries(u32, stream_permissions, max_size=3),
)

_topic_options: Final = (compressions, u64, u64, u8, names)

_members: Final[dict[type[commands.Command], tuple[st.SearchStrategy[object], ...]]] = {
    commands.CreateUser: (u32, str8, str8, statuses, st.none() | permissions),
    commands.DeleteUser: (identifiers,),
    commands.UpdateUser: (identifiers, st.none() | str8, st.none() | statuses),
    commands.UpdatePermissions: (identifiers, st.none() | permissions),
    commands.ChangePassword: (identifiers, str8),
    commands.CreatePersonalAccessToken: (str8, str8, u64),
    commands.DeletePersonalAccessToken: (str8,),
    commands.CreateStream: (u32, names),
    commands.DeleteStream: (identifiers,),
    commands.UpdateStream: (identifiers, names),
    commands.PurgeStream: (identifiers,),
    commands.CreateTopic: (identifiers, u32, u32, *_topic_options),
    commands.DeleteTopic: (identifiers, identifiers),
    commands.UpdateTopic: (identifiers, identifiers, *_topic_options),
    commands.PurgeTopic: (identifiers, identifiers),
    commands.CreatePartitions: (identifiers, identifiers, u32),
    commands.DeletePartitions: (identifiers, identifiers, u32),
    commands.DeleteSegments: (identifiers, identifiers, u32, u32),
    commands.CreateConsumerGroup: (identifiers, identifiers, u32, names),
    commands.DeleteConsumerGroup: (identifiers, identifiers, identifiers),
}
assert set(_members) == set(commands.COMMANDS.values()), "a command without a strategy would be passed over"

stored_commands: Final[st.SearchStrategy[commands.Command]] = st.one_of(
    *(st.builds(kind, *members) for kind, members in _members.items())
)

requests: Final[st.SearchStrategy[tuple[int, stream_wire.Request]]] = st.one_of(
    st.tuples(st.just(33), st.builds(stream_wire.CreateUserRequest, str8, str8, statuses, st.none() | permissions)),
    st.tuples(st.just(37), st.builds(stream_wire.ChangePasswordRequest, identifiers, str8, str8)),
    st.tuples(st.just(42), st.builds(stream_wire.CreatePersonalAccessTokenRequest, str8, u64)),
    st.tuples(st.just(202), st.builds(stream_wire.CreateStreamRequest, names)),
    st.tuples(st.just(302), st.builds(stream_wire.CreateTopicRequest, identifiers, u32, *_topic_options)),
    st.tuples(st.just(602), st.builds(stream_wire.CreateConsumerGroupRequest, identifiers, identifiers, names)),
    stored_commands.filter(lambda command: isinstance(command, commands.PlainCommand)).map(
        lambda command: (commands.command_code(command), command)
    ),
)
