"""Requests: what is written is read again, and any bytes are read or refused."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.iggy.iggy_values import (
    CODES_WITH_MEMBERS,
    IDENTIFIER,
    PARTITIONING,
    REQUESTS,
    requests_of,
)
from topics.formats.message_index import ENTRY_BYTES
from topics.protocol.iggy import requests
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.requests import (
    BARE_CODES,
    decode_request,
    encode_request,
    request_code,
)
from topics.protocol.iggy.send_request import Partitioning, decode_send, encode_send_head
from topics.stream_errors import StreamsError, StreamStatus

# Complete requests of the documentation of the protocol, without length and code.
VECTORS: list[tuple[int, str, Any]] = [
    (
        Code.LOGIN_USER,
        "04 69676779 04 69676779 06000000 302e31302e30 00000000",
        requests.LoginUser("iggy", "iggy", "0.10.0", ""),
    ),
    (Code.CREATE_STREAM, "06 6f7264657273", requests.CreateStreamRequest("orders")),
    (
        Code.CREATE_TOPIC,
        "02 06 6f7264657273 01000000 01 0000000000000000 0000000000000000 00 01 74",
        requests.CreateTopicRequest("orders", 1, 1, 0, 0, 0, "t"),
    ),
    (
        Code.POLL_MESSAGES,
        "01 010400000000 010400000000 010400000000 01 00000000 01 0000000000000000 0a000000 00",
        requests.PollMessages(1, 0, 0, 0, 0, 1, 0, 10, False),
    ),
    (
        Code.STORE_CONSUMER_OFFSET,
        "01 010400000000 010400000000 010400000000 01 00000000 0000000000000000",
        requests.StoreConsumerOffset(1, 0, 0, 0, 0, 0),
    ),
]


def refusal(call: Callable[[], object]) -> StreamStatus | None:
    """Why the call is refused. None if it is not; every other error fails the test."""
    try:
        call()
    except StreamsError as error:
        return error.number
    return None


@pytest.mark.parametrize(("code", "text", "request_value"), VECTORS, ids=lambda value: str(value)[:20])
def test_documented_requests_are_read_and_written(code: int, text: str, request_value: requests.Request) -> None:
    payload = bytes.fromhex(text)
    assert decode_request(code, payload) == request_value
    assert encode_request(request_value) == payload


def test_every_command_has_members_or_none() -> None:
    assert {*CODES_WITH_MEMBERS, *BARE_CODES, Code.SEND_MESSAGES} == CODES
    assert all(decode_request(code, b"ignored") is None for code in BARE_CODES)


@given(REQUESTS)
def test_what_is_written_is_read_again(request: requests.Request) -> None:
    assert decode_request(request_code(request), encode_request(request)) == request


@given(REQUESTS, st.binary(max_size=8))
def test_bytes_after_a_request_are_ignored(request: requests.Request, more: bytes) -> None:
    assert decode_request(request_code(request), encode_request(request) + more) == request


@pytest.mark.parametrize("code", CODES_WITH_MEMBERS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_request_that_ends_too_early_is_refused(code: int, data: st.DataObject) -> None:
    payload = encode_request(data.draw(requests_of(code)))
    end = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(StreamsError) as caught:
        decode_request(code, payload[:end])
    assert caught.value.number in (StreamStatus.INVALID_COMMAND, StreamStatus.INVALID_FORMAT)


@given(st.sampled_from(sorted(CODES - {Code.SEND_MESSAGES})), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(code: int, payload: bytes) -> None:
    assert refusal(lambda: decode_request(code, payload)) in (
        None,
        StreamStatus.INVALID_COMMAND,
        StreamStatus.INVALID_FORMAT,
    )


def test_a_login_with_a_length_that_is_cut_is_refused() -> None:
    """One to three bytes instead of the length of the version."""
    payload = bytes.fromhex("04 69676779 04 69676779")
    for more in range(4):
        with pytest.raises(StreamsError):
            decode_request(Code.LOGIN_USER, payload + bytes(more))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 3),
        ("03 04 00000000", 3),
        ("01 03 000000", 4),
        ("01 05 0000000000", 4),
        ("02 00", 4),
        ("02 01 ff", 3),
        ("02 02 41", 3),
        ("01 04 000000", 3),
    ],
)
def test_a_bad_identifier_has_the_status_of_its_problem(text: str, status: int) -> None:
    with pytest.raises(StreamsError) as caught:
        decode_request(Code.GET_STREAM, bytes.fromhex(text))
    assert caught.value.number == status


@pytest.mark.parametrize(
    ("code", "payload"), [(Code.GET_STREAM, b"\x01\x04\0\0\0\0"), (Code.PING, b""), (Code.CREATE_STREAM, b"\x01s")]
)
def test_bytes_after_a_request_are_ignored_with_a_line_in_the_log(
    code: Code, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="topics.protocol.iggy.requests")
    whole = decode_request(code, payload)
    assert not caplog.messages
    assert decode_request(code, payload + b"xyz") == whole
    assert caplog.messages == [f"3 bytes after a request with code {int(code)} are ignored"]


# Sending.


@given(IDENTIFIER, IDENTIFIER, PARTITIONING, st.integers(0, 3), st.binary(max_size=50))
def test_a_send_is_read_as_it_was_written(
    stream: int | str, topic: int | str, partitioning: Partitioning, count: int, messages: bytes
) -> None:
    indexes = bytes(range(ENTRY_BYTES)) * count
    payload = memoryview(bytearray(encode_send_head(stream, topic, partitioning, count) + indexes + messages))
    send = decode_send(payload)
    assert (send.stream_id, send.topic_id, send.partitioning) == (stream, topic, partitioning)
    assert (bytes(send.indexes), bytes(send.messages)) == (indexes, messages)
    assert not send.messages.readonly


@given(st.binary(max_size=120))
def test_any_bytes_of_a_send_are_read_or_refused(payload: bytes) -> None:
    assert refusal(lambda: decode_send(memoryview(payload))) in (
        None,
        StreamStatus.INVALID_COMMAND,
        StreamStatus.INVALID_IDENTIFIER,
    )


def test_a_send_is_refused_with_the_status_of_its_first_problem() -> None:
    head = encode_send_head("orders", 7, b"key", 2)
    places = [4, 4 + 8, 4 + 14, 4 + 14 + 5, len(head)]
    statuses = [StreamStatus.INVALID_IDENTIFIER, StreamStatus.INVALID_IDENTIFIER, *[StreamStatus.INVALID_COMMAND] * 2]
    for (start, end), status in zip(pairwise(places), statuses, strict=True):
        for cut in range(start, end):
            metadata = head[4:cut]
            with pytest.raises(StreamsError) as caught:
                decode_send(memoryview(len(metadata).to_bytes(4, "little") + metadata))
            assert caught.value.number == status, cut


@pytest.mark.parametrize("how", ["01 01 00", "02 03 000000", "03 00", "04 00", "00 00"])
def test_a_bad_partitioning_is_an_invalid_command(how: str) -> None:
    metadata = bytes.fromhex("010400000000 010400000000" + how) + bytes(4)
    with pytest.raises(StreamsError) as caught:
        decode_send(memoryview(len(metadata).to_bytes(4, "little") + metadata))
    assert caught.value.number == StreamStatus.INVALID_COMMAND


@pytest.mark.parametrize("count", [3, 2**28, 2**32 - 1])
def test_more_messages_than_there_are_indexes_are_refused(count: int) -> None:
    payload = encode_send_head(0, 0, None, count) + bytes(2 * ENTRY_BYTES)
    with pytest.raises(StreamsError) as caught:
        decode_send(memoryview(payload))
    assert caught.value.number == StreamStatus.INVALID_COMMAND


@pytest.mark.parametrize("length", [10**6, 2**32 - 1])
def test_metadata_that_are_longer_than_the_frame_are_refused(length: int) -> None:
    with pytest.raises(StreamsError) as caught:
        decode_send(memoryview(length.to_bytes(4, "little") + bytes(40)))
    assert caught.value.number == StreamStatus.INVALID_COMMAND


def test_secrets_are_not_in_the_text_of_requests() -> None:
    assert "hush" not in repr(requests.LoginUser("iggy", "hush"))
    assert "hush" not in repr(requests.LoginWithPersonalAccessToken("hush"))
