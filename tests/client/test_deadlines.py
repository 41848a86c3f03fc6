"""How long a call of both clients may take, and how much it may read, whatever the server sends."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from tests.client.every_log import client_of, websocket_of
from tests.client.faulty_proxy import Asked, Fault, answer, faulty_proxy
from topics import Unreachable
from topics.client.aio import client as aio_client
from topics.client.aio import connections as aio_connections
from topics.client.aio import following as aio_following
from topics.client.http1 import ANSWER_BYTES_MAX
from topics.client.retrying import AnswerTooLong
from topics.client.sync import client as sync_client
from topics.client.sync import connections as sync_connections
from topics.client.sync import following as sync_following
from topics.engine.manifest import FRAMES_BYTES_MAX
from topics.limits import MIB
from topics.protocol import response_body as wire

CLOCKED: Final = (sync_client, sync_connections, sync_following, aio_client, aio_connections, aio_following)
# Nothing is passed on.
NOWHERE: Final = "http://127.0.0.1:1"
# What the sockets of both sides hold.
IN_FLIGHT_BYTES: Final = 32 * MIB

CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# (how an answer begins, what follows again and again)
SLOW: Final = {
    "status line": (b"HTTP/1.1 200 O", b"K"),
    "header": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "interim answers": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b" "),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "line of a chunk": (CHUNKED + b"1;", b"a"),
    "error": (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99999999\r\n\r\n", b" "),
}
SPENT: Final = wire.Performance(server_total_ms=0.0)
SESSION: Final = answer(
    "200 OK",
    msgspec.json.encode(
        wire.WatchCreated(
            wid="w",
            stream_url="/v0/watch/w",
            session_ttl_ms=1,
            topics={"t": wire.WatchedTopic(from_seq=0, head_seq=9, earliest_seq=1)},
            performance=SPENT,
        )
    ),
)


class Clock:
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in CLOCKED:
        monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture(params=["client", "async client"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dripping(clock: Clock, start: bytes, again: bytes) -> Fault:
    """An answer that never ends. A second passes before each piece, so that the connection is never silent for long."""

    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            clock.now_s += 1
            connection.sendall(again)

    return send


# The deadline.


@pytest.mark.parametrize("part", SLOW)
def test_a_call_ends_at_its_deadline_although_the_server_goes_on_sending(kind: str, clock: Clock, part: str) -> None:
    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url, deadline_s=5, retries=99) as client:
        proxy.faults = [dripping(clock, *SLOW[part])]
        with pytest.raises(Unreachable, match="timed out"):
            client.state("t")
        assert len(proxy.asked) == 1


CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "append": lambda client: client.append("t", [1]),
    "read": lambda client: client.read("t", wait_ms=10),
    "claim": lambda client: client.claim("q", "w", wait_ms=10),
    "topics": lambda client: client.topics(),
    "metrics": lambda client: client.metrics(),
    "replace_segment": lambda client: client.replace_segment(
        topic_id=1, epoch=1, first_seq=1, expect_digest="x", data="a", idx="b"
    ),
    "tail": lambda client: next(client.tail("t")),
    "work": lambda client: client.work("q", "w"),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_kind_of_call_has_the_deadline(kind: str, clock: Clock, call: str) -> None:
    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url, deadline_s=5, retries=99) as client:
        proxy.faults = [dripping(clock, *SLOW["header"])]
        with pytest.raises(Unreachable, match="timed out"):
            CALLS[call](client)
        assert len(proxy.asked) == 1


def test_the_stream_of_a_tail_is_opened_within_the_deadline_of_its_session(kind: str, clock: Clock) -> None:
    def session(connection: socket.socket) -> None:
        clock.now_s += 4
        connection.sendall(SESSION)

    def head(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
        clock.now_s += 2
        while True:
            connection.sendall(b"a")

    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url, deadline_s=5, retries=99) as client:
        proxy.faults = [session, head]
        with pytest.raises(Unreachable, match="timed out"):
            next(client.tail("t"))
        assert [asked.target for asked in proxy.asked] == ["/v0/watch", "/v0/watch/w"]


RECORD: Final = (
    b'event: record\ndata: {"topic":"t","records":[{"$seq":1,"$ts":1,"data":1}],'
    b'"from_seq":0,"to_seq":1,"head_seq":1}\n\n'
)
CAUGHT_UP: Final = b'event: caught-up\ndata: {"topic":"t","head_seq":1}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_tail_ends_when_no_record_came_although_the_server_goes_on_sending(kind: str, clock: Clock) -> None:
    is_seen = threading.Event()

    def stream(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk(RECORD + CAUGHT_UP))
        is_seen.wait()
        dripping(clock, b"1;", b"a")(connection)

    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url) as client:
        proxy.faults = [SESSION, stream]
        tail = client.tail("t", wait_ms=5000)
        assert next(tail).seq == 1
        is_seen.set()
        assert list(tail) == []
        assert len(proxy.asked) == 2


def test_a_stream_may_be_longer_than_an_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sync_connections, aio_connections):
        monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1000)

    is_open = threading.Event()

    def stream(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk(RECORD))
        is_open.wait()
        for _ in range(50):
            connection.sendall(chunk(RECORD))
        connection.recv(1)

    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url) as client:
        proxy.faults = [SESSION, stream]
        tail = client.tail("t")
        assert next(tail).seq == 1
        is_open.set()
        assert [next(tail).seq for _ in range(50)] == [1] * 50
        tail.close()
        assert len(proxy.asked) == 2


PAGES: Final[dict[str, tuple[Callable[[Any], object], msgspec.Struct]]] = {
    "topics": (lambda client: client.topics(), wire.TopicList(topics=[], performance=SPENT)),
    "routers": (lambda client: client.routers(), wire.RouterList(routers=[], performance=SPENT)),
}


@pytest.mark.parametrize("call", PAGES)
def test_a_call_of_many_requests_has_one_deadline(kind: str, clock: Clock, call: str) -> None:
    make, page = PAGES[call]

    def next_page(_: object) -> bytes:
        clock.now_s += 1
        followed = msgspec.structs.replace(page, next_cursor=str(clock.now_s))
        return answer("200 OK", msgspec.json.encode(followed))

    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url, deadline_s=5) as client:
        proxy.route = next_page
        with pytest.raises(Unreachable, match="timed out"):
            make(client)
        assert len(proxy.asked) == 5


def test_a_long_poll_ends_at_the_deadline_after_the_time_that_it_may_wait(kind: str, clock: Clock) -> None:
    page = wire.Diff(
        topic="t",
        records=[],
        next_from_seq=0,
        head_seq=0,
        earliest_seq=1,
        caught_up=True,
        lag=0,
        tombstone=None,
        performance=SPENT,
    )

    def nothing(asked: Asked) -> bytes:
        clock.now_s += msgspec.json.decode(asked.body).get("wait_ms", 0) / 1000
        return answer("200 OK", msgspec.json.encode(page))

    with faulty_proxy(NOWHERE) as proxy, client_of(kind, proxy.url, deadline_s=5, retries=99) as client:
        proxy.route = nothing
        assert client.read("t", wait_ms=40_000).records == []
        proxy.asked.clear()
        proxy.faults = [dripping(clock, *SLOW["header"])]
        with pytest.raises(Unreachable, match="timed out"):
            client.read("t", wait_ms=40_000)
        assert len(proxy.asked) == 1


def test_a_request_that_the_server_does_not_take_ends_at_the_deadline(kind: str) -> None:
    payload = b'"%b"' % (b"x" * (MIB - 2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # More than the sockets of both sides hold.
        with client_of(kind, url, deadline_s=0.1, retries=99) as client, pytest.raises(Unreachable, match="timed out"):
            client.append("t", [payload] * 16)


def test_a_handshake_of_tls_without_an_end_ends_at_the_deadline(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        options: dict[str, Any] = {"deadline_s": 0.05, "retries": 99, "tls": ssl.create_default_context()}
        with client_of(kind, url, **options) as client:
            for call in ("append", "tail", "work"):
                with pytest.raises(Unreachable, match="timed out"):
                    CALLS[call](client)


def test_a_websocket_that_is_not_opened_ends_at_the_deadline(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            client_of(kind, url, deadline_s=0.05, retries=99) as client,
            pytest.raises(Unreachable, match="timed out"),
            websocket_of(client),
        ):
            pass


# The size of an answer.


class Endless:
    """An answer without an end, and how many bytes of it the server got rid of."""

    def __init__(self, start: bytes, again: bytes) -> None:
        self._start = start
        self._again = again
        self.sent_bytes = 0

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(self._start)
        while True:
            connection.sendall(self._again)
            self.sent_bytes += len(self._again)


def ask_endless(kind: str, endless: Endless, ask: Callable[[Any], object]) -> None:
    """Once: an answer that is too long is not asked for again."""
    with faulty_proxy(NOWHERE) as proxy:
        proxy.faults = [endless]
        with client_of(kind, proxy.url) as client, pytest.raises(AnswerTooLong):
            ask(client)
        assert len(proxy.asked) == 1


def test_the_bound_of_an_answer_is_above_the_largest_page() -> None:
    assert ANSWER_BYTES_MAX >= 2 * FRAMES_BYTES_MAX


def test_a_client_hangs_up_on_an_answer_without_an_end(kind: str) -> None:
    endless = Endless(CHUNKED, b"%x\r\n%b\r\n" % (MIB, b" " * MIB))
    ask_endless(kind, endless, lambda client: client.state("t"))
    assert endless.sent_bytes < ANSWER_BYTES_MAX + IN_FLIGHT_BYTES


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 13000000000\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 13000000000\r\n\r\n",
    ],
)
@pytest.mark.parametrize("call", ["append", "tail", "work"])
def test_an_announced_length_above_the_bound_is_refused_before_the_body_is_read(
    kind: str, start: bytes, call: str
) -> None:
    endless = Endless(start, b" " * MIB)
    ask_endless(kind, endless, CALLS[call])
    assert endless.sent_bytes < IN_FLIGHT_BYTES


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * MIB),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 10_000),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 10_000),
        (CHUNKED + b"1;", b"a" * MIB),
        (CHUNKED + b"0\r\n", b"X-A: a\r\n" * 10_000),
        (CHUNKED + b"0\r\nX-A: ", b"a" * MIB),
    ],
    ids=["header", "headers", "interim answers", "line of a chunk", "trailers", "trailer"],
)
@pytest.mark.parametrize("call", ["append", "work"])
def test_what_is_around_the_body_has_a_bound_of_its_own(kind: str, start: bytes, again: bytes, call: str) -> None:
    def ask(client: Any) -> None:
        made = CALLS[call](client)
        if call == "work":
            next(made)  # type: ignore[call-overload]

    endless = Endless(start, again)
    ask_endless(kind, endless, ask)
    assert endless.sent_bytes < IN_FLIGHT_BYTES
