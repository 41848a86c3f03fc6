"""Users and their personal access tokens, as the entries of the state log made them.

A token that has expired keeps its name until it is dropped; a create of the same name replaces it. The root user may be
renamed, set inactive and given a new password, but neither deleted nor given other permissions.

Permissions name streams and topics by their ids, and ids are used again. So permissions for a stream or topic end when
it is deleted, also in a replay.

Not thread-safe: the caller holds the lock of `Commands`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from topics.formats.stream_command import (
    ChangePassword,
    CreatePersonalAccessToken,
    CreateUser,
    DeletePersonalAccessToken,
    DeleteUser,
    UpdatePermissions,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import Permissions, without_stream, without_topic
from topics.limits import U64_MAX
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.command_handler import CommandHandler
from topics.streams.metadata.registry import Registry
from topics.streams.metadata.values import check_token_name, check_u64, check_username

ROOT_USER_ID: Final = 0

# Expiries of tokens that mean "never".
_NEVER: Final = (0, U64_MAX)


@dataclass(slots=True)
class TokenInfo:
    name: str
    # Lowercase hex BLAKE3 of the text of the token.
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

    def rename(self, name: str) -> None:
        self.name = name

    def set_status(self, status: UserStatus) -> None:
        self.status = status

    def set_permissions(self, permissions: Permissions | None) -> None:
        self.permissions = permissions

    def set_password_hash(self, password_hash: str) -> None:
        self.password_hash = password_hash


class UsersMetadata:
    def __init__(self, *, max_tokens_per_user: int) -> None:
        self.users: Registry[UserInfo] = Registry(
            StreamStatus.RESOURCE_NOT_FOUND, StreamStatus.USER_ALREADY_EXISTS, "user"
        )
        self._max_tokens_per_user = max_tokens_per_user
        # The id of the user, by the hash of the token.
        self._token_owners: dict[str, int] = {}

    def handlers(self) -> tuple[CommandHandler[Any], ...]:
        return (
            CommandHandler(CreateUser, self._check_create_user, self._create_user),
            CommandHandler(DeleteUser, self._check_delete_user, self._delete_user),
            CommandHandler(UpdateUser, self._check_update_user, self._update_user),
            CommandHandler(UpdatePermissions, self._check_update_permissions, self._update_permissions),
            CommandHandler(ChangePassword, self._check_change_password, self._change_password),
            CommandHandler(CreatePersonalAccessToken, self._check_create_token, self._create_token),
            CommandHandler(DeletePersonalAccessToken, self._check_delete_token, self._delete_token),
        )

    def token_owner(self, token_hash: str) -> tuple[UserInfo, TokenInfo] | None:
        """The user and the token with this hash, expired tokens included; None if there is none."""
        owner_id = self._token_owners.get(token_hash)
        if owner_id is None:
            return None
        user = self.users[owner_id]
        return user, next(token for token in user.tokens.values() if token.hash == token_hash)

    def drop_expired_tokens(self, now_us: int) -> int:
        """Returns how many. No entry of the state log says that a token expired: a replay drops it by its time."""
        expired = [
            (user, token) for user in self.users.values() for token in user.tokens.values() if token.is_expired(now_us)
        ]
        for user, token in expired:
            self._drop_token(user, token)
        return len(expired)

    def forget_stream(self, stream_id: int) -> None:
        """The stream was deleted: the next stream with this id begins without permissions."""
        self._change_permissions(lambda permissions: without_stream(permissions, stream_id))

    def forget_topic(self, stream_id: int, topic_id: int) -> None:
        """The topic was deleted: the next topic with this id begins without permissions."""
        self._change_permissions(lambda permissions: without_topic(permissions, stream_id, topic_id))

    def _change_permissions(self, change: Callable[[Permissions], Permissions]) -> None:
        for user in self.users.values():
            if user.permissions is not None:
                user.set_permissions(change(user.permissions))

    # Users.

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
            user.set_status(command.status)

    def _check_update_permissions(self, _user_id: int, command: UpdatePermissions) -> None:
        if self.users.resolve(command.user_id).id == ROOT_USER_ID:
            raise StreamsError(
                StreamStatus.CANNOT_CHANGE_PERMISSIONS, "the permissions of the root user cannot be changed"
            )

    def _update_permissions(self, _timestamp: int, _user_id: int, command: UpdatePermissions) -> None:
        self.users.resolve(command.user_id).set_permissions(command.permissions)

    def _check_change_password(self, _user_id: int, command: ChangePassword) -> None:
        self.users.resolve(command.user_id)

    def _change_password(self, _timestamp: int, _user_id: int, command: ChangePassword) -> None:
        self.users.resolve(command.user_id).set_password_hash(command.password)

    # Tokens.

    def _check_create_token(self, user_id: int, command: CreatePersonalAccessToken) -> None:
        user = self.users.resolve(user_id)
        check_u64(command.expiry)
        check_token_name(command.name)
        if command.name in user.tokens:
            raise StreamsError(
                StreamStatus.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS, f"token {command.name!r} exists already"
            )
        count_max = self._max_tokens_per_user
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
