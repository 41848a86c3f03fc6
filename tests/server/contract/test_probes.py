"""Health, readiness, and a server that has not read its log yet."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.running import running
from topics.version import VERSION


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_says_who_answers(client: Client, path: str) -> None:
    health = client.request("GET", path).json
    assert health.keys() == {"status", "version", "uptime_ms", "features"}
    assert (health["status"], health["version"]) == ("ok", VERSION)
    assert isinstance(health["uptime_ms"], int)
    assert isinstance(health["features"], list)


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_says_how_many_topics_there_are(tmp_path: Path, protocol: str, path: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        for count in range(3):
            ready = client.request("GET", path).json
            assert ready == {"status": "ready", "wal_replay_complete": True, "topics": count}
            client.put_topic(f"t{count}")


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/v0/ready", "/readyz", "/v0/metrics"])
def test_probes_answer_without_a_body_when_asked_for_the_head(client: Client, path: str) -> None:
    answer = client.request("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize("accept", [None, "*/*", "text/plain", "text/html, application/xml"])
def test_metrics_are_text(client: Client, accept: str | None) -> None:
    answer = client.request("GET", "/v0/metrics", headers={"accept": accept})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"# TYPE topics_topics gauge\n" in answer.body


@pytest.mark.parametrize("accept", ["application/json", "text/html, application/json;q=0.5"])
def test_metrics_are_json_for_who_asks_for_it(client: Client, accept: str) -> None:
    document = client.request("GET", "/v0/metrics", headers={"accept": accept}).json
    assert document["ready"] is True
    assert document["wal"].keys() >= {"fsyncs", "frames", "batches", "read_only"}


DATA_CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/v0/topics", None),
    ("GET", "/v0/topics/a", None),
    ("PUT", "/v0/topics/a", {}),
    ("DELETE", "/v0/topics/a", None),
    ("POST", "/v0/topics/a", {"records": [{"data": 1}]}),
    ("POST", "/v0/topics/a/diff", {}),
    ("POST", "/v0/topics/a/delete", {"before_seq": 1}),
]


def test_a_server_that_is_not_ready_says_so_and_how_far_it_is(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path, recovers=False) as server, CLIENTS[protocol](server.host, server.port) as client:
        for method, path, body in (*DATA_CALLS, ("GET", "/v0/ready", None), ("GET", "/readyz", None)):
            answer = client.request(method, path, body)
            assert answer.refusal == (503, "not_ready")
            assert answer.error["detail"] == {"replay_progress": 0.0}
        server.server.app.replay_progress = 0.25
        assert client.request("GET", "/v0/ready").error["detail"] == {"replay_progress": 0.25}
        assert client.request("GET", "/v0/health").json["status"] == "ok"
        assert client.request("GET", "/healthz").json["status"] == "ok"
        metrics = client.request("GET", "/v0/metrics", headers={"accept": "application/json"}).json
        assert (metrics["ready"], metrics["replay_progress"]) == (False, 0.25)
        assert b"topics_ready 0" in client.request("GET", "/v0/metrics").body
        # Then it is ready.
        server.call(server.server.recover())
        assert client.request("GET", "/v0/ready").json["status"] == "ready"
        assert client.write("a", 1)["first_seq"] == 1


def test_keys_are_checked_before_readiness(tmp_path: Path, protocol: str) -> None:
    with (
        running(tmp_path, recovers=False, keys="all,ro:read") as server,
        CLIENTS[protocol](server.host, server.port) as client,
    ):
        assert client.request("GET", "/v0/topics").refusal == (401, "unauthorized")
        read_only = {"authorization": "Bearer ro"}
        assert client.request("PUT", "/v0/topics/a", {}, read_only).refusal == (403, "forbidden")
        assert client.request("GET", "/v0/topics", headers=read_only).refusal == (503, "not_ready")


def test_a_server_that_stops_says_so_to_who_can_still_ask(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("a")
        server.server.app.is_draining = True
        for method, path, body in (*DATA_CALLS, ("GET", "/v0/ready", None), ("GET", "/readyz", None)):
            answer = client.request(method, path, body)
            assert answer.refusal == (503, "shutting_down")
            assert "detail" not in answer.error
        assert client.request("GET", "/v0/health").status == 200
        assert client.request("GET", "/nowhere").refusal == (404, "not_found")


def test_a_restart_brings_everything_back(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("a", cap_records=100, durability="fsync")
        client.write("a", records=[{"data": {"n": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}, {"data": None}])
        client.request("POST", "/v0/topics/a/delete", {"before_seq": 2})
        client.write("a", "last")
        before = client.diff("a", include_tags=True)
        state = client.state("a")
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        after = client.diff("a", include_tags=True)
        del before["performance"], after["performance"]
        assert after == before
        assert client.state("a")["config"] == state["config"]
        assert client.write("a", "next")["first_seq"] == 4


def test_metrics_count_connections_and_their_bytes(client: Client) -> None:
    def figures() -> dict[str, float]:
        lines = client.request("GET", "/v0/metrics").body.decode().splitlines()
        return {
            name: float(value) for name, value in (line.split() for line in lines if line[0] != "#" and "{" not in line)
        }

    before = figures()
    client.request("GET", "/v0/health")
    after = figures()
    assert before["topics_connections_open"] >= 1
    assert before["topics_connections_total"] >= 1
    assert after["topics_received_bytes_total"] > before["topics_received_bytes_total"] > 0
    assert after["topics_sent_bytes_total"] > before["topics_sent_bytes_total"] > 0
