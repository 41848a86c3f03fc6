"""Limits that the operator sets."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.readers import wait_for_readers
from tests.server.running import Running, running
from topics.server.settings_schema import ServerSettings

Serve = Callable[..., tuple[Running, Client]]


@pytest.fixture
def serve(tmp_path: Path, protocol: str) -> Iterator[Serve]:
    """A server with the settings of the test, and a client to it."""
    with ExitStack() as stack:

        def start(**settings: Any) -> tuple[Running, Client]:
            server = stack.enter_context(running(tmp_path, **settings))
            return server, stack.enter_context(CLIENTS[protocol](server.host, server.port))

        yield start


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 4000, "./topics-data")
    assert settings.max_body_bytes == 67_108_864
    assert (settings.max_batch_records, settings.max_record_bytes) == (10_000, 1_048_576)
    assert (settings.max_meta_bytes, settings.max_tag_bytes, settings.max_node_bytes) == (16_384, 256, 128)
    assert (settings.max_limit, settings.max_watch_topics, settings.max_claim) == (1000, 256, 1000)
    assert (settings.max_topics, settings.max_routers, settings.max_watch_sessions) == (100_000, 10_000, 10_000)
    assert (settings.max_sse_connections, settings.max_sse_connections_per_key) == (10_000, 1000)
    assert (settings.max_inflight_per_key, settings.max_total_bytes) == (1000, 0)
    assert (settings.segment_max_events, settings.segment_max_bytes) == (10_000, 67_108_864)
    assert (settings.segment_max_age_ms, settings.hot_retain_segments, settings.hot_retain_bytes) == (3_600_000, 4, 0)


def test_limits_of_a_write_can_be_set(serve: Serve) -> None:
    _, client = serve(
        max_batch_records=2, max_record_bytes=20, max_meta_bytes=6, max_tag_bytes=3, max_node_bytes=2, max_limit=3
    )
    fits = {"data": "x" * 12, "meta": [1, 2], "tag": "abc", "node": "nn"}
    assert client.write("a", records=[fits, fits])["count"] == 2
    rows: list[tuple[list[dict[str, Any]], str]] = [
        ([fits] * 3, "batch_too_large"),
        ([fits | {"data": "x" * 15}], "record_too_large"),
        ([{"data": "x" * 19}], "record_too_large"),
        ([fits | {"meta": [1, 222]}], "invalid_request"),
        ([fits | {"tag": "abcd"}], "invalid_request"),
        ([fits | {"node": "nnn"}], "invalid_request"),
    ]
    for records, code in rows:
        assert client.request("POST", "/v0/topics/a", {"records": records}).refusal == (400, code)
    client.write("a", 1)
    client.write("a", 2)
    for limit in ({}, {"limit": 0}, {"limit": 3}, {"limit": 1000}):
        assert len(client.diff("a", **limit)["records"]) == 3
    assert len(client.diff("a", limit=2)["records"]) == 2


# Topics.


def refused_topic(client: Client, name: str) -> None:
    for answer in (
        client.request("PUT", f"/v0/topics/{name}", {}),
        client.request("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]}),
    ):
        assert answer.refusal == (429, "throttled")
        assert answer.error["detail"] == {"limit": "max_topics", "max": 2}


def test_topics_are_counted_when_they_are_created(serve: Serve) -> None:
    _, client = serve(max_topics=2)
    client.put_topic("a")
    client.write("b", 1)
    refused_topic(client, "c")
    # Existing topics can be changed and written, and a deleted topic makes room.
    client.put_topic("a", ttl_ms=1_000_000)
    client.write("b", 2)
    client.request("DELETE", "/v0/topics/a")
    client.put_topic("c")
    refused_topic(client, "a")


def test_no_cap_on_topics_is_no_cap(serve: Serve) -> None:
    _, client = serve(max_topics=0)
    for name in "abc":
        client.put_topic(name)


def test_topics_that_are_created_at_once_do_not_overshoot(serve: Serve, protocol: str) -> None:
    server, _ = serve(max_topics=3)
    with ExitStack() as stack:
        clients = [stack.enter_context(CLIENTS[protocol](server.host, server.port)) for _ in range(10)]
        for number, client in enumerate(clients):
            client.start("PUT", f"/v0/topics/t{number}", {})
        statuses = [client.finish().status for client in clients]
    assert sorted(statuses) == [201] * 3 + [429] * 7


# Bytes.


def test_a_write_that_would_lift_the_live_bytes_above_the_quota_is_refused(serve: Serve) -> None:
    _, client = serve(max_total_bytes=20)
    client.write("a", "x" * 8)
    client.write("b", "x" * 8)
    answer = client.request("POST", "/v0/topics/b", {"records": [{"data": 1}]})
    assert answer.refusal == (429, "throttled")
    assert answer.error["detail"] == {"limit": "max_total_bytes", "max": 20}
    assert client.request("POST", "/v0/topics/c", {"records": [{"data": 1}]}).refusal == (429, "throttled")
    # Deleted records, evicted ones and deleted topics make room.
    client.request("POST", "/v0/topics/a/delete", {"before_seq": 9})
    client.write("c", "x" * 8)
    client.request("DELETE", "/v0/topics/b")
    client.write("a", "x" * 8)
    client.put_topic("a", cap_bytes=1)
    client.write("c", "x" * 8)


# Requests of one key.

KEYS = "one,two,ro:read"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_key_has_so_many_requests_at_a_time(serve: Serve, protocol: str) -> None:
    server, client = serve(keys=KEYS, max_inflight_per_key=2)
    client.request("PUT", "/v0/topics/a", {}, bearer("one"))
    with ExitStack() as stack:
        readers = [stack.enter_context(CLIENTS[protocol](server.host, server.port)) for _ in range(2)]
        for count, reader in enumerate(readers, 1):
            reader.start("POST", "/v0/topics/a/diff", {"wait_ms": 30_000}, bearer("one"))
            wait_for_readers(server, count)
        answer = client.request("GET", "/v0/topics", headers=bearer("one"))
        assert answer.refusal == (429, "throttled")
        assert "detail" not in answer.error
        # The limit is checked before the path, and only for this key.
        assert client.request("GET", "/nowhere", headers=bearer("one")).refusal == (429, "throttled")
        assert client.request("GET", "/nowhere", headers=bearer("no")).refusal == (401, "unauthorized")
        assert client.request("GET", "/v0/topics", headers=bearer("two")).status == 200
        assert client.request("GET", "/v0/health", headers=bearer("one")).status == 200
        # A client that goes away makes room, like an answer does.
        readers[0].close()
        wait_for_readers(server, 1)
        assert client.request("GET", "/v0/topics", headers=bearer("one")).status == 200
        client.request("POST", "/v0/topics/a", {"records": [{"data": 1}]}, bearer("one"))
        assert len(readers[1].finish().json["records"]) == 1


def test_the_cap_is_told_before_a_missing_scope(serve: Serve, protocol: str) -> None:
    server, client = serve(keys=KEYS, max_inflight_per_key=1)
    client.request("PUT", "/v0/topics/a", {}, bearer("one"))
    with CLIENTS[protocol](server.host, server.port) as reader:
        reader.start("POST", "/v0/topics/a/diff", {"wait_ms": 30_000}, bearer("ro"))
        wait_for_readers(server, 1)
        assert client.request("DELETE", "/v0/topics/a", headers=bearer("ro")).refusal == (429, "throttled")
    wait_for_readers(server, 0)
    assert client.request("DELETE", "/v0/topics/a", headers=bearer("ro")).refusal == (403, "forbidden")


def test_refused_requests_hold_no_slot(serve: Serve) -> None:
    _, client = serve(keys=KEYS, max_inflight_per_key=1)
    for _ in range(3):
        assert client.request("GET", "/v0/topics/a", headers=bearer("one")).refusal == (404, "topic_not_found")
        assert client.request("PUT", "/v0/topics/a", b"{", bearer("one")).malformed
        assert client.request("PUT", "/v0/topics/a", {}, bearer("ro")).refusal == (403, "forbidden")
        large = b" " * 200_000
        assert client.request("PUT", "/v0/nowhere", large, bearer("one")).refusal == (404, "not_found")


def test_without_keys_nobody_is_counted(serve: Serve, protocol: str) -> None:
    server, client = serve(max_inflight_per_key=1)
    client.put_topic("a")
    with CLIENTS[protocol](server.host, server.port) as reader:
        reader.start("POST", "/v0/topics/a/diff", {"wait_ms": 30_000})
        wait_for_readers(server, 1)
        assert client.request("GET", "/v0/topics", headers={"authorization": "Bearer any"}).status == 200
