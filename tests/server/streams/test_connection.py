"""Connections: what closes them, what they hold, and clients that do not read."""

import socket
from pathlib import Path

import pytest

from tests.server.streams.peer import FIRST, Gone, Peer, StreamsServer, message, send_payload, streams_server
from topics.limits import MIB
from topics.protocol.iggy.codes import CODES, OPEN_CODES, Code
from topics.protocol.iggy.frames import HEAD, encode_frame
from topics.protocol.iggy.requests import PollMessages, encode_request
from topics.server.limits import Timeouts
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId


def test_before_a_login_only_pings_and_logins_work(streams: StreamsServer) -> None:
    peer = streams.connect()
    for code in sorted(CODES - OPEN_CODES):
        peer.write(encode_frame(code, b"anything"))
        assert peer.answer() == (40, b"")
    peer.write(encode_frame(12345, b"anything"))
    assert peer.answer() == (3, b"")
    assert peer.ask(Code.PING) == b""


def test_a_send_before_a_login_is_taken_in_and_refused(streams: StreamsServer) -> None:
    peer = streams.connect()
    peer.write(encode_frame(Code.SEND_MESSAGES, send_payload(0, 0, [message(bytes(3 * MIB))])))
    assert peer.answer() == (40, b"")
    assert peer.ask(Code.PING) == b""


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("is_logged_in", [False, True])
def test_a_length_without_a_code_closes_the_connection(streams: StreamsServer, length: int, is_logged_in: bool) -> None:
    peer = streams.login() if is_logged_in else streams.connect()
    peer.write(HEAD.pack(length, Code.PING))
    assert peer.answer() == (3, b"")
    assert peer.is_closed()


def test_a_control_frame_that_is_too_large_closes_the_connection(streams: StreamsServer, root: Peer) -> None:
    """The client gets the status, although the server reads only the first bytes of its request."""
    root.write(HEAD.pack(4 + 10 * MIB + 1, Code.CREATE_STREAM) + bytes(MIB))
    assert root.answer() == (3, b"")
    assert root.is_closed()


def test_a_connection_that_is_cut_inside_of_a_frame_ends_silently(streams: StreamsServer, name: str) -> None:
    for frame in (encode_frame(Code.PING), encode_frame(Code.SEND_MESSAGES, send_payload(0, 0, [message(b"x")]))):
        for end in range(1, len(frame)):
            peer = streams.login() if end % 16 == 0 else streams.connect()
            peer.write(frame[:end])
            peer.end()
            with pytest.raises(Gone):
                peer.answer()
            peer.close()
    assert streams.connect().ask(Code.PING) == b""


def test_a_client_that_reads_nothing_holds_one_answer(tmp_path: Path) -> None:
    """It asks for 50 answers of 4 MB: the server makes the next one when the client takes the last."""
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t")
        root.send("s", "t", [bytes(MIB)] * 4, 0)
        greedy = served.login()
        poll = encode_frame(Code.POLL_MESSAGES, encode_request(PollMessages(1, 0, "s", "t", 0, *FIRST, 10, False)))
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        greedy.write(poll * 50)
        host = served.server.server.streams

        def unsent() -> int:
            return max(connection.unsent_bytes for connection in list(host.connections))

        while not unsent():
            root.ask(Code.PING)
        # The server would make the next one now if it did not wait for the client. Others are answered meanwhile.
        for _ in range(50):
            root.ask(Code.PING)
        assert unsent() < 6 * MIB
        size = 16 + 4 * (64 + MIB)
        for _ in range(50):
            status, payload = greedy.answer()
            assert (status, len(payload)) == (0, size)


def test_a_client_that_takes_nothing_for_long_is_closed(tmp_path: Path) -> None:
    with streams_server(tmp_path, timeouts=Timeouts(stalled_s=0.2)) as served:
        root = served.login()
        root.create("s", "t")
        # Not over the wire: a client that stops in the middle of so many bytes would be closed itself.
        system = served.server.server.streams.system
        assert system is not None
        system.send("s", "t", encode_send([NewMessage(bytes(MIB))] * 32), PartitionId(0))
        stuck = served.login()
        stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        stuck.write(
            encode_frame(Code.POLL_MESSAGES, encode_request(PollMessages(1, 0, "s", "t", 0, *FIRST, 99, False)))
        )
        host = served.server.server.streams
        while len(host.connections) > 1:
            root.ask(Code.PING)


def test_a_client_that_does_not_end_its_request_is_closed(tmp_path: Path) -> None:
    """Wherever it stops: in the head, in the metadata, in the body, or in a body that is skipped."""
    with streams_server(tmp_path, timeouts=Timeouts(stalled_s=0.2)) as served:
        idle = served.connect()
        served.login().create("s", "t")
        frame = encode_frame(Code.SEND_MESSAGES, send_payload("s", "t", [message(bytes(MIB))], 0))
        unknown = encode_frame(Code.SEND_MESSAGES, send_payload("s", "u", [message(bytes(MIB))], 0))
        peers = [served.login() for _ in range(4)]
        for peer, data in zip(peers, (frame[:3], frame[:12], frame[:1000], unknown[:1000]), strict=True):
            peer.write(data)
        assert all(peer.is_closed() for peer in peers)
        assert idle.ask(Code.PING) == b"", "a client without a request may be silent"
