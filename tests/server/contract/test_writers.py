"""Staged writes over HTTP: staging, commits that append once, and the epochs of a writer."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Answer, Client
from tests.server.running import Running, running
from topics.limits import U64_MAX

_numbers = count(1)


class Writer:
    """One writer of one topic."""

    def __init__(self, client: Client, topic: str, name: str | None = None) -> None:
        self.client = client
        self.topic = topic
        self.name = name or f"query:{next(_numbers)}.a-b_c"
        self.path = f"/v0/writers/{self.name}"

    def stage(self, *payloads: Any, epoch: int = 1, part: int = 0, attempt: int = 0, chunk: int = 0) -> Answer:
        place = {"writer": self.name, "epoch": epoch, "part": part, "attempt": attempt, "chunk": chunk}
        records = [{"data": payload} for payload in payloads]
        return self.client.request("POST", f"/v0/topics/{self.topic}/stage", place | {"records": records})

    def commit(self, *parts: tuple[int, int, int, int], epoch: int = 1) -> Answer:
        names = ("part", "attempt", "chunks", "records")
        members = [dict(zip(names, part, strict=True)) for part in parts]
        return self.client.request(
            "POST", f"{self.path}/commit", {"epoch": epoch, "topic": self.topic, "parts": members}
        )

    def state(self) -> Answer:
        return self.client.request("GET", self.path)

    def abort(self, epoch: int) -> Answer:
        return self.client.request("POST", f"{self.path}/abort", {"epoch": epoch})


@pytest.fixture
def writer(client: Client, topic: str) -> Writer:
    """The writer of a topic with two records."""
    client.write(topic, 1, 2)
    return Writer(client, topic)


def members_of(answer: Answer) -> dict[str, Any]:
    members: dict[str, Any] = answer.json
    assert members.pop("performance")["server_total_ms"] >= 0
    return members


def payloads(client: Client, topic: str) -> list[Any]:
    found: list[Any] = []
    from_seq = 0
    while True:
        page = client.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": 1000}).json
        found += [record["data"] for record in page["records"]]
        if page["caught_up"]:
            return found
        from_seq = page["next_from_seq"]


def test_staged_records_are_unseen_until_they_are_committed_and_then_seen_at_once(writer: Writer) -> None:
    staged = members_of(writer.stage("a", "b"))
    place = {"topic": writer.topic, "writer": writer.name, "epoch": 1, "part": 0, "attempt": 0, "chunk": 0}
    assert staged == place | {"records": 2, "deduped": False}
    assert members_of(writer.stage("a", "b")) == staged | {"deduped": True}
    writer.stage("c", part=1)
    assert payloads(writer.client, writer.topic) == [1, 2]
    assert members_of(writer.state()) == {"writer": writer.name, "topics": []}
    answer = writer.commit((1, 0, 1, 1), (0, 0, 1, 2))
    assert answer.json["performance"].keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    committed = {
        "topic": writer.topic,
        "writer": writer.name,
        "epoch": 1,
        "first_seq": 3,
        "last_seq": 5,
        "count": 3,
        "head_seq": 5,
        "deduped": False,
    }
    assert members_of(answer) == committed
    assert payloads(writer.client, writer.topic) == [1, 2, "a", "b", "c"]
    known = {"topic": writer.topic, "epoch": 1, "first_seq": 3, "last_seq": 5}
    assert members_of(writer.state()) == {"writer": writer.name, "topics": [known]}
    assert members_of(writer.commit((0, 0, 1, 2), (1, 0, 1, 1))) == committed | {"deduped": True}
    assert members_of(writer.stage("zombie", attempt=3))["deduped"] is True
    older = members_of(writer.commit(epoch=0))
    assert older == committed | {"epoch": 0, "first_seq": None, "last_seq": None, "count": None, "deduped": True}
    assert len(payloads(writer.client, writer.topic)) == 5


def test_records_are_kept_as_they_were_sent(writer: Writer) -> None:
    body = (
        b'{ "records": [ {"data": {"n": 1.50},\n"tag":"t"}, {"data":null, "meta":{"a":1}, "node":"n"} ], "node":"d",'
        b' "writer":"%b", "epoch": 7, "part":0, "attempt":0, "chunk":0 }' % writer.name.encode()
    )
    path = f"/v0/topics/{writer.topic}/stage"
    assert writer.client.request("POST", path, body).json["records"] == 2
    writer.commit((0, 0, 1, 2), epoch=7)
    diff = {"from_seq": 2, "include_tags": True}
    page = writer.client.request("POST", f"/v0/topics/{writer.topic}/diff", diff)
    assert b'{"n": 1.50}' in page.body
    labels = [(record.get("$tag"), record.get("$node"), record.get("meta")) for record in page.json["records"]]
    assert labels == [("t", "d", None), (None, "n", {"a": 1})]


def test_a_commit_takes_many_chunks_of_several_megabytes(client: Client, topic: str) -> None:
    client.request("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    writer = Writer(client, topic)
    filler = "x" * 2000
    for part in range(3):
        for chunk in range(2):
            numbers = [part * 1000 + chunk * 500 + place for place in range(500)]
            answer = writer.stage(*([number, filler] for number in numbers), part=part, chunk=chunk)
            assert answer.json["records"] == 500
    assert writer.commit((0, 0, 2, 1000), (2, 0, 2, 1000), (1, 0, 2, 1000)).json["count"] == 3000
    assert [payload[0] for payload in payloads(client, topic)] == list(range(3000))
    assert writer.commit(epoch=2).json["count"] == 0


def test_what_is_missing_is_told_and_nothing_happens(writer: Writer) -> None:
    writer.stage("a")
    for parts in ([(0, 0, 2, 1)], [(0, 1, 1, 1)], [(0, 0, 1, 2)], [(0, 0, 1, 1), (1, 0, U64_MAX, U64_MAX)]):
        answer = writer.commit(*parts)
        assert answer.refusal == (409, "stage_incomplete")
        assert answer.error["detail"].keys() == {"part", "attempt", "chunks", "records"}
    assert writer.state().json["topics"] == []
    assert writer.commit((0, 0, 1, 1)).json["first_seq"] == 3


def test_an_abort_drops_what_is_staged_and_nothing_that_is_committed(writer: Writer) -> None:
    for epoch in (1, 2):
        writer.stage("a", epoch=epoch)
    writer.stage("b", epoch=2, part=1)
    assert members_of(writer.abort(2)) == {"writer": writer.name, "epoch": 2, "dropped": 2}
    assert writer.commit((0, 0, 1, 1), epoch=2).refusal == (409, "stage_incomplete")
    assert writer.commit((0, 0, 1, 1)).json["count"] == 1
    assert writer.abort(1).json["dropped"] == 0
    assert payloads(writer.client, writer.topic) == [1, 2, "a"]


def test_an_epoch_may_go_to_several_topics(client: Client, topic: str) -> None:
    first = Writer(client, topic)
    second = Writer(client, f"{topic}-b", first.name)
    for one in (first, second):
        client.write(one.topic, 0)
        one.stage(one.topic)
        one.commit((0, 0, 1, 1))
    assert [entry["topic"] for entry in first.state().json["topics"]] == [topic, f"{topic}-b"]
    client.request("DELETE", f"/v0/topics/{topic}")
    assert [entry["topic"] for entry in first.state().json["topics"]] == [f"{topic}-b"]


def test_a_topic_that_is_made_anew_knows_no_writers_and_has_nothing_staged(writer: Writer) -> None:
    writer.stage("a")
    writer.commit((0, 0, 1, 1))
    writer.stage("b", epoch=2)
    writer.client.request("DELETE", f"/v0/topics/{writer.topic}")
    assert writer.stage("c").refusal == (404, "topic_not_found")
    assert writer.commit(epoch=3).refusal == (404, "topic_not_found")
    writer.client.write(writer.topic, 1)
    assert writer.commit((0, 0, 1, 1), epoch=2).refusal == (409, "stage_incomplete")
    assert writer.commit(epoch=1).json["deduped"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": U64_MAX + 1},
        {"epoch": "1"},
        {"epoch": 1.5},
        {"part": None},
        {"chunk": [0]},
        {"writer": 5},
        {"records": {}},
        {"records": [{}]},
        {"records": [{"data": 1, "tag": 1}]},
    ],
)
def test_a_chunk_of_the_wrong_shape_is_malformed(writer: Writer, change: dict[str, Any]) -> None:
    body = {"writer": "w", "epoch": 1, "part": 0, "attempt": 0, "chunk": 0, "records": [{"data": 1}]} | change
    assert writer.client.request("POST", f"/v0/topics/{writer.topic}/stage", body).malformed


@pytest.mark.parametrize("name", ["writer", "epoch", "part", "attempt", "chunk", "records"])
def test_every_member_of_a_chunk_is_needed_once(writer: Writer, name: str) -> None:
    body = {"writer": "w", "epoch": 1, "part": 0, "attempt": 0, "chunk": 0, "records": [{"data": 1}]}
    path = f"/v0/topics/{writer.topic}/stage"
    assert writer.client.request("POST", path, {key: value for key, value in body.items() if key != name}).malformed
    twice = b'{"writer":"w","epoch":1,"part":0,"attempt":0,"chunk":0,"records":[{"data":1}],"%b":%b}'
    again = {"writer": b'"w"', "records": b'[{"data":1}]'}.get(name, b"0")
    assert writer.client.request("POST", path, twice % (name.encode(), again)).malformed


def test_records_obey_the_limits_of_a_write(writer: Writer) -> None:
    assert writer.stage().refusal == (400, "invalid_request")
    assert writer.stage(*range(10_001)).refusal == (400, "batch_too_large")
    assert writer.stage("x" * (1024 * 1024)).refusal == (400, "record_too_large")
    deep = b'{"writer":"w","epoch":1,"part":0,"attempt":0,"chunk":0,"records":[{"data":%b1%b}]}'
    assert writer.client.request("POST", f"/v0/topics/{writer.topic}/stage", deep % (b"[" * 200, b"]" * 200)).malformed


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"epoch":1,"topic":"t"}',
        b'{"epoch":1,"topic":"t","parts":[{"part":0,"attempt":0,"chunks":1}]}',
        b'{"epoch":1,"topic":"t","parts":[{"part":0,"attempt":0,"chunks":-1,"records":0}]}',
        b'{"epoch":1,"topic":"t","parts":[{"part":0,"part":0,"attempt":0,"chunks":1,"records":0}]}',
        b'{"epoch":1,"epoch":1,"topic":"t","parts":[]}',
        b'{"epoch":18446744073709551616,"topic":"t","parts":[]}',
        b'{"epoch":1,"topic":"t","parts":[{"part":18446744073709551616,"attempt":0,"chunks":1,"records":0}]}',
    ],
)
def test_a_commit_of_the_wrong_shape_is_malformed(client: Client, body: bytes) -> None:
    assert client.request("POST", "/v0/writers/w/commit", body).malformed


def test_names_and_parts_are_checked(writer: Writer) -> None:
    client = writer.client
    for name in ("a%20b", "a%2Fb", "x" * 129, "%C3%A4"):
        assert client.request("GET", f"/v0/writers/{name}").refusal == (400, "invalid_request")
        abort = client.request("POST", f"/v0/writers/{name}/abort", {"epoch": 1})
        assert abort.refusal == (400, "invalid_request")
    assert Writer(client, writer.topic, "a b").stage(1).refusal == (400, "invalid_request")
    assert writer.commit((0, 0, 0, 0), (0, 1, 0, 0)).refusal == (400, "invalid_request")
    assert client.request("GET", f"/v0/writers/{'x' * 128}").json["topics"] == []
    assert client.request("GET", "/v0/writers/w/commit").refusal == (405, "method_not_allowed")
    assert client.request("GET", "/v0/writers/w/other").refusal == (404, "not_found")


def test_the_feature_is_announced(client: Client) -> None:
    assert "stage" in client.request("GET", "/v0/health").json["features"]


def test_many_commits_at_once_are_made_once_each(server: Running, protocol: str, topic: str) -> None:
    """The same epoch from several connections, among plain writes: one commit appends, the others are repeats."""
    with CLIENTS[protocol](server.host, server.port, None) as client:
        client.write(topic, "first")
        writer = Writer(client, topic)
        for part in range(4):
            writer.stage(*[[part, place] for place in range(300)], part=part)
    parts = [(part, 0, 1, 300) for part in range(4)]

    def commit(place: int) -> tuple[bool, int]:
        with CLIENTS[protocol](server.host, server.port, None) as mine:
            mine.write(topic, f"plain-{place}")
            answer = Writer(mine, topic, writer.name).commit(*parts).json
            return answer["deduped"], answer["first_seq"]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(commit, range(6)))
    assert sorted(deduped for deduped, _ in answers) == [False] + [True] * 5
    assert len({first_seq for _, first_seq in answers}) == 1
    with CLIENTS[protocol](server.host, server.port, None) as client:
        found = payloads(client, topic)
    place = found.index([0, 0])
    assert found[place : place + 1200] == [[part, number] for part in range(4) for number in range(300)]
    assert len(found) == 1 + 6 + 1200


def test_staged_and_committed_work_outlives_a_restart(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port, None) as client:
        client.write("t", 0)
        writer = Writer(client, "t", "w")
        writer.stage("a")
        writer.commit((0, 0, 1, 1))
        writer.stage("b", epoch=2)
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port, None) as client:
        writer = Writer(client, "t", "w")
        assert writer.state().json["topics"] == [{"topic": "t", "epoch": 1, "first_seq": 2, "last_seq": 2}]
        assert writer.commit(epoch=1).json["deduped"] is True
        assert writer.commit((0, 0, 1, 1), epoch=2).json["first_seq"] == 3
        assert payloads(client, "t") == [0, "a", "b"]
