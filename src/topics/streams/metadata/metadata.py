"""What there is: streams, topics, partitions, groups, users and tokens. Pure state, changed by commands alone.

A live command is looked up, allowed (`users.py`), checked, appended to the state log, and then applied with the time of
its entry; a start applies the entries of the log in their order. So both ways lead to the same state, and a command
that fails on its way has changed nothing.

    check(user_id, command)              raises what a client is to be told; changes nothing
    apply(timestamp, user_id, command)   does it; whatever is applied was checked, here or by whoever wrote the log
    replay(entries, now_us)              applies a log; refuses the start where an entry does not fit those before it

Defaults are resolved when a command is applied, never stored: 0 as expiry or size of a topic is the value of the
settings, 0 as replication factor is 1. The limits of commands are checked before they are written, and not again when
a log is replayed: it may have been written under other settings.

Choices: ids are the smallest free ones; a name longer than 255 bytes is the "invalid name" of its kind, an empty one
INVALID_FORMAT as on the wire; numbers outside their types are INVALID_COMMAND, as they would be there. A token that has
expired keeps its name until it is cleaned away, and a create of the same name replaces it. Root may be renamed, set
inactive and given a new password, but neither deleted nor given other permissions.

Not thread-safe: whoever changes or reads it holds the lock of the metadata.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from topics.errors import StartRefused
from topics.formats.state_entry import StateEntry
from topics.formats.stream_command import (
    COMPRESSION_CODE_MAX,
    COMPRESSION_CODE_MIN,
    NAME_BYTES_MAX,
    ChangePassword,
    Command,
    CreateConsumerGroup,
    CreatePartitions,
    CreatePersonalAccessToken,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeleteConsumerGroup,
    DeletePartitions,
    DeletePersonalAccessToken,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    DeleteUser,
    Identifier,
    PurgeStream,
    PurgeTopic,
    UpdatePermissions,
    UpdateStream,
    UpdateTopic,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import U32_MAX, Permissions
from topics.limits import U64_MAX
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.settings import UNLIMITED, StreamsSettings

ROOT_USER_ID: Final = 0

USERNAME_BYTES: Final = range(3, 51)
TOKEN_NAME_BYTES: Final = range(3, 31)
PARTITIONS_PER_REQUEST_MAX: Final = 1000
REPLICATION_FACTOR_MAX: Final = 255

# Expiries of tokens that mean "never".
_NEVER: Final = (0, U64_MAX)


class _Named(Protocol):
    id: int
    name: str


N = TypeVar("N", bound=_Named)


class Registry(dict[int, N], Generic[N]):
    """Entities of one parent by id, with their names and the smallest id that is free.

    Change it by `add`, `drop` and `rename` only.
    """

    def __init__(self, not_found: StreamStatus, name_taken: StreamStatus, kind: str) -> None:
        super().__init__()
        self._not_found = not_found
        self._name_taken = name_taken
        self._kind = kind
        self._ids: dict[str, int] = {}
        # No id below is free.
        self._free_from = 0

    def resolve(self, identifier: Identifier) -> N:
        found = self.by_name(identifier) if isinstance(identifier, str) else self.get(identifier)
        if found is None:
            raise StreamsError(self._not_found, f"{self._kind} {identifier!r} does not exist")
        return found

    def by_name(self, name: str) -> N | None:
        return self.get(self._ids.get(name, -1))

    def next_id(self) -> int:
        while self._free_from in self:
            self._free_from += 1
        return self._free_from

    def check_new(self, new_id: int, name: str) -> None:
        """Neither of them may be taken."""
        self.check_name(name)
        if new_id in self or not 0 <= new_id <= U32_MAX:
            raise StreamsError(self._name_taken, f"{new_id} is not free as the id of a {self._kind}")

    def check_name(self, name: str, owner: N | None = None) -> None:
        """Names are unique; an entity may keep its own."""
        if name in self._ids and (owner is None or owner.name != name):
            raise StreamsError(self._name_taken, f"{self._kind} {name!r} exists already")

    def add(self, entity: N) -> None:
        self.check_new(entity.id, entity.name)
        self[entity.id] = entity
        self._ids[entity.name] = entity.id

    def drop(self, entity: N) -> None:
        del self[entity.id], self._ids[entity.name]
        self._free_from = min(self._free_from, entity.id)

    def rename(self, entity: N, name: str) -> None:
        self.check_name(name, entity)
        del self._ids[entity.name]
        entity.name = name
        self._ids[name] = entity.id

    def ascending(self) -> list[N]:
        return [self[key] for key in sorted(self)]


@dataclass(slots=True)
class PartitionInfo:
    id: int
    created_at: int


@dataclass(slots=True)
class GroupInfo:
    id: int
    name: str


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
    # The code of the algorithm that was asked for; what is used depends on the settings as well.
    compression: int
    replication_factor: int
    partitions: list[PartitionInfo] = field(default_factory=list)
    groups: Registry[GroupInfo] = field(default_factory=_groups)


def _topics() -> "Registry[TopicInfo]":
    return Registry(StreamStatus.TOPIC_ID_NOT_FOUND, StreamStatus.TOPIC_NAME_ALREADY_EXISTS, "topic")


@dataclass(slots=True)
class StreamInfo:
    id: int
    name: str
    created_at: int
    topics: Registry[TopicInfo] = field(default_factory=_topics)


@dataclass(slots=True)
class TokenInfo:
    name: str
    # Lowercase hex BLAKE3 of the text that its user was shown.
    hash: str = field(repr=False)
    # Microseconds since the epoch; 0: never.
    expiry_at: int

    def is_expired(self, now_us: int) -> bool:
        return self.expiry_at != 0 and self.expiry_at <= now_us


@dataclass(slots=True)
class UserInfo:
    id: int
    name: str
    # The PHC string.
    password_hash: str = field(repr=False)
    status: UserStatus
    permissions: Permissions | None
    created_at: int
    tokens: dict[str, TokenInfo] = field(default_factory=dict)


class Metadata:
    def __init__(self, settings: StreamsSettings) -> None:
        self.streams: Registry[StreamInfo] = Registry(
            StreamStatus.STREAM_ID_NOT_FOUND, StreamStatus.STREAM_NAME_ALREADY_EXISTS, "stream"
        )
        self.users: Registry[UserInfo] = Registry(
            StreamStatus.RESOURCE_NOT_FOUND, StreamStatus.USER_ALREADY_EXISTS, "user"
        )
        self._settings = settings
        # The ids of the users whose tokens these are.
        self._token_owners: dict[str, int] = {}
        self._handlers: Final[dict[type[Command], tuple[_Check, _Apply]]] = {
            CreateUser: (self._check_create_user, self._create_user),
            DeleteUser: (self._check_delete_user, self._delete_user),
            UpdateUser: (self._check_update_user, self._update_user),
            UpdatePermissions: (self._check_update_permissions, self._update_permissions),
            ChangePassword: (self._check_change_password, self._change_password),
            CreatePersonalAccessToken: (self._check_create_token, self._create_token),
            DeletePersonalAccessToken: (self._check_delete_token, self._delete_token),
            CreateStream: (self._check_create_stream, self._create_stream),
            DeleteStream: (self._check_stream, self._delete_stream),
            UpdateStream: (self._check_update_stream, self._update_stream),
            PurgeStream: (self._check_stream, _change_nothing),
            CreateTopic: (self._check_create_topic, self._create_topic),
            DeleteTopic: (self._check_topic, self._delete_topic),
            UpdateTopic: (self._check_update_topic, self._update_topic),
            PurgeTopic: (self._check_topic, _change_nothing),
            CreatePartitions: (self._check_create_partitions, self._create_partitions),
            DeletePartitions: (self._check_delete_partitions, self._delete_partitions),
            DeleteSegments: (self._check_delete_segments, _change_nothing),
            CreateConsumerGroup: (self._check_create_group, self._create_group),
            DeleteConsumerGroup: (self._check_delete_group, self._delete_group),
        }

    def check(self, user_id: int, command: Command) -> None:
        """Raises `StreamsError` when the command cannot be done now. `user_id` is who asks."""
        self._handlers[type(command)][0](user_id, command)

    def apply(self, timestamp: int, user_id: int, command: Command) -> None:
        """Whole or not at all. Purges and deleted segments change nothing here."""
        self._handlers[type(command)][1](timestamp, user_id, command)

    def replay(self, entries: Iterable[StateEntry], now_us: int) -> None:
        for entry in entries:
            try:
                self.apply(entry.timestamp, entry.user_id, entry.command)
            except StreamsError as error:
                raise StartRefused(
                    f"entry {entry.index} of the state log ({type(entry.command).__name__}) does not fit what stands "
                    f"before it: {error.message}"
                ) from error
        self.drop_expired_tokens(now_us)

    # Looking things up.

    def resolve_stream(self, stream_id: Identifier) -> StreamInfo:
        return self.streams.resolve(stream_id)

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

    def resolve_user(self, user_id: Identifier) -> UserInfo:
        return self.users.resolve(user_id)

    def token_owner(self, token_hash: str) -> tuple[UserInfo, TokenInfo] | None:
        """Whose token it is; also when it has expired."""
        owner_id = self._token_owners.get(token_hash)
        if owner_id is None:
            return None
        user = self.users[owner_id]
        return user, next(token for token in user.tokens.values() if token.hash == token_hash)

    @property
    def has_root(self) -> bool:
        return ROOT_USER_ID in self.users

    # Ids for what is about to be created.

    def next_stream_id(self) -> int:
        return self.streams.next_id()

    def next_topic_id(self, stream_id: Identifier) -> int:
        return self.resolve_stream(stream_id).topics.next_id()

    def next_group_id(self, stream_id: Identifier, topic_id: Identifier) -> int:
        return self.resolve_topic(stream_id, topic_id).groups.next_id()

    def next_user_id(self) -> int:
        return self.users.next_id()

    # Users and tokens.

    def _check_create_user(self, _user_id: int, command: CreateUser) -> None:
        check_username(command.username)
        self.users.check_new(command.user_id, command.username)

    def _create_user(self, timestamp: int, _user_id: int, command: CreateUser) -> None:
        self.users.add(
            UserInfo(
                command.user_id, command.username, command.password, command.status, command.permissions, timestamp
            )
        )

    def _check_delete_user(self, _user_id: int, command: DeleteUser) -> None:
        if self.users.resolve(command.user_id).id == ROOT_USER_ID:
            raise StreamsError(StreamStatus.CANNOT_DELETE_USER, "the root user cannot be deleted")

    def _delete_user(self, _timestamp: int, _user_id: int, command: DeleteUser) -> None:
        user = self.users.resolve(command.user_id)
        for token in list(user.tokens.values()):
            self._drop_token(user, token)
        self.users.drop(user)

    def _check_update_user(self, _user_id: int, command: UpdateUser) -> None:
        user = self.users.resolve(command.user_id)
        if command.username is not None:
            check_username(command.username)
            self.users.check_name(command.username, user)

    def _update_user(self, _timestamp: int, _user_id: int, command: UpdateUser) -> None:
        user = self.users.resolve(command.user_id)
        if command.username is not None:
            self.users.rename(user, command.username)
        if command.status is not None:
            user.status = command.status

    def _check_update_permissions(self, _user_id: int, command: UpdatePermissions) -> None:
        if self.users.resolve(command.user_id).id == ROOT_USER_ID:
            raise StreamsError(
                StreamStatus.CANNOT_CHANGE_PERMISSIONS, "the permissions of the root user cannot be changed"
            )

    def _update_permissions(self, _timestamp: int, _user_id: int, command: UpdatePermissions) -> None:
        self.users.resolve(command.user_id).permissions = command.permissions

    def _check_change_password(self, _user_id: int, command: ChangePassword) -> None:
        self.users.resolve(command.user_id)

    def _change_password(self, _timestamp: int, _user_id: int, command: ChangePassword) -> None:
        self.users.resolve(command.user_id).password_hash = command.password

    def _check_create_token(self, user_id: int, command: CreatePersonalAccessToken) -> None:
        user = self.users.resolve(user_id)
        _check_u64(command.expiry)
        if _byte_count(command.name) not in TOKEN_NAME_BYTES:
            raise StreamsError(
                StreamStatus.INVALID_PERSONAL_ACCESS_TOKEN_NAME,
                f"the name of a token has {TOKEN_NAME_BYTES.start} to {TOKEN_NAME_BYTES.stop - 1} bytes",
            )
        if command.name in user.tokens:
            raise StreamsError(
                StreamStatus.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS, f"token {command.name!r} exists already"
            )
        count_max = self._settings.personal_access_token.max_tokens_per_user
        if len(user.tokens) >= count_max:
            raise StreamsError(
                StreamStatus.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED, f"a user has at most {count_max} tokens"
            )

    def _create_token(self, timestamp: int, user_id: int, command: CreatePersonalAccessToken) -> None:
        user = self.users.resolve(user_id)
        if command.name in user.tokens:
            self._drop_token(user, user.tokens[command.name])
        expiry_at = 0 if command.expiry in _NEVER else min(timestamp + command.expiry, U64_MAX)
        user.tokens[command.name] = TokenInfo(command.name, command.hash, expiry_at)
        self._token_owners[command.hash] = user.id

    def _check_delete_token(self, user_id: int, command: DeletePersonalAccessToken) -> None:
        self._token(user_id, command.name)

    def _delete_token(self, _timestamp: int, user_id: int, command: DeletePersonalAccessToken) -> None:
        self._drop_token(*self._token(user_id, command.name))

    def _token(self, user_id: int, name: str) -> tuple[UserInfo, TokenInfo]:
        user = self.users.resolve(user_id)
        if name not in user.tokens:
            raise StreamsError(StreamStatus.RESOURCE_NOT_FOUND, f"token {name!r} does not exist")
        return user, user.tokens[name]

    def _drop_token(self, user: UserInfo, token: TokenInfo) -> None:
        del user.tokens[token.name]
        self._token_owners.pop(token.hash, None)

    def drop_expired_tokens(self, now_us: int) -> int:
        """How many there were. They are in no entry: a replay leaves them out by their time."""
        expired = [
            (user, token) for user in self.users.values() for token in user.tokens.values() if token.is_expired(now_us)
        ]
        for user, token in expired:
            self._drop_token(user, token)
        return len(expired)

    # Streams.

    def _check_stream(self, _user_id: int, command: DeleteStream | PurgeStream) -> None:
        self.streams.resolve(command.stream_id)

    def _check_create_stream(self, _user_id: int, command: CreateStream) -> None:
        check_name(command.name, StreamStatus.INVALID_STREAM_NAME)
        self.streams.check_new(command.stream_id, command.name)

    def _create_stream(self, timestamp: int, _user_id: int, command: CreateStream) -> None:
        self.streams.add(StreamInfo(command.stream_id, command.name, timestamp))

    def _delete_stream(self, _timestamp: int, _user_id: int, command: DeleteStream) -> None:
        self.streams.drop(self.streams.resolve(command.stream_id))

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
        topics = self.streams.resolve(command.stream_id).topics
        topics.drop(topics.resolve(command.topic_id))

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
        topic.message_expiry = self._resolved_expiry(command.message_expiry)
        topic.max_size = self._resolved_max_size(command.max_topic_size)
        topic.compression = command.compression_algorithm
        topic.replication_factor = command.replication_factor or 1

    def _check_topic_options(self, command: CreateTopic | UpdateTopic) -> None:
        _check_u64(command.message_expiry)
        _check_u64(command.max_topic_size)
        if not COMPRESSION_CODE_MIN <= command.compression_algorithm <= COMPRESSION_CODE_MAX:
            raise StreamsError(
                StreamStatus.INVALID_COMMAND, f"{command.compression_algorithm} is no code of a compression algorithm"
            )
        if not 0 <= command.replication_factor <= REPLICATION_FACTOR_MAX:
            raise StreamsError(StreamStatus.INVALID_COMMAND, f"{command.replication_factor} is no replication factor")
        segment_bytes = self._settings.system.segment.size
        if command.max_topic_size not in (0, UNLIMITED) and command.max_topic_size < segment_bytes:
            raise StreamsError(
                StreamStatus.INVALID_TOPIC_SIZE,
                f"a topic of {command.max_topic_size} bytes could not hold a segment of {segment_bytes}",
            )

    def _resolved_expiry(self, message_expiry: int) -> int:
        return message_expiry or self._settings.system.topic.message_expiry_us

    def _resolved_max_size(self, max_topic_size: int) -> int:
        return max_topic_size or self._settings.system.topic.max_size

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


_Check = Callable[[int, Any], None]
_Apply = Callable[[int, int, Any], None]


def _change_nothing(_timestamp: int, _user_id: int, _command: Command) -> None:
    """Messages were deleted, not metadata."""


def check_name(name: str, invalid: StreamStatus) -> None:
    """Of a stream, topic or group."""
    size = _byte_count(name)
    if size == 0:
        raise StreamsError(StreamStatus.INVALID_FORMAT, "a name is empty")
    if size > NAME_BYTES_MAX:
        raise StreamsError(invalid, f"a name of {size} bytes: it may have {NAME_BYTES_MAX}")


def check_username(name: str) -> None:
    if _byte_count(name) not in USERNAME_BYTES:
        raise StreamsError(
            StreamStatus.INVALID_USERNAME,
            f"the name of a user has {USERNAME_BYTES.start} to {USERNAME_BYTES.stop - 1} bytes",
        )


def _byte_count(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError as error:
        raise StreamsError(StreamStatus.INVALID_FORMAT, "a name is text that UTF-8 cannot hold") from error


def _check_u64(value: int) -> None:
    if not 0 <= value <= U64_MAX:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"{value} does not fit 64 bits")


def _refuse_partitions_count(count: int) -> None:
    raise StreamsError(
        StreamStatus.TOO_MANY_PARTITIONS, f"{count} partitions in one request: {PARTITIONS_PER_REQUEST_MAX} at most"
    )
