"""Permissions on the wire: round trips, and wrong lengths are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.command_strategies import permissions
from topics.formats.stream_permissions import (
    ALL_PERMISSIONS,
    Permissions,
    StreamPermissions,
    TopicPermissions,
    ascending,
    decode_permissions,
    encode_permissions,
)
from topics.stream_errors import StreamsError, StreamStatus


@given(permissions)
def test_what_was_set_comes_back(given_permissions: Permissions) -> None:
    assert decode_permissions(encode_permissions(given_permissions)) == ascending(given_permissions)


def test_the_bytes_are_those_of_the_protocol() -> None:
    mixed = Permissions(
        read_servers=True,
        send_messages=True,
        streams={
            258: StreamPermissions(send_messages=True),
            7: StreamPermissions(
                manage_stream=True,
                topics={9: TopicPermissions(read_topic=True), 3: TopicPermissions(send_messages=True)},
            ),
        },
    )
    assert encode_permissions(mixed).hex(" ", -4) == bytes.fromhex(
        "00010000000000000001"  # Ten flags.
        "01"
        "07000000 010000000000 01"  # The smaller id first, with topics.
        "03000000 00000001 01"
        "09000000 00010000 00"
        "01"
        "02010000 000000000001 00"
        "00"
    ).hex(" ", -4)


def test_root_has_every_flag_and_needs_no_streams() -> None:
    assert encode_permissions(ALL_PERMISSIONS).hex() == "01" * 10 + "00"


def test_a_flag_that_is_not_zero_is_set() -> None:
    assert decode_permissions(bytes([2, 255, *[0] * 9])) == Permissions(manage_servers=True, read_servers=True)


def test_a_map_without_members_is_written_as_an_absent_one() -> None:
    assert encode_permissions(Permissions(streams={})) == encode_permissions(Permissions())
    assert ascending(Permissions(streams={1: StreamPermissions(topics={})})).streams == {1: StreamPermissions()}


@given(permissions, st.data())
def test_every_other_length_is_refused(given_permissions: Permissions, data: st.DataObject) -> None:
    encoded = encode_permissions(given_permissions)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:cut], encoded + b"\0", encoded + encoded):
        with pytest.raises(StreamsError) as caught:
            decode_permissions(wrong)
        assert caught.value.number is StreamStatus.INVALID_FORMAT


@given(st.binary(max_size=80))
def test_any_bytes_are_permissions_or_are_refused(data: bytes) -> None:
    status = None
    try:
        decoded = decode_permissions(data)
        assert decode_permissions(encode_permissions(decoded)) == ascending(decoded)
    except StreamsError as error:
        status = error.number
    assert status in (None, StreamStatus.INVALID_FORMAT)
