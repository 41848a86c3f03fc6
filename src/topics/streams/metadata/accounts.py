"""Users and their tokens, as a server or a program changes and asks for them. What a user may do: `users.authorize`."""

from topics.clock import Clock
from topics.formats.stream_command import (
    ChangePassword,
    CreatePersonalAccessToken,
    CreateUser,
    DeletePersonalAccessToken,
    DeleteUser,
    Identifier,
    UpdatePermissions,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import Permissions
from topics.streams.metadata import users
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.metadata import ROOT_USER_ID, UserInfo
from topics.streams.times import now_us


class Accounts:
    """`user_id` is who asks; it is only noted."""

    def __init__(self, commands: Commands, clock: Clock) -> None:
        self._commands = commands
        self._metadata = commands.metadata
        self._clock = clock

    def create_user(
        self,
        username: str,
        password: str,
        *,
        status: UserStatus = UserStatus.ACTIVE,
        permissions: Permissions | None = None,
        user_id: int = ROOT_USER_ID,
    ) -> UserInfo:
        # Slow on purpose, so not under the lock.
        password_hash = users.hash_password(password)
        with self._commands.changing():
            command = CreateUser(self._metadata.next_user_id(), username, password_hash, status, permissions)
            self._metadata.check(user_id, command)
            self._commands.log_and_apply(user_id, command)
            return self._metadata.users[command.user_id]

    def delete_user(self, user: Identifier, *, user_id: int = ROOT_USER_ID) -> None:
        self._commands.execute(user_id, DeleteUser(user))

    def update_user(
        self,
        user: Identifier,
        *,
        username: str | None = None,
        status: UserStatus | None = None,
        user_id: int = ROOT_USER_ID,
    ) -> None:
        self._commands.execute(user_id, UpdateUser(user, username, status))

    def update_permissions(
        self, user: Identifier, permissions: Permissions | None, *, user_id: int = ROOT_USER_ID
    ) -> None:
        self._commands.execute(user_id, UpdatePermissions(user, permissions))

    def change_password(self, user: Identifier, current: str, new: str, *, user_id: int = ROOT_USER_ID) -> None:
        with self._commands.lock:
            self._commands.check_open()
            info = self._metadata.resolve_user(user)
        users.check_password(info, current)
        self._commands.execute(user_id, ChangePassword(user, users.hash_password(new)))

    def login(self, username: str, password: str) -> UserInfo:
        return users.login(self._metadata, username, password)

    def login_with_token(self, token: str) -> UserInfo:
        with self._commands.lock:
            return users.login_with_token(self._metadata, token, now_us(self._clock))

    def create_token(self, name: str, expiry_us: int = 0, *, user_id: int = ROOT_USER_ID) -> str:
        """The text of the token, which nobody is shown again. `expiry_us` 0: never."""
        token = users.make_token()
        self._commands.execute(user_id, CreatePersonalAccessToken(name, users.token_hash(token), expiry_us))
        return token

    def delete_token(self, name: str, *, user_id: int = ROOT_USER_ID) -> None:
        self._commands.execute(user_id, DeletePersonalAccessToken(name))
