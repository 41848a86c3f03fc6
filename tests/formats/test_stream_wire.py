"""Requests of the wire protocol, and the commands of the `iggy` flavour."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.command_strategies import requests, stored_commands
from topics.formats.stream_command import (
    COMMANDS,
    ChangePassword,
    Command,
    CreateConsumerGroup,
    CreatePersonalAccessToken,
    CreateStream,
    CreateTopic,
    CreateUser,
    UpdateUser,
    UserStatus,
    command_code,
)
from topics.formats.stream_permissions import ascending
from topics.formats.stream_wire import (
    ChangePasswordRequest,
    CreateStreamRequest,
    CreateTopicRequest,
    CreateUserRequest,
    Request,
    decode_request,
    decode_wire,
    encode_request,
    encode_wire,
)
from topics.stream_errors import StreamsError, StreamStatus


def in_order(command: Any) -> Any:
    """The command as it is read back: ids of permissions ascend."""
    permissions = getattr(command, "permissions", None)
    return command if permissions is None else msgspec.structs.replace(command, permissions=ascending(permissions))


def refused_with(status: StreamStatus, code: int, payload: str) -> bool:
    with pytest.raises(StreamsError) as caught:
        decode_request(code, bytes.fromhex(payload))
    return caught.value.number is status


@given(stored_commands)
def test_a_stored_command_comes_back(command: Command) -> None:
    assert decode_wire(command_code(command), encode_wire(command)) == in_order(command)


@given(requests)
def test_a_request_comes_back(code_and_request: tuple[int, Request]) -> None:
    code, request = code_and_request
    assert decode_request(code, encode_request(request)) == in_order(request)


@given(requests, st.binary(min_size=1, max_size=3))
def test_bytes_behind_a_request_are_ignored(code_and_request: tuple[int, Request], rest: bytes) -> None:
    code, request = code_and_request
    assert decode_request(code, encode_request(request) + rest) == in_order(request)


@given(requests)
def test_a_request_cut_anywhere_is_refused(code_and_request: tuple[int, Request]) -> None:
    code, request = code_and_request
    encoded = encode_request(request)
    for size in range(len(encoded)):
        with pytest.raises(StreamsError) as caught:
            decode_request(code, encoded[:size])
        assert caught.value.number is StreamStatus.INVALID_COMMAND


@given(stored_commands)
def test_a_stored_command_cut_anywhere_is_refused(command: Command) -> None:
    wire = encode_wire(command)
    for size in range(len(wire)):
        with pytest.raises(StreamsError):
            decode_wire(command_code(command), wire[:size])


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=60))
def test_any_bytes_are_a_command_or_are_refused(code: int, data: bytes) -> None:
    for decode in (lambda: decode_wire(code, data), lambda: decode_request(code, data)):
        status = None
        try:
            decode()
        except StreamsError as error:
            status = error.number
        assert status in (None, StreamStatus.INVALID_COMMAND, StreamStatus.INVALID_FORMAT)


def test_wire_requests_are_those_of_the_specification() -> None:
    assert encode_request(CreateStreamRequest("orders")).hex() == "066f7264657273"
    topic = CreateTopicRequest("orders", 1, 1, 0, 0, 0, "t")
    expected = "02066f7264657273 01000000 01 0000000000000000 0000000000000000 00 0174"
    assert encode_request(topic) == bytes.fromhex(expected)


def test_what_the_server_added_stands_in_front_of_the_request() -> None:
    assert encode_wire(CreateStream(5, "ab")).hex(" ") == "05 00 00 00 03 00 00 00 02 61 62"
    assert encode_wire(CreateConsumerGroup(1, 2, 3, "g")).hex() == ("030000000e0000000104010000000104020000000167")
    token = CreatePersonalAccessToken("ci", "ab", 7)
    assert encode_wire(token).hex() == "0200000061620b0000000263690700000000000000"
    user = CreateUser(9, "bob", "h", UserStatus.INACTIVE, None)
    assert encode_wire(user).hex() == "090000000800000003626f6201680200"
    assert encode_wire(CreateTopic(0, 4, 1, 2, 3, 4, 5, "t")).startswith(bytes.fromhex("040000001e000000"))


def test_a_stored_password_has_no_current_one() -> None:
    assert encode_wire(ChangePassword(1, "hash")).hex() == "010401000000000468617368"


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ("", StreamStatus.INVALID_COMMAND),
        ("0104000000", StreamStatus.INVALID_COMMAND),  # Cut.
        ("030400000000", StreamStatus.INVALID_COMMAND),  # No such kind.
        ("0201ff", StreamStatus.INVALID_COMMAND),  # Not UTF-8.
        ("010300000000", StreamStatus.INVALID_FORMAT),  # A number of 3 bytes.
        ("0200", StreamStatus.INVALID_FORMAT),  # A name without a letter.
    ],
)
def test_a_bad_identifier_is_refused_with_its_status(payload: str, status: StreamStatus) -> None:
    assert refused_with(status, 203, payload)


@pytest.mark.parametrize(
    ("code", "payload", "status"),
    [
        (202, "00", StreamStatus.INVALID_FORMAT),  # An empty name.
        (204, "01040000000000", StreamStatus.INVALID_FORMAT),
        (602, "01040000000001040000000000", StreamStatus.INVALID_FORMAT),
        (202, "01ff", StreamStatus.INVALID_COMMAND),  # Not UTF-8.
        (33, "03626f6203626f620000", StreamStatus.INVALID_COMMAND),  # No such status.
        (33, "03626f6203626f620300", StreamStatus.INVALID_COMMAND),
        (35, "010401000000000103", StreamStatus.INVALID_COMMAND),
        (36, "010401000000010a000000" + "00" * 10, StreamStatus.INVALID_FORMAT),  # Permissions cut.
        (36, "010401000000010c000000" + "00" * 12, StreamStatus.INVALID_FORMAT),  # And with too much.
        (36, "01040100000001ffffffff" + "00" * 11, StreamStatus.INVALID_COMMAND),
        (302, "0104000000000100000000" + "00" * 17 + "0174", StreamStatus.INVALID_COMMAND),  # Compression 0.
        (302, "0104000000000100000005" + "00" * 17 + "0174", StreamStatus.INVALID_COMMAND),
        (101, "", StreamStatus.INVALID_COMMAND),  # Changes no metadata.
    ],
)
def test_a_bad_request_is_refused_with_its_status(code: int, payload: str, status: StreamStatus) -> None:
    assert refused_with(status, code, payload)


def test_only_a_one_says_that_an_option_is_there() -> None:
    assert decode_request(35, bytes.fromhex("0104010000000000")) == UpdateUser(1, None, None)
    assert decode_request(35, bytes.fromhex("0104010000000200")) == UpdateUser(1, None, None)
    empty_name = decode_request(35, bytes.fromhex("01040100000001000101"))
    assert empty_name == UpdateUser(1, "", UserStatus.ACTIVE)


def test_a_code_that_is_not_stored_is_refused_on_the_wire() -> None:
    with pytest.raises(StreamsError, match="100 is no command of the state log"):
        decode_wire(100, b"")


def test_requests_do_not_show_passwords() -> None:
    user = CreateUserRequest("bob", "hush", UserStatus.ACTIVE, None)
    assert "bob" in repr(user)
    assert "hush" not in repr(user) + repr(ChangePasswordRequest("bob", "hush", "hush"))
