"""The order in which a write is refused: every pair of refusals, in one write."""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

from tests.server.clients import Answer, Client
from tests.server.running import Running, running

TOPICS_MAX = 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with room for one topic, 100 bytes in all, and batches of 5 records."""
    with running(
        tmp_path_factory.mktemp("order"),
        keys="all,wo:write",
        max_topics=TOPICS_MAX,
        max_total_bytes=100,
        max_batch_records=5,
    ) as server:
        yield server


ALL = {"authorization": "Bearer all"}


@pytest.fixture
def full(client: Client) -> str:
    """A topic that refuses writes above 4 records or 40 bytes, with 3 records and 30 bytes in it."""
    config = {"discard": "reject", "cap_records": 4, "cap_bytes": 40}
    client.request("DELETE", "/v0/topics/full", headers=ALL)
    client.request("PUT", "/v0/topics/full", config, ALL)
    body = {"records": [{"data": "12345678"}] * 3, "idempotency_key": "known"}
    answer = client.request("POST", "/v0/topics/full", body, ALL)
    assert answer.status == 200
    return "full"


class Write:
    def __init__(self) -> None:
        self.key = "all"
        self.name = "absent"
        self.body: dict[str, Any] = {"records": [{"data": 1}]}

    def send(self, client: Client) -> Answer:
        return client.request("POST", f"/v0/topics/{self.name}", self.body, {"authorization": f"Bearer {self.key}"})


def config_without_admin(write: Write) -> None:
    write.key = "wo"
    write.body.setdefault("config", {})


def too_many_records(write: Write) -> None:
    write.body["records"] = write.body["records"] * 6


def long_key(write: Write) -> None:
    write.body["idempotency_key"] = "k" * 257


def long_tag(write: Write) -> None:
    write.body["records"] = [record | {"tag": "t" * 257} for record in write.body["records"]]


def not_created(write: Write) -> None:
    write.body["create"] = False


def ill_formed_name(write: Write) -> None:
    write.name = ".absent"


def bad_config(write: Write) -> None:
    write.body["config"] = {"dead_letter": ".."}


def topic_cap(write: Write) -> None:
    """There is one topic, and no room for another."""


Violation = Callable[[Write], None]

# For a topic that does not exist, in the order of the contract.
ON_ABSENT: list[tuple[Violation, tuple[int, str]]] = [
    (config_without_admin, (403, "forbidden")),
    (too_many_records, (400, "batch_too_large")),
    (long_key, (400, "invalid_request")),
    (long_tag, (400, "invalid_request")),
    (not_created, (404, "topic_not_found")),
    (ill_formed_name, (400, "invalid_request")),
    (bad_config, (400, "invalid_request")),
    (topic_cap, (429, "throttled")),
]


def ids(pairs: list[tuple[Violation, Violation]]) -> list[str]:
    return [f"{first.__name__} before {second.__name__}" for first, second in pairs]


PAIRS = [(first, second) for (first, _), (second, _) in combinations(ON_ABSENT, 2)]


def told(client: Client, *violations: Violation) -> tuple[tuple[int, str], Any]:
    write = Write()
    for violate in reversed(violations):
        violate(write)
    answer = write.send(client)
    return answer.refusal, answer.error["message"].replace("'.absent'", "").replace('".absent"', '"absent"')


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(("violation", "expected"), ON_ABSENT, ids=[case.__name__ for case, _ in ON_ABSENT])
def test_each_violation_has_its_answer(client: Client, violation: Violation, expected: tuple[int, str]) -> None:
    assert told(client, violation)[0] == expected


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=ids(PAIRS))
def test_of_two_violations_the_first_in_the_order_is_told(client: Client, first: Violation, second: Violation) -> None:
    assert told(client, first, second) == told(client, first)


def send(client: Client, topic: str, *datas: Any, **members: Any) -> Answer:
    body = {"records": [{"data": data} for data in datas]} | members
    return client.request("POST", f"/v0/topics/{topic}", body, ALL)


def test_a_known_key_is_answered_before_fullness_is_looked_at(client: Client, full: str) -> None:
    repeat = send(client, full, *["12345678"] * 5, idempotency_key="known")
    assert repeat.json["deduped"] is True
    assert repeat.json["count"] == 3


def test_limits_of_a_write_are_checked_before_its_key_is_looked_up(client: Client, full: str) -> None:
    assert send(client, full, *range(6), idempotency_key="known").refusal == (400, "batch_too_large")
    assert send(client, full, idempotency_key="known").refusal == (400, "invalid_request")


def test_what_can_never_fit_is_told_before_what_does_not_fit_now(client: Client, full: str) -> None:
    assert send(client, full, *range(5)).refusal == (400, "record_too_large")
    assert send(client, full, "x" * 39).refusal == (400, "record_too_large")
    assert send(client, full, 1, 2).refusal == (422, "topic_full")
    assert send(client, full, "x" * 20).refusal == (422, "topic_full")


def test_fullness_is_told_before_the_quota_of_the_server(client: Client, full: str) -> None:
    client.request("PUT", f"/v0/topics/{full}", {"discard": "reject", "cap_records": 4, "cap_bytes": 150}, ALL)
    assert send(client, full, "x" * 149).refusal == (400, "record_too_large")
    assert send(client, full, "x" * 130).refusal == (422, "topic_full")
    answer = send(client, full, "x" * 80)
    assert answer.refusal == (429, "throttled")
    assert answer.error["detail"] == {"limit": "max_total_bytes", "max": 100}


def test_a_topic_cap_is_told_with_its_number(client: Client, full: str) -> None:
    for answer in (send(client, "new", 1), client.request("PUT", "/v0/topics/new", {}, ALL)):
        assert answer.refusal == (429, "throttled")
        assert answer.error["detail"] == {"limit": "max_topics", "max": TOPICS_MAX}
    assert client.request("PUT", f"/v0/topics/{full}", {"discard": "reject"}, ALL).status == 200
