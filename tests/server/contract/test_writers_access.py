"""Access to stage, commit, abort and the epochs of a writer."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.server.clients import Answer, Client
from tests.server.running import Running, running

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = "all-key,read-key:read,write-key:write,mine-key:rw:mine."
    with running(tmp_path_factory.mktemp("keys"), keys=keys) as running_server:
        yield running_server


def ask(client: Client, key: str, method: str, path: str, body: Any = None) -> Answer:
    return client.request(method, path, body, {"authorization": f"Bearer {key}"})


def test_scopes_are_those_of_the_table(client: Client) -> None:
    chunk = {"writer": "w", "epoch": 1, "part": 0, "attempt": 0, "chunk": 0, "records": [{"data": 1}]}
    epoch = {"epoch": 1, "topic": "t", "parts": []}
    calls: list[tuple[str, str, Any, str]] = [
        ("POST", "/v0/topics/t/stage", chunk, "write"),
        ("POST", "/v0/writers/w/commit", epoch, "write"),
        ("POST", "/v0/writers/w/abort", {"epoch": 1}, "write"),
        ("GET", "/v0/writers/w", None, "read"),
    ]
    for method, path, body, scope in calls:
        for key in ("read", "write"):
            answer = ask(client, f"{key}-key", method, path, body)
            assert (answer.status == 403) == (key != scope), (path, key, answer.body)
        assert ask(client, "wrong-key", method, path, body).refusal == (401, "unauthorized")


def test_a_key_with_prefixes_commits_aborts_and_sees_only_its_topics(client: Client) -> None:
    writer = f"both-{next(_numbers)}"
    for topic in ("mine.t", "other.t"):
        ask(client, "all-key", "POST", f"/v0/topics/{topic}", {"records": [{"data": 0}]})
        for epoch in (1, 2):
            chunk = {"writer": writer, "epoch": epoch, "part": 0, "attempt": 0, "chunk": 0}
            body = chunk | {"records": [{"data": 1}]}
            assert ask(client, "all-key", "POST", f"/v0/topics/{topic}/stage", body).status == 200
    parts = [{"part": 0, "attempt": 0, "chunks": 1, "records": 1}]
    path = f"/v0/writers/{writer}"
    refused = ask(client, "mine-key", "POST", f"{path}/commit", {"epoch": 1, "topic": "other.t", "parts": parts})
    assert refused.refusal == (403, "forbidden")
    assert refused.error["detail"] == {"topic": "other.t"}
    for topic in ("mine.t", "other.t"):
        epoch_body = {"epoch": 1, "topic": topic, "parts": parts}
        assert ask(client, "all-key", "POST", f"{path}/commit", epoch_body).json["deduped"] is False
    seen = ask(client, "mine-key", "GET", path).json["topics"]
    assert [entry["topic"] for entry in seen] == ["mine.t"]
    assert ask(client, "mine-key", "POST", f"{path}/abort", {"epoch": 2}).json["dropped"] == 1
    assert ask(client, "all-key", "POST", f"{path}/abort", {"epoch": 2}).json["dropped"] == 1


def test_who_may_not_is_told_before_the_body_is_looked_at(client: Client) -> None:
    for path in ("/v0/topics/t/stage", "/v0/writers/w/commit", "/v0/writers/w/abort"):
        assert ask(client, "read-key", "POST", path, b"nonsense").refusal == (403, "forbidden")
        assert ask(client, "all-key", "POST", path, b"nonsense").malformed
