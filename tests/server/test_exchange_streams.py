"""Answers without an end, on both wires: how they begin, how they are held up, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, HTTP1, Client
from tests.server.event_streams import EVENT_STREAMS, EventStream, wait_for_streams
from tests.server.http2_peer import Peer
from tests.server.raw import HOST, RawConnection, get
from tests.server.running import Running, running
from topics.server.limits import Timeouts

LARGE = "x" * 100_000


def watch(client: Client, *topics: str, query: str = "", **members: Any) -> str:
    body = {"topics": {name: {} for name in topics}} | members
    path: str = client.request("POST", f"/v0/watch{query}", body).json["stream_url"]
    return path


def open_stream(server: Running, protocol: str, path: str, **kind: Any) -> EventStream:
    return EVENT_STREAMS[protocol]((server.host, server.port), path, **kind)


@pytest.fixture
def http1(server: Running) -> Iterator[Client]:
    with CLIENTS[HTTP1](server.host, server.port) as client:
        yield client


def test_a_connection_goes_on_behind_a_stream_that_ended(server: Running, http1: Client) -> None:
    path = watch(http1, "nowhere", query="?lenient=1").encode()
    with RawConnection(server) as connection:
        connection.send(get(path) + get(b"/v0/health", b"Connection: close"))
        rest = connection.rest()
    first, _, second = rest.partition(b"0\r\n\r\nHTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(b"\r\n\r\nd\r\nretry: 2000\n\n\r\n")
    assert second.startswith(b"200 OK\r\n")


def test_a_client_of_http_1_0_gets_no_chunks_and_the_end_of_the_connection(server: Running, http1: Client) -> None:
    path = watch(http1, "nowhere", query="?lenient=1").encode()
    with RawConnection(server) as connection:
        connection.send(b"GET " + path + b" HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n")
        head, _, body = connection.rest().partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert body == b"retry: 2000\n\n"


def test_a_client_that_goes_away_frees_its_place(server: Running, client: Client, protocol: str, topic: str) -> None:
    client.put_topic(topic)
    path = watch(client, topic)
    wait_for_streams(server, 0)
    for _ in range(3):
        with open_stream(server, protocol, path) as stream:
            assert stream.next().name == "caught-up"
            assert server.server.app.counters.sse_connections == 1
        wait_for_streams(server, 0)


def test_57_a_client_that_takes_nothing_delays_no_write_and_no_other_stream(
    server: Running, client: Client, protocol: str, topic: str
) -> None:
    client.put_topic(topic)
    with open_stream(server, protocol, watch(client, topic), receive_buffer_bytes=4096) as stalled:
        assert stalled.next().name == "caught-up"
        with open_stream(server, protocol, watch(client, topic)) as quick:
            for _ in range(40):
                client.write(topic, LARGE)
            seqs: list[int] = []
            while len(seqs) < 40:
                event = quick.next()
                seqs += event.seqs if event.name == "record" else []
            assert seqs == list(range(1, 41))
        # It costs itself only: what it did not take is in the log, and comes in large frames.
        seqs = []
        while len(seqs) < 40:
            event = stalled.next()
            seqs += event.seqs if event.name == "record" else []
        assert seqs == list(range(1, 41))


def test_a_client_that_takes_nothing_for_too_long_is_cut_and_its_session_stays(tmp_path: Path, protocol: str) -> None:
    timeouts = Timeouts(stalled_s=0.3)
    with running(tmp_path, timeouts=timeouts) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.write("t", *[LARGE] * 100)
        path = watch(client, "t", max_batch_bytes=200_000)
        with open_stream(server, protocol, path, receive_buffer_bytes=4096) as stream:
            wait_for_streams(server, 1)
            first = stream.next()
            wait_for_streams(server, 0)
        assert first.id is not None
        with open_stream(server, protocol, path, headers={"last-event-id": first.id}) as again:
            events = again.until("caught-up")
    seqs = first.seqs + [seq for event in events if event.name == "record" for seq in event.seqs]
    assert seqs == list(range(1, 101))


def test_a_stream_that_is_stalled_costs_only_itself_on_its_http2_connection(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=Timeouts(stalled_s=0.3)) as server:
        with CLIENTS[HTTP1](server.host, server.port) as client:
            client.write("t", *[LARGE] * 10)
            path = watch(client, "t")
        with Peer(server.connect(), window_bytes=1000, opens_windows=False) as peer:
            stream = peer.start("GET", path)
            peer.until(lambda: stream in peer.resets)
            assert len(peer.bodies[stream]) == 1000
            assert peer.goaway is None
            status, _ = peer.request("GET", "/v0/health")
            assert status == 200


def test_a_client_that_resets_its_http2_stream_frees_its_place(tmp_path: Path) -> None:
    with running(tmp_path) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic("t")
        path = watch(client, "t")
        with Peer(server.connect()) as peer:
            stream = peer.start("GET", path)
            peer.until(lambda: b"caught-up" in peer.bodies[stream])
            peer.h2.reset_stream(stream)
            peer.flush()
            wait_for_streams(server, 0)
            assert peer.request("GET", "/v0/health")[0] == 200


def test_many_streams_share_one_http2_connection(tmp_path: Path) -> None:
    with running(tmp_path) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic("t")
        with Peer(server.connect()) as peer:
            streams = [peer.start("GET", watch(client, "t")) for _ in range(50)]
            peer.until(lambda: all(b"caught-up" in peer.bodies[stream] for stream in streams))
            client.write("t", "hello")
            peer.until(lambda: all(b'"hello"' in peer.bodies[stream] for stream in streams))
