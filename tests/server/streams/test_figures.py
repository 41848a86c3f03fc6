"""The metrics of streams: what clients of Apache Iggy did, and what the engine holds."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import Running, running
from topics.protocol.response_body import MetricsJson
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.system import System

PING = bytes.fromhex("0400000001000000")
GET_STREAMS = bytes.fromhex("04000000c9000000")
OK = bytes(8)
UNAUTHENTICATED = bytes.fromhex("2800000000000000")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, keys="all,some:read:ord", streams_port=0) as served:
        yield served


def system_of(server: Running) -> System:
    system = server.server.streams.system
    assert system is not None
    return system


def scrape(server: Running, key: str = "all", accept: str = "text/plain") -> bytes:
    connection = HTTPConnection(server.host, server.port, timeout=20)
    try:
        connection.request("GET", "/v0/metrics", headers={"authorization": f"Bearer {key}", "accept": accept})
        return connection.getresponse().read()
    finally:
        connection.close()


def values(server: Running, key: str = "all") -> dict[str, float]:
    """By name and labels, of the streams."""
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True) if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(scrape(server, key).decode())
        for sample in family.samples
        if sample.name.startswith("topics_stream")
    }


def test_messages_bytes_and_unsaved_messages_are_those_of_the_engine(server: Running) -> None:
    system = system_of(server)
    system.create_stream("orders")
    system.create_topic("orders", "events", partitions_count=2)
    system.create_stream("secrets")
    system.create_topic("secrets", "t", partitions_count=1)
    system.send("orders", "events", encode_send([NewMessage(b"1"), NewMessage(b"2")]), PartitionId(1))
    system.flush("orders", "events", 1, fsync=False)
    system.send("orders", "events", encode_send([NewMessage(b"3")]), PartitionId(1))
    found = values(server)
    expected = {
        "topics_streams_streams": 2,
        "topics_streams_topics": 2,
        "topics_streams_partitions": 3,
        "topics_streams_messages": 3,
        "topics_streams_bytes": 195,
        "topics_streams_unsaved_messages": 1,
        "topics_streams_stopped_partitions": 0,
        "topics_streams_recovery_progress": 1,
        'topics_stream_topic_messages{"stream": "orders", "topic": "events"}': 3,
        'topics_stream_topic_bytes{"stream": "orders", "topic": "events"}': 195,
        'topics_stream_topic_sent_messages_total{"stream": "orders", "topic": "events"}': 3,
        'topics_stream_topic_messages{"stream": "secrets", "topic": "t"}': 0,
        "topics_stream_topic_metrics_truncated": 0,
    }
    assert {name: found[name] for name in expected} == expected
    seen = values(server, "some")
    assert not [name for name in seen if "secrets" in name]
    assert seen["topics_streams_messages"] == 3


def test_requests_count_by_command_and_errors_by_status(server: Running) -> None:
    address = server.server.streams.address
    assert address is not None
    with socket.create_connection(address, timeout=20) as client, client.makefile("rb") as answers:
        for request, answer in ((PING, OK), (PING, OK), (GET_STREAMS, UNAUTHENTICATED)):
            client.sendall(request)
            assert answers.read(8) == answer
        found = values(server)
        assert found["topics_streams_connections_open"] == found["topics_streams_connections_total"] == 1
        assert found['topics_streams_requests_total{"command": "ping"}'] == 2
        assert found['topics_streams_errors_total{"status": "unauthenticated"}'] == 1
        assert found["topics_streams_received_bytes_total"] == 24
        assert found["topics_streams_sent_bytes_total"] == 24
        text = scrape(server, accept="application/json")
        as_json = msgspec.json.decode(text, type=MetricsJson).streams
        assert not isinstance(as_json, msgspec.UnsetType)
        assert (as_json.requests["ping"], as_json.errors, as_json.connections) == (2, {"unauthenticated": 1}, 1)


def test_a_server_that_recovers_has_no_numbers_of_the_engine_yet(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False, keys="all", streams_port=0) as server:
        found = values(server)
        assert (found["topics_streams_recovery_progress"], found["topics_streams_streams"]) == (0, 0)


def test_a_server_without_streams_shows_none(tmp_path: Path) -> None:
    with running(tmp_path, keys="all") as server:
        assert values(server) == {}
        assert b'"streams"' not in scrape(server, accept="application/json")
