"""Commands of the state log, as the `page` flavour stores them."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.command_strategies import stored_commands
from topics.formats.stream_command import (
    COMMANDS,
    Command,
    CreateStream,
    DeleteTopic,
    UpdatePermissions,
    decode_page,
    encode_page,
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


@given(stored_commands)
def test_a_stored_command_comes_back(command: Command) -> None:
    assert decode_page(encode_page(command)) == in_order(command)


@given(stored_commands)
def test_a_stored_command_cut_anywhere_is_refused(command: Command) -> None:
    page = encode_page(command)
    for size in range(len(page)):
        with pytest.raises(StreamsError):
            decode_page(page[:size])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_command_or_are_refused(data: bytes) -> None:
    status = None
    try:
        decode_page(data)
    except StreamsError as error:
        status = error.number
    assert status in (None, StreamStatus.INVALID_COMMAND)
