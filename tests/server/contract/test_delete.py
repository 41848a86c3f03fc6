"""Deleting records for good."""

import json
from typing import Any

import pytest

from tests.server.clients import Client

TAGS = ["a:1", "a:2", None, "b:1", "", "a", "a*", "a:1"]


@pytest.fixture
def tagged(client: Client, topic: str) -> str:
    """Records 1 to 8, with the tags above."""
    records = [{"data": seq} | ({} if tag is None else {"tag": tag}) for seq, tag in enumerate(TAGS, 1)]
    client.write(topic, records=records)
    return topic


def delete(client: Client, topic: str, body: Any) -> Any:
    return client.request("POST", f"/v0/topics/{topic}/delete", body)


ROWS: list[tuple[dict[str, Any], set[int]]] = [
    ({"before_seq": 0}, set()),
    ({"before_seq": 1}, set()),
    ({"before_seq": 2}, {1}),
    ({"before_seq": 8}, {1, 2, 3, 4, 5, 6, 7}),
    ({"before_seq": 9}, {1, 2, 3, 4, 5, 6, 7, 8}),
    ({"before_seq": 2**64 - 1}, {1, 2, 3, 4, 5, 6, 7, 8}),
    ({"match": "a:1"}, {1, 8}),
    ({"match": ["tag", "Eq", "a:1"]}, {1, 8}),
    ({"match": "a:*"}, {1, 2, 8}),
    ({"match": ["tag", "Glob", "a:*"]}, {1, 2, 8}),
    ({"match": ["tag", "Glob", "a*"]}, {1, 2, 6, 7, 8}),
    ({"match": ["tag", "Eq", "a*"]}, {7}),
    ({"match": "a**"}, {7}),
    ({"match": ["tag", "Glob", "a**"]}, {7}),
    ({"match": "*a"}, set()),
    ({"match": "*"}, {1, 2, 4, 5, 6, 7, 8}),
    ({"match": ["tag", "Glob", "*"]}, {1, 2, 4, 5, 6, 7, 8}),
    ({"match": ""}, {5}),
    ({"match": ["tag", "Eq", ""]}, {5}),
    ({"match": "A:1"}, set()),
    ({"match": "nothing"}, set()),
    ({"match": "a:*", "before_seq": 8}, {1, 2}),
    ({"match": "a:*", "before_seq": 0}, set()),
    ({"match": "a:*", "before_seq": 99}, {1, 2, 8}),
    ({"match": None, "before_seq": 3}, {1, 2}),
    ({"match": "b:1", "before_seq": None}, {4}),
    ({"match": ["t\u0061g", "Eq", "b:1"]}, {4}),
]


@pytest.mark.parametrize(("body", "gone"), ROWS, ids=[json.dumps(body) for body, _ in ROWS])
def test_what_a_predicate_removes(client: Client, tagged: str, body: dict[str, Any], gone: set[int]) -> None:
    left = [seq for seq in range(1, 9) if seq not in gone]
    answer = delete(client, tagged, body).json
    assert answer == {
        "topic": tagged,
        "deleted": len(gone),
        "earliest_seq": left[0] if left else 9,
        "head_seq": 8,
        "count": len(left),
        "bytes": len(left),
        "performance": answer["performance"],
    }
    page = client.diff(tagged)
    assert [record["$seq"] for record in page["records"]] == left
    assert page["tombstone"] is None
    assert page["caught_up"] is True
    again = delete(client, tagged, body).json
    assert again["deleted"] == 0


BAD: list[Any] = [
    {},
    {"before_seq": None},
    {"match": None},
    {"before_seq": None, "match": None},
    {"match": []},
    {"match": ["tag"]},
    {"match": ["tag", "Eq"]},
    {"match": ["tag", "Eq", "a", "b"]},
    {"match": ["Tag", "Eq", "a"]},
    {"match": ["node", "Eq", "a"]},
    {"match": ["tag", "eq", "a"]},
    {"match": ["tag", "Like", "a"]},
    {"match": ["tag", "Glob", "a"]},
    {"match": ["tag", "Glob", ""]},
    {"match": ["tag", "Glob", "*a"]},
    {"match": ["tag", "Eq", 1]},
    {"match": ["tag", "Eq", None]},
    {"match": ["tag", "Eq", ["a"]]},
    {"match": [1, 2, 3]},
    {"match": ["tag", None, "a"]},
    {"match": {}},
    {"match": {"tag": "a"}},
    {"match": 1},
    {"match": True},
    {"before_seq": 1, "match": ["tag", "Glob", "a"]},
    {"unknown": 1},
]


@pytest.mark.parametrize("body", BAD, ids=json.dumps)
def test_what_is_no_predicate_is_refused_even_for_an_absent_topic(
    client: Client, tagged: str, topic: str, body: dict[str, Any]
) -> None:
    assert delete(client, tagged, body).refusal == (400, "invalid_request")
    assert delete(client, f"{topic}.absent", body).refusal == (400, "invalid_request")
    assert client.state(tagged)["count"] == 8


def test_an_absent_topic_is_not_found(client: Client, topic: str) -> None:
    answer = delete(client, topic, {"before_seq": 1})
    assert answer.refusal == (404, "topic_not_found")
    assert answer.error["detail"] == {"topic": topic}


def test_a_delete_leaves_no_rule_behind(client: Client, tagged: str) -> None:
    delete(client, tagged, {"match": "a:*"})
    delete(client, tagged, {"before_seq": 99})
    client.write(tagged, records=[{"data": 9, "tag": "a:1"}])
    assert client.datas(tagged) == [9]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_records_of_every_kind_of_topic_can_be_deleted(client: Client, topic: str, durability: str, kind: str) -> None:
    client.put_topic(topic, durability=durability, type=kind)
    client.write(topic, 1, 2, 3)
    assert delete(client, topic, {"before_seq": 3}).json["deleted"] == 2
    assert client.datas(topic) == [3]
