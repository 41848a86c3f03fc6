"""All metadata of a directory: streams with their topics, partitions and groups, and users with their tokens.

Pure state that only commands change. A live command is checked, appended to the state log, and then applied with the
time of its entry. A start applies the entries of the log in their order. So both lead to the same state, and a command
that fails before its entry is written has changed nothing.

    check(user_id, command)              raises the error that a client gets; changes nothing
    apply(timestamp, user_id, command)   does it; the command was checked, here or by the program that wrote the log
    replay(entries, now_us)              applies a log; refuses the start if an entry does not fit the entries before it

The limits of commands are checked before they are written, and not again in a replay: the log may have been written
under other settings.

Choices: a new id is the smallest free one; a name longer than 255 bytes is the "invalid name" of its kind, an empty one
INVALID_FORMAT as on the wire; a number outside of its type on the wire is INVALID_COMMAND.

Not thread-safe: the caller holds the lock of `Commands`.
"""

from collections.abc import Iterable

from topics.errors import StartRefused
from topics.formats.state_entry import StateEntry
from topics.formats.stream_command import Command, Identifier
from topics.stream_errors import StreamsError
from topics.streams.metadata.command_handler import CommandHandlers
from topics.streams.metadata.streams_metadata import GroupInfo, PartitionInfo, StreamInfo, StreamsMetadata, TopicInfo
from topics.streams.metadata.users_metadata import ROOT_USER_ID, TokenInfo, UserInfo, UsersMetadata
from topics.streams.settings import StreamsSettings


class Metadata:
    def __init__(self, settings: StreamsSettings) -> None:
        self._users = UsersMetadata(max_tokens_per_user=settings.personal_access_token.max_tokens_per_user)
        self._streams = StreamsMetadata(settings.system, self._users)
        self.streams = self._streams.streams
        self.users = self._users.users
        self._handlers: CommandHandlers = {
            handler.kind: handler for handler in (*self._streams.handlers(), *self._users.handlers())
        }

    def check(self, user_id: int, command: Command) -> None:
        """Raises `StreamsError` if the command cannot be done now. `user_id` is the user who asks."""
        self._handlers[type(command)].check(user_id, command)

    def apply(self, timestamp: int, user_id: int, command: Command) -> None:
        """Applies the whole command or, if it raises, nothing of it."""
        self._handlers[type(command)].apply(timestamp, user_id, command)

    def replay(self, entries: Iterable[StateEntry], now_us: int) -> None:
        for entry in entries:
            try:
                self.apply(entry.timestamp, entry.user_id, entry.command)
            except StreamsError as error:
                raise StartRefused(
                    f"entry {entry.index} of the state log ({type(entry.command).__name__}) does not fit the entries "
                    f"before it: {error.message}"
                ) from error
        self.drop_expired_tokens(now_us)

    def drop_expired_tokens(self, now_us: int) -> int:
        """Returns how many."""
        return self._users.drop_expired_tokens(now_us)

    # Looking things up.

    def resolve_stream(self, stream_id: Identifier) -> StreamInfo:
        return self.streams.resolve(stream_id)

    def resolve_topic(self, stream_id: Identifier, topic_id: Identifier) -> TopicInfo:
        return self._streams.resolve_topic(stream_id, topic_id)

    def resolve_partition(self, stream_id: Identifier, topic_id: Identifier, partition_id: int) -> PartitionInfo:
        return self._streams.resolve_partition(stream_id, topic_id, partition_id)

    def resolve_group(self, stream_id: Identifier, topic_id: Identifier, group_id: Identifier) -> GroupInfo:
        return self._streams.resolve_group(stream_id, topic_id, group_id)

    def resolve_user(self, user_id: Identifier) -> UserInfo:
        return self.users.resolve(user_id)

    def token_owner(self, token_hash: str) -> tuple[UserInfo, TokenInfo] | None:
        """The user and the token with this hash, expired tokens included; None if there is none."""
        return self._users.token_owner(token_hash)

    @property
    def has_root(self) -> bool:
        return ROOT_USER_ID in self.users

    # Ids for new entities.

    def next_stream_id(self) -> int:
        return self.streams.next_id()

    def next_topic_id(self, stream_id: Identifier) -> int:
        return self.resolve_stream(stream_id).topics.next_id()

    def next_group_id(self, stream_id: Identifier, topic_id: Identifier) -> int:
        return self.resolve_topic(stream_id, topic_id).groups.next_id()

    def next_user_id(self) -> int:
        return self.users.next_id()
