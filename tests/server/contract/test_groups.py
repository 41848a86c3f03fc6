"""Consumer groups over HTTP: cursors that the server keeps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Answer, Client
from tests.server.running import Running, running
from topics.limits import GROUPS_PER_TOPIC_MAX


class Group:
    """One group of one topic."""

    def __init__(self, client: Client, topic: str, name: str = "g") -> None:
        self.client = client
        self.topic = topic
        self.path = f"/v0/topics/{topic}/groups/{name}"

    def put(self, **body: Any) -> Answer:
        return self.client.request("PUT", self.path, body)

    def state(self) -> Answer:
        return self.client.request("GET", self.path)

    def commit(self, seq: int, **more: Any) -> Answer:
        return self.client.request("POST", f"{self.path}/commit", {"seq": seq} | more)

    def delete(self) -> Answer:
        return self.client.request("DELETE", self.path)


@pytest.fixture
def group(client: Client, topic: str) -> Group:
    """A group that does not exist yet, of a topic with five records."""
    client.write(topic, *range(1, 6))
    return Group(client, topic)


def without_time(answer: Answer) -> dict[str, Any]:
    members: dict[str, Any] = answer.json
    assert members.pop("performance").keys() == {"server_total_ms"}
    assert members.pop("last_commit_ts") > 1_600_000_000_000
    return members


def test_a_group_is_created_moved_read_and_deleted(group: Group) -> None:
    created = group.put(seq=2)
    assert created.status == 201
    members = {"topic": group.topic, "group": "g", "seq": 2, "head_seq": 5, "lag": 3}
    assert without_time(created) == members | {"created": True}
    assert without_time(group.state()) == members
    moved = group.put(**{"from": "head"})
    assert moved.status == 200
    assert without_time(moved) == members | {"seq": 5, "lag": 0, "created": False}
    deleted = group.delete().json
    assert deleted.pop("performance")
    assert deleted == {"topic": group.topic, "group": "g", "deleted": True}
    assert group.delete().json["deleted"] is False
    assert group.state().refusal == (404, "group_not_found")


def test_no_place_means_the_start_for_a_new_group_and_nothing_for_others(group: Group) -> None:
    assert group.client.request("PUT", group.path).json["seq"] == 0
    group.commit(3)
    assert group.put().json["seq"] == 3
    assert group.put(**{"from": "start"}).json["seq"] == 0


def test_a_commit_moves_the_cursor_on_and_back_only_when_that_is_meant(group: Group) -> None:
    group.put()
    answer = without_time(group.commit(4))
    assert answer == {"topic": group.topic, "group": "g", "seq": 4, "head_seq": 5, "lag": 1, "moved": True}
    for seq in (4, 1):
        assert (group.commit(seq).json["seq"], group.commit(seq).json["moved"]) == (4, False)
    assert group.commit(1, rewind=True).json["seq"] == 1
    assert group.state().json["seq"] == 1


def test_groups_are_listed_by_name(client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    path = f"/v0/topics/{topic}/groups"
    assert client.request("GET", path).json["groups"] == []
    for name in ("b", "a"):
        Group(client, topic, name).put(seq=1)
    listed = client.request("GET", path).json
    assert (listed["topic"], listed["head_seq"]) == (topic, 2)
    assert [(entry["group"], entry["seq"], entry["lag"]) for entry in listed["groups"]] == [("a", 1, 1), ("b", 1, 1)]
    assert all(entry["last_commit_ts"] for entry in listed["groups"])


# Reading with a group.


def seqs(page: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_a_read_with_a_group_begins_behind_its_cursor_and_moves_nothing(group: Group) -> None:
    group.put(seq=3)
    for _ in range(2):
        assert seqs(group.client.diff(group.topic, group="g")) == [4, 5]
    assert seqs(group.client.diff(group.topic, group="g", from_seq=4)) == [5], "reading ahead"
    assert group.state().json["seq"] == 3


def test_reading_and_committing_in_turn_gets_every_record_once(group: Group) -> None:
    group.put()
    got: list[int] = []
    while True:
        page = group.client.diff(group.topic, group="g", limit=2)
        got += seqs(page)
        group.commit(page["next_from_seq"])
        if page["caught_up"]:
            break
    assert got == [1, 2, 3, 4, 5]
    assert group.state().json["lag"] == 0


def test_a_group_whose_records_were_evicted_gets_the_usual_tombstone(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    group = Group(client, topic)
    group.put()
    for number in range(5):
        client.write(topic, number)
    page = client.diff(topic, group="g")
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"], seqs(page)) == (1, 3, [4, 5])
    assert group.state().json["lag"] == 5


def test_a_long_poll_of_a_group_waits_behind_its_cursor(group: Group, connect: Any) -> None:
    group.put(**{"from": "head"})
    writer: Client = connect()
    group.client.start("POST", f"/v0/topics/{group.topic}/diff", {"group": "g", "wait_ms": 30_000})
    writer.write(group.topic, 6)
    assert seqs(group.client.finish().json) == [6]


# What is refused.


def test_what_is_not_there_is_not_found(client: Client, topic: str) -> None:
    client.write(topic, 1)
    group = Group(client, topic)
    assert group.state().refusal == group.commit(1).refusal == (404, "group_not_found")
    assert group.state().error["detail"] == {"topic": topic, "group": "g"}
    diff = client.request("POST", f"/v0/topics/{topic}/diff", {"group": "g"})
    assert diff.refusal == (404, "group_not_found")
    nowhere = Group(client, "nowhere")
    for answer in (nowhere.put(), nowhere.state(), nowhere.commit(0), nowhere.delete()):
        assert answer.refusal == (404, "topic_not_found")
    assert client.request("GET", "/v0/topics/nowhere/groups").refusal == (404, "topic_not_found")


@pytest.mark.parametrize("name", ["-g", "g%20h", "%C3%BC", "x" * 256])
def test_a_group_is_named_like_a_topic(client: Client, topic: str, name: str) -> None:
    client.write(topic, 1)
    assert Group(client, topic, name).put().refusal == (400, "invalid_request")


def test_a_name_that_is_not_utf_8_is_refused(client: Client, topic: str) -> None:
    assert Group(client, topic, "%FF").state().refusal == (400, "invalid_request")


def test_an_escaped_name_is_the_same_name(group: Group) -> None:
    group.put(seq=1)
    assert Group(group.client, group.topic, "%67").state().json["group"] == "g"


@pytest.mark.parametrize(
    "body", [{"seq": 6}, {"seq": -1}, {"seq": 1.0}, {"seq": 2**64}, {"seq": 1, "from": "head"}, {"from": "there"}]
)
def test_a_place_that_makes_no_sense_is_refused(group: Group, body: dict[str, Any]) -> None:
    assert group.put(**body).refusal == (400, "invalid_request")
    assert group.state().refusal == (404, "group_not_found")


@pytest.mark.parametrize("body", [{}, {"seq": None}, {"seq": 6}, {"seq": "1"}, {"seq": 1, "rewind": 1}])
def test_a_commit_that_makes_no_sense_is_refused(group: Group, body: dict[str, Any]) -> None:
    group.put()
    assert group.client.request("POST", f"{group.path}/commit", body).refusal == (400, "invalid_request")
    assert group.state().json["seq"] == 0


@pytest.mark.parametrize("text", [b'{"from":"head","from":"start"}', b'{"seq":1,"seq":1}'])
def test_a_member_that_is_given_twice_is_refused(group: Group, text: bytes) -> None:
    assert group.client.request("PUT", group.path, text).malformed


@pytest.mark.parametrize(
    "path", ["groups/", "groups/g/", "groups/g/more", "groups/g/commit/", "groups//commit", "groupsx"]
)
def test_other_paths_are_not_found(client: Client, topic: str, path: str) -> None:
    assert client.request("GET", f"/v0/topics/{topic}/{path}").refusal == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("groups", {"GET", "HEAD"}), ("groups/g", {"DELETE", "GET", "HEAD", "PUT"}), ("groups/g/commit", {"POST"})],
)
def test_another_method_is_told_the_methods(client: Client, topic: str, path: str, allowed: set[str]) -> None:
    answer = client.request("PATCH", f"/v0/topics/{topic}/{path}")
    assert answer.refusal == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_a_topic_has_only_so_many_groups(client: Client, topic: str) -> None:
    client.write(topic, 1)
    for number in range(GROUPS_PER_TOPIC_MAX):
        assert Group(client, topic, f"g{number}").put().status == 201
    refused = Group(client, topic, "one-more").put()
    assert refused.refusal == (429, "throttled")
    assert refused.error["detail"] == {"limit": "max_groups", "max": GROUPS_PER_TOPIC_MAX}


# Clients that do not use groups.


def test_nobody_else_sees_a_difference(group: Group) -> None:
    state, page = group.client.state(group.topic), group.client.diff(group.topic)
    group.put(seq=4)
    group.commit(5)
    for before, after in ((state, group.client.state(group.topic)), (page, group.client.diff(group.topic))):
        assert after.keys() == before.keys()
    assert seqs(group.client.diff(group.topic)) == seqs(page)


# Keys and restarts.

KEYS = "r:read,w:write,a:admin,d:delete,mine:read+admin+delete:mine."


@pytest.fixture
def guarded(tmp_path: Path, protocol: str) -> Iterator[Client]:
    with (
        running(tmp_path, keys=f"all:read+write+admin+delete,{KEYS}") as server,
        CLIENTS[protocol](server.host, server.port) as client,
    ):
        client.request("POST", "/v0/topics/a", {"records": [{"data": 1}]}, {"authorization": "Bearer all"})
        yield client


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "groups", "r"),
        ("PUT", "groups/g", "a"),
        ("GET", "groups/g", "r"),
        ("POST", "groups/g/commit", "r"),
        ("DELETE", "groups/g", "d"),
    ],
)
def test_each_call_needs_its_scope(guarded: Client, method: str, path: str, scope: str) -> None:
    body = {"seq": 1} if method in ("POST", "PUT") else None

    def status(key: str) -> int:
        return guarded.request(method, f"/v0/topics/a/{path}", body, {"authorization": f"Bearer {key}"}).status

    assert status(scope) not in (401, 403)
    assert [status(other) for other in "rwad" if other != scope] == [403, 403, 403]
    assert status("mine") == 403, "the prefix is that of the topic"


def test_groups_are_there_after_a_restart(tmp_path: Path, protocol: str) -> None:
    def served(server: Running) -> Client:
        return CLIENTS[protocol](server.host, server.port)

    with running(tmp_path) as server, served(server) as client:
        client.write("a", 1, 2, 3)
        Group(client, "a").put()
        Group(client, "a").commit(2)
        before = without_time(Group(client, "a").state())
    with running(tmp_path) as server, served(server) as client:
        assert without_time(Group(client, "a").state()) == before
