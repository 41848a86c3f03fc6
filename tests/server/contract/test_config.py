"""The config of a topic, as it is given and as it is shown."""

from typing import Any

import pytest

from tests.server.clients import Client

U64_MAX = 2**64 - 1

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}

# A config, and the members of the shown config that differ from the defaults.
ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"type": "log"}, {}),
    ({"type": "queue"}, {"type": "queue"}),
    ({"ttl_ms": 1}, {"ttl_ms": 1}),
    ({"ttl_ms": U64_MAX}, {"ttl_ms": U64_MAX}),
    ({"cap_records": U64_MAX}, {"cap_records": U64_MAX}),
    ({"cap_bytes": 5}, {"cap_bytes": 5}),
    ({"discard": "reject"}, {"discard": "reject"}),
    ({"durable": True}, {"durable": True, "durability": "fsync"}),
    ({"durable": False}, {}),
    ({"durability": "ephemeral"}, {"durability": "ephemeral"}),
    ({"durability": "memory"}, {"durability": "memory"}),
    ({"durability": "disk"}, {}),
    ({"durability": "fsync"}, {"durability": "fsync", "durable": True}),
    ({"durability": None}, {}),
    ({"durability": None, "durable": True}, {"durability": "fsync", "durable": True}),
    ({"durable": True, "durability": "disk"}, {}),
    ({"durable": True, "durability": "memory"}, {"durability": "memory"}),
    ({"durable": False, "durability": "fsync"}, {"durability": "fsync", "durable": True}),
    ({"priority": 0}, {"priority": 0}),
    ({"priority": -5}, {"priority": -5}),
    ({"priority": 99_999}, {"priority": 99_999}),
    ({"priority": 2**31 - 1}, {"priority": 2**31 - 1}),
    ({"priority": None}, {}),
    ({"auto_priority": False}, {"auto_priority": False}),
    ({"auto_create": False}, {"auto_create": False}),
    ({"idempotency_window_ms": 0}, {"idempotency_window_ms": 0}),
    ({"dedupe_node": False}, {"dedupe_node": False}),
    ({"lease_ms": 0}, {"lease_ms": 100}),
    ({"lease_ms": 99}, {"lease_ms": 100}),
    ({"lease_ms": 100}, {"lease_ms": 100}),
    ({"lease_ms": 86_400_000}, {"lease_ms": 86_400_000}),
    ({"lease_ms": 86_400_001}, {"lease_ms": 86_400_000}),
    ({"lease_ms": U64_MAX}, {"lease_ms": 86_400_000}),
    ({"claim_jitter_ms": 5000}, {"claim_jitter_ms": 5000}),
    ({"claim_jitter_ms": 5001}, {"claim_jitter_ms": 5000}),
    ({"lease_ms": 1, "claim_jitter_ms": 99_999}, {"lease_ms": 100, "claim_jitter_ms": 5000}),
    ({"max_deliveries": 7}, {"max_deliveries": 7}),
    ({"dead_letter": "graveyard"}, {"dead_letter": "graveyard"}),
    ({"dead_letter": None}, {}),
    ({"leases_durable": True}, {"leases_durable": True}),
    ({"unknown": 1, "Type": "queue", "ttl": 5}, {}),
]


@pytest.mark.parametrize(("given", "shown"), ROWS, ids=[str(given) for given, _ in ROWS])
def test_every_member_is_shown_as_it_was_resolved(
    client: Client, topic: str, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    answer = client.request("PUT", f"/v0/topics/{topic}", given)
    assert answer.status == 201
    assert answer.json["config"] == DEFAULTS | shown
    # `test_warnings.py` has the configs with warnings.
    assert {name: value for name, value in answer.json.items() if name != "warnings"} == {
        "topic": topic,
        "created": True,
        "config": DEFAULTS | shown,
        "performance": answer.json["performance"],
    }
    assert client.state(topic)["config"] == DEFAULTS | shown


@pytest.mark.parametrize(("given", "shown"), ROWS, ids=[str(given) for given, _ in ROWS])
def test_a_first_write_may_bring_the_config(
    client: Client, topic: str, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    body = {"records": [{"data": 1}], "config": given, "create": True}
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201
    assert client.state(topic)["config"] == DEFAULTS | shown


def test_a_put_creates_once_and_configures_then(client: Client, topic: str) -> None:
    assert client.request("PUT", f"/v0/topics/{topic}", {}).status == 201
    again = client.request("PUT", f"/v0/topics/{topic}", {"ttl_ms": 5})
    assert again.status == 200
    assert again.json["created"] is False
    assert again.json["config"] == DEFAULTS | {"ttl_ms": 5}


def test_a_put_replaces_and_merges_nothing(client: Client, topic: str) -> None:
    everything: dict[str, Any] = {
        "ttl_ms": 1_000_000,
        "cap_records": 2,
        "cap_bytes": 3,
        "discard": "reject",
        "durability": "fsync",
        "priority": 4,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 5,
        "dedupe_node": False,
        "lease_ms": 600,
        "claim_jitter_ms": 7,
        "max_deliveries": 8,
        "dead_letter": "d",
        "leases_durable": True,
    }
    assert client.put_topic(topic, **everything)["config"] == DEFAULTS | everything | {"durable": True}
    assert client.put_topic(topic, priority=9)["config"] == DEFAULTS | {"priority": 9}
    assert client.request("PUT", f"/v0/topics/{topic}").json["config"] == DEFAULTS


@pytest.mark.parametrize(
    ("existing", "requested", "sent"),
    [("log", "queue", {"type": "queue"}), ("queue", "log", {"type": "log"}), ("queue", "log", {})],
    ids=["log to queue", "queue to log", "queue without a type"],
)
def test_the_type_of_a_topic_never_changes(
    client: Client, topic: str, existing: str, requested: str, sent: dict[str, Any]
) -> None:
    client.put_topic(topic, type=existing, ttl_ms=9)
    answer = client.request("PUT", f"/v0/topics/{topic}", sent | {"ttl_ms": 5})
    assert answer.refusal == (409, "topic_exists_incompatible")
    assert answer.error["detail"] == {"topic": topic, "existing_type": existing, "requested_type": requested}
    assert client.state(topic)["config"]["ttl_ms"] == 9


def test_the_rules_of_a_config_come_before_the_type(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.request("PUT", f"/v0/topics/{topic}", {"type": "queue", "dead_letter": topic})
    assert answer.refusal == (400, "invalid_request")


def test_a_queue_is_not_its_own_dead_letter_topic_but_a_log_may_say_so(client: Client, topic: str) -> None:
    answer = client.request("PUT", f"/v0/topics/{topic}", {"type": "queue", "dead_letter": topic})
    assert answer.refusal == (400, "invalid_request")
    assert client.put_topic(topic, dead_letter=topic)["config"]["dead_letter"] == topic


def test_a_tighter_cap_is_in_effect_with_the_answer(client: Client, topic: str) -> None:
    client.write(topic, *range(10))
    client.put_topic(topic, cap_records=3)
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (3, 8, 10)
    client.put_topic(topic, cap_bytes=1)
    assert client.state(topic)["count"] == 1


def test_settings_of_queues_are_kept_on_logs_and_shown(client: Client, topic: str) -> None:
    members = {"lease_ms": 5000, "claim_jitter_ms": 9, "max_deliveries": 3, "dead_letter": "d", "leases_durable": True}
    shown = client.put_topic(topic, **members)["config"]
    assert {name: shown[name] for name in members} == members


def test_the_priority_is_kept_as_given_and_bounded_in_use(client: Client, topic: str) -> None:
    client.put_topic(topic, priority=99_999)
    state = client.state(topic)
    assert state["config"]["priority"] == 99_999
    assert state["effective_priority"] == 1000
    client.put_topic(topic, priority=-99_999)
    assert client.state(topic)["effective_priority"] == -1000
