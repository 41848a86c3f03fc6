"""Routers to and from streams, in a running server."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import Http1Client
from tests.server.running import Running, running
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.system import System

ANY_PORT = 0
# Of ten seconds each.
WAITS_MAX = 6


class Bridged:
    """A server with a stream `s`, which has a topic `t` of two partitions."""

    def __init__(self, server: Running, client: Http1Client) -> None:
        self.server = server
        self.client = client
        system = server.server.streams.system
        assert system is not None
        self.system: System = system

    def put(self, name: str, **members: Any) -> dict[str, Any]:
        document: dict[str, Any] = self.client.request("PUT", f"/v0/routers/{name}", members).json
        return document

    def show(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.client.request("GET", f"/v0/routers/{name}").json
        return document

    def send(self, *payloads: bytes, partition: int = 0) -> None:
        batch = encode_send([NewMessage(payload) for payload in payloads])
        self.system.send("s", "t", batch, PartitionId(partition))

    def polled(self) -> list[tuple[Any, Any]]:
        """Payload and seq of all messages."""
        rows: list[tuple[Any, Any]] = []
        for partition_id in range(2):
            found = self.system.poll("s", "t", Consumer(), PollingStrategy.first(), 1000, partition_id=partition_id)
            for message in found:
                seq = message.user_headers["topics.seq"].value
                rows.append((json.loads(bytes(message.payload)), seq))
        return sorted(rows, key=lambda row: row[1])

    def wait(self, topic: str, count: int) -> list[Any]:
        """The payloads of the topic, once it has `count` records."""
        found: list[Any] = []
        from_seq = 0
        for _ in range(count + WAITS_MAX):
            if len(found) >= count:
                return found
            body = {"from_seq": from_seq, "wait_ms": 10_000}
            page = self.client.request("POST", f"/v0/topics/{topic}/diff", body).json
            found += [record["data"] for record in page["records"]]
            from_seq = page["next_from_seq"]
        raise AssertionError(f"{found} came, {count} records were expected")

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """The bridge copies in its own time: asks again and again, each time after an answer of the server."""
        for _ in range(100_000):
            if is_true():
                return
            self.client.request("GET", "/v0/health")
        raise AssertionError("it did not happen")


@pytest.fixture
def bridged(tmp_path: Path) -> Iterator[Bridged]:
    with serving(tmp_path) as made:
        made.system.create_stream("s")
        made.system.create_topic("s", "t", partitions_count=2)
        yield made


@contextmanager
def serving(path: Path) -> Iterator[Bridged]:
    with running(path, streams_port=ANY_PORT) as server, Http1Client(server.host, server.port) as client:
        yield Bridged(server, client)


def test_messages_become_records(bridged: Bridged) -> None:
    bridged.send(b'"before"')
    made = bridged.put("r", source="stream:s/t", dest="a")
    assert (made["created"], made["guarantee"], made["source"]) == (True, "exactly_once", "stream:s/t")
    bridged.send(b'{"id":1}', b"\xff")
    bridged.send(b"2", partition=1)
    found = bridged.wait("a", 3)
    assert sorted(found, key=str) == sorted([{"id": 1}, {"base64": "/w=="}, 2], key=str)
    bridged.wait_for(lambda: bridged.show("r")["forwarded_total"] == 3)
    assert bridged.show("r")["lost_total"] == 0
    bridged.wait_for(lambda: bridged.show("r")["lag"] == 0)


def test_records_become_messages(bridged: Bridged) -> None:
    bridged.client.write("a", 1)
    made = bridged.put("r", source="a", dest="stream:s/t", filter="x*")
    assert (made["created"], made["guarantee"], made["filter"]) == (True, "at_least_once", ["tag", "Glob", "x*"])
    records = [{"data": number, "tag": "x1" if number % 2 else "y"} for number in range(6)]
    bridged.client.request("POST", "/v0/topics/a", {"records": records})
    bridged.wait_for(lambda: len(bridged.polled()) == 3)
    assert [payload for payload, _ in bridged.polled()] == [1, 3, 5]
    bridged.wait_for(lambda: bridged.show("r")["lag"] == 0)


def test_the_lag_counts_messages_that_a_full_topic_holds_back(bridged: Bridged) -> None:
    bridged.client.put_topic("a", cap_records=1, discard="reject")
    bridged.put("r", source="stream:s/t", dest="a")
    bridged.send(b"1", b"2", b"3")
    bridged.wait_for(lambda: "retry" in bridged.show("r") and bridged.show("r")["lag"] == 2)
    (listed,) = bridged.client.request("GET", "/v0/routers").json["routers"]
    assert listed["lag"] == 2


def test_a_restart_goes_on_after_the_last_copy(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        before.system.create_stream("s")
        before.system.create_topic("s", "t", partitions_count=2)
        before.put("in", source="stream:s/t", dest="a")
        before.send(b"1", b"2")
        before.wait("a", 2)
    with serving(tmp_path) as after:
        after.send(b"3")
        assert after.wait("a", 3) == [1, 2, 3]
        after.wait_for(lambda: after.show("in")["forwarded_total"] == 3)


def test_a_restart_repeats_no_record_that_was_noted(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        before.system.create_stream("s")
        before.system.create_topic("s", "t", partitions_count=2)
        before.put("out", source="a", dest="stream:s/t")
        before.client.write("a", 1, 2, 3)
        before.wait_for(lambda: len(before.polled()) == 3)
    with serving(tmp_path) as after:
        after.client.write("a", 4, 5)
        after.wait_for(lambda: len(after.polled()) >= 5)
        assert [seq for _, seq in after.polled()] == [1, 2, 3, 4, 5]


def test_a_bridge_is_listed_among_the_routers_and_deleted_like_one(bridged: Bridged) -> None:
    bridged.put("r1", source="x", dest="y")
    bridged.put("r2", source="stream:s/t", dest="a")
    bridged.put("r3", source="y", dest="z")
    listed = bridged.client.request("GET", "/v0/routers?page_size=2").json
    assert [each["router"] for each in listed["routers"]] == ["r1", "r2"]
    rest = bridged.client.request("GET", f"/v0/routers?cursor={listed['next_cursor']}").json
    assert [each["router"] for each in rest["routers"]] == ["r3"]
    assert bridged.client.request("DELETE", "/v0/routers/r2").json["deleted"]
    assert not bridged.client.request("DELETE", "/v0/routers/r2").json["deleted"]
    assert bridged.client.request("GET", "/v0/routers/r2").refusal == (404, "router_not_found")
    bridged.send(b"1")
    assert bridged.client.request("GET", "/v0/topics/a").json["head_seq"] == 0


def test_a_bridge_that_changes_goes_on_where_it_was(bridged: Bridged) -> None:
    bridged.put("r", source="a", dest="stream:s/t", filter="x")
    bridged.client.request("POST", "/v0/topics/a", {"records": [{"data": 1, "tag": "x"}, {"data": 2, "tag": "y"}]})
    bridged.wait_for(lambda: len(bridged.polled()) == 1)
    assert not bridged.put("r", source="a", dest="stream:s/t", filter="y")["created"]
    bridged.client.request("POST", "/v0/topics/a", {"records": [{"data": 3, "tag": "x"}, {"data": 4, "tag": "y"}]})
    bridged.wait_for(lambda: len(bridged.polled()) == 2)
    assert [payload for payload, _ in bridged.polled()] == [1, 4]


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ({"source": "stream:s/none", "dest": "a"}, (404, "topic_not_found")),
        ({"source": "stream:none/t", "dest": "a"}, (404, "topic_not_found")),
        ({"source": "stream:s", "dest": "a"}, (400, "invalid_request")),
        ({"source": "stream:s/t", "dest": "stream:s/t"}, (400, "invalid_request")),
        ({"source": "stream:s/t", "dest": "a", "create_dest": False}, (404, "topic_not_found")),
    ],
)
def test_a_bridge_without_its_ends_is_refused(
    bridged: Bridged, members: dict[str, Any], refusal: tuple[int, str]
) -> None:
    assert bridged.client.request("PUT", "/v0/routers/r", members).refusal == refusal


def test_a_name_stays_with_its_ends(bridged: Bridged) -> None:
    bridged.put("r", source="stream:s/t", dest="a")
    bridged.put("plain", source="x", dest="y")
    for name, members in (
        ("r", {"source": "stream:s/t", "dest": "b"}),
        ("r", {"source": "x", "dest": "z"}),
        ("plain", {"source": "stream:s/t", "dest": "b"}),
    ):
        refused = bridged.client.request("PUT", f"/v0/routers/{name}", members)
        assert refused.refusal == (409, "topic_exists_incompatible")
        assert refused.error["detail"]["reason"] == "router_repoint_forbidden"


def test_a_cycle_of_topics_may_be_allowed_beside_a_bridge(bridged: Bridged) -> None:
    bridged.put("r", source="a", dest="stream:s/t")
    bridged.put("forth", source="a", dest="b")
    body = {"source": "b", "dest": "a"}
    assert bridged.client.request("PUT", "/v0/routers/back", body).refusal == (409, "router_cycle")
    made = bridged.client.request("PUT", "/v0/routers/back", body | {"allow_cycle": True})
    assert made.status == 201
    bridged.put("in", source="stream:s/t", dest="c")
    refused = bridged.client.request("PUT", "/v0/routers/round", {"source": "c", "dest": "b", "allow_cycle": True})
    assert refused.refusal == (409, "router_cycle")
    assert refused.error["detail"]["cycle"] == ["c", "b", "a", "stream:s/t", "c"]


def test_a_cycle_through_a_stream_is_refused(bridged: Bridged) -> None:
    bridged.put("in", source="stream:s/t", dest="a")
    bridged.put("on", source="a", dest="b")
    refused = bridged.client.request("PUT", "/v0/routers/out", {"source": "b", "dest": "stream:s/t"})
    assert refused.refusal == (409, "router_cycle")
    bridged.client.request("DELETE", "/v0/routers/on")
    bridged.put("out", source="b", dest="stream:s/t")
    assert bridged.client.request("PUT", "/v0/routers/on", {"source": "a", "dest": "b"}).refusal == (
        409,
        "router_cycle",
    )


def test_a_full_dest_holds_the_messages_back_until_there_is_room(bridged: Bridged) -> None:
    bridged.client.request("PUT", "/v0/topics/jobs", {"type": "queue", "cap_records": 1, "discard": "reject"})
    bridged.put("r", source="stream:s/t", dest="jobs")
    bridged.send(b"1", b"2")
    bridged.wait_for(lambda: bridged.show("r")["forwarded_total"] == 1 and "retry" in bridged.show("r"))
    claim = {"node": "w", "wait_ms": 10_000}
    job = bridged.client.request("POST", "/v0/topics/jobs/claim", claim).json["claimed"][0]
    assert job["data"] == 1
    bridged.client.request("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]})
    bridged.wait_for(lambda: "retry" not in bridged.show("r"))
    assert bridged.client.request("POST", "/v0/topics/jobs/claim", claim).json["claimed"][0]["data"] == 2


def test_a_purged_stream_is_read_from_its_new_start(bridged: Bridged) -> None:
    bridged.put("r", source="stream:s/t", dest="a")
    bridged.send(b"1", b"2", b"3")
    bridged.wait("a", 3)
    bridged.system.purge_topic("s", "t")
    # More messages than before the purge: their offsets alone do not tell of it.
    bridged.send(b"4", b"5", b"6", b"7")
    assert bridged.wait("a", 7) == [1, 2, 3, 4, 5, 6, 7]


def test_a_deleted_topic_ends_its_bridges(bridged: Bridged) -> None:
    bridged.put("in", source="stream:s/t", dest="a")
    bridged.put("out", source="b", dest="stream:s/t")
    for topic in "ab":
        bridged.client.request("DELETE", f"/v0/topics/{topic}")
    assert bridged.client.request("GET", "/v0/routers").json["routers"] == []


def test_without_streams_bridges_are_kept_and_none_can_be_made(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        before.system.create_stream("s")
        before.system.create_topic("s", "t")
        before.put("in", source="stream:s/t", dest="a")
    with running(tmp_path) as server, Http1Client(server.host, server.port) as client:
        assert client.request("GET", "/v0/routers/in").json["forwarded_total"] == 0
        members = {"source": "stream:s/t", "dest": "b"}
        refused = client.request("PUT", "/v0/routers/other", members)
        assert refused.refusal == (400, "invalid_request")
        assert "topics serve --streams" in refused.error["message"]
        assert client.request("DELETE", "/v0/routers/in").json["deleted"]


def test_a_key_with_prefixes_must_be_for_both_ends(tmp_path: Path) -> None:
    keys = "full,a1:admin+read+delete:acme."
    with running(tmp_path, keys=keys, streams_port=ANY_PORT) as server:
        system = server.server.streams.system
        assert system is not None
        for name in ("acme.s", "other"):
            system.create_stream(name)
            system.create_topic(name, "t")
        with Http1Client(server.host, server.port) as client:

            def put(source: str, dest: str, key: str = "a1") -> int:
                headers = {"authorization": f"Bearer {key}"}
                body = {"source": source, "dest": dest}
                return client.request("PUT", "/v0/routers/acme.r", body, headers=headers).status

            assert put("stream:other/t", "acme.a") == 403
            assert put("stream:0/t", "acme.a") == 403
            assert put("stream:acme.s/t", "other") == 403
            assert put("stream:acme.s/t", "acme.a") == 201
            assert client.request("DELETE", "/v0/routers/acme.r", headers={"authorization": "Bearer full"}).json
            assert put("stream:other/t", "acme.a", "full") == 201
            shown = client.request("GET", "/v0/routers/acme.r", headers={"authorization": "Bearer a1"})
            assert shown.refusal == (403, "forbidden")
