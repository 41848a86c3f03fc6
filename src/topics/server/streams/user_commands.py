"""Users, personal access tokens and logins. Handlers run on threads."""

from typing import Any, Final

from topics.protocol.iggy.answers import (
    LoginAnswer,
    TokenAnswer,
    TokenRecord,
    UserDetails,
    UserRecord,
    encode_records,
)
from topics.protocol.iggy.codes import Code
from topics.server.streams.catalog_commands import empty_if_unknown
from topics.server.streams.session import Handler, Session
from topics.stream_errors import StreamStatus
from topics.streams.metadata.permissions import Action
from topics.streams.metadata.users_metadata import UserInfo

# Users.


def _details(user: UserInfo) -> bytes:
    return encode_records(UserDetails(user.id, user.created_at, user.status, user.name, user.permissions))


def _find(session: Session, request: Any, action: Action) -> UserInfo:
    """The user that the request names, if it exists and may be named: a user may always name itself."""
    found = session.system.metadata.resolve_user(request.user_id)
    if found is not session.user:
        session.allow(action)
    return found


def _get_user(session: Session, request: Any) -> bytes:
    return _details(_find(session, request, Action.READ_USERS))


def _get_users(session: Session, _request: Any) -> bytes:
    session.allow(Action.READ_USERS)
    users = session.system.metadata.users.ascending()
    return encode_records(*(UserRecord(user.id, user.created_at, user.status, user.name) for user in users))


def _create_user(session: Session, request: Any) -> bytes:
    user = session.allow(Action.MANAGE_USERS)
    created = session.system.accounts.create_user(
        request.username,
        request.password,
        status=request.status,
        permissions=request.permissions,
        user_id=user.id,
    )
    return _details(created)


def _manage(session: Session, request: Any) -> tuple[UserInfo, UserInfo]:
    """The user that the request names, and the user who asks, who must be allowed to manage users."""
    found = session.system.metadata.resolve_user(request.user_id)
    return found, session.allow(Action.MANAGE_USERS)


def _delete_user(session: Session, request: Any) -> bytes:
    found, user = _manage(session, request)
    session.system.accounts.delete_user(found.id, user_id=user.id)
    return b""


def _update_user(session: Session, request: Any) -> bytes:
    found, user = _manage(session, request)
    session.system.accounts.update_user(found.id, username=request.username, status=request.status, user_id=user.id)
    return b""


def _update_permissions(session: Session, request: Any) -> bytes:
    found, user = _manage(session, request)
    session.system.accounts.update_permissions(found.id, request.permissions, user_id=user.id)
    return b""


def _change_password(session: Session, request: Any) -> bytes:
    found = _find(session, request, Action.MANAGE_USERS)
    session.system.accounts.change_password(
        found.id, request.current_password, request.new_password, user_id=session.user.id
    )
    return b""


# Tokens.


def _get_tokens(session: Session, _request: Any) -> bytes:
    tokens = sorted(session.user.tokens.values(), key=lambda token: token.name)
    return encode_records(*(TokenRecord(token.name, token.expiry_at) for token in tokens))


def _create_token(session: Session, request: Any) -> bytes:
    token = session.system.accounts.create_token(request.name, request.expiry, user_id=session.user.id)
    return encode_records(TokenAnswer(token))


def _delete_token(session: Session, request: Any) -> bytes:
    session.system.accounts.delete_token(request.name, user_id=session.user.id)
    return b""


# Logins.


def _login(session: Session, request: Any) -> bytes:
    user = session.system.accounts.login(request.username, request.password)
    session.login(user)
    return encode_records(LoginAnswer(user.id))


def _login_with_token(session: Session, request: Any) -> bytes:
    user = session.system.accounts.login_with_token(request.token)
    session.login(user)
    return encode_records(LoginAnswer(user.id))


def _logout(session: Session, _request: Any) -> bytes:
    session.check_logged_in()
    session.logout()
    return b""


USER_COMMANDS: Final[dict[int, Handler]] = {
    Code.GET_USER: empty_if_unknown(_get_user, StreamStatus.RESOURCE_NOT_FOUND),
    Code.GET_USERS: _get_users,
    Code.DELETE_USER: _delete_user,
    Code.UPDATE_USER: _update_user,
    Code.UPDATE_PERMISSIONS: _update_permissions,
    Code.GET_PERSONAL_ACCESS_TOKENS: _get_tokens,
    Code.CREATE_PERSONAL_ACCESS_TOKEN: _create_token,
    Code.DELETE_PERSONAL_ACCESS_TOKEN: _delete_token,
    Code.LOGOUT_USER: _logout,
}

# These hash a password, or might be tried again and again.
LOGIN_COMMANDS: Final[dict[int, Handler]] = {
    Code.CREATE_USER: _create_user,
    Code.CHANGE_PASSWORD: _change_password,
    Code.LOGIN_USER: _login,
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: _login_with_token,
}
