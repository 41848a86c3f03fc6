"""Commands of the state log in both encodings, and the requests that they came from."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.command_strategies import requests, stored_commands
from topics.formats.stream_command import (
    COMMANDS,
    ChangePassword,
    ChangePasswordRequest,
    Command,
    CreateConsumerGroup,
    CreatePersonalAccessToken,
    CreateStream,
    CreateStreamRequest,
    CreateTopic,
    CreateTopicRequest,
    CreateUser,
    CreateUserRequest,
    DeleteTopic,
    Request,
    UpdatePermissions,
    UpdateUser,
    UserStatus,
    command_code,
    decode_page,
    decode_request,
    decode_wire,
    encode_page,
    encode_request,
    encode_wire,
)
from topics.formats.stream_permissions import Permissions, StreamPermissions, ascending
from topics.stream_errors import StreamsError, StreamStatus

# The keys of the specification, by code.
PAGE_KEYS: Final[dict[int, str]] = {
    33: "user_id, username, password, status, permissions",
    34: "user_id",
    35: "user_id, username, status",
    36: "user_id, permissions",
    37: "user_id, password",
    42: "name, hash, expiry",
    43: "name",
    202: "stream_id, name",
    203: "stream_id",
    204: "stream_id, name",
    205: "stream_id",
    302: "stream_id, topic_id, partitions_count, compression_algorithm, message_expiry, max_topic_size, "
    "replication_factor, name",
    303: "stream_id, topic_id",
    304: "stream_id, topic_id, compression_algorithm, message_expiry, max_topic_size, replication_factor, name",
    305: "stream_id, topic_id",
    402: "stream_id, topic_id, partitions_count",
    403: "stream_id, topic_id, partitions_count",
    503: "stream_id, topic_id, partition_id, segments_count",
    602: "stream_id, topic_id, group_id, name",
    603: "stream_id, topic_id, group_id",
}


def in_order(command: Any) -> Any:
    """The command as it is read back: ids of permissions ascend."""
    permissions = getattr(command, "permissions", None)
    return command if permissions is None else msgspec.structs.replace(command, permissions=ascending(permissions))


def refused_with(status: StreamStatus, code: int, payload: str) -> bool:
    with pytest.raises(StreamsError) as caught:
        decode_request(code, bytes.fromhex(payload))
    return caught.value.number is status


@given(stored_commands)
def test_a_stored_command_comes_back_from_both_encodings(command: Command) -> None:
    assert decode_page(encode_page(command)) == in_order(command)
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
    wire, page = encode_wire(command), encode_page(command)
    for size in range(len(wire)):
        with pytest.raises(StreamsError):
            decode_wire(command_code(command), wire[:size])
    for size in range(len(page)):
        with pytest.raises(StreamsError):
            decode_page(page[:size])


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=60))
def test_any_bytes_are_a_command_or_are_refused(code: int, data: bytes) -> None:
    for decode in (lambda: decode_wire(code, data), lambda: decode_request(code, data), lambda: decode_page(data)):
        status = None
        try:
            decode()
        except StreamsError as error:
            status = error.number
        assert status in (None, StreamStatus.INVALID_COMMAND, StreamStatus.INVALID_FORMAT)


def test_the_members_are_the_keys_of_the_page_flavour() -> None:
    assert {code: ", ".join(kind.__struct_fields__) for code, kind in COMMANDS.items()} == PAGE_KEYS


def test_page_bytes_are_those_of_the_specification() -> None:
    assert encode_page(CreateStream(0, "orders")).hex() == "92ccca82a973747265616d5f696400a46e616d65a66f7264657273"


def test_page_permissions_are_nested_maps_with_ascending_ids_and_nil_for_what_is_absent() -> None:
    command = UpdatePermissions("bob", Permissions(streams={2: StreamPermissions(), 1: StreamPermissions(topics={})}))
    code, body = msgspec.msgpack.decode(encode_page(command))
    assert code == 36
    assert list(body) == ["user_id", "permissions"]
    assert list(body["permissions"]["streams"]) == [1, 2]
    assert body["permissions"]["streams"][1]["topics"] is None
    assert msgspec.msgpack.decode(encode_page(UpdatePermissions(0, None)))[1]["permissions"] is None


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


@pytest.mark.parametrize(
    "body",
    [
        [202, {"stream_id": -1, "name": "a"}],
        [202, {"stream_id": 2**32, "name": "a"}],
        [202, {"stream_id": 0}],
        [202, {"stream_id": "orders", "name": "a"}],
        [203, {"stream_id": ""}],
        [304, {"stream_id": 0, "topic_id": 0, "compression_algorithm": 0}],
        [999, {}],
        [202],
        {"stream_id": 0, "name": "a"},
    ],
)
def test_a_page_body_of_another_shape_is_refused(body: object) -> None:
    with pytest.raises(StreamsError) as caught:
        decode_page(msgspec.msgpack.encode(body))
    assert caught.value.number is StreamStatus.INVALID_COMMAND


def test_page_members_that_nobody_knows_are_ignored() -> None:
    assert decode_page(msgspec.msgpack.encode([303, {"stream_id": 1, "topic_id": "t", "since": 3}])) == DeleteTopic(
        1, "t"
    )


def test_a_code_that_is_not_stored_is_refused_on_the_wire() -> None:
    with pytest.raises(StreamsError, match="100 is no command of the state log"):
        decode_wire(100, b"")


def test_requests_do_not_show_passwords() -> None:
    user = CreateUserRequest("bob", "hush", UserStatus.ACTIVE, None)
    assert "bob" in repr(user)
    assert "hush" not in repr(user) + repr(ChangePasswordRequest("bob", "hush", "hush"))
