"""Heartbeats: clients that do not ping leave the register."""

import math
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
from topics.server.streams.session import Session

TABLE = {"heartbeat": {"enabled": True, "interval": "2 s"}}


def members(peer: Peer) -> list[MemberRecord]:
    return peer.get(GetConsumerGroup("s", "t", "g"), GroupRecord, MemberRecord)[1:]


def registered(served: StreamsServer) -> Peer:
    """A client whose heartbeats count as on time until `fall_silent`, however long the machine keeps this process."""
    peer = served.connect()
    peer.ask(Code.PING)

    async def keep() -> None:
        for session in clients_of(served).values():
            session.pinged_s = math.inf

    served.server.call(keep())
    return peer.login()


def clients_of(served: StreamsServer) -> dict[int, Session]:
    service = served.server.server.streams._service
    assert service is not None
    return service.clients


def fall_silent(served: StreamsServer, watcher: Peer) -> None:
    """All clients but the watcher have not pinged for long. Waits until only the watcher is registered."""
    (me,) = watcher.get(Code.GET_ME, ClientRecord)

    async def fall() -> None:
        for client_id, session in clients_of(served).items():
            if client_id != me.client_id:
                session.pinged_s = -math.inf

    served.server.call(fall())
    while watcher.get(Code.GET_CLIENTS, ClientRecord) != [me]:
        pass


def test_a_silent_client_leaves_its_groups_and_stays_connected(tmp_path: Path) -> None:
    with streams_server(tmp_path, TABLE) as served:
        watcher = registered(served)
        watcher.create("s", "t")
        watcher.do(CreateConsumerGroupRequest("s", "t", "g"))
        silent = [registered(served) for _ in range(4)]
        silent[0].do(JoinConsumerGroup("s", "t", "g"))
        fall_silent(served, watcher)
        while members(watcher):
            pass
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
