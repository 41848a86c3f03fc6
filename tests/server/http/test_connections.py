"""Deadlines, backpressure and the ends of connections: with manual time, or on real sockets."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.raw import RawConnection, append, ask, get, post, statuses
from tests.server.running import running
from tests.server.wires import FakeTransport, RecordingApp, Wires
from topics.server.http.connections import http_date
from topics.server.limits import KIB, PIPELINED_EXCHANGES_MAX, WRITE_HIGH_WATER_BYTES, Timeouts

DEFAULT = Timeouts()
# How late a sweep may be.
SWEEP_S = 1.0
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
SHORT = Timeouts(head_s=0.2, body_s=0.2, stalled_s=0.2)


@given(st.integers(0, 2**33))
def test_the_date_is_written_as_mail_programs_write_it(unix_s: int) -> None:
    assert http_date(unix_s).decode() == formatdate(unix_s, usegmt=True)


# Slow heads and bodies.


def seconds_until_answer(wires: Wires, transport: FakeTransport, packet: bytes) -> float:
    """Sends the packet once a second until something comes back."""
    for second in range(300):
        if transport.written:
            return second
        transport.receive(packet)
        wires.loop.advance(1)
    raise AssertionError("no answer in five minutes")


def test_a_head_that_trickles_in_is_cut_off_however_often_a_byte_comes() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(b"GET / HTTP/1.1\r\nX: ")
    assert abs(seconds_until_answer(wires, transport, b"y") - DEFAULT.head_s) <= 1 + SWEEP_S
    assert statuses(transport.written) == [408]
    assert b"connection: close" in transport.written
    assert transport.has_written_eof
    assert wires.app.handled == []


def test_a_head_of_whole_headers_is_cut_off_just_the_same() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(b"GET / HTTP/1.1\r\n")
    assert abs(seconds_until_answer(wires, transport, b"Accept: y\r\n") - DEFAULT.head_s) <= 1 + SWEEP_S
    assert statuses(transport.written) == [408]


def test_the_second_head_has_no_more_time_than_the_first() -> None:
    """Also when it began in the packet of the request before it, whose answer comes late."""
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() + b"GET / HT")
    wires.loop.advance(3)
    wires.app.release()
    wires.loop.settle()
    wires.loop.advance(DEFAULT.head_s - 3 - 1)
    assert statuses(transport.written) == [200]
    wires.loop.advance(1 + SWEEP_S)
    assert statuses(transport.written) == [200, 408]


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_body_that_trickles_in_is_cut_off(framing: bytes) -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(POST + framing)
    late_s = seconds_until_answer(wires, transport, b"1\r\nx\r\n" if b"chunked" in framing else b"x")
    assert abs(late_s - DEFAULT.body_s) <= 2 + SWEEP_S
    assert statuses(transport.written) == [408]
    assert wires.app.handled == []


def test_a_body_that_keeps_up_the_rate_may_take_its_time() -> None:
    """Far longer than an idle connection is kept. When it stops, it is soon cut off."""
    wires = Wires(RecordingApp(body_bytes_max=100_000_000))
    transport = wires.connect()
    transport.receive(POST + b"Content-Length: 50000000\r\n\r\n")
    for _ in range(200):
        transport.receive(b"x" * 20 * KIB)
        wires.loop.advance(1)
    assert transport.written == b""
    # The time that the body is ahead of the rate is used up, and no more.
    wires.loop.advance(200 * 4 / 16 + DEFAULT.body_s + SWEEP_S + 1)
    assert statuses(transport.written) == [408]


def test_a_body_behind_an_answered_request_is_not_taken_for_an_idle_connection() -> None:
    wires = Wires(RecordingApp(body_bytes_max=100_000_000))
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() + POST + b"Content-Length: 50000000\r\n\r\n")
    wires.app.release()
    for _ in range(int(DEFAULT.idle_s) * 2):
        transport.receive(b"x" * 20 * KIB)
        wires.loop.advance(1)
    assert not transport.is_ended
    assert statuses(transport.written) == [200]


def test_time_in_which_nothing_is_read_is_not_the_clients() -> None:
    """A head that waits after more requests than are parsed."""
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() * (PIPELINED_EXCHANGES_MAX + 1) + b"GET / HT")
    assert transport.is_paused
    wires.loop.advance(60)
    for _ in range(PIPELINED_EXCHANGES_MAX + 1):
        wires.app.release()
        wires.loop.settle()
    assert not transport.is_paused
    wires.loop.advance(DEFAULT.head_s - SWEEP_S - 1)
    transport.receive(b"TP/1.1\r\nHost: a\r\n\r\n")
    wires.app.release()
    assert statuses(transport.written) == [200] * (PIPELINED_EXCHANGES_MAX + 2)


def test_a_slow_client_over_a_real_socket_is_told_so_while_others_are_served(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=SHORT) as server, RawConnection(server) as other:
        for beginning in (b"GET / HTTP/1.1\r\nX: ", post(b"/v0/topics/a", b"x" * 1000)[:-999]):
            with RawConnection(server) as slow:
                slow.send(beginning)
                slow.socket.settimeout(0.02)
                answered = False
                while not answered:
                    slow.send(b"y")
                    other.send(get())
                    assert other.answer().status == 200
                    with suppress(TimeoutError):
                        answered = bool(slow.socket.recv(1, socket.MSG_PEEK))
                slow.socket.settimeout(30)
                assert slow.answer().refusal == (408, "request_timeout")
                assert slow.rest() == b""


# Idle connections.


def test_times_are_those_of_the_contract() -> None:
    assert DEFAULT.head_s == DEFAULT.drain_s == 10
    assert DEFAULT.idle_s >= 60


def test_an_idle_connection_is_closed_without_a_word() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(get())
    wires.loop.advance(DEFAULT.idle_s - SWEEP_S - 1)
    assert not transport.is_ended
    wires.loop.advance(2 * SWEEP_S + 1)
    assert transport.is_ended
    assert statuses(transport.written) == [200]


def test_blank_lines_keep_no_connection_alive() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(get())
    for _ in range(int(DEFAULT.idle_s) + 2):
        transport.receive(b"\r\n")
        wires.loop.advance(1)
    assert transport.is_ended


def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get())
    wires.loop.advance(DEFAULT.idle_s * 3)
    wires.app.release()
    assert statuses(transport.written) == [200]
    assert not transport.is_ended


# Clients that do not take their answers.


def test_no_answers_are_made_for_a_client_that_does_not_take_them() -> None:
    wires = Wires()
    wires.app.answer_bytes = WRITE_HIGH_WATER_BYTES // 4
    transport = wires.connect()
    transport.takes = False
    transport.receive(get() * 20)
    wires.loop.settle()
    assert len(wires.app.handled) == 4
    assert transport.is_paused
    transport.take(10_000_000)
    wires.loop.settle()
    assert len(wires.app.handled) == 8


def test_a_client_that_takes_nothing_is_cut_off_and_one_that_takes_a_little_is_not() -> None:
    wires = Wires()
    wires.app.answer_bytes = 2 * WRITE_HIGH_WATER_BYTES
    stalled, slow = wires.connect(), wires.connect()
    for transport in (stalled, slow):
        transport.takes = False
        transport.receive(get())
    for _ in range(int(DEFAULT.stalled_s + SWEEP_S)):
        slow.take(1)
        wires.loop.advance(1)
    assert stalled.is_aborted
    assert not slow.is_aborted
    wires.loop.advance(DEFAULT.stalled_s + SWEEP_S)
    assert slow.is_aborted
    assert not wires.connections.open


@pytest.mark.parametrize("closes", [b"Connection: close", b"Connection: keep-alive"])
def test_a_connection_that_closes_does_not_wait_for_ever_to_be_read(closes: bytes) -> None:
    """Also when little is left to read, less than would count as backpressure."""
    wires = Wires()
    transport = wires.connect()
    transport.takes = False
    transport.receive(get(b"/", closes))
    wires.loop.advance(DEFAULT.idle_s + DEFAULT.stalled_s + 2 * SWEEP_S)
    assert transport.is_aborted
    assert not wires.connections.open


def test_a_refused_client_that_never_stops_sending_is_cut_off() -> None:
    """The client has a short time to read why."""
    wires = Wires()
    transport = wires.connect()
    transport.receive(b"garbage\r\n\r\n")
    assert transport.has_written_eof
    assert not transport.is_ended
    while not transport.is_ended:
        transport.receive(get())
        wires.loop.advance(1)
    assert wires.app.handled == []
    assert statuses(transport.written) == [400]


def test_a_client_that_does_not_read_megabytes_is_cut_off_while_others_are_served(tmp_path: Path) -> None:
    """Over real sockets."""
    with running(tmp_path, timeouts=SHORT) as server, RawConnection(server) as other:
        for _ in range(8):
            other.send(append("large", b'"' + b"x" * 1_000_000 + b'"'))
            other.answer()
        with RawConnection(server, receive_buffer_bytes=4096) as stalled:
            stalled.send(post(b"/v0/topics/large/diff", b'{"max_batch_bytes":8000000}') * 50)
            connections = server.server._connections
            # Served without a pause, as often as it takes.
            while len(connections.open) != 1:
                other.send(get())
                assert other.answer().status == 200
            assert len(stalled.rest()) < 50 * 8_000_000


# Clients that go away.


def test_an_answer_whose_client_is_gone_is_not_made() -> None:
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() * 3)
    transport.reset()
    assert wires.app.gone == wires.app.handled
    assert len(wires.app.handled) == 1
    assert not wires.connections.open


def test_a_client_that_stops_sending_is_answered_in_a_hurry() -> None:
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() * 2 + b"GET /half")
    transport.receive_eof()
    assert wires.app.hurried == wires.app.handled
    assert not transport.is_ended
    wires.app.release()
    wires.loop.settle()
    assert len(wires.app.hurried) == 2
    wires.app.release()
    wires.loop.settle()
    assert transport.is_ended
    assert statuses(transport.written) == [200, 200]


def test_an_idle_client_that_stops_sending_is_let_go() -> None:
    wires = Wires()
    transport = wires.connect()
    transport.receive(get())
    transport.receive_eof()
    assert transport.is_ended


def wait_for_status(connection: RawConnection, request: bytes, status: int) -> None:
    """Asks again until the status is this one."""
    while True:
        connection.send(request)
        if connection.answer().status == status:
            return


def test_a_client_that_disconnects_frees_its_slot_and_what_it_wrote_stands(tmp_path: Path) -> None:
    """Long polls and writes alike. The limit on requests of one key shows it."""
    key = b"Authorization: Bearer secret"
    look = get(b"/v0/topics/t", key)
    poll = post(b"/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}', key)
    with running(tmp_path, keys="secret", max_inflight_per_key=1) as server, RawConnection(server) as other:
        other.send(append("t", b"1", key))
        assert other.answer().status == 201
        for resets in (False, True):
            with RawConnection(server) as waiting:
                waiting.send(poll)
                wait_for_status(other, look, 429)
                if resets:
                    waiting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wait_for_status(other, look, 200)
        for number in range(2, 12):
            with RawConnection(server) as writer:
                writer.send(append("t", b"%d" % number, key))
            while True:
                other.send(look)
                answer = other.answer()
                if answer.status == 200 and answer.json["head_seq"] == number:
                    break
        other.send(look)
        assert other.answer().status == 200


# The server stops.


def test_a_stop_answers_who_waits_and_lets_go_of_who_does_not(tmp_path: Path) -> None:
    with ExitStack() as clients:
        with running(tmp_path, timeouts=Timeouts(drain_s=0.2)) as server:
            ask(server, append("t"))
            silent, idle, waiting, late = (clients.enter_context(RawConnection(server)) for _ in range(4))
            idle.send(get())
            idle.answer()
            waiting.send(post(b"/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}'))
            # Half way through a request: it has time until the drain ends.
            late.send(get() + b"GET /v0/health HTTP/1.1\r\n")
            late.answer()
            while not server.server.app.waiting:
                assert ask(server, get()).status == 200
        assert waiting.answer().json["caught_up"] is True
        for connection in (silent, idle, waiting, late):
            assert connection.is_ended()


def test_an_answer_given_while_the_server_stops_ends_its_connection() -> None:
    wires = Wires()
    wires.app.holds = True
    transport = wires.connect()
    transport.receive(get() * 2)
    wires.connections.is_draining = True
    for wire in wires.connections.open:
        wire.drain()
    assert not transport.is_ended
    wires.app.release()
    wires.loop.settle()
    assert transport.is_ended
    assert transport.written.count(b"connection: close") == 1
    assert len(wires.app.handled) == 1
