"""The member `performance`."""

from typing import Any

import pytest

from tests.server.clients import Client
from tests.server.conftest import Connect

RECORD: dict[str, Any] = {"records": [{"data": 1}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "members"),
    [
        ("PUT", "/v0/topics/{}", {}, {"server_total_ms"}),
        ("GET", "/v0/topics/{}", None, {"server_total_ms"}),
        ("GET", "/v0/topics", None, {"server_total_ms"}),
        ("POST", "/v0/topics/{}", RECORD, {"server_total_ms", "wal_append_ms", "fsync_ms"}),
        ("POST", "/v0/topics/{}/diff", {}, {"server_total_ms", "records_scanned"}),
        ("POST", "/v0/topics/{}/delete", {"before_seq": 1}, {"server_total_ms"}),
        ("DELETE", "/v0/topics/{}", None, {"server_total_ms"}),
    ],
)
def test_which_members_an_answer_has(
    client: Client, topic: str, method: str, path: str, body: Any, members: set[str]
) -> None:
    client.put_topic(topic)
    performance = client.request(method, path.format(topic), body).json["performance"]
    assert performance.keys() == members
    assert performance["server_total_ms"] >= 0


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/v0/ready", "/readyz"])
def test_probes_have_none(client: Client, path: str) -> None:
    assert "performance" not in client.request("GET", path).json


def test_metrics_have_none(client: Client) -> None:
    assert "performance" not in client.request("GET", "/v0/metrics", headers={"accept": "application/json"}).json


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_only_who_waits_for_a_sync_is_told_of_one(client: Client, topic: str, durability: str) -> None:
    """Also the write that creates the topic, which is synced in every class."""
    for _ in range(3):
        performance = client.write(topic, 1, config={"durability": durability})["performance"]
        assert (performance["fsync_ms"] > 0) == (durability == "fsync")
        if durability == "ephemeral":
            assert performance["wal_append_ms"] == 0.0
        elif durability != "fsync":
            assert performance["wal_append_ms"] >= 0


def test_who_shares_a_sync_without_waiting_for_it_is_told_of_none(connect: Connect, topic: str) -> None:
    """Writes of both classes in one group."""
    clients = [connect() for _ in range(8)]
    classes = ["fsync", "disk"] * 4
    for durability in ("fsync", "disk"):
        clients[0].put_topic(f"{topic}.{durability}", durability=durability)
    for _ in range(5):
        for client, durability in zip(clients, classes, strict=True):
            client.start("POST", f"/v0/topics/{topic}.{durability}", RECORD)
        for client, durability in zip(clients, classes, strict=True):
            assert (client.finish().json["performance"]["fsync_ms"] > 0) == (durability == "fsync")


def test_a_repeat_reports_its_total_only(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    assert client.write(topic, 1, idempotency_key="k")["performance"].keys() == {"server_total_ms"}


def test_every_slot_that_was_looked_at_is_counted(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": 1, "tag": str(seq)} for seq in range(10)])
    client.request("POST", f"/v0/topics/{topic}/delete", {"match": "4"})
    assert client.diff(topic)["performance"]["records_scanned"] == 10
    assert client.diff(topic, limit=3)["performance"]["records_scanned"] == 3
    assert client.diff(topic, from_seq=10)["performance"]["records_scanned"] == 0


def test_an_error_has_none(client: Client, topic: str) -> None:
    """`Answer.error` checks the members of the envelope."""
    assert client.request("GET", f"/v0/topics/{topic}").error["code"] == "topic_not_found"
