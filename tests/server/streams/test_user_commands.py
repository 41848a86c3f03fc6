"""Users, tokens and logins over the wire."""

import pytest

from tests.server.streams.peer import Peer, Refused, StreamsServer
from topics.formats.stream_command import (
    DeletePersonalAccessToken,
    DeleteUser,
    UpdatePermissions,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import ALL_PERMISSIONS, Permissions, StreamPermissions
from topics.limits import U64_MAX
from topics.protocol.iggy.answers import LoginAnswer, TokenAnswer, TokenRecord, UserDetails, UserRecord
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import (
    ChangePasswordRequest,
    CreatePersonalAccessTokenRequest,
    CreateUserRequest,
    GetUser,
    LoginUser,
    LoginWithPersonalAccessToken,
)

ACTIVE, INACTIVE = UserStatus.ACTIVE, UserStatus.INACTIVE


def test_logins(streams: StreamsServer) -> None:
    peer = streams.connect()
    assert peer.status(Code.GET_ME) == 40
    for username, password, status in (
        ("iggy", "wrong", 42),
        ("unknown", "iggy", 42),
        ("ig", "iggy", 43),
        ("x" * 51, "iggy", 43),
        ("iggy", "ig", 44),
        ("iggy", "", 44),
        ("iggy", "x" * 101, 44),
    ):
        assert peer.status(LoginUser(username, password)) == status
    assert peer.status(Code.GET_ME) == 40
    assert peer.get(LoginUser("iggy", "iggy", "0.8.0", "a test"), LoginAnswer) == [LoginAnswer(0)]
    assert peer.status(Code.GET_ME) == 0
    assert peer.status(LoginUser("iggy", "wrong")) == 42
    assert peer.status(Code.GET_ME) == 0
    assert peer.status(Code.LOGOUT_USER) == 0
    assert peer.status(Code.GET_ME) == 40
    assert peer.status(Code.LOGOUT_USER) == 40
    assert peer.status(Code.PING) == 0


def test_a_login_replaces_the_user(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    peer = streams.login(name, name)
    assert peer.status(Code.GET_USERS) == 41
    peer.login()
    assert peer.status(Code.GET_USERS) == 0


def test_a_user_is_created_found_changed_and_deleted(streams: StreamsServer, root: Peer, name: str) -> None:
    permissions = Permissions(read_streams=True, streams={3: StreamPermissions(send_messages=True)})
    (created,) = root.get(CreateUserRequest(name, "secret", ACTIVE, permissions), UserDetails)
    assert created == UserDetails(created.id, created.created_at, 1, name, permissions)
    assert root.get(GetUser(name), UserDetails) == root.get(GetUser(created.id), UserDetails) == [created]
    assert UserRecord(created.id, created.created_at, 1, name) in root.get(Code.GET_USERS, UserRecord)
    assert root.get(GetUser(0), UserDetails)[0].permissions == ALL_PERMISSIONS
    assert root.do(GetUser("nobody-of-this-name")) == b""
    assert root.status(CreateUserRequest(name, "secret", ACTIVE, None)) == 46
    assert root.status(UpdateUser(name, "iggy", None)) == 46
    assert root.status(UpdateUser(name, "ab", None)) == 43
    root.do(UpdateUser(name, name + "-new", INACTIVE))
    assert streams.connect().status(LoginUser(name + "-new", "secret")) == 47
    root.do(UpdateUser(created.id, None, ACTIVE))
    root.do(UpdatePermissions(created.id, None))
    assert root.get(GetUser(created.id), UserDetails)[0].permissions is None
    root.do(DeleteUser(created.id))
    for request in (
        DeleteUser(name),
        UpdateUser(name, None, None),
        UpdatePermissions(name, None),
        ChangePasswordRequest(name, "a", "b"),
    ):
        assert root.status(request) == 20


def test_the_root_user_stays(root: Peer) -> None:
    assert root.status(DeleteUser(0)) == 48
    assert root.status(UpdatePermissions("iggy", None)) == 49


def test_values_of_users_are_checked(root: Peer, name: str) -> None:
    assert root.status(CreateUserRequest("ab", "secret", ACTIVE, None)) == 43
    assert root.status(CreateUserRequest(name, "ab", ACTIVE, None)) == 44
    for payload, status in (
        (b"\3abc\6secret\3\0", 3),
        (b"\3abc\6secret\1\1" + (5).to_bytes(4, "little") + bytes(5), 4),
        (b"\3abc\6secret\1\1" + (12).to_bytes(4, "little") + bytes(12), 4),
    ):
        with pytest.raises(Refused) as refused:
            root.ask(Code.CREATE_USER, payload)
        assert refused.value.status == status


def test_passwords_change(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    user = streams.login(name, name)
    assert user.status(ChangePasswordRequest(name, "wrong", "new-one")) == 42
    assert user.status(ChangePasswordRequest(name, name, "x")) == 44
    assert user.status(ChangePasswordRequest("iggy", "iggy", "new-one")) == 41
    user.do(ChangePasswordRequest(name, name, "new-one"))
    assert streams.connect().status(LoginUser(name, name)) == 42
    root.do(ChangePasswordRequest(name, "new-one", "newer"))
    streams.login(name, "newer")


def test_who_may_do_what_with_users(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    root.create_user(name + "r", Permissions(read_users=True))
    root.create_user(name + "m", Permissions(manage_users=True))
    nobody, reader, manager = (streams.login(name + suffix, name + suffix) for suffix in ("", "r", "m"))
    for request, by_nobody, by_reader in (
        (GetUser(name), 0, 0),
        (GetUser(0), 41, 0),
        (Code.GET_USERS, 41, 0),
        (UpdateUser(name, None, None), 41, 41),
        (UpdatePermissions(name, None), 41, 41),
        (CreateUserRequest(name + "x", "secret", ACTIVE, None), 41, 41),
        (DeleteUser(name + "x"), 41, 41),
    ):
        assert nobody.status(request) == by_nobody
        assert reader.status(request) == by_reader
        assert manager.status(request) == 0
    # What does not exist is told before permissions are checked.
    assert nobody.status(DeleteUser(name + "x")) == 20


# Tokens.


def test_a_token_is_shown_once_and_logs_in(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    user = streams.login(name, name)
    (answer,) = user.get(CreatePersonalAccessTokenRequest("ci-token", 0), TokenAnswer)
    assert len(answer.token) == 68
    user.do(CreatePersonalAccessTokenRequest("another", U64_MAX))
    user.do(CreatePersonalAccessTokenRequest("short", 1))
    tokens = user.get(Code.GET_PERSONAL_ACCESS_TOKENS, TokenRecord)
    assert [token.name for token in tokens] == ["another", "ci-token", "short"]
    assert [token.expiry_at == 0 for token in tokens] == [True, True, False]
    by_token = streams.connect()
    user_id = by_token.get(LoginWithPersonalAccessToken(answer.token), LoginAnswer)[0].user_id
    assert by_token.get(GetUser(name), UserDetails)[0].id == user_id
    assert by_token.status(LoginWithPersonalAccessToken("x" * 68)) == 20
    assert user.status(CreatePersonalAccessTokenRequest("ci-token", 0)) == 51
    assert user.status(CreatePersonalAccessTokenRequest("ab", 0)) == 50
    user.do(DeletePersonalAccessToken("ci-token"))
    assert user.status(DeletePersonalAccessToken("ci-token")) == 20
    assert by_token.status(LoginWithPersonalAccessToken(answer.token)) == 20


def test_an_expired_token_does_not_log_in(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    user = streams.login(name, name)
    (answer,) = user.get(CreatePersonalAccessTokenRequest("short", 1), TokenAnswer)
    peer = streams.connect()
    # The clock of the server counts milliseconds, so the token may last until the next one.
    while (status := peer.status(LoginWithPersonalAccessToken(answer.token))) == 0:
        pass
    assert status in (54, 20)
