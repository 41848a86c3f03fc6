"""HTTP/1.1: which bytes are a request, over real sockets; turns and limits on a manual loop."""

from __future__ import annotations

import gc
import re
from itertools import pairwise

import pytest

from tests.server.raw import HOST, JSON, RawConnection, append, ask, count_of, get, last_words, post, statuses
from tests.server.running import Running, running
from tests.server.wires import RecordingApp, Wires
from topics import errors
from topics.errors import PayloadTooLarge, TopicsError, Unauthorized
from topics.server.http import http1
from topics.server.limits import (
    DRAINED_BODY_BYTES_MAX,
    EXCHANGES_PER_TURN,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    PARSED_BYTES_PER_STEP,
    PIPELINED_EXCHANGES_MAX,
    TARGET_BYTES_MAX,
)

# The smallest possible request.
TINY = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"


def smuggles(topic: str) -> bytes:
    """A write that must never be executed, after bytes that may hide where it begins."""
    return append(topic, b'"smuggled"')


# Framing that has two meanings.


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4",
        b"Content-Length: 4\r\nContent-Length: 4",
        b"Content-Length: 4\r\nContent-Length: 5",
        b"Content-Length: 4, 4",
        b"Content-Length: +4",
        b"Content-Length: -4",
        b"Content-Length: 0x4",
        b"Content-Length: 4 4",
        b"Content-Length: 4.0",
        b"Content-Length: ",
        b"Content-Length: \xb2",
        b"Content-Length: 18446744073709551616",
        b"Content-Length : 4",
        b"Content-Length\t: 4",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: chunked\x0b",
        b"Transfer-Encoding: \xffchunked",
        b'Transfer-Encoding: "chunked"',
        b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: ",
        b"X: a\r\n Content-Length: 4",
        b"X: a\r\n\tfolded",
        b" Content-Length: 4",
        b"X: a\nContent-Length: 4",
        b"X: a\rContent-Length: 4",
        b"X: a\r\rContent-Length: 4",
        b"X: a\0b",
        b"X\0: a",
        b"X: a\r\n\0: b",
        b": nameless",
        b"no colon",
        b"X Y: a",
        b"X\x80: a",
        b"(X): a",
    ],
)
def test_framing_with_two_meanings_is_refused_and_nothing_behind_it_is_executed(
    server: Running, topic: str, framing: bytes
) -> None:
    head = b"POST /v0/topics/" + topic.encode() + b" HTTP/1.1\r\n" + HOST + JSON + framing + b"\r\n\r\n"
    answer = last_words(server, head + b"0\r\n\r\n" + smuggles(topic))
    assert answer.refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /v0/health HTTP/1.1\nHost: localhost\n\n",
        b"GET /v0/health HTTP/1.1\r\nHost: localhost\n\r\n",
        b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\n",
        b"GET /v0/health HTTP/1.1\rHost: localhost\r\r",
        b"GET /v0/health HTTP/1.1\r\n Host: localhost\r\n\r\n",
        b"GET\x00 /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET\t/v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v0/health\tHTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v0/he alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v0/health HTTP/1.1 \r\nHost: localhost\r\n\r\n",
        b"GET /v0/\xc3\xa4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_request_line_or_line_end_that_is_not_strict_is_refused(
    server: Running, topic: str, request_text: bytes
) -> None:
    assert last_words(server, request_text + smuggles(topic)).refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"1;a\nb\r\nx\r\n0\r\n\r\n",
        b"1;\n\r\nx\r\n0\r\n\r\n",
        b"1\nx\r\n0\r\n\r\n",
        b"1;a\rb\r\nx\r\n0\r\n\r\n",
        b"1\r\nx0\r\n\r\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1\r\nxy\r\n0\r\n\r\n",
        b"0x1\r\nx\r\n0\r\n\r\n",
        b"+1\r\nx\r\n0\r\n\r\n",
        b"-1\r\nx\r\n0\r\n\r\n",
        b" 1\r\nx\r\n0\r\n\r\n",
        b"1 \r\nx\r\n0\r\n\r\n",
        b"\r\nx\r\n0\r\n\r\n",
        b"g\r\nx\r\n0\r\n\r\n",
        b"1;\x00\r\nx\r\n0\r\n\r\n",
        b"10000000000000001\r\nx\r\n0\r\n\r\n",
        b"1\r\nx\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"1\r\nx\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n0\r\nX : y\r\n\r\n",
        b"1\r\nx\r\n0\r\nX: a\nY: b\r\n\r\n",
    ],
)
def test_a_chunked_body_that_is_not_strict_is_refused(server: Running, topic: str, body: bytes) -> None:
    """Among them a line feed in a chunk's extension."""
    head = b"POST /v0/topics/" + topic.encode() + b" HTTP/1.1\r\n" + HOST + JSON + CHUNKED + b"\r\n\r\n"
    assert last_words(server, head + body + smuggles(topic)).refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /v0/health HTTP/1.1\r\n\r\n",
        b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\nX: y\r\nhOST: other\r\n\r\n",
        b"GET /v0/health HTTP/1.0\r\nHost: localhost\r\nHost: other\r\n\r\n",
        b"GET /v0/health\r\n\r\n",
        b"GET /v0/health HTTP/0.9\r\n\r\n",
        b"GET /v0/health HTTP/1.2\r\nHost: localhost\r\n\r\n",
        b"GET /v0/health HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /v0/health HTTP/3\r\nHost: localhost\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_host_is_named_once_and_the_version_is_known(server: Running, topic: str, request_text: bytes) -> None:
    assert last_words(server, request_text + smuggles(topic)).refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


def test_a_refusal_comes_behind_the_answers_to_what_came_before(server: Running, topic: str) -> None:
    with RawConnection(server) as connection:
        connection.send(append(topic) + get() + b"GET / HTTP/1.1\r\n\r\n" + smuggles(topic))
        assert [answer.status for answer in connection.answers(3)] == [201, 200, 400]
        assert connection.is_ended()
    assert count_of(server, topic) == 1


# Methods and targets.


@pytest.mark.parametrize("method", [b"FOO", b"get", b"Get", b"GETT", b"\x16", b"PRI", b"CONNECT", b"DESCRIBE\x00"])
def test_a_method_that_is_none_is_refused(server: Running, topic: str, method: bytes) -> None:
    text = method + b" /v0/health HTTP/1.1\r\n" + HOST + b"\r\n"
    if method == b"\x16":
        text = b"X" + text
    assert last_words(server, text + smuggles(topic)).refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


@pytest.mark.parametrize("method", [b"TRACE", b"PATCH", b"OPTIONS", b"PROPFIND", b"M-SEARCH", b"DELETE", b"PUT"])
def test_a_method_that_a_path_does_not_have_is_told_which_it_has(server: Running, method: bytes) -> None:
    """Nothing of the request is echoed, and the connection stays."""
    with RawConnection(server) as connection:
        connection.send(method + b" /v0/health HTTP/1.1\r\n" + HOST + b"X-Secret: abc\r\n\r\n" + get())
        answer = connection.answer()
        assert answer.refusal == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"
        assert b"abc" not in answer.body
        assert connection.answer().status == 200


@pytest.mark.parametrize(
    "target",
    [
        b"http://localhost/v0/health",
        b"https://localhost/v0/health",
        b"HTTP://LOCALHOST/v0/health",
        b"localhost:4000",
        b"v0/health",
        b"?a=b",
        b"//localhost:80@/../v0/health?x=http://a/",
    ],
)
def test_a_target_is_a_path_and_nothing_else(server: Running, topic: str, target: bytes) -> None:
    """Absolute forms are for proxies, and name a second host."""
    with RawConnection(server) as connection:
        connection.send(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert connection.answer().status in (400, 404)
    assert count_of(server, topic) == 0


@pytest.mark.parametrize("target", [b"localhost:80", b"/v0/health", b"*"])
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_no_tunnel_is_opened(server: Running, topic: str, target: bytes, framing: bytes) -> None:
    """CONNECT, and the bytes after its head."""
    text = b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + framing + b"\r\n"
    assert last_words(server, text + smuggles(topic)).refusal == (400, "invalid_request")
    assert count_of(server, topic) == 0


def test_options_for_the_whole_server_finds_nothing(server: Running) -> None:
    assert ask(server, b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n").refusal == (404, "not_found")


# Upgrades are ignored.

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")


def test_an_upgrade_is_ignored_and_the_request_is_served(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get(b"/v0/health", *H2C) + get(b"/v0/ready") + get(b"/v0/health", *H2C))
        answers = connection.answers(3)
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert ["status" in answer.json for answer in answers] == [True, True, True]
        assert all("upgrade" not in answer.headers for answer in answers)
        connection.send(get())
        assert connection.answer().status == 200


def test_the_body_of_a_request_for_an_upgrade_is_its_body_and_not_the_next_request(server: Running, topic: str) -> None:
    """The parser stops before the body, and would take it for another request."""
    inner = append(f"{topic}.inner")
    length = b"Content-Length: %d" % len(inner)
    with RawConnection(server) as connection:
        path = b"/v0/topics/" + topic.encode()
        connection.send(
            b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"\r\n".join([*H2C, length, b"", b""]) + inner
        )
        assert connection.answer().refusal == (400, "invalid_request")
        connection.send(append(topic, b"2", *H2C) + append(topic, b"3"))
        assert [answer.json["first_seq"] for answer in connection.answers(2)] == [1, 2]
        chunks = b"b\r\n" + b'{"records":' + b"\r\nd\r\n" + b'[{"data":4}]}' + b"\r\n0\r\nX-Trailer: a\r\n\r\n"
        head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"\r\n".join([*H2C, CHUNKED, b"", b""])
        connection.drip([head[:40], head[40:], chunks[:5], chunks[5:], get()])
        assert connection.answer().json["first_seq"] == 3
        assert connection.answer().status == 200
    assert count_of(server, f"{topic}.inner") == 0
    assert count_of(server, topic) == 3


def test_a_request_for_an_upgrade_that_closes_closes_behind_its_body(server: Running, topic: str) -> None:
    headers = (b"Connection: upgrade, close", b"Upgrade: websocket")
    with RawConnection(server) as connection:
        connection.send(append(topic, b"1", *headers) + append(topic))
        answer = connection.answer()
        assert answer.status == 201
        assert answer.headers["connection"] == "close"
        assert connection.is_ended()
    assert count_of(server, topic) == 1


def test_thousands_of_upgrades_are_as_good_as_thousands_of_requests() -> None:
    wires = Wires()
    transport = wires.connect()
    count = 5_000
    transport.receive(get(b"/", *H2C) * count)
    wires.loop.settle()
    assert len(wires.app.handled) == count


# Expect.


def test_a_body_that_waits_to_be_asked_for_is_asked_for(server: Running, topic: str) -> None:
    text = append(topic, b"1", b"Expect: 100-continue")
    head, _, body = text.partition(b"\r\n\r\n")
    with RawConnection(server) as connection:
        connection.send(head + b"\r\n\r\n")
        assert connection.answer().status == 100
        connection.send(body)
        assert connection.answer().status == 201
        connection.send(get())
        assert connection.answer().status == 200


def test_a_body_that_came_along_is_not_asked_for(server: Running, topic: str) -> None:
    assert ask(server, append(topic, b"1", b"Expect: 100-continue")).status == 201


def test_a_client_of_http_1_0_is_not_asked_to_go_on(server: Running, topic: str) -> None:
    """Such a client would take 100 for the answer."""
    text = append(topic, b"1", b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, body = text.partition(b"\r\n\r\n")
    with RawConnection(server) as connection:
        connection.drip([head, b"\r\n\r\n", body])
        assert connection.answer().status == 201


def test_a_body_that_nobody_wants_is_not_asked_for(server: Running) -> None:
    """Too large."""
    head = b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + JSON + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
    assert last_words(server, head).refusal == (413, "payload_too_large")


def test_a_body_of_nobody_is_not_asked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a key, for every size and framing."""
    with running(tmp_path_factory.mktemp("keys"), keys="secret") as server:
        path = b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + JSON
        for rest in (b"Expect: 100-continue\r\nContent-Length: 5", b"Content-Length: 60000000"):
            assert last_words(server, path + rest + b"\r\n\r\n").refusal == (401, "unauthorized")
        expecting = path + b"Expect: 100-continue\r\n" + CHUNKED + b"\r\n\r\n"
        assert last_words(server, expecting).refusal == (401, "unauthorized")


def test_a_pipelined_body_is_asked_for_when_everything_before_it_is_answered() -> None:
    """A 100 before an earlier answer would look like a part of that answer."""
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() + b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert transport.written == b""
    # The body has no deadline until it is asked for.
    wires.loop.advance(60)
    assert transport.written == b""
    wires.app.release()
    wires.loop.settle()
    assert transport.written.endswith(b'{"n":1}HTTP/1.1 100 Continue\r\n\r\n')
    transport.receive(b"abc")
    assert wires.app.handled[1].body == b"abc"


# Early refusals.


def test_a_small_body_of_a_refused_request_is_skipped_and_the_connection_goes_on() -> None:
    """Up to 64 KiB, of known length or chunked."""
    wires = Wires(RecordingApp(body_bytes_max=100))
    transport = wires.connect()
    body = b"x" * DRAINED_BODY_BYTES_MAX
    transport.receive(post(b"/a", body))
    transport.receive(post(b"/a", b"").replace(b"Content-Length: 0", CHUNKED) + b"10000\r\n" + body + b"\r\n0\r\n\r\n")
    transport.receive(get(b"/next"))
    wires.loop.settle()
    assert [type(error) for error in wires.app.refused] == [PayloadTooLarge, PayloadTooLarge]
    assert [exchange.path for exchange in wires.app.handled] == [b"/next"]
    assert not transport.is_ended


def test_a_larger_body_of_a_refused_request_ends_the_connection_before_it_is_read() -> None:
    wires = Wires()
    wires.app.refuses = Unauthorized("no")
    transport = wires.connect()
    transport.receive(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (DRAINED_BODY_BYTES_MAX + 1))
    assert statuses(transport.written) == [401]
    assert transport.has_written_eof
    transport.receive(get())
    assert wires.app.handled == []


@pytest.mark.parametrize("bytes_max", [100, 200_000])
def test_a_chunked_body_is_refused_when_it_passes_the_bound(bytes_max: int) -> None:
    wires = Wires(RecordingApp(body_bytes_max=bytes_max))
    transport = wires.connect()
    transport.receive(b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n")
    sent_bytes = 0
    while not transport.written:
        transport.receive(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        sent_bytes += 1000
    assert statuses(transport.written) == [413]
    assert sent_bytes - 1000 <= max(bytes_max, DRAINED_BODY_BYTES_MAX) < sent_bytes
    assert wires.app.handled == []


def test_a_body_over_the_bound_is_answered_while_its_client_still_sends(
    server: Running,
) -> None:
    """The answer is not lost to a reset."""
    size = 80_000_000
    with RawConnection(server) as connection:
        head = b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % size
        connection.send(head + b"x" * 5_000_000)
        assert connection.answer().refusal == (413, "payload_too_large")
        assert connection.is_ended()


def test_many_small_chunks_take_no_more_memory_than_what_is_in_them() -> None:
    """A list of the pieces would take thirty times as much."""
    wires = Wires()
    transport = wires.connect()
    transport.receive(b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n")
    transport.receive(b"2\r\nab\r\n" * 100_000)
    transport.receive(b"0\r\n\r\n")
    wires.loop.settle()
    assert wires.app.handled[0].body == b"ab" * 100_000


def test_an_idle_connection_keeps_nothing_of_what_it_received() -> None:
    """Thousands of idle connections would keep thousands of bodies."""
    wires = Wires()
    transport = wires.connect()
    body = b"x" * 200_000
    transport.receive(post(b"/", body))
    transport.receive(post(b"/", b"").replace(b"Content-Length: 0", CHUNKED) + b"186a0\r\n" + body[:100_000] + b"\r\n")
    transport.receive(b"0\r\n\r\n")
    assert [exchange.body for exchange in wires.app.handled] == [body, body[:100_000]]
    # A compiled object has no `__dict__`: the collector knows its attributes.
    protocol = transport.get_protocol()
    values = [*gc.get_referents(protocol), *getattr(protocol, "__dict__", {}).values()]
    kept = [value for value in values if isinstance(value, bytes | bytearray)]
    assert sum(map(len, kept)) < 1_000
    assert transport.get_protocol()._more_body is None


def test_trailers_are_no_headers(server: Running, topic: str) -> None:
    """The checked headers stay as they were."""
    wires = Wires()
    transport = wires.connect()
    trailers = b"Host: evil\r\nAuthorization: Bearer other\r\nX-New: a\r\n"
    transport.receive(
        b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n0\r\n" + trailers + b"\r\n" + get(b"/next")
    )
    assert wires.app.handled[0].headers == {b"host": b"a", b"transfer-encoding": b"chunked"}
    assert wires.app.handled[1].path == b"/next"


# Bounds of the head.


def head_of(count: int, size_bytes: int) -> bytes:
    """This many headers with this many bytes, Host among them."""
    lines = [b"Host: localhost\r\n", *(b"x%06d: \r\n" % number for number in range(count - 1))]
    filler = size_bytes - sum(map(len, lines))
    lines[-1] = lines[-1][:-2] + b"y" * filler + b"\r\n"
    return b"GET /v0/health HTTP/1.1\r\n" + b"".join(lines) + b"\r\n"


def test_a_head_at_its_bounds_is_taken_in_one_piece_and_in_many(server: Running) -> None:
    """One with the longest target as well."""
    text = head_of(HEADERS_MAX, HEADER_BYTES_MAX)
    text = text.replace(b"/v0/health ", b"/v0/health?" + b"q" * (TARGET_BYTES_MAX - 11) + b" ")
    assert ask(server, text).status == 200
    for size in (100, 1000, 70_000):
        wires = Wires()
        transport = wires.connect()
        for place in range(0, len(text), size):
            transport.receive(text[place : place + size])
        assert len(wires.app.handled) == 1


@pytest.mark.parametrize(
    "text",
    [
        head_of(HEADERS_MAX + 1, 10_000),
        head_of(100_000, 1_500_000),
        head_of(2, HEADER_BYTES_MAX + 1),
        head_of(2, 20_000_000),
        head_of(50, 300_000),
        b"GET /v0/health HTTP/1.1\r\nX: " + b"y" * 20_000_000,
        b"GET /v0/health HTTP/1.1\r\n" + b"x" * 1_000_000,
        b"GET /v0/health HTTP/1.1\r\nX:" + b" " * 1_000_000,
    ],
    ids=["101 headers", "100 000 headers", "a byte too much", "20 MB", "300 KB", "no end", "no colon", "blanks"],
)
def test_a_head_beyond_its_bounds_is_refused(server: Running, text: bytes) -> None:
    assert last_words(server, text).refusal == (431, "headers_too_large")


@pytest.mark.parametrize("size", [TARGET_BYTES_MAX + 1, 10_000_000])
def test_a_target_beyond_its_bound_is_refused(server: Running, size: int) -> None:
    assert last_words(server, get(b"/v0/health?" + b"q" * (size - 11))).refusal == (414, "uri_too_long")


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n0\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n1\r\nx\r\n0;",
        b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n1;",
    ],
    ids=["a header", "a name", "a trailer", "an extension behind the body", "an extension in front of it"],
)
def test_what_the_parser_collects_unseen_is_bounded(beginning: bytes) -> None:
    """Packet by packet, without any time passing."""
    wires = Wires()
    transport = wires.connect()
    transport.receive(beginning)
    sent_bytes = 0
    while not transport.written:
        transport.receive(b"x" * 1000)
        sent_bytes += 1000
        assert sent_bytes <= HEADER_BYTES_MAX + TARGET_BYTES_MAX + 3000
    assert statuses(transport.written) == [431]
    assert wires.app.handled == []


def test_trailers_count_as_headers_do() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(
        b"POST / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n0\r\n" + b"x: y\r\n" * HEADERS_MAX + b"\r\n"
    )
    assert statuses(transport.written) == [431]


# Order and turns.


def test_ten_thousand_pipelined_requests_are_answered_in_order_and_others_in_between(
    server: Running, topic: str
) -> None:
    count = 10_000
    with RawConnection(server) as greedy, RawConnection(server) as other:
        greedy.send(append(topic, b"0"))
        greedy.answer()
        reader = get(b"/v0/topics/" + topic.encode())
        first_half = [append(topic, b"%d" % number) if number % 100 == 0 else reader for number in range(count // 2)]
        greedy.send(b"".join(first_half))
        other.send(get())
        assert other.answer().status == 200
        answers = greedy.answers(count // 2)
        greedy.send(reader * (count // 2))
        other.send(get())
        assert other.answer().status == 200
        answers += greedy.answers(count // 2)
    heads = [answer.json["head_seq"] for answer in answers]
    # Each read sees exactly the writes before it in the connection.
    assert heads == [2 + number // 100 for number in range(count // 2)] + [heads[-1]] * (count // 2)


def test_one_turn_starts_only_a_few_and_looks_only_a_little_ahead() -> None:
    """Other connections get their turn, and memory stays bounded."""
    wires = Wires()
    app = wires.app
    transport = wires.connect()
    count = 10_000
    transport.receive(TINY * count)
    ahead_max = PIPELINED_EXCHANGES_MAX + PARSED_BYTES_PER_STEP // len(TINY) + 1
    turns = [len(app.handled)]
    protocol = transport.get_protocol()
    assert isinstance(protocol, http1.Http1Connection)
    while wires.loop.turn():
        turns.append(len(app.handled))
        assert len(protocol._queue) <= ahead_max
    assert turns[-1] == count
    assert max(after - before for before, after in pairwise([0, *turns])) == EXCHANGES_PER_TURN


def test_a_connection_that_is_far_ahead_of_its_answers_is_not_read(server: Running) -> None:
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    for _ in range(PIPELINED_EXCHANGES_MAX):
        transport.receive(get())
    assert not transport.is_paused
    transport.receive(get())
    assert transport.is_paused
    assert len(wires.app.handled) == 1
    for _ in range(PIPELINED_EXCHANGES_MAX + 1):
        wires.app.release()
        wires.loop.settle()
    assert not transport.is_paused
    assert statuses(transport.written) == [200] * (PIPELINED_EXCHANGES_MAX + 1)


# The end of a connection.


@pytest.mark.parametrize("option", [b"close", b"Close", b"keep-alive, close", b"x,close"])
def test_what_follows_a_request_that_closes_is_ignored(server: Running, topic: str, option: bytes) -> None:
    with RawConnection(server) as connection:
        connection.send(append(topic, b"1", b"Connection: " + option) + append(topic) + b"\x00garbage")
        answer = connection.answer()
        assert answer.status == 201
        assert answer.headers["connection"] == "close"
        assert connection.is_ended()
    assert count_of(server, topic) == 1


def test_http_1_0_closes_unless_it_asks_to_stay(server: Running, topic: str) -> None:
    with RawConnection(server) as connection:
        connection.send(b"GET /v0/health HTTP/1.0\r\nHost: localhost\r\nConnection: Keep-Alive\r\n\r\n")
        answer = connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
        connection.send(get())
        assert "connection" not in connection.answer().headers
        connection.send(b"GET /v0/health HTTP/1.0\r\nHost: localhost\r\n\r\n" + smuggles(topic))
        answer = connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert connection.is_ended()
    assert count_of(server, topic) == 0


def test_a_client_that_says_it_sends_no_more_gets_its_answers(server: Running, topic: str) -> None:
    """A connection that is closed on one side only."""
    with RawConnection(server) as connection:
        connection.send(append(topic) + get() + append(topic) + b"GET /unfinished HT")
        connection.end()
        assert statuses(connection.rest()) == [201, 200, 200]
    assert count_of(server, topic) == 2


def test_a_client_that_sends_no_more_is_not_kept_waiting(server: Running, topic: str) -> None:
    """The client may be gone or may still listen: a long poll answers early."""
    with RawConnection(server) as connection:
        connection.send(append(topic))
        connection.answer()
        path = b"/v0/topics/" + topic.encode() + b"/diff"
        connection.send(post(path, b'{"from_seq":1,"wait_ms":30000}') + get())
        connection.end()
        poll, health = connection.answers(2)
        assert (poll.json["records"], poll.json["caught_up"]) == ([], True)
        # It waited for less time than it asked for.
        assert poll.json["performance"]["server_total_ms"] < 25_000
        assert health.status == 200
        assert connection.is_ended()


def test_blank_lines_between_requests_are_skipped(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(b"\r\n\r\n" + get() + b"\r\n" + get() + b"\r\n\r\n")
        assert [answer.status for answer in connection.answers(2)] == [200, 200]


# Answers.


@pytest.mark.parametrize("path", [b"/v0/health", b"/healthz", b"/v0/ready", b"/v0/metrics", b"/v0/topics", b"/nothing"])
def test_head_is_get_without_the_body(server: Running, path: bytes) -> None:
    """Same status and headers; the next answer follows directly."""
    with RawConnection(server) as connection:
        connection.send(get(path) + b"HEAD" + get(path)[3:] + get(path))
        first = connection.answer()
        head = connection.answer(is_head=True)
        last = connection.answer()
    assert head.status == first.status == last.status
    assert head.headers.keys() == first.headers.keys()
    assert int(head.headers["content-length"]) > 0


def test_head_of_a_missing_topic_and_of_a_path_for_writes_has_no_body(server: Running, topic: str) -> None:
    path = b"/v0/topics/" + topic.encode()
    with RawConnection(server) as connection:
        connection.send(b"HEAD" + get(path)[3:] + b"HEAD" + get(path + b"/diff")[3:] + get())
        assert connection.answer(is_head=True).status == 404
        answer = connection.answer(is_head=True)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert connection.answer().status == 200


def every_error() -> set[type[TopicsError]]:
    found = {TopicsError}
    while (wider := found | {child for kind in found for child in kind.__subclasses__()}) != found:
        found = wider
    return found


def test_every_error_has_a_status_line() -> None:
    known = {int(line[9:12]) for line in http1._STATUS_LINES.values()}
    assert {kind.status for kind in every_error()} <= known
    assert errors.TopicFull in every_error()


def test_no_answer_repeats_bytes_of_the_request_in_its_head(server: Running) -> None:
    """Nothing that a client sends comes back in a head, so no answer can be split."""
    marks = [
        get(b"/v0/topics/mark%0d%0aSet-Cookie:mark", b"Origin: http://mark", b"X: mark"),
        get(b"/mark?mark=%0d%0amark", b"Accept-Encoding: mark", b"Cookie: mark=1"),
        post(b"/v0/topics/mark%0d%0amark/diff", b"{}", b"Idempotency-Key: mark"),
        b"OPTIONS" + get(b"/v0/topics/mark", b"Access-Control-Request-Headers: mark")[3:],
    ]
    with RawConnection(server) as connection:
        connection.send(b"".join(marks))
        for answer in connection.answers(len(marks)):
            assert "mark" not in str(answer.headers)
            assert set(answer.headers) <= {"content-type", "content-length", "date", "allow"}


def test_an_answer_says_when_it_was_given(server: Running) -> None:
    date = ask(server, get()).headers["date"]
    assert re.fullmatch(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", date)
