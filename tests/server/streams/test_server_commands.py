"""What clients ask about the server: statistics, clients, the cluster, snapshots."""

import io
import os
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.server.streams.peer import Peer, StreamsServer, streams_server
from topics.formats.stream_permissions import Permissions
from topics.limits import MIB
from topics.protocol.iggy.answers import ClientRecord, Cluster, NodeRecord, Stats
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import CreateConsumerGroupRequest, GetClient, GetSnapshot


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_statistics_count_what_is_there(tmp_path: Path) -> None:
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t", "u", partitions=2)
        root.do(CreateConsumerGroupRequest("s", "t", "g"))
        root.send("s", "t", [b"hello"] * 3, 0)
        before_bytes = resident_bytes()
        (stats,) = root.get(Code.GET_STATS, Stats)
        after_bytes = resident_bytes()
    assert stats.process_id == os.getpid()
    assert (stats.streams_count, stats.topics_count, stats.partitions_count, stats.segments_count) == (1, 2, 4, 4)
    assert (stats.messages_count, stats.messages_size_bytes) == (3, 3 * 69)
    assert (stats.clients_count, stats.consumer_groups_count) == (1, 1)
    assert stats.server_semver == 8000
    assert stats.hostname == os.uname().nodename
    assert 0 < stats.free_disk_space <= stats.total_disk_space
    assert 0 < stats.available_memory <= stats.total_memory
    # The server is in this process.
    assert min(before_bytes, after_bytes) - 64 * MIB < stats.memory_usage < max(before_bytes, after_bytes) + 64 * MIB
    assert stats.start_time > 1_600_000_000_000_000
    assert stats.read_bytes > 300


def test_clients_are_listed_with_their_users(streams: StreamsServer, root: Peer) -> None:
    other = streams.connect()
    other.ask(Code.PING)
    (me,) = root.get(Code.GET_ME, ClientRecord)
    host, port = root.socket.getsockname()
    assert me == ClientRecord(me.client_id, 0, 1, f"{host}:{port}", 0)
    clients = {client.client_id: client for client in root.get(Code.GET_CLIENTS, ClientRecord)}
    assert clients[me.client_id] == me
    port = other.socket.getsockname()[1]
    (found,) = [client for client in clients.values() if client.address.endswith(f":{port}")]
    assert found.user_id == 2**32 - 1
    assert root.get(GetClient(found.client_id), ClientRecord) == [found]
    assert root.do(GetClient(2**32 - 1)) == b""
    assert root.status(GetClient(0)) == 101


def test_servers_are_read_with_permission(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create_user(name)
    root.create_user(name + "r", Permissions(read_servers=True))
    root.create_user(name + "m", Permissions(manage_servers=True))
    nobody = streams.login(name, name)
    readers = [streams.login(each, each) for each in (name + "r", name + "m")]
    for request in (Code.GET_STATS, Code.GET_CLIENTS, GetClient(1), GetSnapshot(1, (6,))):
        assert nobody.status(request) == 41
        assert [reader.status(request) for reader in readers] == [0, 0]


def test_the_cluster_has_one_node(streams: StreamsServer, root: Peer) -> None:
    host, port = streams.address
    node = NodeRecord("iggy-node", host, port, 0, 0, 0, 0, 0)
    assert root.get(Code.GET_CLUSTER_METADATA, Cluster) == [Cluster("single-node", (node,))]


@pytest.mark.parametrize(("compression", "method"), [(1, zipfile.ZIP_STORED), (2, zipfile.ZIP_DEFLATED)])
def test_a_snapshot_is_a_zip_file_with_a_text_for_each_type(root: Peer, compression: int, method: int) -> None:
    with zipfile.ZipFile(io.BytesIO(root.do(GetSnapshot(compression, (100,))))) as archive:
        assert archive.namelist() == [
            "filesystem_overview.txt",
            "process_list.txt",
            "resource_usage.txt",
            "server_config.txt",
        ]
        assert all(entry.compress_type == method for entry in archive.infolist())
        config = tomllib.loads(archive.read("server_config.txt").decode())
        assert config["system"]["segment"]["size"] == 1024**3
        assert "key" not in config["system"]["encryption"]
        assert b"process %d" % os.getpid() in archive.read("process_list.txt")


def test_snapshots_that_cannot_be_made(root: Peer) -> None:
    for request, status in (
        (GetSnapshot(3, (1,)), 5),
        (GetSnapshot(6, (1,)), 5),
        (GetSnapshot(7, (1,)), 3),
        (GetSnapshot(0, (1,)), 3),
        (GetSnapshot(1, (100, 1)), 3),
        (GetSnapshot(1, (7,)), 3),
    ):
        assert root.status(request) == status
    with zipfile.ZipFile(io.BytesIO(root.do(GetSnapshot(1, (4, 5))))) as archive:
        assert archive.namelist() == ["test.txt"]
