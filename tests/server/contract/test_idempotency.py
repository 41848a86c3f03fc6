"""Writes that may be repeated."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.conftest import Connect
from tests.server.running import running

RECORD: dict[str, Any] = {"records": [{"data": 1}]}


def post(client: Client, topic: str, body: Any, **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request("POST", f"/v0/topics/{topic}", body, names)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_repeat_gets_the_answer_of_the_first(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.write(topic, "before")
    first = client.write(topic, "a", "b", idempotency_key="k")
    client.write(topic, "later")
    answer = post(client, topic, {"records": [{"data": "other"}], "idempotency_key": "k"})
    assert answer.status == 200
    assert answer.json == {
        "topic": topic,
        "first_seq": 2,
        "last_seq": 3,
        "seqs": [2, 3],
        "head_seq": 3,
        "count": 2,
        "created": False,
        "deduped": True,
        "performance": {"server_total_ms": answer.json["performance"]["server_total_ms"]},
    }
    assert first["head_seq"] == 3
    assert client.datas(topic) == ["before", "a", "b", "later"]


def test_a_repeat_of_the_write_that_created_did_not_create(client: Client, topic: str) -> None:
    assert post(client, topic, RECORD | {"idempotency_key": "k"}).status == 201
    repeat = post(client, topic, RECORD | {"idempotency_key": "k"})
    assert (repeat.status, repeat.json["created"], repeat.json["deduped"]) == (200, False, True)


def test_a_repeat_may_leave_out_its_seqs(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    assert "seqs" not in client.write(topic, 1, idempotency_key="k", query="?return_seqs=false")


def test_the_header_is_a_key_too(client: Client, topic: str) -> None:
    assert post(client, topic, RECORD, idempotency_key="k").json["deduped"] is False
    assert post(client, topic, RECORD, idempotency_key="k").json["deduped"] is True
    assert post(client, topic, RECORD | {"idempotency_key": "k"}).json["deduped"] is True
    assert post(client, topic, RECORD | {"idempotency_key": None}, idempotency_key="k").json["deduped"] is True


def test_the_body_wins_over_the_header(client: Client, topic: str) -> None:
    post(client, topic, RECORD | {"idempotency_key": "body"}, idempotency_key="header")
    assert post(client, topic, RECORD, idempotency_key="header").json["deduped"] is False
    assert post(client, topic, RECORD, idempotency_key="body").json["deduped"] is True


def test_the_empty_text_is_a_key(client: Client, topic: str) -> None:
    assert post(client, topic, RECORD | {"idempotency_key": ""}).json["deduped"] is False
    assert post(client, topic, RECORD | {"idempotency_key": ""}).json["deduped"] is True
    assert post(client, topic, RECORD, idempotency_key="").json["deduped"] is True
    assert post(client, topic, RECORD).json["deduped"] is False


@pytest.mark.parametrize("key", ["é😀", "with blank", "K", 'q"uote', "\u0000"])
def test_keys_are_told_apart_by_their_bytes(client: Client, topic: str, key: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    assert client.write(topic, 1, idempotency_key=key)["deduped"] is False
    assert client.write(topic, 1, idempotency_key=key)["deduped"] is True


def test_a_header_is_utf8(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="é")
    assert client.request("POST", f"/v0/topics/{topic}", RECORD, {"idempotency-key": "é".encode()}).json["deduped"]
    bad = client.request("POST", f"/v0/topics/{topic}", RECORD, {"idempotency-key": b"\xff"})
    assert bad.refusal == (400, "invalid_request")


@pytest.mark.parametrize(("size", "status"), [(256, 201), (257, 400)])
def test_a_header_has_at_most_256_bytes(client: Client, topic: str, size: int, status: int) -> None:
    assert post(client, topic, RECORD, idempotency_key="k" * size).status == status


def test_a_key_counts_for_its_topic_only(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    assert client.write(f"{topic}.other", 1, idempotency_key="k")["deduped"] is False


def test_keys_end_with_their_topic(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    client.request("DELETE", f"/v0/topics/{topic}")
    again = client.write(topic, 2, idempotency_key="k")
    assert (again["deduped"], again["created"], again["first_seq"]) == (False, True, 1)


def test_a_write_that_failed_is_not_remembered(client: Client, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_records=1)
    client.write(topic, 1)
    body = RECORD | {"idempotency_key": "k"}
    assert post(client, topic, body).refusal == (422, "topic_full")
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2})
    answer = post(client, topic, body).json
    assert (answer["deduped"], answer["first_seq"]) == (False, 2)


def test_a_repeat_is_checked_like_any_write(client: Client, topic: str) -> None:
    client.write(topic, 1, idempotency_key="k")
    assert post(client, topic, {"records": [], "idempotency_key": "k"}).refusal == (400, "invalid_request")
    assert post(client, topic, b'{"idempotency_key":"k"', idempotency_key="k").malformed
    long_tag = {"records": [{"data": 1, "tag": "t" * 257}], "idempotency_key": "k"}
    assert post(client, topic, long_tag).refusal == (400, "invalid_request")


@pytest.mark.parametrize("exists", [False, True], ids=["absent topic", "existing topic"])
@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_of_requests_at_once_exactly_one_appends(connect: Connect, topic: str, exists: bool, durability: str) -> None:
    clients = [connect() for _ in range(8)]
    if exists:
        clients[0].put_topic(topic, durability=durability)
    for number, client in enumerate(clients):
        body = {"records": [{"data": number}], "idempotency_key": "k", "config": {"durability": durability}}
        client.start("POST", f"/v0/topics/{topic}", body)
    answers = [client.finish().json for client in clients]
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 7
    assert {(answer["first_seq"], answer["last_seq"], answer["count"]) for answer in answers} == {(1, 1, 1)}
    assert clients[0].state(topic)["head_seq"] == 1


def test_keys_of_stored_classes_survive_a_restart(tmp_path: Path, protocol: str) -> None:
    classes = ("memory", "disk", "fsync", "ephemeral")
    for deduped in (False, True):
        with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
            for durability in classes:
                body = RECORD | {"idempotency_key": "k", "config": {"durability": durability}}
                answer = post(client, durability, body).json
                assert answer["deduped"] == (deduped and durability != "ephemeral")
