"""A server that takes new settings while it runs: what its callers notice."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import Answer, Http1Client
from tests.server.event_streams import Http1EventStream
from tests.server.running import Running, running
from tests.server.ws_peer import ws_client
from topics.errors import SettingsError
from topics.server.settings import LoadedSettings
from topics.server.settings_schema import KeyList

RECORDS: dict[str, Any] = {"records": [{"data": 1}]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, keys="old:rw,kept") as server:
        yield server


def reload(server: Running, **settings: Any) -> None:
    async def take() -> None:
        new = replace(server.server.app.settings, **settings)
        server.server.reload(LoadedSettings(settings=new, origins={}, warnings=()))

    server.call(take())


def ask(server: Running, key: str | None, method: str, path: str, body: Any = None) -> Answer:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with Http1Client(server.host, server.port) as client:
        return client.request(method, path, body, headers)


def test_a_websocket_of_a_removed_key_ends_with_a_reason(server: Running) -> None:
    with ws_client(server, "old") as removed, ws_client(server, "kept") as kept:
        assert removed.ask("ping")["op"] == "pong"
        reload(server, api_keys=KeyList("kept"))
        assert removed.receive()["code"] == "unauthorized"
        assert removed.closed() == (1008, "unauthorized")
        assert kept.ask("ping")["op"] == "pong"


def test_a_worker_of_a_removed_key_gets_no_more_jobs_and_its_jobs_are_ready_again(server: Running) -> None:
    ask(server, "kept", "PUT", "/v0/topics/q", {"type": "queue"})
    ask(server, "kept", "POST", "/v0/topics/q", RECORDS)
    headers = {"authorization": "Bearer old"}
    with Http1EventStream((server.host, server.port), "/v0/topics/q/work?node=w", headers) as stream:
        stream.until("job")
        reload(server, api_keys=KeyList("kept"))
        (event,) = stream.rest()
        assert (event.name, event.data["code"]) == ("error", "unauthorized")
    assert ask(server, "kept", "GET", "/v0/topics/q").json["queue"]["ready"] == 1


@pytest.mark.parametrize("entry", ["kept", "kept,old:read", "kept,old:rw:mine."])
def test_a_key_with_other_rights_is_another_key(server: Running, entry: str) -> None:
    with ws_client(server, "old") as socket:
        reload(server, api_keys=KeyList(entry))
        assert socket.receive()["code"] == "unauthorized"


def test_a_long_poll_of_a_removed_key_is_answered_without_later_records(server: Running) -> None:
    ask(server, "kept", "PUT", "/v0/topics/t")
    with Http1Client(server.host, server.port) as client:
        client.start("POST", "/v0/topics/t/diff", {"wait_ms": 30_000}, {"authorization": "Bearer old"})

        async def wait_until_it_waits() -> bool:
            return bool(server.server.app.waiting)

        while not server.call(wait_until_it_waits()):
            pass
        began_s = time.monotonic()
        reload(server, api_keys=KeyList("kept"))
        ask(server, "kept", "POST", "/v0/topics/t", RECORDS)
        assert client.finish().json["records"] == []
        assert time.monotonic() - began_s < 25


def test_a_ticket_of_a_removed_key_opens_nothing(server: Running) -> None:
    ask(server, "old", "POST", "/v0/topics/t", RECORDS)
    session = ask(server, "old", "POST", "/v0/watch", {"topics": {"t": {}}}).json
    reload(server, api_keys=KeyList("kept"))
    url = f"{session['stream_url']}?token={session['ticket']}"
    assert ask(server, None, "GET", url).refusal == (401, "unauthorized")


def test_a_session_of_a_kept_key_goes_on(server: Running) -> None:
    ask(server, "kept", "POST", "/v0/topics/t", RECORDS)
    session = ask(server, "kept", "POST", "/v0/watch", {"topics": {"t": {}}}).json
    reload(server, api_keys=KeyList("new,kept"))
    headers = {"authorization": "Bearer kept"}
    with Http1EventStream((server.host, server.port), session["stream_url"], headers) as stream:
        assert stream.until("caught-up")


def test_keys_can_be_switched_on_and_not_off(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with ws_client(server) as socket:
            reload(server, api_keys=KeyList("secret"))
            assert socket.receive()["code"] == "unauthorized"
        assert ask(server, None, "GET", "/v0/topics").refusal == (401, "unauthorized")
        assert ask(server, "secret", "GET", "/v0/topics").status == 200
        with pytest.raises(SettingsError, match="the new settings have no API keys"):
            reload(server, api_keys=KeyList(), max_claim=1)
        assert server.server.app.settings.max_claim == 1000


def test_every_limit_counts_from_the_next_request_on(server: Running) -> None:
    ask(server, "kept", "PUT", "/v0/topics/q", {"type": "queue"})
    for _ in range(3):
        ask(server, "kept", "POST", "/v0/topics/q", RECORDS)
    reload(
        server,
        api_keys=KeyList("kept"),
        max_body_bytes=10_000,
        max_record_bytes=100,
        max_tag_bytes=3,
        max_node_bytes=3,
        max_limit=2,
        max_claim=1,
        max_watch_topics=1,
        max_watch_sessions=1,
        max_sse_connections=1,
        max_total_bytes=5,
        max_routers=1,
        max_topics=5,
    )

    def refused(path: str, body: Any) -> tuple[int, str]:
        return ask(server, "kept", "POST", path, body).refusal

    assert refused("/v0/topics/q", {"records": [{"data": "x" * 20_000}]}) == (413, "payload_too_large")
    assert refused("/v0/topics/q", {"records": [{"data": "x" * 200}]}) == (400, "record_too_large")
    assert refused("/v0/topics/q", {"records": [{"data": 1, "tag": "long"}]}) == (400, "invalid_request")
    assert refused("/v0/topics/q/claim", {"node": "long"}) == (400, "invalid_request")
    assert refused("/v0/topics/q/ack", {"node": "n", "seqs": [1, 2]}) == (400, "batch_too_large")
    assert refused("/v0/watch", {"topics": {"q": {}, "r": {}}}) == (400, "invalid_request")
    assert refused("/v0/topics/q", {"records": [{"data": "12345"}]}) == (429, "throttled")
    assert len(ask(server, "kept", "POST", "/v0/topics/q/diff", {}).json["records"]) == 2
    session = ask(server, "kept", "POST", "/v0/watch", {"topics": {"q": {}}}).json
    assert refused("/v0/watch", {"topics": {"q": {}}}) == (429, "throttled")
    headers = {"authorization": "Bearer kept"}
    with Http1EventStream((server.host, server.port), session["stream_url"], headers) as stream:
        stream.next()
        answer = ask(server, "kept", "GET", "/v0/topics/q/work?node=n")
        assert answer.refusal == (429, "throttled")
    assert ask(server, "kept", "PUT", "/v0/routers/r", {"source": "a", "dest": "b"}).status == 201
    assert ask(server, "kept", "PUT", "/v0/routers/s", {"source": "a", "dest": "c"}).refusal == (429, "throttled")
    document = ask(server, "kept", "GET", "/v0/openapi.json").json
    assert document["components"]["schemas"]["DiffBody"]["properties"]["limit"]["x-clamped-to"] == 2
    reload(server, api_keys=KeyList("kept"), max_total_bytes=0)
    assert ask(server, "kept", "POST", "/v0/topics/q", {"records": [{"data": "12345"}]}).status == 200


def test_settings_that_are_taken_during_recovery_count_after_it(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False) as server:
        reload(server, max_topics=1)
        server.call(server.server.recover())
        assert ask(server, None, "PUT", "/v0/topics/a").status == 201
        assert ask(server, None, "PUT", "/v0/topics/b").refusal == (429, "throttled")


def test_a_request_that_was_answered_without_keys_needs_a_key_once_there_are_keys(tmp_path: Path) -> None:
    """The server remembers the heads of requests, and what its checks of them came to."""
    with running(tmp_path) as server, Http1Client(server.host, server.port) as client:
        for _ in range(3):
            assert client.request("POST", "/v0/topics/t", RECORDS).json["count"] == 1
        reload(server, api_keys=KeyList("secret"))
        assert client.request("POST", "/v0/topics/t", RECORDS).refusal == (401, "unauthorized")
