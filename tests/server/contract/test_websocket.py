"""`GET /v0/ws` as a client sees it: opening, pushes, slow readers, many clients at once."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.server.clients import CLIENTS, H2C, HTTP1, Client
from tests.server.raw import RawConnection, ask, get
from tests.server.running import Running, running
from tests.server.ws_peer import HANDSHAKE, RawWebSocket, WsClient, ws_client
from topics.server.limits import Timeouts

VERSION, KEY = HANDSHAKE[2:]


def http(server: Running) -> Client:
    return CLIENTS[HTTP1](server.host, server.port)


def refused(server: Running, *headers: bytes) -> tuple[int, str]:
    return ask(server, get(b"/v0/ws", *headers)).refusal


# Opening.


@pytest.mark.parametrize(
    "headers",
    [
        (),
        HANDSHAKE[1:],
        (HANDSHAKE[0], *HANDSHAKE[2:]),
        (b"Connection: keep-alive", *HANDSHAKE[1:]),
        (HANDSHAKE[0], b"Upgrade: h2c", VERSION, KEY),
        (*HANDSHAKE[:2], KEY),
        (*HANDSHAKE[:2], VERSION),
        (*HANDSHAKE[:2], b"Sec-WebSocket-Version: 12", KEY),
        (*HANDSHAKE[:2], b"Sec-WebSocket-Version: x", KEY),
        (*HANDSHAKE[:2], VERSION, b"Sec-WebSocket-Key: c2hvcnQ="),
        (*HANDSHAKE[:2], VERSION, b"Sec-WebSocket-Key: not base64"),
        (*HANDSHAKE, b"Content-Length: 0"),
    ],
)
def test_a_request_without_correct_upgrade_headers_is_refused(server: Running, headers: tuple[bytes, ...]) -> None:
    assert refused(server, *headers) == (400, "invalid_request")


@pytest.mark.parametrize(
    "headers",
    [
        (b"connection: keep-alive, UPGRADE", b"upgrade: WebSocket", VERSION, KEY),
        (b"Connection: keep-alive", *HANDSHAKE),
        (*HANDSHAKE, b"Sec-WebSocket-Protocol: chat", b"Sec-WebSocket-Extensions: permessage-deflate"),
    ],
)
def test_spelling_and_offers_do_not_matter(server: Running, headers: tuple[bytes, ...]) -> None:
    answer = ask(server, get(b"/v0/ws", *headers))
    assert answer.status == 101
    assert {"sec-websocket-protocol", "sec-websocket-extensions"}.isdisjoint(answer.headers)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_not_allowed(client: Client, method: str) -> None:
    answer = client.request(method, "/v0/ws")
    assert answer.refusal == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_there_are_no_websockets_over_http2(server: Running) -> None:
    with CLIENTS[H2C](server.host, server.port) as client:
        assert client.request("GET", "/v0/ws").refusal == (405, "method_not_allowed")
        assert client.request("GET", "/v0/health").status == 200


def test_http_1_0_has_no_upgrades(server: Running) -> None:
    request = get(b"/v0/ws", *HANDSHAKE).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert ask(server, request).refusal == (400, "invalid_request")


@pytest.mark.parametrize(
    ("host", "origin", "is_allowed"),
    [
        ("localhost:4000", "http://localhost:4000", True),
        ("LOCALHOST:4000", "http://localhost:4000", True),
        ("localhost", "https://localhost", True),
        ("localhost:443", "https://localhost", True),
        ("localhost", "http://localhost:80", True),
        ("[::1]:4000", "http://[::1]:4000", True),
        ("localhost:4000", "http://localhost", False),
        ("localhost:4000", "http://localhost:4001", False),
        ("localhost:4000", "http://127.0.0.1:4000", False),
        ("localhost:4000", "http://evil.example", False),
        ("localhost:4000", "http://localhost:4000.evil.example", False),
        ("localhost:4000", "http://evil.example:4000", False),
        ("localhost:4000", "null", False),
        ("localhost:4000", "file://", False),
        ("localhost:4000", "http://", False),
        ("localhost:4000", "http://localhost:x", False),
        ("localhost:4000", "", False),
    ],
)
def test_pages_of_other_sites_are_refused(server: Running, host: str, origin: str, is_allowed: bool) -> None:
    lines = [b"GET /v0/ws HTTP/1.1", b"Host: " + host.encode(), b"Origin: " + origin.encode(), *HANDSHAKE, b"", b""]
    answer = ask(server, b"\r\n".join(lines))
    assert answer.status == (101 if is_allowed else 403)
    assert is_allowed or answer.refusal == (403, "forbidden")


def test_opening_needs_a_valid_key_in_the_header_and_no_scope(tmp_path: Path) -> None:
    with running(tmp_path, keys="k:delete:acme.") as server:
        assert refused(server, *HANDSHAKE) == (401, "unauthorized")
        assert refused(server, *HANDSHAKE, b"Authorization: Bearer other") == (401, "unauthorized")
        assert ask(server, get(b"/v0/ws?token=k", *HANDSHAKE)).refusal == (401, "unauthorized")
        # The key is checked first.
        assert refused(server, b"Origin: http://evil.example") == (401, "unauthorized")
        with ws_client(server, "k") as client:
            assert client.ask("ping")["op"] == "pong"


def test_a_server_that_recovers_opens_none(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False) as server:
        assert refused(server, *HANDSHAKE) == (503, "not_ready")


# Limits.


def until_open(server: Running, key: str = "") -> None:
    """A slot is free when the server has noticed the end of its connection."""
    headers = (*HANDSHAKE, b"Authorization: Bearer " + key.encode())
    while (status := ask(server, get(b"/v0/ws", *headers)).status) != 101:
        assert status == 429


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    with running(tmp_path, max_sse_connections=2) as server:
        with ws_client(server), ws_client(server):
            assert refused(server, *HANDSHAKE) == (429, "throttled")
        until_open(server)


def test_a_key_has_only_so_many_connections_and_they_hold_none_of_its_requests(tmp_path: Path) -> None:
    with running(tmp_path, keys="k,other", max_sse_connections_per_key=1, max_inflight_per_key=1) as server:
        with ws_client(server, "k"):
            assert refused(server, *HANDSHAKE, b"Authorization: Bearer k") == (429, "throttled")
            assert ask(server, get(b"/v0/topics", b"Authorization: Bearer k")).status == 200
            with ws_client(server, "other") as client:
                assert client.ask("ping")["op"] == "pong"
        until_open(server, "k")


# Pushes.


def test_what_is_written_over_http_is_pushed_and_what_is_published_is_read_over_http(
    server: Running, topic: str
) -> None:
    with http(server) as client, ws_client(server) as subscriber, ws_client(server) as publisher:
        client.put_topic(topic)
        subscriber.send("subscribe", topic=topic)
        subscriber.receive_until("caught_up", head_seq=0)
        client.write(topic, "over http")
        publisher.ask("publish", topic=topic, records=[{"data": "over ws"}])
        pushed = subscriber.receive_until("caught_up", head_seq=2)
        assert [record["data"] for record in records_of(pushed)] == ["over http", "over ws"]
        assert client.datas(topic) == ["over http", "over ws"]


def test_caught_up_comes_again_after_everything_new(server: Running, topic: str) -> None:
    with ws_client(server) as subscriber, ws_client(server) as publisher:
        publisher.ask("publish", topic=topic, records=[{"data": 0}])
        subscriber.send("subscribe", topic=topic)
        subscriber.receive_until("caught_up", head_seq=1)
        for number in range(2, 6):
            publisher.ask("publish", topic=topic, records=[{"data": number}])
            assert [message["op"] for message in subscriber.receive_until("caught_up", head_seq=number)] == [
                "record",
                "caught_up",
            ]


@pytest.mark.parametrize(
    ("config", "from_seq", "gap"),
    [({"cap_records": 2}, 0, ("cap", 1, 3)), ({"cap_records": 2}, 1, ("cap", 2, 3)), ({}, 9, ("recreated", 1, 5))],
)
def test_a_tombstone_has_the_real_reason_on_the_first_read_too(
    server: Running, topic: str, config: dict[str, Any], from_seq: int, gap: tuple[str, int, int]
) -> None:
    with ws_client(server) as client:
        client.ask("publish", topic=topic, records=[{"data": number} for number in range(1, 6)], config=config)
        client.send("subscribe", topic=topic, from_seq=from_seq)
        _, tombstone, *rest = client.receive_until("caught_up")
    earliest_seq = 4 if config else 1
    assert tombstone == {
        "op": "tombstone",
        "topic": topic,
        "reason": gap[0],
        "gap_from": gap[1],
        "gap_to": gap[2],
        "earliest_seq": earliest_seq,
        "head_seq": 5,
    }
    assert [record["$seq"] for record in records_of(rest)] == list(range(earliest_seq, 6))
    assert rest[0]["from_seq"] == earliest_seq - 1


def test_a_source_trim_in_the_middle_of_a_topic_is_told_at_its_place(server: Running, topic: str) -> None:
    """First the older records of the dest, then the tombstone of the lost range, then the copies."""
    source = f"{topic}.source"
    with http(server) as client, ws_client(server) as subscriber:
        client.put_topic(source, cap_records=2)
        client.write(topic, "old")
        assert client.request("PUT", f"/v0/routers/{topic}", {"source": source, "dest": topic}).status == 201
        client.write(source, *range(5))
        subscriber.send("subscribe", topic=topic, from_seq=0)
        _, old, tombstone, *rest = subscriber.receive_until("caught_up")
    assert [record["$seq"] for record in records_of([old])] == [1]
    assert [tombstone[name] for name in ("op", "reason", "gap_from", "gap_to")] == ["tombstone", "source_trim", 2, 4]
    assert [record["$seq"] for record in records_of(rest)] == [5, 6]


def test_a_deleted_topic_is_told_once_and_its_subscription_is_gone(server: Running, topic: str) -> None:
    with http(server) as client, ws_client(server) as subscriber:
        client.write(topic, 1)
        subscriber.send("subscribe", topic=topic)
        subscriber.receive_until("caught_up")
        client.request("DELETE", f"/v0/topics/{topic}")
        assert subscriber.receive() == {"op": "topic_deleted", "topic": topic, "head_seq": 0, "reason": "deleted"}
        client.write(topic, "of another instance")
        assert subscriber.ask("ping", request_id=1) == {"op": "pong", "request_id": 1}
        subscriber.send("subscribe", topic=topic)
        assert [record["data"] for record in records_of(subscriber.receive_until("caught_up"))] == [
            "of another instance"
        ]


def test_one_connection_follows_many_topics(server: Running, topic: str) -> None:
    names = [f"{topic}.{number}" for number in range(200)]
    with ws_client(server) as subscriber, ws_client(server) as publisher:
        for name in names:
            publisher.ask("publish", topic=name, records=[{"data": name}])
        subscriber.send("subscribe", topics={name: {} for name in names})
        subscribed = subscriber.receive()
        assert subscribed["topics"].keys() == set(names)
        caught_up: dict[str, int] = {}
        datas: list[str] = []
        while len(caught_up) < len(names):
            message = subscriber.receive()
            if message["op"] == "caught_up":
                caught_up[message["topic"]] = message["head_seq"]
            else:
                datas += [record["data"] for record in message["records"]]
        assert sorted(datas) == sorted(names)


def test_subscriptions_end_with_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as server, ws_client(server) as publisher:
        publisher.ask("publish", topic="t", records=[{"data": 1}])
        with ws_client(server) as subscriber:
            subscriber.send("subscribe", topic="t")
            subscriber.receive_until("caught_up")
        while server.server.app.counters.sse_connections > 1:
            assert publisher.ask("ping")["op"] == "pong"
        assert not server.server.app.open_engine().engine.topic("t").has_waiters


def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    from tests.server.test_tls import client_context, make_pair

    pair = make_pair(tmp_path)
    with running(tmp_path / "data", tls_cert=pair.cert, tls_key=pair.key) as server:
        url = f"wss://localhost:{server.port}/v0/ws"
        with connect(url, ssl=client_context(pair), proxy=None, max_size=None) as connection:
            client = WsClient(connection)
            client.ask("publish", topic="t", records=[{"data": "x" * 500_000}] * 20)
            client.send("subscribe", topic="t", max_batch_bytes=1)
            pushed = records_of(client.receive_until("caught_up"))
            assert [record["$seq"] for record in pushed] == list(range(1, 21))
            server.call(server.server.stop())
            assert client.closed()[0] == 1001


# Slow readers.


def test_a_slow_reader_stalls_nobody_and_misses_nothing(tmp_path: Path) -> None:
    """The client reads nothing while others are served, and then gets everything, in order."""
    with (
        running(tmp_path, timeouts=Timeouts(stalled_s=300)) as server,
        RawWebSocket(server, receive_buffer_bytes=4096) as slow,
        ws_client(server) as fast,
        ws_client(server) as publisher,
    ):
        publisher.ask("publish", topic="t", records=[{"data": 0}])
        slow.say(b'{"op":"subscribe","topic":"t","limit":1}')
        assert slow.message()["op"] == "subscribed"
        fast.send("subscribe", topic="t")
        fast.receive_until("caught_up")
        for number in range(2, 42):
            publisher.ask("publish", topic="t", records=[{"data": "x" * 500_000}])
            fast.receive_until("caught_up", head_seq=number)
        # Twenty MB are in the log, and at most four messages beyond what the kernel holds are in the connection.
        waiting = max(wire.transport.get_write_buffer_size() for wire in server.server._connections.open)
        assert 0 < waiting <= 5 * 500_200
        assert publisher.ask("ping")["op"] == "pong"
        seqs: list[int] = []
        while not seqs or seqs[-1] < 41:
            message = slow.message()
            if message["op"] == "record":
                seqs += [record["$seq"] for record in message["records"]]
        assert seqs == list(range(1, 42))


def test_a_slow_reader_that_retention_overtakes_gets_a_tombstone(tmp_path: Path) -> None:
    with (
        running(tmp_path, timeouts=Timeouts(stalled_s=300)) as server,
        RawWebSocket(server, receive_buffer_bytes=4096) as slow,
    ):
        with ws_client(server) as publisher:
            publisher.ask("publish", topic="t", records=[{"data": 0}], config={"cap_records": 3})
            slow.say(b'{"op":"subscribe","topic":"t","limit":1}')
            for _ in range(40):
                publisher.ask("publish", topic="t", records=[{"data": "x" * 500_000}])
        seen = Seen()
        while seen.cursor < 41:
            seen.take(slow.message())
        assert seen.gaps
        assert seen.gaps[-1][2] == "cap"


# Many at once.


class Seen:
    """The records that a subscriber got of one topic: each seq once, in order, or in a declared gap."""

    def __init__(self) -> None:
        self.cursor = 0
        self.datas: dict[int, Any] = {}
        self.gaps: list[tuple[int, int, str]] = []
        self.caught_up_seq = -1

    def take(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "record":
                assert message["from_seq"] == self.cursor
                seqs = [record["$seq"] for record in message["records"]]
                assert seqs == list(range(self.cursor + 1, message["to_seq"] + 1))
                self.datas |= {record["$seq"]: record["data"] for record in message["records"]}
                self.cursor = message["to_seq"]
                assert self.cursor <= message["head_seq"]
            case "tombstone":
                assert message["gap_from"] == self.cursor + 1
                assert message["gap_to"] >= message["gap_from"]
                self.gaps.append((message["gap_from"], message["gap_to"], message["reason"]))
                self.cursor = message["gap_to"]
            case "caught_up":
                assert message["head_seq"] == self.cursor
                self.caught_up_seq = self.cursor
            case other:
                assert other == "subscribed"


def records_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for message in messages if message["op"] == "record" for record in message["records"]]


@pytest.mark.parametrize("config", [{}, {"cap_records": 40}, {"cap_bytes": 900}])
def test_every_subscriber_sees_every_write_once_and_in_order(tmp_path: Path, config: dict[str, Any]) -> None:
    publishers, writes, subscribers = 4, 60, 4
    total = 1 + publishers * writes * 2
    start = Barrier(publishers + subscribers)

    def publish(number: int) -> dict[int, str]:
        """Data by seq, from the acks. Several writes are under way at a time."""
        datas: dict[int, str] = {}
        with ws_client(server) as client:
            start.wait()
            for write in range(writes):
                records = [{"data": f"{number}.{write}.{part}"} for part in range(2)]
                client.send("publish", request_id=write, topic="t", records=records)
            acks = sorted((client.receive() for _ in range(writes)), key=lambda ack: ack["request_id"])
        for write, ack in enumerate(acks):
            datas |= {seq: f"{number}.{write}.{part}" for part, seq in enumerate(ack["seqs"])}
        assert list(datas) == sorted(datas), "writes of one connection are in its order"
        return datas

    def subscribe(number: int) -> Seen:
        seen = Seen()
        with ws_client(server) as client:
            start.wait()
            client.send("subscribe", topic="t", limit=(1, 7, 100, 1000)[number])
            while seen.caught_up_seq < total:
                seen.take(client.receive())
        return seen

    with running(tmp_path) as server, ThreadPoolExecutor(publishers + subscribers) as pool:
        with ws_client(server) as client:
            client.ask("publish", topic="t", records=[{"data": "first"}], config=config)
        jobs: list[tuple[Callable[[int], Any], int]] = [(publish, number) for number in range(publishers)]
        jobs += [(subscribe, number) for number in range(subscribers)]
        results = [future.result() for future in [pool.submit(job, number) for job, number in jobs]]
    written = {1: "first"}
    for datas in results[:publishers]:
        assert written.keys().isdisjoint(datas)
        written |= datas
    assert sorted(written) == list(range(1, total + 1))
    for seen in results[publishers:]:
        assert all(written[seq] == data for seq, data in seen.datas.items())
        missed = sum(gap_to - gap_from + 1 for gap_from, gap_to, _ in seen.gaps)
        assert len(seen.datas) + missed == total
        assert {reason for _, _, reason in seen.gaps} <= {"cap"}
        assert config or not missed


def test_a_client_that_vanishes_in_the_middle_harms_nobody(server: Running, topic: str) -> None:
    with ws_client(server) as publisher, ws_client(server) as subscriber:
        publisher.ask("publish", topic=topic, records=[{"data": "x" * 1000}] * 1000)
        for _ in range(20):
            connection = RawWebSocket(server)
            connection.say(b'{"op":"subscribe","topic":"%b","limit":10}' % topic.encode())
            connection.say(b'{"op":"publish","topic":"%b","records":[{"data":1}]}' % topic.encode())
            assert connection.message()["op"] == "subscribed"
            # A reset of the connection, with everything unread.
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            connection.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, linger)
            connection.socket.close()
        head_seq = publisher.ask("publish", topic=topic, records=[{"data": "last"}])["last_seq"]
        subscriber.send("subscribe", topic=topic)
        seen = Seen()
        while seen.caught_up_seq < head_seq:
            seen.take(subscriber.receive())


def test_an_upgrade_that_is_followed_by_nothing_is_a_quiet_connection(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get(b"/v0/ws", *HANDSHAKE))
        assert connection.answer().status == 101
        connection.end()
        assert connection.rest() == b""
