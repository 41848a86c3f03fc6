"""What a user without any permission may do: every command, in one table."""

from collections.abc import Mapping
from typing import NamedTuple

from tests.server.streams.peer import Peer, StreamsServer, message, send_payload
from topics.formats.stream_command import (
    CreatePartitions,
    DeleteConsumerGroup,
    DeletePartitions,
    DeletePersonalAccessToken,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    DeleteUser,
    PurgeStream,
    PurgeTopic,
    UpdatePermissions,
    UpdateStream,
    UpdateTopic,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import Permissions
from topics.protocol.iggy import requests
from topics.protocol.iggy.answers import TokenAnswer
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.frames import encode_frame
from topics.protocol.iggy.requests import encode_request, request_code

OK, UNAUTHORIZED = 0, 41

# Themselves, their password and tokens, and where the server is: every user may do this, as in Apache Iggy.
ALLOWED = frozenset(
    {
        Code.PING,
        Code.GET_CLUSTER_METADATA,
        Code.GET_ME,
        Code.GET_USER,
        Code.CHANGE_PASSWORD,
        Code.CREATE_PERSONAL_ACCESS_TOKEN,
        Code.GET_PERSONAL_ACCESS_TOKENS,
        Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN,
        Code.DELETE_PERSONAL_ACCESS_TOKEN,
        Code.LOGIN_USER,
        Code.LOGOUT_USER,
    }
)


class Ask(NamedTuple):
    code: int
    payload: bytes


def asks(user: str, token: str) -> list[Ask]:
    """A request of each command of the user, in an order in which all of them succeed if it may do everything. Each
    one is about things that exist, and about the user itself where every user may do that."""
    other, new, stream, spare = user + "other", user + "new", user + "s", user + "spare"
    slot = (1, "consumer", stream, "t", 0)
    payloads: Mapping[int, bytes] = {Code.SEND_MESSAGES: send_payload(stream, "t", [message(b"x")], 0)}
    wanted: list[Code | requests.Request] = [
        Code.PING,
        Code.GET_STATS,
        requests.GetSnapshot(1, (6,)),
        Code.GET_CLUSTER_METADATA,
        Code.GET_ME,
        requests.GetClient(1),
        Code.GET_CLIENTS,
        requests.GetUser(user),
        Code.GET_USERS,
        requests.CreateUserRequest(new, new, UserStatus.ACTIVE, None),
        UpdateUser(other, None, UserStatus.INACTIVE),
        UpdatePermissions(other, Permissions(read_servers=True)),
        DeleteUser(other),
        requests.ChangePasswordRequest(user, user, user),
        requests.CreatePersonalAccessTokenRequest("token", 0),
        Code.GET_PERSONAL_ACCESS_TOKENS,
        DeletePersonalAccessToken("token"),
        requests.GetStream(stream),
        Code.GET_STREAMS,
        requests.CreateStreamRequest(new),
        PurgeStream(stream),
        UpdateStream(stream, stream),
        DeleteStream(spare),
        requests.GetTopic(stream, "t"),
        requests.GetTopics(stream),
        requests.CreateTopicRequest(stream, 1, 1, 0, 0, 0, "new"),
        UpdateTopic(stream, "t", 1, 0, 0, 0, "t"),
        PurgeTopic(stream, "t"),
        CreatePartitions(stream, "t", 1),
        DeletePartitions(stream, "t", 1),
        Code.SEND_MESSAGES,
        requests.FlushUnsavedBuffer(stream, "t", 0, False),
        requests.PollMessages(*slot, 3, 0, 10, True),
        requests.StoreConsumerOffset(*slot, 0),
        requests.GetConsumerOffset(*slot),
        requests.DeleteConsumerOffset(*slot),
        DeleteSegments(stream, "t", 0, 1),
        requests.GetConsumerGroup(stream, "t", "g"),
        requests.GetConsumerGroups(stream, "t"),
        requests.CreateConsumerGroupRequest(stream, "t", "new"),
        requests.JoinConsumerGroup(stream, "t", "g"),
        requests.LeaveConsumerGroup(stream, "t", "g"),
        DeleteConsumerGroup(stream, "t", "g"),
        DeleteTopic(stream, "t"),
        requests.LoginWithPersonalAccessToken(token),
        requests.LoginUser(user, user),
        Code.LOGOUT_USER,
    ]
    return [
        Ask(each, payloads.get(each, b"")) if isinstance(each, Code) else Ask(request_code(each), encode_request(each))
        for each in wanted
    ]


def answers_of(streams: StreamsServer, root: Peer, user: str, permissions: Permissions | None) -> dict[int, int]:
    """The status of each command, for a new user."""
    root.create_user(user, permissions)
    root.create_user(user + "other")
    root.create(user + "s", "t")
    root.create(user + "spare")
    root.do(requests.CreateConsumerGroupRequest(user + "s", "t", "g"))
    peer = streams.login(user, user)
    (answer,) = peer.get(requests.CreatePersonalAccessTokenRequest("login", 0), TokenAnswer)
    return {ask.code: status_of(peer, ask) for ask in asks(user, answer.token)}


def status_of(peer: Peer, ask: Ask) -> int:
    peer.write(encode_frame(*ask))
    return peer.answer()[0]


def test_a_user_without_permissions_is_refused_everything_but_what_every_user_may_do(
    streams: StreamsServer, root: Peer, name: str
) -> None:
    statuses = answers_of(streams, root, name, None)
    assert statuses == {code: OK if code in ALLOWED else UNAUTHORIZED for code in CODES}


def test_a_user_with_all_permissions_is_refused_nothing(streams: StreamsServer, root: Peer, name: str) -> None:
    """So the requests of the table are legal, and a refusal comes of the permissions."""
    everything = Permissions(
        manage_servers=True,
        manage_users=True,
        manage_streams=True,
        manage_topics=True,
        poll_messages=True,
        send_messages=True,
    )
    statuses = answers_of(streams, root, name, everything)
    assert statuses == dict.fromkeys(CODES, OK)


def test_other_users_are_read_and_changed_with_permission_only(streams: StreamsServer, root: Peer, name: str) -> None:
    other = name + "other"
    root.create_user(name)
    root.create_user(other)
    nobody = streams.login(name, name)
    for request in (
        requests.GetUser(other),
        requests.ChangePasswordRequest(other, other, name),
        UpdateUser(name, None, UserStatus.ACTIVE),
        UpdatePermissions(name, Permissions(manage_users=True)),
        DeleteUser(name),
    ):
        assert nobody.status(request) == UNAUTHORIZED
