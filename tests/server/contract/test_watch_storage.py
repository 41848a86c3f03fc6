"""Streams over a disk that is damaged, slow, or out of reach."""

import select
from pathlib import Path

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.contract.test_storage_errors import Disk, HeldSyncs
from tests.server.event_streams import EVENT_STREAMS, EventStream
from tests.server.running import Running
from topics.storage.fs import RealFs
from topics.testing.fault_fs import FaultFs


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def watch(server: Running, client: Client, protocol: str, **members: object) -> EventStream:
    session = client.request("POST", "/v0/watch", {"topics": {"a": {}}} | members).json
    return EVENT_STREAMS[protocol]((server.host, server.port), session["stream_url"])


def test_a_damaged_record_is_a_gap_of_one_and_the_stream_goes_on(disk: Disk, protocol: str) -> None:
    disk.fill(20)
    # The newest segment is in the hot tier: seqs 16 to 20.
    (path,) = disk.data.glob("topics/*/*.data")
    content = bytearray(path.read_bytes())
    content[content.index(b'{"d":18}') + 5] ^= 1
    path.write_bytes(content)
    with (
        disk.served(RealFs()) as server,
        CLIENTS[protocol](server.host, server.port) as client,
        watch(server, client, protocol) as stream,
    ):
        events = stream.until("caught-up")
    gaps = [event for event in events if event.name == "tombstone"]
    assert [(gap.data["gap_from"], gap.data["gap_to"], gap.data["reason"]) for gap in gaps] == [(18, 18, "corrupt")]
    assert gaps[0].cursors == {"a": 18}
    seqs = [seq for event in events if event.name == "record" for seq in event.seqs]
    assert seqs == [*range(1, 18), 19, 20]


def test_a_cold_tier_that_is_away_delays_the_stream_and_loses_nothing(disk: Disk, protocol: str) -> None:
    disk.fill(20)
    faults = FaultFs(RealFs())
    with disk.served(faults) as server, CLIENTS[protocol](server.host, server.port) as client:
        faults.fail("open", "pread", "map", lasts=True, path=lambda path: path.startswith(str(disk.cold)))
        with watch(server, client, protocol) as stream:
            retry = stream.maybe_next()
            assert retry is not None
            # Other clients are served meanwhile.
            assert client.datas("a", from_seq=19) == [20]
            faults.heal()
            events = stream.until("caught-up")
    assert [seq for event in events[:-1] for seq in event.seqs] == list(range(1, 21))


def test_a_strong_watcher_gets_only_what_is_synced_and_makes_it_so(disk: Disk, protocol: str) -> None:
    fs = HeldSyncs(RealFs())
    with disk.served(fs) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("a", durability="disk")
        # The first write reserves seqs, which is synced.
        client.write("a", "first")
        with (
            watch(server, client, protocol) as eventual,
            watch(server, client, protocol, consistency="strong") as strong,
        ):
            assert [stream.until("caught-up")[0].datas for stream in (eventual, strong)] == [["first"], ["first"]]
            fs.may_go_on.clear()
            client.write("a", "second")
            assert eventual.next().datas == ["second"]
            # The turn that delivered is over, and the writer did not wait.
            assert client.datas("a", from_seq=1) == ["second"]
            assert select.select([strong.socket], [], [], 0)[0] == []
            client.write("a", "third")
            fs.may_go_on.set()
            events = strong.until("caught-up")
            assert [data for event in events[:-1] for data in event.datas] == ["second", "third"]
