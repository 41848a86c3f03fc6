"""Answers out of bytes, and requests as bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.client.http1 import HEADER_BYTES_MAX, AnswerReader, BadAnswer, request_text
from topics.client.retrying import AnswerTooLong

PLAIN = b'HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nRetry-After: 1\r\nX-Ab: "\xe4"\r\n\r\n{}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
AFTER_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def read(data: bytes, cuts: list[int]) -> tuple[int, dict[str, str], bytes, bool, bool]:
    reader = AnswerReader()
    body = b""
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for start, end in pairwise(places):
        reader.feed(data[start:end])
        body += reader.take_body()
    return reader.status, reader.headers, body, reader.is_complete, reader.may_be_kept


@given(st.lists(st.integers(0, 300), max_size=6))
def test_any_split_gives_the_same_answer(cuts: list[int]) -> None:
    headers = {"content-length": "2", "retry-after": "1", "x-ab": '"\xe4"'}
    assert read(PLAIN, cuts) == (404, headers, b"{}", True, True)
    assert read(AFTER_CONTINUE, cuts) == (404, headers, b"{}", True, True)
    assert read(EMPTY, cuts) == (204, {}, b"", True, True)
    status, _, body, is_complete, may_be_kept = read(CHUNKED, cuts)
    assert (status, body, is_complete, may_be_kept) == (200, b"abcde", True, False)


@given(st.integers(0, len(CHUNKED) - 1))
def test_an_answer_that_was_cut_is_no_answer(length: int) -> None:
    reader = AnswerReader()
    reader.feed(CHUNKED[:length])
    with pytest.raises(BadAnswer):
        reader.end()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerReader().feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    reader = AnswerReader()
    try:
        reader.feed(data)
        reader.end()
    except (BadAnswer, AnswerTooLong):
        pass


START = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        (b"HTTP/1.1 200 OK\r\na: ", b"b"),
        (b"HTTP/1.1 200 ", b"O"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (START + b"1;", b"a"),
        (START + b"1\r\n \r\n0\r\n", b"a: b\r\n"),
    ],
    ids=["headers", "header", "status line", "interim answers", "line of a chunk", "trailers"],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_what_comes_before_the_body_or_between_two_pieces_of_it_is_bounded(
    start: bytes, again: bytes, is_stream: bool
) -> None:
    reader = AnswerReader()
    if is_stream:
        reader.allow_no_end()
    reader.feed(start)
    many = 1000
    for _ in range(HEADER_BYTES_MAX // (many * len(again)) - 1):
        reader.feed(again * many)
    with pytest.raises(AnswerTooLong, match="262144"):
        reader.feed(again * 2 * many)


def test_pieces_of_a_body_begin_the_bound_of_headers_anew() -> None:
    reader = AnswerReader()
    reader.feed(START)
    for _ in range(3):
        reader.feed(b"1;" + b"a" * (HEADER_BYTES_MAX - 10) + b"\r\n \r\n")
    reader.feed(b"0\r\n\r\n")
    assert (reader.take_body(), reader.is_complete) == (b"   ", True)


def test_an_answer_is_no_longer_than_its_bound_however_small_its_pieces_are() -> None:
    reader = AnswerReader(1000)
    reader.feed(START)
    piece = b"1;" + b"a" * 100 + b"\r\n \r\n"
    for _ in range((1000 - len(START)) // len(piece)):
        reader.feed(piece)
    with pytest.raises(AnswerTooLong, match="more than 1000 bytes"):
        reader.feed(piece)


def test_a_longer_answer_is_refused_when_it_is_announced() -> None:
    AnswerReader(1000).feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    with pytest.raises(AnswerTooLong, match="announces 1001 bytes"):
        AnswerReader(1000).feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")


def test_a_stream_has_no_end() -> None:
    reader = AnswerReader(1000)
    reader.feed(START)
    reader.allow_no_end()
    for _ in range(10):
        reader.feed(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert len(reader.take_body()) == 1000


def test_trailers_change_no_header() -> None:
    reader = AnswerReader()
    reader.feed(START.replace(b"\r\n\r\n", b"\r\nA: 1\r\n\r\n") + b"1\r\nx\r\n0\r\nA: 2\r\nB: 3\r\n\r\n")
    assert (reader.headers, reader.is_complete) == ({"transfer-encoding": "chunked", "a": "1"}, True)


def test_requests_say_the_length_of_their_body() -> None:
    assert request_text(b"Host: h\r\n", "GET", "/v0/health", None) == b"GET /v0/health HTTP/1.1\r\nHost: h\r\n\r\n"
    assert request_text(b"Host: h\r\n", "POST", "/t", None).endswith(b"Content-Length: 0\r\n\r\n")
    asked = request_text(b"Host: h\r\n", "POST", "/t", b"{}", accept="text/event-stream")
    assert asked == (
        b"POST /t HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
