"""Every command cut at every byte, with every length and every byte off by one, before and after a login.

Whatever a client sends, it gets a status or the end of its connection, and the server goes on. By default every fifth
byte is changed; with TOPICS_TEST_FULL=1 all of them are.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.conftest import sampled_range
from tests.server.streams.peer import Gone, Peer, StreamsServer, message, send_payload, streams_server
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
from topics.formats.stream_permissions import Permissions, StreamPermissions, TopicPermissions
from topics.protocol.iggy import requests
from topics.protocol.iggy.answers import TokenAnswer
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.frames import HEAD, encode_frame
from topics.protocol.iggy.requests import BARE_CODES, encode_request, request_code

CHANGED_STEP = 5

# More partitions than a request may ask for: a changed byte must not create hundreds of them.
TOO_MANY = 1 << 16
PERMISSIONS = Permissions(
    read_users=True, streams={1: StreamPermissions(read_stream=True, topics={2: TopicPermissions(poll_messages=True)})}
)
SLOT = (1, "consumer", "s", "t", 0)

REQUESTS: list[requests.Request] = [
    requests.GetSnapshot(1, (4,)),
    requests.GetClient(1),
    requests.GetUser("user"),
    requests.CreateUserRequest("user", "password", UserStatus.ACTIVE, PERMISSIONS),
    DeleteUser("other"),
    UpdateUser("user", "user", UserStatus.ACTIVE),
    UpdatePermissions("user", PERMISSIONS),
    requests.ChangePasswordRequest("user", "password", "password"),
    requests.LoginUser("iggy", "iggy", "0.8.0", "context"),
    requests.CreatePersonalAccessTokenRequest("token", 0),
    DeletePersonalAccessToken("token"),
    requests.LoginWithPersonalAccessToken("x" * 68),
    requests.PollMessages(*SLOT, 1, 0, 10, True),
    requests.FlushUnsavedBuffer("s", "t", 0, False),
    requests.GetConsumerOffset(*SLOT),
    requests.StoreConsumerOffset(*SLOT, 0),
    requests.DeleteConsumerOffset(*SLOT),
    requests.GetStream("s"),
    requests.CreateStreamRequest("new"),
    DeleteStream("nothing"),
    UpdateStream("s", "s"),
    PurgeStream("nothing"),
    requests.GetTopic("s", "t"),
    requests.GetTopics("s"),
    requests.CreateTopicRequest("s", TOO_MANY, 1, 0, 0, 0, "new"),
    DeleteTopic("s", "nothing"),
    UpdateTopic("s", "t", 1, 0, 0, 0, "t"),
    PurgeTopic("s", "nothing"),
    CreatePartitions("s", "t", TOO_MANY),
    DeletePartitions("s", "t", TOO_MANY),
    DeleteSegments("s", "t", 0, 1),
    requests.GetConsumerGroup("s", "t", "g"),
    requests.GetConsumerGroups("s", "t"),
    requests.CreateConsumerGroupRequest("s", "t", "new"),
    DeleteConsumerGroup("s", "t", "nothing"),
    requests.JoinConsumerGroup("s", "t", "g"),
    requests.LeaveConsumerGroup("s", "t", "g"),
]
SEND = send_payload("s", "t", [message(b"hello", 1, bytes.fromhex("02 03000000 6b6579 0b 04000000 2a000000"))], b"key")
PAYLOADS: dict[int, bytes] = {
    **{request_code(request): encode_request(request) for request in REQUESTS},
    Code.SEND_MESSAGES: SEND,
}
# Each case of these takes as long as a hash of a password.
SLOW_CODES = frozenset({Code.CREATE_USER, Code.CHANGE_PASSWORD, Code.LOGIN_USER})


class Case(NamedTuple):
    code: int
    payload: bytes


def cut_cases() -> Iterator[Case]:
    """Every command, cut at every byte."""
    for code, payload in PAYLOADS.items():
        yield from (Case(code, payload[:end]) for end in range(len(payload)))


def changed_cases() -> Iterator[Case]:
    """Every command with a byte that is one more or one less: lengths, kinds, numbers, text. Also with more bytes."""
    for code, payload in PAYLOADS.items():
        step = 4 * CHANGED_STEP if code in SLOW_CODES else CHANGED_STEP
        for at in sampled_range(len(payload), step):
            for change in (1, 255):
                yield Case(code, payload[:at] + bytes([(payload[at] + change) % 256]) + payload[at + 1 :])
        yield from (Case(code, payload + bytes(count)) for count in (1, 2, 3) if code not in SLOW_CODES)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamsServer]:
    with streams_server(tmp_path_factory.mktemp("hostile")) as served:
        root = served.login()
        root.create("s", "t")
        root.create_user("user")
        root.do(requests.CreateConsumerGroupRequest("s", "t", "g"))
        root.close()
        yield served


def test_there_is_a_case_for_every_command() -> None:
    assert PAYLOADS.keys() | BARE_CODES == CODES


def test_every_command_that_is_cut_is_refused_and_the_connection_stays_in_step(hostile: StreamsServer) -> None:
    peer = hostile.login()
    for code, payload in cut_cases():
        peer.write(encode_frame(code, payload) + encode_frame(Code.PING))
        status, answer = peer.answer()
        # A token that is cut is another token, which does not exist. A batch that is cut is a bad batch.
        assert status in (3, 4, 6, 20, 4009, 4033, 4036), (code, len(payload))
        assert answer == b""
        assert peer.answer() == (0, b"")


def test_every_command_with_a_changed_byte_is_answered(hostile: StreamsServer) -> None:
    peer = hostile.login()
    for code, payload in changed_cases():
        peer.write(encode_frame(code, payload) + encode_frame(Code.PING))
        status, answer = peer.answer()
        assert status != 1, (code, payload)
        assert not status or not answer
        assert peer.answer() == (0, b"")
    assert hostile.login().status(Code.GET_ME) == 0


def lengths_of(size: int) -> Iterator[int]:
    """Lengths of a frame that are wrong for a payload of this size."""
    yield from (0, 1, 2, 3, 4 + size - 1, 4 + size + 1, 2**31, 2**32 - 1)


def ends_well(peer: Peer) -> bool:
    """Reads answers until the connection ends."""
    try:
        while True:
            status, _ = peer.answer()
            assert status != 1
    except Gone:
        return True


@pytest.mark.parametrize("is_logged_in", [False, True])
def test_frames_with_a_wrong_length_end_their_connection_and_nothing_else(
    hostile: StreamsServer, is_logged_in: bool
) -> None:
    payloads = PAYLOADS | dict.fromkeys(BARE_CODES, b"")
    token = hostile.login()
    (answer,) = token.get(requests.CreatePersonalAccessTokenRequest(f"of-{is_logged_in}", 0), TokenAnswer)
    login = encode_frame(
        Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, encode_request(requests.LoginWithPersonalAccessToken(answer.token))
    )
    for code, payload in payloads.items():
        for length in lengths_of(len(payload)):
            peer = Peer(hostile.address)
            with peer:
                if is_logged_in:
                    peer.write(login)
                    assert peer.answer()[0] == 0
                peer.write(HEAD.pack(length % 2**32, code) + payload)
                peer.end()
                assert ends_well(peer)
    assert hostile.connect().ask(Code.PING) == b""


def test_random_bytes_do_no_harm(hostile: StreamsServer) -> None:
    bytes_of = random.Random(7).randbytes
    for number in range(200):
        with Peer(hostile.address) as peer:
            peer.write(bytes_of(number * 3 + 1))
            peer.end()
            assert ends_well(peer)
    assert hostile.connect().ask(Code.PING) == b""
