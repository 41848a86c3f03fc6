"""Appending records."""

from typing import Any

import pytest

from tests.server.clients import Client
from tests.server.conftest import Connect

ANSWER_MEMBERS = {
    "topic",
    "first_seq",
    "last_seq",
    "seqs",
    "head_seq",
    "count",
    "created",
    "deduped",
    "performance",
}


def post(client: Client, topic: str, body: Any, query: str = "") -> Any:
    return client.request("POST", f"/v0/topics/{topic}{query}", body)


def records(*members: dict[str, Any]) -> dict[str, Any]:
    return {"records": [{"data": 1} | member for member in members]}


def test_the_answer_says_what_a_write_got(client: Client, topic: str) -> None:
    first = post(client, topic, records({}, {}))
    assert first.status == 201
    assert first.json == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
        "performance": first.json["performance"],
    }
    second = post(client, topic, records({}, {}, {}))
    assert second.status == 200
    assert (second.json["first_seq"], second.json["last_seq"], second.json["seqs"]) == (3, 5, [3, 4, 5])
    assert (second.json["count"], second.json["head_seq"], second.json["created"]) == (3, 5, False)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", True),
        ("?return_seqs=true", True),
        ("?return_seqs=1", True),
        ("?return_seqs=maybe", True),
        ("?return_seqs=", True),
        ("?return_seqs=false", False),
        ("?return_seqs=0", False),
        ("?return_seqs=true&return_seqs=0", False),
        ("?other=false", True),
    ],
)
def test_seqs_are_left_out_when_nobody_wants_them(client: Client, topic: str, query: str, shown: bool) -> None:
    members = post(client, topic, records({}, {}), query).json.keys()
    assert members == (ANSWER_MEMBERS if shown else ANSWER_MEMBERS - {"seqs"})


def test_records_of_one_write_follow_each_other_and_share_their_time(client: Client, topic: str) -> None:
    client.write(topic, *range(50))
    found = client.diff(topic)["records"]
    assert [record["$seq"] for record in found] == list(range(1, 51))
    assert [record["data"] for record in found] == list(range(50))
    assert len({record["$ts"] for record in found}) == 1


# Limits of one write, and what just keeps them.


@pytest.mark.parametrize("count", [1, 9999, 10_000])
def test_a_write_may_have_many_records(client: Client, topic: str, count: int) -> None:
    answer = post(client, topic, b'{"records":[' + b",".join([b'{"data":1}'] * count) + b"]}", "?return_seqs=0")
    assert answer.json["count"] == count


@pytest.mark.parametrize("count", [10_001, 50_000])
def test_a_write_has_at_most_10000_records(client: Client, topic: str, count: int) -> None:
    answer = post(client, topic, b'{"records":[' + b",".join([b'{"data":1}'] * count) + b"]}")
    assert answer.refusal == (400, "batch_too_large")
    assert "detail" not in answer.error
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


def test_a_write_without_records_is_refused(client: Client, topic: str) -> None:
    answer = post(client, topic, {"records": []})
    assert answer.refusal == (400, "invalid_request")
    assert not answer.malformed


MIB = 1 << 20

# A record that just keeps a limit, and one that does not; with the code of the refusal.
AT_LIMITS: dict[str, tuple[bytes, bytes, str]] = {
    "tag": (b'{"data":1,"tag":"%b"}' % (b"t" * 256), b'{"data":1,"tag":"%b"}' % (b"t" * 257), "invalid_request"),
    "tag beyond ASCII": (
        b'{"data":1,"tag":"%b"}' % ("é" * 128).encode(),
        b'{"data":1,"tag":"%bx"}' % ("é" * 128).encode(),
        "invalid_request",
    ),
    "escaped tag": (
        b'{"data":1,"tag":"%b"}' % (b"\\u0041" * 256),
        b'{"data":1,"tag":"%b"}' % (b"\\u0041" * 257),
        "invalid_request",
    ),
    "node": (b'{"data":1,"node":"%b"}' % (b"n" * 128), b'{"data":1,"node":"%b"}' % (b"n" * 129), "invalid_request"),
    "meta bytes": (
        b'{"data":1,"meta":"%b"}' % (b"m" * 16_382),
        b'{"data":1,"meta":"%b"}' % (b"m" * 16_383),
        "invalid_request",
    ),
    "meta bytes without blanks": (
        b'{"data":1,"meta":[%b"%b"]}' % (b" " * 20_000, b"m" * 16_380),
        b'{"data":1,"meta":[%b"%b"]}' % (b" " * 20_000, b"m" * 16_381),
        "invalid_request",
    ),
    "meta members": (
        b'{"data":1,"meta":{%b}}' % b",".join(b'"%d":1' % number for number in range(64)),
        b'{"data":1,"meta":{%b}}' % b",".join(b'"%d":1' % number for number in range(65)),
        "invalid_request",
    ),
    "data bytes": (
        b'{"data":"%b"}' % (b"d" * (MIB - 2)),
        b'{"data":"%b"}' % (b"d" * (MIB - 1)),
        "record_too_large",
    ),
    "data bytes without blanks": (
        b'{"data":[%b"%b"]}' % (b" " * 100, b"d" * (MIB - 4)),
        b'{"data":[%b"%b"]}' % (b" " * 100, b"d" * (MIB - 3)),
        "record_too_large",
    ),
    "data and meta": (
        b'{"data":"%b","meta":{}}' % (b"d" * (MIB - 4)),
        b'{"data":"%b","meta":{}}' % (b"d" * (MIB - 3)),
        "record_too_large",
    ),
}


@pytest.mark.parametrize("case", AT_LIMITS)
def test_a_record_at_a_limit_is_taken_and_one_beyond_it_is_not(client: Client, topic: str, case: str) -> None:
    fits, too_large, code = AT_LIMITS[case]
    assert post(client, topic, b'{"records":[%b]}' % fits).status == 201
    answer = post(client, topic, b'{"records":[{"data":0},%b]}' % too_large)
    assert answer.refusal == (400, code)
    assert "detail" not in answer.error
    # All of a write or nothing.
    assert client.state(topic)["head_seq"] == 1


def test_members_of_a_meta_inside_are_not_counted(client: Client, topic: str) -> None:
    inner = {str(number): 1 for number in range(100)}
    assert post(client, topic, records({"meta": {"inner": inner}}, {"meta": [inner]})).status == 201
    assert [record["meta"] for record in client.diff(topic)["records"]] == [{"inner": inner}, [inner]]


def test_what_a_limit_measures_again_is_stored_compact(client: Client, topic: str) -> None:
    body = b'{"records":[{"data":[%b"%b"]}]}' % (b" " * 100, b"d" * (MIB - 4))
    assert post(client, topic, body).status == 201
    assert client.state(topic)["bytes"] == MIB


@pytest.mark.parametrize(("key", "status"), [("k" * 256, 201), ("k" * 257, 400), ("é" * 128, 201), ("é" * 129, 400)])
def test_an_idempotency_key_has_at_most_256_bytes(client: Client, topic: str, key: str, status: int) -> None:
    answer = post(client, topic, records({}) | {"idempotency_key": key})
    assert answer.status == status
    if status == 400:
        assert answer.refusal == (400, "invalid_request")


def test_the_node_of_a_write_is_that_of_its_records_unless_they_have_one(client: Client, topic: str) -> None:
    client.write(topic, **records({}, {"node": "own"}, {"node": None}, {"node": ""}), node="shared")
    nodes = [record.get("$node") for record in client.diff(topic)["records"]]
    assert nodes == ["shared", "own", "shared", ""]


def test_a_node_that_is_too_long_is_refused_for_the_whole_write(client: Client, topic: str) -> None:
    assert post(client, topic, records({}) | {"node": "n" * 128}).status == 201
    assert post(client, topic, records({}) | {"node": "n" * 129}).refusal == (400, "invalid_request")


# Creation.

CREATES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing said": ({}, True),
    "create null": ({"create": None}, True),
    "create": ({"create": True}, True),
    "do not create": ({"create": False}, False),
    "config without an opinion": ({"config": {}}, True),
    "config null": ({"config": None}, True),
    "config says no": ({"config": {"auto_create": False}}, False),
    "config says no, create null": ({"config": {"auto_create": False}, "create": None}, False),
    "config says no, the write says yes": ({"config": {"auto_create": False}, "create": True}, True),
    "config says yes, the write says no": ({"config": {"auto_create": True}, "create": False}, False),
}


@pytest.mark.parametrize("case", CREATES)
def test_whether_a_write_creates_its_topic(client: Client, topic: str, case: str) -> None:
    members, creates = CREATES[case]
    answer = post(client, topic, records({}) | members)
    if creates:
        assert answer.status == 201
        assert answer.json["created"] is True
    else:
        assert answer.refusal == (404, "topic_not_found")
        assert answer.error["detail"] == {"topic": topic}
        assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


@pytest.mark.parametrize("case", CREATES)
def test_a_topic_that_exists_takes_any_of_them(client: Client, topic: str, case: str) -> None:
    client.put_topic(topic, auto_create=False)
    assert post(client, topic, records({}) | CREATES[case][0]).status == 200
    assert client.state(topic)["config"]["auto_create"] is False


def test_a_config_is_not_used_on_a_topic_that_exists(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=7_000_000)
    config = {"type": "queue", "ttl_ms": 1, "dead_letter": "..", "discard": "reject", "cap_records": 1}
    assert post(client, topic, records({}, {}) | {"config": config}).status == 200
    state = client.state(topic)
    assert (state["type"], state["config"]["ttl_ms"], state["count"]) == ("log", 7_000_000, 2)


def test_pressure_may_be_declined(client: Client, topic: str) -> None:
    assert post(client, topic, records({}) | {"disable_backpressure": True}).status == 201
    assert post(client, topic, records({}) | {"disable_backpressure": False}).status == 200


def test_writes_at_once_create_a_topic_once(connect: Connect, topic: str) -> None:
    clients = [connect() for _ in range(8)]
    for client in clients:
        client.start("POST", f"/v0/topics/{topic}", records({}))
    answers = [client.finish() for client in clients]
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert sorted(answer.json["first_seq"] for answer in answers) == list(range(1, 9))
    assert [answer.json["created"] for answer in answers if answer.status == 201] == [True]


# Topics that refuse instead of forgetting.


def test_a_write_that_is_larger_than_the_whole_cap_is_too_large(client: Client, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_records=2, cap_bytes=10)
    answer = post(client, topic, records({}, {}, {}))
    assert answer.refusal == (400, "record_too_large")
    assert "detail" not in answer.error
    assert post(client, topic, records({"data": "123456789"})).refusal == (400, "record_too_large")
    assert client.state(topic)["head_seq"] == 0


@pytest.mark.parametrize(("cap_records", "cap_bytes"), [(3, 0), (0, 3), (3, 3)])
def test_a_full_topic_says_what_it_holds(client: Client, topic: str, cap_records: int, cap_bytes: int) -> None:
    client.put_topic(topic, discard="reject", cap_records=cap_records, cap_bytes=cap_bytes)
    client.write(topic, 1, 2, 3)
    answer = post(client, topic, records({}))
    assert answer.refusal == (422, "topic_full")
    assert answer.error["detail"] == {
        "topic": topic,
        "cap_records": cap_records,
        "cap_bytes": cap_bytes,
        "head_seq": 3,
        "earliest_seq": 1,
    }
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 2})
    assert post(client, topic, records({})).json["first_seq"] == 4
    assert post(client, topic, records({})).error["detail"]["earliest_seq"] == 2


@pytest.mark.parametrize("config", [{"cap_records": 1}, {"cap_bytes": 1}])
def test_a_topic_is_created_only_when_its_first_write_fits(client: Client, topic: str, config: dict[str, Any]) -> None:
    body = records({}, {}) | {"config": config | {"discard": "reject"}}
    assert post(client, topic, body).refusal == (400, "record_too_large")
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


def test_a_topic_that_forgets_takes_what_is_larger_than_its_cap(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    assert post(client, topic, records({}, {}, {}, {})).json["last_seq"] == 4
    assert client.state(topic)["count"] == 2
    client.put_topic(topic, cap_bytes=3)
    assert post(client, topic, records({"data": "long"})).json["last_seq"] == 5
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"]) == (0, 6)
