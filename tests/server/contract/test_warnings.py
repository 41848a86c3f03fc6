"""`warnings` in the answers to configs: of topics, of routers, inside of writes, over WebSocket."""

from typing import Any

import pytest

from tests.server.clients import Client
from tests.server.running import Running
from tests.server.ws_peer import ws_client

RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
MISSPELT = {"durabilty": "fsync"}
TOLD = ['"durabilty" is not known, and was ignored: did you mean durability?']
QUEUE: dict[str, Any] = {"type": "queue", "max_deliveries": 0, "dead_letter": "dead"}
QUEUE_TOLD = ["dead_letter has no effect without max_deliveries: jobs are delivered again without end"]


@pytest.mark.parametrize(("config", "told"), [(MISSPELT, TOLD), (QUEUE, QUEUE_TOLD)])
def test_a_topic_is_made_with_warnings(client: Client, topic: str, config: dict[str, Any], told: list[str]) -> None:
    for _ in range(2):
        answer = client.put_topic(topic, **config)
        assert answer["warnings"] == told
    assert answer["config"]["durability"] == "disk"


def test_a_router_is_made_with_warnings(client: Client, topic: str) -> None:
    body = {"source": topic, "dest": f"{topic}-to", "garantee": "exactly_once"}
    answer = client.request("PUT", f"/v0/routers/{topic}", body).json
    assert answer["warnings"] == ['"garantee" is not known, and was ignored: did you mean guarantee?']
    assert answer["guarantee"] == "at_least_once"


@pytest.mark.parametrize(("config", "told"), [(MISSPELT, TOLD), (QUEUE, QUEUE_TOLD)])
@pytest.mark.parametrize("query", ["", "?return_seqs=false"])
def test_a_write_with_a_config_has_warnings(
    client: Client, topic: str, query: str, config: dict[str, Any], told: list[str]
) -> None:
    """Also when the topic exists, and the config has no effect."""
    for created in (True, False):
        answer = client.request("POST", f"/v0/topics/{topic}{query}", RECORDS | {"config": config}).json
        assert (answer["created"], answer["warnings"]) == (created, told)


def test_a_repeated_write_has_the_warnings_again(client: Client, topic: str) -> None:
    body = RECORDS | {"config": MISSPELT, "idempotency_key": "k"}
    answers = [client.request("POST", f"/v0/topics/{topic}", body).json for _ in range(2)]
    assert [answer["deduped"] for answer in answers] == [False, True]
    assert [answer["warnings"] for answer in answers] == [TOLD, TOLD]


def test_a_publish_with_a_config_has_warnings(server: Running, topic: str) -> None:
    with ws_client(server) as client:
        assert client.ask("publish", topic=topic, config=MISSPELT, **RECORDS)["warnings"] == TOLD
        assert "warnings" not in client.ask("publish", topic=topic, config={"durability": "fsync"}, **RECORDS)
        assert "warnings" not in client.ask("publish", topic=topic, **RECORDS)


def test_without_a_reason_there_is_no_such_member(client: Client, topic: str) -> None:
    assert "warnings" not in client.put_topic(topic, durability="fsync")
    assert "warnings" not in client.request("PUT", f"/v0/topics/{topic}").json
    assert "warnings" not in client.write(topic, 1)
    assert "warnings" not in client.write(topic, 1, config={"durability": "fsync"})
    # Only a config is looked at: other members that are not known belong to later versions of the contract.
    assert "warnings" not in client.write(topic, 1, cofnig={})
    router = client.request("PUT", f"/v0/routers/{topic}", {"source": topic, "dest": f"{topic}-to"}).json
    assert "warnings" not in router


def test_a_refused_config_is_an_error_without_warnings(client: Client, topic: str) -> None:
    answer = client.request("PUT", f"/v0/topics/{topic}", MISSPELT | {"ttl_ms": -1})
    assert answer.malformed
