"""Answers without an end, over both protocols: how they begin, how they are held up, and how they end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.server.clients import CLIENTS, HTTP1, Client
from tests.server.event_streams import EVENT_STREAMS, EventStream, parse_block, wait_for_streams
from tests.server.http2_peer import Peer
from tests.server.raw import HOST, RawConnection, get
from tests.server.running import Running, running
from topics.server.limits import Timeouts

LARGE = "x" * 100_000
# Small, but a window is always as large as a segment: the kernel does not slow down a late reader.
RECEIVE_BUFFER_BYTES = 16_384


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


def test_a_client_that_takes_nothing_delays_no_write_and_no_other_stream(
    server: Running, client: Client, protocol: str, topic: str
) -> None:
    """Invariant 57."""
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
        # It delays only itself: records that it did not take are in the log, and come in large frames.
        seqs = []
        while len(seqs) < 40:
            event = stalled.next()
            seqs += event.seqs if event.name == "record" else []
        assert seqs == list(range(1, 41))


def test_a_client_that_takes_nothing_for_too_long_is_cut_and_its_session_stays(tmp_path: Path, protocol: str) -> None:
    timeouts = Timeouts(stalled_s=0.3)
    with running(tmp_path, timeouts=timeouts) as server, CLIENTS[protocol](server.host, server.port) as client:
        # The first frame is so small that the client has it with the head of the answer.
        client.write("t", "small", *[LARGE] * 100)
        path = watch(client, "t", max_batch_bytes=1)
        with open_stream(server, protocol, path, receive_buffer_bytes=4096) as stream:
            assert stream.status == 200
            first = stream.next()
            wait_for_streams(server, 0)
        assert first.id is not None
        be_patient(server)
        with open_stream(server, protocol, path, headers={"last-event-id": first.id}) as again:
            events = again.until("caught-up")
    seqs = first.seqs + [seq for event in events if event.name == "record" for seq in event.seqs]
    assert (first.seqs, seqs) == ([1], list(range(1, 102)))


def be_patient(server: Running) -> None:
    """From now on a client may take its time, as this process must when the machine is busy."""
    server.server._connections.timeouts = Timeouts()


def wait_given_up(server: Running) -> None:
    """Waits until the server has given up a client, and only the last frame is still on its way."""

    async def turn() -> None:
        while not any(wire.is_closed for wire in server.server._connections.open):  # noqa: ASYNC110 - nothing is called then.
            await asyncio.sleep(0)

    server.call(turn())


# A client that reads late still gets the last frame.
IMPATIENT = Timeouts(stalled_s=0.3, linger_s=300)


def test_the_last_frame_to_a_client_that_took_nothing_says_so(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=IMPATIENT) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.write("t", *[LARGE] * 100)
        path = watch(client, "t", max_batch_bytes=200_000)
        with open_stream(server, HTTP1, path, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as stream:
            wait_given_up(server)
            assert server.server.app.counters.sse_connections == 0
            *records, last = stream.rest()
        seqs = [seq for event in records for seq in event.seqs]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) < 100
        assert (last.name, last.data["code"]) == ("error", "slow_consumer")
        assert last.cursors == {"t": len(seqs)}
        be_patient(server)
        with open_stream(server, HTTP1, path) as again:
            events = again.until("caught-up")
        assert [seq for event in events[:-1] for seq in event.seqs] == list(range(len(seqs) + 1, 101))


def test_so_it_does_on_an_http2_connection_whose_socket_is_full(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=IMPATIENT) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.write("t", *[LARGE] * 100)
        path = watch(client, "t", max_batch_bytes=200_000)
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        connected.settimeout(30)
        connected.connect((server.host, server.port))
        with Peer(connected) as peer:
            # All windows as wide as can be, so that nothing but the socket holds the stream back.
            peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
            peer.h2.increment_flow_control_window(2**31 - 1 - 65_535)
            stream = peer.start("GET", path)
            peer.flush()
            wait_given_up(server)
            peer.until_closed()
            *_, last, nothing = bytes(peer.bodies[stream]).split(b"\n\n")
            assert nothing == b""
            assert parse_block(last).data["code"] == "slow_consumer"
            assert stream in peer.ended
            assert peer.goaway == ErrorCodes.ENHANCE_YOUR_CALM


def test_the_last_frame_to_a_worker_that_took_nothing_says_so_and_its_jobs_are_ready_again(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=IMPATIENT) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic("q", type="queue")
        client.write("q", *[LARGE] * 100)
        path = "/v0/topics/q/work?node=w&max=100"
        with open_stream(server, HTTP1, path, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as stream:
            wait_given_up(server)
            *jobs, last = stream.rest()
        assert [job.data["$seq"] for job in jobs] == list(range(1, len(jobs) + 1))
        assert (last.name, last.id, last.data["code"]) == ("error", None, "slow_consumer")
        assert client.state("q")["queue"]["ready"] == 100


def test_large_answers_that_are_not_taken_hold_up_no_other_on_their_http2_connection(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with CLIENTS[HTTP1](server.host, server.port) as client:
            for _ in range(9):
                client.write("t", "x" * 1_000_000)
        with Peer(server.connect(), window_bytes=1000, opens_windows=False) as peer:
            diffs = [peer.start("POST", "/v0/topics/t/diff", {"max_batch_bytes": 8_388_608}) for _ in range(2)]
            peer.until(lambda: all(len(peer.bodies[diff]) == 1000 for diff in diffs))
            assert peer.request("GET", "/v0/health")[0] == 200
            assert peer.resets == {}, "they still have time"


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
