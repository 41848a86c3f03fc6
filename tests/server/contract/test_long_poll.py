"""A diff that waits."""

from pathlib import Path

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.conftest import Connect
from tests.server.readers import wait_for_readers
from tests.server.running import Running, running

WAIT_MS = 30_000


@pytest.fixture
def reader(connect: Connect) -> Client:
    """A second connection."""
    return connect()


def start_waiting(server: Running, reader: Client, topic: str, **members: object) -> None:
    reader.start("POST", f"/v0/topics/{topic}/diff", {"wait_ms": WAIT_MS} | members)
    wait_for_readers(server)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_waiting_reader_gets_the_next_write(
    server: Running, client: Client, reader: Client, topic: str, durability: str
) -> None:
    client.put_topic(topic, durability=durability)
    client.write(topic, "before")
    start_waiting(server, reader, topic, from_seq=1)
    client.write(topic, "a", "b")
    page = reader.finish().json
    assert [record["data"] for record in page["records"]] == ["a", "b"]
    assert (page["next_from_seq"], page["caught_up"], page["head_seq"]) == (3, True, 3)
    assert not server.server.app.waiting


def test_everybody_who_waits_is_answered(server: Running, connect: Connect, client: Client, topic: str) -> None:
    client.put_topic(topic)
    readers = [connect() for _ in range(5)]
    for reader in readers:
        reader.start("POST", f"/v0/topics/{topic}/diff", {"wait_ms": WAIT_MS})
    wait_for_readers(server, 5)
    client.write(topic, 1)
    assert [len(reader.finish().json["records"]) for reader in readers] == [1] * 5


def test_the_next_write_ends_the_wait_even_when_all_of_it_is_filtered(
    server: Running, client: Client, reader: Client, topic: str
) -> None:
    client.put_topic(topic)
    start_waiting(server, reader, topic, node="me")
    client.write(topic, 1, node="me")
    page = reader.finish().json
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 1, True)


def test_a_wait_that_ends_gives_the_first_look(reader: Client, client: Client, topic: str) -> None:
    client.put_topic(topic)
    page = reader.request("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 1}).json
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 0, True, None)


def test_nobody_waits_when_there_is_something_to_read(client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    assert client.datas(topic, wait_ms=WAIT_MS) == [1, 2]
    assert client.datas(topic, wait_ms=WAIT_MS, limit=1) == [1]


def test_nobody_waits_behind_a_tombstone(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=1)
    client.write(topic, "too large")
    page = client.diff(topic, wait_ms=WAIT_MS)
    assert (page["records"], page["caught_up"]) == ([], True)
    assert page["tombstone"] is not None


def test_skipped_records_alone_are_nothing_to_read(server: Running, client: Client, reader: Client, topic: str) -> None:
    """The first read is caught up and empty, so the reader waits."""
    client.write(topic, 1, node="me")
    start_waiting(server, reader, topic, node="me")
    client.write(topic, 2, node="you")
    page = reader.finish().json
    assert [record["data"] for record in page["records"]] == [2]


def test_a_write_to_another_topic_wakes_nobody(server: Running, client: Client, reader: Client, topic: str) -> None:
    client.put_topic(topic)
    start_waiting(server, reader, topic)
    client.write(f"{topic}.other", 1)
    client.put_topic(topic, ttl_ms=1_000_000)
    wait_for_readers(server)
    client.write(topic, "mine")
    assert [record["data"] for record in reader.finish().json["records"]] == ["mine"]


def test_a_topic_that_is_deleted_meanwhile_is_not_found(
    server: Running, client: Client, reader: Client, topic: str
) -> None:
    client.put_topic(topic)
    start_waiting(server, reader, topic)
    client.request("DELETE", f"/v0/topics/{topic}")
    assert reader.finish().refusal == (404, "topic_not_found")


def test_a_reader_that_goes_away_is_forgotten(server: Running, client: Client, reader: Client, topic: str) -> None:
    client.put_topic(topic)
    start_waiting(server, reader, topic)
    reader.close()
    wait_for_readers(server, 0)
    assert client.write(topic, 1)["first_seq"] == 1


def test_readers_get_what_there_is_when_the_server_stops(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("a")
        reader = CLIENTS[protocol](server.host, server.port)
        start_waiting(server, reader, "a")
    with reader:
        page = reader.finish().json
    assert (page["records"], page["caught_up"]) == ([], True)
