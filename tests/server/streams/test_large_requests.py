"""Large requests: who may send their bodies, how much of them the server holds, and what waits for what."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.streams.peer import LAST, Gone, Peer, StreamsServer, message, send_payload, streams_server
from topics.formats.stream_command import UpdatePermissions, UserStatus
from topics.formats.stream_permissions import Permissions, StreamPermissions
from topics.limits import KIB, MIB
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.frames import (
    HEAD,
    LARGE_BYTES_MAX,
    PERMISSIONS_BYTES_MAX,
    SEND_BYTES_MAX,
    SMALL_BYTES_MAX,
    encode_frame,
)
from topics.protocol.iggy.requests import CreateUserRequest, encode_request
from topics.server.limits import Timeouts
from topics.server.streams import host as host_module
from topics.server.streams.host import ORDINARY_BYTES_MAX, StreamsHost
from topics.server.streams.request_room import RequestRoom
from topics.streams.partitions.partitioning import PartitionId

# What the server may keep of each connection that has no large request.
OVERHEAD_BYTES = 64 * KIB


def large_send(stream: str, topic: str = "t", size: int = 4 * MIB) -> bytes:
    return encode_frame(Code.SEND_MESSAGES, send_payload(stream, topic, [message(bytes(size))], 0))


def host_of(served: StreamsServer) -> StreamsHost:
    return served.server.server.streams


def room_of(served: StreamsServer) -> RequestRoom:
    """The room of sends that are as large as `large_send`."""
    return host_of(served).room_for(4 * MIB)


def held_bytes(served: StreamsServer) -> int:
    return sum(connection.held_bytes for connection in list(host_of(served).connections))


def wait_until(peer: Peer, is_so: Callable[[], bool]) -> None:
    """`peer` is answered all the time."""
    while not is_so():
        peer.ask(Code.PING)


def write_partly(served: StreamsServer, peers: list[Peer], watcher: Peer, data: bytes) -> None:
    """Each peer writes the same bytes. Returns when the server has received all of them."""
    host = host_of(served)
    before_bytes = host.counters.bytes_received
    for peer in peers:
        peer.write(data)
    # What the watcher sends is too little to matter: it comes on top.
    wait_until(watcher, lambda: host.counters.bytes_received - before_bytes >= len(peers) * len(data))


def write_slowly(peer: Peer, data: bytes, other: Peer) -> None:
    """Byte by byte. `other` is answered all the time."""
    for at in range(len(data)):
        peer.write(data[at : at + 1])
        other.ask(Code.PING)
    peer.answer()


@contextmanager
def with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_bytes: int, all_bytes: int, grace_s: float = 30.0
) -> Iterator[StreamsServer]:
    """A server with less room for large requests. Clients that have room may be silent for `grace_s` while others wait
    for it."""
    monkeypatch.setattr(host_module, "USER_ROOM_BYTES_MAX", user_bytes)
    monkeypatch.setattr(host_module, "ROOM_BYTES_MAX", all_bytes)
    monkeypatch.setattr(host_module, "HELD_GRACE_S", grace_s)
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t")
        for name in ("ada", "bob", "eve"):
            root.create_user(name, Permissions(send_messages=True))
        yield served


# Who may send a body.


@pytest.mark.parametrize(("topic", "status"), [("t", 41), ("unknown", 2010)])
def test_nothing_is_kept_of_large_sends_that_are_not_allowed(
    streams: StreamsServer, root: Peer, name: str, topic: str, status: int
) -> None:
    """The body is skipped, so the client gets its answer, and the connection stays in step."""
    root.create(name, "t")
    root.create_user(name)
    peers = [streams.login(name, name) for _ in range(8)]
    frame = large_send(name, topic)
    half = len(frame) // 2
    write_partly(streams, peers, root, frame[:half])
    assert held_bytes(streams) < len(streams.server.server.streams.connections) * OVERHEAD_BYTES
    for peer in peers:
        peer.write(frame[half:] + encode_frame(Code.PING))
        assert peer.answer() == (status, b"")
        assert peer.answer() == (0, b"")


@pytest.mark.parametrize(
    ("start", "status"),
    [
        # An identifier of a wrong kind; a partitioning of a wrong kind; metadata that are longer than any can be.
        (bytes.fromhex("16000000 030400000000 010400000000 020400000000 01000000"), 6),
        (bytes.fromhex("16000000 010400000000 010400000000 090400000000 01000000"), 3),
        (bytes.fromhex("ffffffff 010400000000 010400000000 020400000000 01000000"), 3),
    ],
)
def test_a_large_send_with_broken_metadata_is_skipped(root: Peer, start: bytes, status: int) -> None:
    root.write(encode_frame(Code.SEND_MESSAGES, start + bytes(MIB)) + encode_frame(Code.PING))
    assert root.answer() == (status, b"")
    assert root.answer() == (0, b"")


def test_permissions_that_change_while_a_send_arrives_count(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create(name, "t")
    root.create_user(name, Permissions(send_messages=True))
    sender = streams.login(name, name)
    frame = large_send(name, size=MIB)
    write_partly(streams, [sender], root, frame[:MIB])
    root.do(UpdatePermissions(name, None))
    sender.write(frame[MIB:])
    assert sender.answer() == (41, b"")


def test_large_permissions_are_received_only_from_users_who_may_give_them(
    streams: StreamsServer, root: Peer, name: str
) -> None:
    many = Permissions(streams={number: StreamPermissions(read_stream=True) for number in range(20_000)})
    create = encode_frame(Code.CREATE_USER, encode_request(CreateUserRequest(name, name, UserStatus.ACTIVE, many)))
    assert len(create) > SMALL_BYTES_MAX
    root.write(create)
    assert root.answer()[0] == 0
    nobody = streams.login(name, name)
    for frame in (create, encode_frame(Code.UPDATE_PERMISSIONS, encode_request(UpdatePermissions(name, many)))):
        half = len(frame) // 2
        write_partly(streams, [nobody], root, frame[:half])
        assert held_bytes(streams) < len(host_of(streams).connections) * OVERHEAD_BYTES
        nobody.write(frame[half:])
        assert nobody.answer() == (41, b"")
    assert nobody.ask(Code.PING) == b""


# How large a request may be.


@pytest.mark.parametrize("code", sorted(CODES - LARGE_BYTES_MAX.keys()))
def test_other_commands_are_small(root: Peer, code: int) -> None:
    root.write(encode_frame(code, bytes(SMALL_BYTES_MAX + 1)) + encode_frame(Code.PING))
    assert root.answer() == (3, b"")
    assert root.answer() == (0, b"")


@pytest.mark.parametrize("code", [Code.CREATE_USER, Code.UPDATE_PERMISSIONS])
def test_permissions_are_bounded(root: Peer, code: int) -> None:
    root.write(encode_frame(code, bytes(PERMISSIONS_BYTES_MAX + 1)) + encode_frame(Code.PING))
    assert root.answer() == (3, b"")
    assert root.answer() == (0, b"")


def test_a_send_that_is_too_large_is_refused_by_its_length(root: Peer) -> None:
    root.write(HEAD.pack(4 + SEND_BYTES_MAX + 1, Code.SEND_MESSAGES))
    assert root.answer() == (4022, b"")
    assert root.is_closed()


# How much is held for a user, and for all.


def test_large_sends_of_one_user_wait_for_each_other_and_hold_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_room(tmp_path, monkeypatch, user_bytes=5 * MIB, all_bytes=20 * MIB) as served:
        root, bob = served.login(), served.login("bob", "bob")
        adas = [served.login("ada", "ada") for _ in range(4)]
        frame = large_send("s")
        write_partly(served, adas, root, frame[:KIB])
        # They cannot end their requests yet: the server reads nothing more of them.
        others = [threading.Thread(target=ada.write, args=(frame[KIB:],)) for ada in adas[1:]]
        for thread in others:
            thread.start()
        bob.send("s", "t", [bytes(4 * MIB)], 0)
        assert room_of(served).held_bytes == len(frame) - HEAD.size
        assert held_bytes(served) < len(frame) + 2 * len(host_of(served).connections) * OVERHEAD_BYTES
        adas[0].write(frame[KIB:])
        for ada in adas:
            assert ada.answer() == (0, b"")
        for thread in others:
            thread.join()
        assert root.poll("s", "t", LAST, count=1).offsets == [4]


def test_large_sends_of_all_users_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with with_room(tmp_path, monkeypatch, user_bytes=5 * MIB, all_bytes=9 * MIB) as served:
        root = served.login()
        ada, bob, eve = (served.login(name, name) for name in ("ada", "bob", "eve"))
        frame = large_send("s")
        write_partly(served, [ada, bob, eve], root, frame[:KIB])
        assert room_of(served).held_bytes == 2 * (len(frame) - HEAD.size)
        # What is small needs no room.
        served.login("eve", "eve").send("s", "t", [b"small"], 0)
        for peer in (ada, bob, eve):
            peer.write(frame[KIB:])
            assert peer.answer() == (0, b"")
        assert room_of(served).held_bytes == 0


def test_ordinary_sends_do_not_wait_for_huge_ones_of_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_room(tmp_path, monkeypatch, user_bytes=5 * MIB, all_bytes=5 * MIB) as served:
        root = served.login()
        adas = [served.login("ada", "ada") for _ in range(3)]
        frame = large_send("s")
        write_partly(served, adas[:2], root, frame[:KIB])
        adas[2].send("s", "t", [bytes(ORDINARY_BYTES_MAX - KIB)], 0)
        for ada in adas[:2]:
            ada.write(frame[KIB:])
            assert ada.answer() == (0, b"")


def test_answered_requests_hold_no_room(tmp_path: Path) -> None:
    """Those that are answered at once, and those that go to a thread, with and without an error."""
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t")
        for size in (100 * KIB, ORDINARY_BYTES_MAX, 4 * MIB):
            body = message(bytes(size))
            for messages, status in (([body], 0), ([body, body[:-1]], 4036), ([body, body[:10]], 4033)):
                root.write(encode_frame(Code.SEND_MESSAGES, send_payload("s", "t", messages, 0)))
                assert root.answer() == (status, b"")
                assert [host_of(served).room_for(size).held_bytes for size in (MIB, 4 * MIB)] == [0, 0]


def test_clients_that_leave_give_their_room_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has room, and one that waits for it."""
    with with_room(tmp_path, monkeypatch, user_bytes=5 * MIB, all_bytes=5 * MIB) as served:
        root = served.login()
        adas = [served.login("ada", "ada") for _ in range(3)]
        frame = large_send("s")
        write_partly(served, adas, root, frame[:KIB])
        adas[1].close()
        adas[0].close()
        adas[2].write(frame[KIB:])
        assert adas[2].answer() == (0, b"")
        wait_until(root, lambda: room_of(served).held_bytes == 0)


def test_a_request_that_is_under_way_keeps_its_room_when_its_client_leaves(tmp_path: Path) -> None:
    """Or a client could make the server hold any number of requests that wait for a slow disk."""
    with streams_server(tmp_path) as served:
        root, leaving = served.login(), served.login()
        root.create("s", "t")
        host, frame = host_of(served), large_send("s")
        assert host.system is not None
        partition = host.system.target("s", "t", PartitionId(0)).partition
        with partition._writing:
            write_partly(served, [leaving], root, frame)
            leaving.close()
            wait_until(root, lambda: len(host.connections) == 1)
            assert room_of(served).held_bytes == len(frame) - HEAD.size
        wait_until(root, lambda: room_of(served).held_bytes == 0)


def test_a_client_that_stops_sending_loses_the_room_that_others_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SWEEP_S_MAX", 0.02)
    with with_room(tmp_path, monkeypatch, user_bytes=5 * MIB, all_bytes=9 * MIB, grace_s=0.02) as served:
        root = served.login()
        silent, other, waiting = (served.login(name, name) for name in ("ada", "bob", "ada"))
        frame = large_send("s")
        write_partly(served, [silent, other], root, frame[:KIB])
        waiting.write(frame)
        assert waiting.answer() == (0, b"")
        assert silent.is_closed()
        # Nobody waits for the room of this one.
        other.write(frame[KIB:])
        assert other.answer() == (0, b"")


def test_a_large_request_that_arrives_too_slowly_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SWEEP_S_MAX", 0.02)
    with streams_server(tmp_path, timeouts=Timeouts(body_s=0.1, body_bytes_per_s_min=MIB)) as served:
        slow, idle = served.login(), served.login()
        slow.create("s", "t")
        frame = large_send("s")
        slow.write(frame[:KIB])
        with pytest.raises((Gone, OSError)):
            write_slowly(slow, frame[KIB:], idle)
