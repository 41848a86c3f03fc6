"""WebSocket connections as bytes: refusals, limits, and ends."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import compressobj

import pytest

from tests.server.raw import RawConnection, ask, get
from tests.server.running import Running, running
from tests.server.ws_peer import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    frame,
    ws_client,
)
from topics.server.limits import WS_FRAGMENTS_MAX, WS_MESSAGE_BYTES_MAX, WS_PINGS_MAX, Timeouts

PING_COMMAND = b'{"op":"ping","request_id":1}'
PONG_REPLY = {"op": "pong", "request_id": 1}
RSV1, RSV2, RSV3 = 0x40, 0x20, 0x10


def is_serving(server: Running) -> bool:
    with ws_client(server) as client:
        return client.ask("ping") == {"op": "pong", "request_id": None}


# From HTTP to WebSocket.


def test_the_answer_proves_that_the_key_was_read(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get(b"/v0/ws", *HANDSHAKE))
        answer = connection.answer()
    assert answer.status == 101
    assert answer.headers["upgrade"].lower() == "websocket"
    assert answer.headers["connection"].lower() == "upgrade"
    assert answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_frames_that_come_with_the_request_are_not_lost(server: Running) -> None:
    with RawWebSocket(server, behind=frame(TEXT, PING_COMMAND) * 3) as socket:
        assert [socket.message() for _ in range(3)] == [PONG_REPLY] * 3


def test_a_connection_that_served_requests_can_become_a_websocket(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get() + get() + get(b"/v0/ws", *HANDSHAKE) + frame(TEXT, PING_COMMAND))
        assert [answer.status for answer in connection.answers(3)] == [200, 200, 101]
        reply = json.dumps(PONG_REPLY, separators=(",", ":")).encode()
        connection.send(frame(CLOSE))
        assert connection.rest() == bytes((FIN | TEXT, len(reply))) + reply + bytes((FIN | CLOSE, 0))


def test_a_handshake_in_single_bytes_is_a_handshake(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.drip(bytes((byte,)) for byte in get(b"/v0/ws", *HANDSHAKE))
        assert connection.answer().status == 101


def test_requests_behind_a_refused_upgrade_are_served(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get(b"/v0/ws", *HANDSHAKE, b"Origin: http://elsewhere.example") + get() + get())
        assert [answer.status for answer in connection.answers(3)] == [403, 200, 200]


def test_an_upgrade_of_another_path_is_ignored_and_requests_behind_it_are_served(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send((get(b"/v0/health", *HANDSHAKE) + get()) * 20)
        assert {answer.status for answer in connection.answers(40)} == {200}


def test_the_same_handshake_twice_opens_two_websockets(server: Running) -> None:
    with RawWebSocket(server) as first, RawWebSocket(server) as second:
        for socket in (first, second):
            socket.say(PING_COMMAND)
            assert socket.message() == PONG_REPLY


def test_a_websocket_is_one_connection_and_one_request(tmp_path: Path) -> None:
    with running(tmp_path) as server, RawWebSocket(server) as socket:
        counters = server.server.app.counters
        socket.say(PING_COMMAND)
        assert socket.message() == PONG_REPLY
        assert (counters.connections_total, counters.connections_open) == (1, 1)
        assert counters.requests["ws", 101].count == 1


# Frames.


def test_a_message_in_fragments_is_one_message_with_pings_between(server: Running) -> None:
    with RawWebSocket(server) as socket:
        parts = [PING_COMMAND[place : place + 1] for place in range(len(PING_COMMAND))]
        socket.send(frame(TEXT, parts[0], flags=0))
        for part in parts[1:-1]:
            socket.send(frame(CONTINUATION, part, flags=0) + frame(PING, b"still here"))
        socket.send(frame(CONTINUATION, parts[-1]))
        frames = [socket.frame() for _ in range(len(parts) - 1)]
    assert frames.count((PONG, b"still here")) == len(parts) - 2
    assert [json.loads(payload) for opcode, payload in frames if opcode == TEXT] == [PONG_REPLY]


def test_frames_in_single_bytes_are_frames(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.drip(bytes((byte,)) for byte in frame(TEXT, PING_COMMAND))
        assert socket.message() == PONG_REPLY


def test_a_ping_is_answered_with_what_it_carries(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.send(frame(PING, b"x" * 125))
        assert socket.frame() == (PONG, b"x" * 125)


def test_thousands_of_messages_at_once_are_answered_in_order(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.send(b"".join(frame(TEXT, b'{"op":"ping","request_id":%d}' % number) for number in range(3000)))
        assert [socket.message()["request_id"] for _ in range(3000)] == list(range(3000))


def test_a_large_message_is_taken(server: Running, topic: str) -> None:
    with ws_client(server) as client:
        records = [{"data": "x" * 1_000_000}] * 20
        assert client.ask("publish", topic=topic, records=records)["last_seq"] == 20


def test_a_close_is_answered_with_its_code(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.send(frame(CLOSE, b"\x03\xe8bye"))
        assert socket.frame() == (CLOSE, b"\x03\xe8bye")
        socket.end()
        assert socket.rest() == b""


def test_what_came_before_a_close_is_done(server: Running, topic: str) -> None:
    with RawWebSocket(server) as socket:
        publish = b'{"op":"publish","topic":"%b","records":[{"data":1}]}' % topic.encode()
        socket.send(frame(TEXT, publish) * 10 + frame(CLOSE, b"\x03\xe8"))
        assert [socket.message()["last_seq"] for _ in range(10)] == list(range(1, 11))
        assert socket.close_code() == 1000
    with ws_client(server) as client:
        assert client.ask("subscribe", topic=topic)["topics"][topic]["head_seq"] == 10


BOMB = compressobj(9, wbits=-15).compress(b"0" * 1_000_000)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, PING_COMMAND, mask=False), 1002),
        (frame(TEXT, PING_COMMAND, flags=FIN | RSV1), 1002),
        (frame(TEXT, PING_COMMAND, flags=FIN | RSV2), 1002),
        (frame(TEXT, PING_COMMAND, flags=FIN | RSV3), 1002),
        (frame(TEXT, BOMB, flags=FIN | RSV1), 1002),
        (frame(0x3, b"x"), 1002),
        (frame(0xB, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, b"x", flags=0), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(TEXT, b"x", flags=0) + frame(TEXT, b"y"), 1002),
        (frame(TEXT, b"x", flags=0) + frame(CLOSE), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, b"\x03\xed"), 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b'"\xed\xa0\x80"'), 1007),
        (frame(TEXT, b"\xc3", flags=0) + frame(CONTINUATION, b"x"), 1007),
        (frame(TEXT, length=2**62), 1009),
        (frame(TEXT, length=WS_MESSAGE_BYTES_MAX + 1), 1009),
        (frame(BINARY, length=2**63 - 1), 1009),
        (frame(TEXT, b"x" * 100, flags=0) + frame(CONTINUATION, length=WS_MESSAGE_BYTES_MAX - 99), 1009),
    ],
)
def test_what_is_no_frame_or_too_large_closes_the_connection(server: Running, data: bytes, code: int) -> None:
    with RawWebSocket(server) as socket:
        # Earlier messages are answered, later ones are ignored.
        socket.send(frame(TEXT, PING_COMMAND) + data + frame(TEXT, PING_COMMAND) * 100)
        assert socket.message() == PONG_REPLY
        assert socket.close_code() == code
    assert is_serving(server)


def test_a_character_may_be_cut_by_a_fragment(server: Running) -> None:
    with RawWebSocket(server) as socket:
        text = '{"op":"ping","request_id":"é"}'.encode()
        cut = text.index(b"\xc3") + 1
        socket.send(frame(TEXT, text[:cut], flags=0) + frame(CONTINUATION, text[cut:]))
        assert socket.message()["request_id"] == "é"


def test_a_message_has_so_many_fragments_and_no_more(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.send(frame(TEXT, b"", flags=0) + frame(CONTINUATION, b"", flags=0) * WS_FRAGMENTS_MAX)
        assert socket.close_code() == 1009


def test_compression_is_not_negotiated(server: Running) -> None:
    with ws_client(server, compression="deflate") as client:
        assert client.connection.protocol.extensions == []
        assert client.ask("ping")["op"] == "pong"


def test_a_flood_of_pings_ends_the_connection(server: Running) -> None:
    with RawWebSocket(server) as socket:
        socket.send(frame(PING) * (100 * WS_PINGS_MAX))
        assert socket.close_code() == 1008
    assert is_serving(server)


# Time.


def test_a_client_that_answers_no_ping_is_closed_after_two_of_them(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=Timeouts(ping_s=0.05)) as server, RawWebSocket(server) as socket:
        assert [socket.frame()[0] for _ in range(3)] == [PING, PING, CLOSE]


def test_a_client_that_answers_pings_may_be_silent_otherwise(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=Timeouts(ping_s=1.0, idle_s=1.5)) as server, RawWebSocket(server) as socket:
        for _ in range(3):
            assert socket.frame() == (PING, b"")
            socket.send(frame(PONG))


def test_a_message_that_trickles_in_is_given_up(tmp_path: Path) -> None:
    timeouts = Timeouts(body_s=0.05, ping_s=60)
    with running(tmp_path, timeouts=timeouts) as server, RawWebSocket(server) as socket:
        socket.send(frame(TEXT, PING_COMMAND, length=1000))
        assert socket.close_code() == 1008


def test_a_client_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    timeouts = Timeouts(stalled_s=0.1)
    with running(tmp_path, timeouts=timeouts) as server, ws_client(server) as writer:
        # More than the buffers of both sockets can hold.
        for _ in range(32):
            writer.ask("publish", topic="large", records=[{"data": "x" * 1_000_000}])
        with RawWebSocket(server, receive_buffer_bytes=4096) as socket:
            gone = server.server.app.counters.connections_open - 1
            socket.say(b'{"op":"subscribe","topic":"large"}')
            while server.server.app.counters.connections_open > gone:
                assert writer.ask("ping")["op"] == "pong"


def test_the_last_message_to_a_client_that_took_nothing_says_so(tmp_path: Path) -> None:
    timeouts = Timeouts(stalled_s=0.1, linger_s=300)
    with running(tmp_path, timeouts=timeouts) as server, ws_client(server) as writer:
        for _ in range(16):
            writer.ask("publish", topic="large", records=[{"data": "x" * 1_000_000}])
        with RawWebSocket(server, receive_buffer_bytes=16_384) as socket:
            socket.say(b'{"op":"subscribe","topic":"large"}')
            while not any(wire.is_closed for wire in tuple(server.server._connections.open)):
                assert writer.ask("ping")["op"] == "pong"
            assert socket.message()["op"] == "subscribed"
            seqs: list[int] = []
            while (message := socket.message())["op"] == "record":
                seqs += [record["$seq"] for record in message["records"]]
            assert seqs == list(range(1, len(seqs) + 1))
            assert (message["op"], message["code"]) == ("error", "slow_consumer")
            assert "request_id" not in message
            assert socket.close_code() == 1008


# The end.


def test_a_client_that_ends_without_a_word_is_forgotten(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        counters = server.server.app.counters
        with RawWebSocket(server) as socket:
            assert counters.sse_connections == 1
            socket.end()
            assert socket.rest() == b""
        while counters.sse_connections:
            assert ask(server, get()).status == 200


def test_a_stop_is_announced_before_the_connection_ends(tmp_path: Path) -> None:
    with running(tmp_path) as server, ws_client(server) as client:
        assert client.ask("publish", topic="t", records=[{"data": 1}])["op"] == "ack"
        client.send("subscribe", topic="t", request_id=1)
        client.receive_until("caught_up", topic="t")
        server.call(server.server.stop())
        last = client.receive()
        assert (last.pop("message") != "", last) == (True, {"op": "error", "code": "server_shutting_down"})
        assert client.closed()[0] == 1001


def test_a_stop_waits_for_writes_under_way_and_not_for_clients(tmp_path: Path) -> None:
    with running(tmp_path) as server, RawWebSocket(server) as socket, RawWebSocket(server) as idle:
        publish = b'{"op":"publish","topic":"t","records":[{"data":1}],"config":{"durability":"fsync"}}'
        idle.say(PING_COMMAND)
        assert idle.message() == PONG_REPLY
        socket.send(frame(TEXT, publish) * 5 + frame(TEXT, PING_COMMAND))
        # The reply to the ping may come before the acks: the writes are under way then.
        seen = [socket.message()]
        while seen[-1]["op"] != "pong":
            seen.append(socket.message())
        server.call(server.server.stop())
        while seen[-1]["op"] != "error":
            seen.append(socket.message())
        assert [message["op"] for message in seen].count("ack") == 5
        assert socket.close_code() == 1001
        # The client neither answers nor leaves.
        assert idle.message()["code"] == "server_shutting_down"
        assert idle.frame()[0] == CLOSE
