"""Unusual inputs that the contract lists. Some of them are in the other files of this folder."""

from typing import Any

import pytest

from tests.server.clients import Client

BAD = (400, "invalid_request")
ABSENT = (404, "topic_not_found")

# (method, path, body, answer). `{}` is a topic with three records, `{}.absent` does not exist.
REFUSED: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("GET", "/v0/topics/", None, (404, "not_found")),
    ("GET", "/v0/topics/x/", None, (404, "not_found")),
    ("PATCH", "/v0/topics/x", None, (405, "method_not_allowed")),
    ("PUT", "/v0/topics/x/diff", {}, (405, "method_not_allowed")),
    ("POST", "/v0/topics", {}, (405, "method_not_allowed")),
    ("OPTIONS", "/v0/topics", None, (405, "method_not_allowed")),
    ("OPTIONS", "/v0/topics/x", None, (405, "method_not_allowed")),
    ("OPTIONS", "/v0/topics/x/diff", None, (405, "method_not_allowed")),
    ("GET", "/elsewhere", None, (404, "not_found")),
    ("PUT", "/v0/topics/.x", {}, BAD),
    ("PUT", "/v0/topics/" + "n" * 256, {}, BAD),
    ("PUT", "/v0/topics/a%20b", {}, BAD),
    ("PUT", "/v0/topics/a%2Fb", {}, BAD),
    ("PUT", "/v0/topics/a-%3Eb", {}, BAD),
    ("PUT", "/v0/topics/{}", b"null", BAD),
    ("PUT", "/v0/topics/{}", [], BAD),
    ("PUT", "/v0/topics/{}", "s", BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": -1}, BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": 1.5}, BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": 1.0}, BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": "5"}, BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": None}, BAD),
    ("PUT", "/v0/topics/{}", {"ttl_ms": 18446744073709551616}, BAD),
    ("PUT", "/v0/topics/{}", {"priority": 3000000000}, BAD),
    ("PUT", "/v0/topics/{}", {"type": None}, BAD),
    ("PUT", "/v0/topics/{}", {"durable": None}, BAD),
    ("POST", "/v0/topics/{}", {"records": []}, BAD),
    ("POST", "/v0/topics/{}", {}, BAD),
    ("POST", "/v0/topics/{}", {"records": None}, BAD),
    ("POST", "/v0/topics/{}", {"records": [None]}, BAD),
    ("POST", "/v0/topics/{}", {"records": [{"tag": "x"}]}, BAD),
    ("POST", "/v0/topics/{}.absent", {"records": [{"data": 1}], "config": {"auto_create": False}}, ABSENT),
    ("POST", "/v0/topics/.x", {"records": [{"data": 1}]}, BAD),
    ("POST", "/v0/topics/.x", {"records": [{"data": 1}], "create": False}, ABSENT),
    *(
        ("POST", "/v0/topics/{}/diff", {member: value}, BAD)
        for member in ("from_seq", "limit", "wait_ms")
        for value in (-1, "1", 1.5, None)
    ),
    ("POST", "/v0/topics/{}/delete", {"before_seq": None, "match": None}, BAD),
]


@pytest.fixture
def existing(client: Client, topic: str) -> str:
    client.write(topic, "a", "b", "c")
    return topic


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    REFUSED,
    ids=[f"{method} {path[:30]} {str(body)[:60]}" for method, path, body, _ in REFUSED],
)
def test_refused(client: Client, existing: str, method: str, path: str, body: Any, refusal: tuple[int, str]) -> None:
    assert client.request(method, path.replace("{}", existing), body).refusal == refusal
    assert client.datas(existing) == ["a", "b", "c"]


CONFIGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"ttl_ms": 18446744073709551615}, {"ttl_ms": 18446744073709551615}),
    ({"priority": 99999}, {"priority": 99999}),
    ({"lease_ms": 1, "claim_jitter_ms": 99999}, {"lease_ms": 100, "claim_jitter_ms": 5000}),
    ({"durability": None}, {"durability": "disk", "durable": False}),
    ({"durable": True, "durability": "disk"}, {"durability": "disk", "durable": False}),
]


@pytest.mark.parametrize(("given", "shown"), CONFIGS, ids=[str(given) for given, _ in CONFIGS])
def test_configs_that_are_taken(client: Client, topic: str, given: dict[str, Any], shown: dict[str, Any]) -> None:
    assert client.put_topic(topic, **given)["config"].items() >= shown.items()


RECORDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"data": 1, "tag": "", "node": ""}, {"data": 1, "$tag": "", "$node": ""}),
    ({"data": 1, "meta": "text"}, {"data": 1, "meta": "text"}),
    ({"data": 1, "$seq": 7, "other": 2}, {"data": 1}),
]


@pytest.mark.parametrize(("written", "read"), RECORDS, ids=[str(written) for written, _ in RECORDS])
def test_records_that_are_taken(client: Client, topic: str, written: dict[str, Any], read: dict[str, Any]) -> None:
    client.write(topic, records=[written])
    (record,) = client.diff(topic, include_tags=True)["records"]
    assert record == {"$seq": 1, "$ts": record["$ts"]} | read


def test_a_config_for_a_topic_that_exists_is_ignored(client: Client, existing: str) -> None:
    answer = client.request("POST", f"/v0/topics/{existing}", {"records": [{"data": 1}], "config": {"type": "queue"}})
    assert answer.status == 200
    assert client.state(existing)["type"] == "log"


def test_a_write_that_insists_creates_although_its_config_would_not(client: Client, topic: str) -> None:
    body = {"records": [{"data": 1}], "create": True, "config": {"auto_create": False}}
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201


def test_a_cursor_above_the_head_reads_from_the_start(client: Client, existing: str) -> None:
    page = client.diff(existing, from_seq=99)
    assert page["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in page["records"]] == ["a", "b", "c"]


def test_a_delete_below_the_first_record_deletes_nothing(client: Client, existing: str) -> None:
    answer = client.request("POST", f"/v0/topics/{existing}/delete", {"before_seq": 0})
    assert (answer.status, answer.json["deleted"]) == (200, 0)
