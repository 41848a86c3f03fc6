"""The first bytes of a connection tell its protocol, in any packets."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path

import pytest

from tests.server.raw import RawConnection, append, ask, get
from tests.server.running import Running, running
from tests.server.wires import Wires
from topics.server.http.http2_meter import H2_PREFACE
from topics.server.limits import Timeouts

TIMEOUTS = Timeouts()
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize("cut", range(1, len(H2_PREFACE)))
def test_the_preface_of_http_2_is_known_in_two_parts(server: Running, cut: int) -> None:
    with RawConnection(server) as connection:
        connection.drip([H2_PREFACE[:cut], H2_PREFACE[cut:] + SETTINGS])
        # The server's settings: a frame of type 4 on stream 0.
        assert connection.socket.recv(9)[3:9] == b"\4\0\0\0\0\0"


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_request_that_begins_like_the_preface_is_none(server: Running, topic: str, cut: int) -> None:
    text = append(topic)
    with RawConnection(server) as connection:
        connection.drip([text[:cut], text[cut:]])
        assert connection.answer().status == 201


@pytest.mark.parametrize(
    "text",
    [
        b"PRI * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PROPFIND\r\n\r\n",
        b"\r\n" + H2_PREFACE,
    ],
)
def test_almost_the_preface_is_bad_http_1(server: Running, text: bytes) -> None:
    assert ask(server, text).refusal == (400, "invalid_request")


def test_the_preface_behind_a_request_is_no_new_beginning(server: Running) -> None:
    with RawConnection(server) as connection:
        connection.send(get() + H2_PREFACE + SETTINGS)
        assert [answer.status for answer in connection.answers(2)] == [200, 400]
        assert connection.rest() == b""


def test_small_answers_leave_at_once(server: Running) -> None:
    """Packets do not wait for each other: TCP_NODELAY."""

    async def options() -> set[int]:
        sockets = [wire.transport.get_extra_info("socket") for wire in server.server._connections.open]
        return {each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets}

    with RawConnection(server) as connection:
        connection.send(get())
        connection.answer()
        assert server.call(options()) == {1}


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_tls_on_the_plain_port_is_closed_at_once_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hello = client_hello()
    with running(tmp_path) as server, caplog.at_level(logging.WARNING):
        for data in (hello, hello[:1], hello, b"\x16\x03\x01garbage"):
            with RawConnection(server) as connection:
                connection.send(data)
                assert connection.is_ended()
        assert ask(server, get()).status == 200
    lines = [record for record in caplog.records if "TLS" in record.message]
    assert len(lines) == 1
    assert lines[0].fields == {"peer": "127.0.0.1"}  # type: ignore[attr-defined]


def test_a_connection_that_says_nothing_is_closed_as_an_idle_one() -> None:
    wires = Wires()
    transport = wires.connect_unknown()
    wires.loop.advance(TIMEOUTS.idle_s - 1)
    assert not transport.is_ended
    wires.loop.advance(1)
    assert transport.is_ended
    assert transport.written == b""


def test_a_first_byte_that_stays_alone_has_the_time_of_a_head() -> None:
    wires = Wires()
    transport = wires.connect_unknown()
    transport.receive(b"P")
    wires.loop.advance(TIMEOUTS.head_s)
    assert transport.is_ended


def test_a_head_has_no_more_time_because_its_first_byte_could_have_been_another_protocol() -> None:
    wires = Wires()
    transport = wires.connect_unknown()
    transport.receive(b"P")
    wires.loop.advance(TIMEOUTS.head_s - 1)
    transport.receive(b"OST / HTTP/1.1\r\n")
    assert transport.written == b""
    wires.loop.advance(2)
    assert transport.written.startswith(b"HTTP/1.1 408 ")


def test_connections_are_not_taken_while_the_server_stops() -> None:
    wires = Wires()
    wires.connections.is_draining = True
    assert wires.connect_unknown().is_ended
