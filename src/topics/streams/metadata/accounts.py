"""Users, their tokens and their permissions: the commands about them, logins, and what a user may do."""

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
from topics.streams.metadata import logins
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.permissions import Action, authorize
from topics.streams.metadata.users_metadata import ROOT_USER_ID, UserInfo
from topics.streams.times import now_us


class Accounts:
    """`user_id` is the user who asks. It is written to the state log and not checked here."""

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
        # A hash is slow on purpose, so it is made without the lock.
        password_hash = logins.hash_password(password)
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
        logins.check_password(info, current)
        self._commands.execute(user_id, ChangePassword(user, logins.hash_password(new)))

    def login(self, username: str, password: str) -> UserInfo:
        return logins.login(self._metadata, username, password)

    def login_with_token(self, token: str) -> UserInfo:
        with self._commands.lock:
            return logins.login_with_token(self._metadata, token, now_us(self._clock))

    def authorize(
        self, user: UserInfo, action: Action, stream_id: int | None = None, topic_id: int | None = None
    ) -> None:
        """Raises `StreamsError` with `UNAUTHORIZED` if the user may not do it. A server asks before each command."""
        authorize(user, action, stream_id, topic_id)

    def create_token(self, name: str, expiry_us: int = 0, *, user_id: int = ROOT_USER_ID) -> str:
        """Returns the text of the token, which cannot be shown again. An `expiry_us` of 0 is never."""
        token = logins.make_token()
        self._commands.execute(user_id, CreatePersonalAccessToken(name, logins.token_hash(token), expiry_us))
        return token

    def delete_token(self, name: str, *, user_id: int = ROOT_USER_ID) -> None:
        self._commands.execute(user_id, DeletePersonalAccessToken(name))
