"""Heartbeats: clients that do not ping leave the register."""

from pathlib import Path

from tests.server.streams.peer import NEXT, Peer, StreamsServer, streams_server
from topics.protocol.iggy.answers import ClientRecord, GroupRecord, MemberRecord
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import (
    CreateConsumerGroupRequest,
    GetConsumerGroup,
    JoinConsumerGroup,
    PollMessages,
    StoreConsumerOffset,
)

TABLE = {"heartbeat": {"enabled": True, "interval": "1 s"}}


def members(peer: Peer) -> list[MemberRecord]:
    return peer.get(GetConsumerGroup("s", "t", "g"), GroupRecord, MemberRecord)[1:]


def drop(served: StreamsServer, watcher: Peer, count: int) -> None:
    """Waits until only the watcher is registered, which pings."""
    while True:
        watcher.ask(Code.PING)
        if len(watcher.get(Code.GET_CLIENTS, ClientRecord)) == count:
            return


def test_a_silent_client_leaves_its_groups_and_stays_connected(tmp_path: Path) -> None:
    with streams_server(tmp_path, TABLE) as served:
        watcher = served.login()
        watcher.create("s", "t")
        watcher.do(CreateConsumerGroupRequest("s", "t", "g"))
        silent = [served.login() for _ in range(4)]
        for peer in silent:
            peer.ask(Code.PING)
        silent[0].do(JoinConsumerGroup("s", "t", "g"))
        drop(served, watcher, 1)
        while members(watcher):
            watcher.ask(Code.PING)
        # Ordinary commands go on, and a ping brings nobody back.
        for peer in silent:
            peer.send("s", "t", [b"x"], 0)
            assert peer.poll("s", "t").count
            peer.ask(Code.PING)
        assert len(watcher.get(Code.GET_CLIENTS, ClientRecord)) == 1
        for peer, request, status in (
            (silent[0], PollMessages(2, "g", "s", "t", None, *NEXT, 1, False), 30),
            (silent[1], StoreConsumerOffset(2, "g", "s", "t", 0, 0), 30),
            (silent[2], JoinConsumerGroup("s", "t", "g"), 30),
            (silent[3], Code.GET_ME, 100),
        ):
            assert peer.status(request) == status
            assert peer.is_closed()


def test_without_heartbeats_a_silent_client_stays(streams: StreamsServer, root: Peer) -> None:
    silent = streams.connect()
    for _ in range(100):
        root.ask(Code.PING)
    port = silent.socket.getsockname()[1]
    addresses = [client.address for client in root.get(Code.GET_CLIENTS, ClientRecord)]
    assert any(address.endswith(f":{port}") for address in addresses)
