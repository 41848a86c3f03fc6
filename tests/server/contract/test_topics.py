"""State, list and deletion of topics, and query parameters."""

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.clients import Client, Http1Client
from tests.server.running import Running, running

STATE_MEMBERS = {
    "topic",
    "type",
    "head_seq",
    "earliest_seq",
    "next_seq",
    "count",
    "bytes",
    "epoch",
    "evict_floor",
    "lost_ranges",
    "config",
    "effective_priority",
    "last_write_ts",
    "last_read_ts",
    "performance",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with only the topics of this file, so that whole lists can be compared."""
    with running(tmp_path_factory.mktemp("topics")) as server:
        yield server


# State.


def test_the_state_of_a_new_topic(client: Client, topic: str) -> None:
    client.put_topic(topic)
    state = client.request("GET", f"/v0/topics/{topic}?touch=false").json
    assert state.keys() == STATE_MEMBERS
    assert state["topic"] == topic
    assert state["type"] == "log"
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 1, 1)
    assert (state["count"], state["bytes"]) == (0, 0)
    assert (state["epoch"], state["evict_floor"], state["lost_ranges"]) == (1, 1, [])
    assert (state["last_write_ts"], state["last_read_ts"]) == (None, None)
    assert state["effective_priority"] == 0


def test_the_state_of_a_topic_with_records(client: Client, topic: str) -> None:
    written = client.write(topic, "aaa", {"b": 1}, None)
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 1, 4)
    assert (state["count"], state["bytes"]) == (3, len('"aaa"') + len('{"b": 1}') + len("null"))
    assert state["last_write_ts"] == client.diff(topic)["records"][0]["$ts"]
    assert written["head_seq"] == 3
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 99})
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 4, 4)
    assert (state["count"], state["bytes"]) == (0, 0)


def test_a_queue_shows_its_counters_and_a_log_has_none(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, 1, 2)
    state = client.state(topic)
    assert state["type"] == "queue"
    age_ms = state["queue"].pop("oldest_ready_age_ms")
    assert 0 <= age_ms < 60_000
    assert state["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0, "delayed": 0, "dead": None}
    assert state.keys() == STATE_MEMBERS | {"queue"}


def test_the_state_of_an_absent_topic_is_not_found_and_creates_nothing(client: Client, topic: str) -> None:
    answer = client.request("GET", f"/v0/topics/{topic}")
    assert answer.refusal == (404, "topic_not_found")
    assert answer.error["detail"] == {"topic": topic}
    assert f'"{topic}"' in answer.error["message"]
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


TOUCHES = [
    ("", True),
    ("?touch=true", True),
    ("?touch=1", True),
    ("?touch=false", False),
    ("?touch=0", False),
    ("?touch=yes", True),
    ("?touch=FALSE", True),
    ("?touch=", True),
    ("?touch", True),
    ("?touch=true&touch=false", False),
    ("?touch=false&touch=true", True),
    ("?touch=false&unknown=1", False),
    ("?%74ouch=%66alse", False),
    ("?touch=false&touch=nonsense", True),
    ("?Touch=false", True),
]


@pytest.mark.parametrize(("query", "touches"), TOUCHES)
def test_booleans_in_a_query_are_true_false_or_not_given(client: Client, topic: str, query: str, touches: bool) -> None:
    """The last value of a repeated parameter counts. Reading the state counts as a read, unless `touch` is false."""
    client.put_topic(topic)
    state = client.request("GET", f"/v0/topics/{topic}{query}").json
    assert (state["last_read_ts"] is not None) == touches
    assert state["effective_priority"] == (500 if touches else 0)


# Lists.


@pytest.fixture
def names(client: Client, topic: str) -> list[str]:
    """Five topics of this test, in order."""
    made = [f"{topic}.{suffix}" for suffix in ("A", "B", "a", "b:1", "b_")]
    for name in reversed(made):
        client.put_topic(name)
    return made


def listed(client: Client, query: str) -> Any:
    return client.request("GET", f"/v0/topics?{query}").json


def names_of(page: Any) -> list[str]:
    return [entry["topic"] for entry in page["topics"]]


def test_a_list_entry_has_exactly_its_members(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="fsync")
    client.write(topic, 1, 22)
    page = listed(client, f"prefix={topic}&page_size=1")
    (entry,) = page["topics"]
    assert entry == {
        "topic": topic,
        "head_seq": 2,
        "earliest_seq": 1,
        "count": 2,
        "bytes": 3,
        "durable": True,
        "durability": "fsync",
        "effective_priority": 0,
        "type": "log",
    }
    assert page.keys() == {"topics", "performance"}


def test_names_are_listed_in_the_order_of_their_bytes(client: Client, topic: str, names: list[str]) -> None:
    assert names_of(listed(client, f"prefix={topic}.")) == names


@pytest.mark.parametrize(
    ("query", "indices"),
    [
        ("prefix={}.b", [3, 4]),
        ("prefix={}.b%3A", [3]),
        ("prefix={}.nothing", []),
        ("prefix=%00", []),
        ("prefix=%ff", []),
        ("prefix={}.A&prefix={}.B", [1]),
    ],
)
def test_a_prefix_chooses_names(client: Client, topic: str, names: list[str], query: str, indices: list[int]) -> None:
    assert names_of(listed(client, query.replace("{}", topic))) == [names[index] for index in indices]


def test_a_type_and_groups_choose_topics_page_by_page(client: Client, topic: str, names: list[str]) -> None:
    queues = [f"{topic}.{suffix}" for suffix in ("Q", "q", "z")]
    for name in queues:
        client.put_topic(name, type="queue")
    for name in (names[1], queues[1]):
        client.request("PUT", f"/v0/topics/{name}/groups/g")
    assert names_of(listed(client, f"prefix={topic}.&type=queue")) == queues
    assert names_of(listed(client, f"prefix={topic}.&type=log")) == names
    assert names_of(listed(client, f"prefix={topic}.&has_groups=true")) == [names[1], queues[1]]
    assert names_of(listed(client, f"prefix={topic}.&has_groups=true&type=queue")) == queues[1:2]
    assert names_of(listed(client, f"prefix={topic}.&type=nonsense")) == sorted(names + queues)
    first = listed(client, f"prefix={topic}.&type=queue&page_size=2")
    assert names_of(first) == queues[:2]
    cursor = quote(first["next_cursor"], safe="")
    assert names_of(listed(client, f"prefix={topic}.&type=queue&page_size=2&cursor={cursor}")) == queues[2:]


@pytest.mark.usefixtures("names")
def test_an_empty_prefix_is_none(client: Client) -> None:
    assert names_of(listed(client, "prefix=&page_size=1000")) == names_of(listed(client, "page_size=1000"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("2", 2),
        ("0", 1),
        ("5", 5),
        ("1000", 5),
        ("99999", 5),
        ("18446744073709551615", 5),
        ("", 5),
        ("-5", 5),
        ("abc", 5),
        ("1.5", 5),
        ("+2", 5),
        ("0x2", 5),
        ("%202", 5),
        ("%D9%A2", 5),
        ("2_0", 5),
    ],
)
def test_a_page_size_is_clamped_and_nonsense_is_not_given(
    client: Client, topic: str, names: list[str], text: str, count: int
) -> None:
    page = listed(client, f"prefix={topic}.&page_size={text}")
    assert names_of(page) == names[:count]
    assert ("next_cursor" in page) == (count < len(names))


@pytest.fixture(scope="module")
def crowd(server: Running) -> str:
    """More topics than the largest page holds."""
    with Http1Client(server.host, server.port) as client:
        for number in range(1001):
            client.put_topic(f"crowd.{number:04}", durability="ephemeral")
    return "crowd."


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 100),
        ("&page_size=0", 1),
        ("&page_size=-5", 100),
        ("&page_size=abc", 100),
        ("&page_size=1000", 1000),
        ("&page_size=5000", 1000),
        ("&page_size=100&page_size=7", 7),
    ],
)
def test_how_many_entries_a_page_has(client: Client, crowd: str, query: str, count: int) -> None:
    page = listed(client, f"prefix={crowd}{query}")
    assert len(page["topics"]) == count
    assert "next_cursor" in page


def test_pages_join_to_the_whole_list(client: Client, topic: str, names: list[str]) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        page = listed(client, f"prefix={topic}.&page_size=2&cursor={quote(cursor, safe='')}")
        found += names_of(page)
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
        assert json.loads(base64.b64decode(cursor, validate=True)) == {"after": found[-1]}
    assert found == names


def test_a_page_that_ends_with_the_list_has_no_cursor(client: Client, topic: str, names: list[str]) -> None:
    assert "next_cursor" not in listed(client, f"prefix={topic}.&page_size=5")
    assert "next_cursor" in listed(client, f"prefix={topic}.&page_size=4")


def encoded(text: bytes) -> str:
    return quote(base64.b64encode(text).decode(), safe="")


@pytest.mark.parametrize(
    ("cursor", "first"),
    [
        ("", 0),
        (encoded(b"{}"), 0),
        (encoded(b'{"after":5}'), 0),
        (encoded(b'{"after":null}'), 0),
        (encoded(b"[]"), 0),
        (encoded(b"null"), 0),
        (encoded(b'"x"'), 0),
        (encoded(b'{"after":""}'), 0),
        (encoded(b'{"before":"x"}'), 0),
        (encoded(b'{"after":"T.A","more":[1]}'), 0),
        (encoded(b' { "after" : "T.A" } '), 0),
        (encoded(b'{"after":"zzz"}'), 5),
        (encoded(b'{"after":"0"}'), 0),
    ],
)
def test_a_cursor_is_where_to_go_on_or_the_start(
    client: Client, topic: str, names: list[str], cursor: str, first: int
) -> None:
    assert names_of(listed(client, f"prefix={topic}.&cursor={cursor}")) == names[first:]


def test_a_cursor_need_not_name_a_topic_that_is_still_there(client: Client, topic: str, names: list[str]) -> None:
    client.request("DELETE", f"/v0/topics/{names[1]}")
    cursor = encoded(json.dumps({"after": names[1]}).encode())
    assert names_of(listed(client, f"prefix={topic}.&cursor={cursor}")) == names[2:]


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%%%",
        "abc",
        encoded(b"no json"),
        encoded(b"{"),
        encoded(b"\xff\xff"),
        encoded(b"{}")[:-3],
        "e30",
        "e+30",
        encoded(b"[" * 5000),
        "%C3%A9",
        "e30%3D%0A",
        encoded(b'{"after":"\\ud800"}'),
    ],
)
def test_a_cursor_that_is_none_is_refused(client: Client, cursor: str) -> None:
    assert client.request("GET", f"/v0/topics?cursor={cursor}").refusal == (400, "invalid_request")


def test_a_list_counts_as_a_read_only_when_asked(client: Client, topic: str) -> None:
    client.put_topic(topic)

    def last_read() -> Any:
        return client.request("GET", f"/v0/topics/{topic}?touch=false").json["last_read_ts"]

    for query in ("", "&touch=false", "&touch=0", "&touch=x"):
        listed(client, f"prefix={topic}{query}")
        assert last_read() is None
    (entry,) = listed(client, f"prefix={topic}&touch=1")["topics"]
    assert entry["effective_priority"] == 500
    assert last_read() is not None


# Deletion.


def test_a_deleted_topic_is_gone_and_a_new_one_starts_again(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    answer = client.request("DELETE", f"/v0/topics/{topic}").json
    assert answer.keys() == {"topic", "deleted", "routers_removed", "performance"}
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, True, [])
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")
    assert client.request("POST", f"/v0/topics/{topic}/diff", {}).refusal == (404, "topic_not_found")
    assert names_of(listed(client, f"prefix={topic}")) == []
    written = client.write(topic, "again")
    assert (written["first_seq"], written["created"]) == (1, True)


def test_an_absent_topic_is_not_deleted_and_that_is_fine(client: Client, topic: str) -> None:
    answer = client.request("DELETE", f"/v0/topics/{topic}").json
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, False, [])


@pytest.mark.parametrize(
    ("value", "asks"), [("true", True), ("1", True), ("false", False), ("0", False), ("yes", False)]
)
def test_a_topic_with_records_can_be_spared(client: Client, topic: str, value: str, asks: bool) -> None:
    client.write(topic, 1, 2)
    answer = client.request("DELETE", f"/v0/topics/{topic}?if_empty={value}")
    if asks:
        assert answer.refusal == (409, "topic_not_empty")
        assert answer.error["detail"] == {"topic": topic, "count": 2}
        assert client.state(topic)["count"] == 2
    else:
        assert answer.json["deleted"] is True


def test_an_empty_topic_is_deleted_when_only_that_is_asked(client: Client, topic: str) -> None:
    client.write(topic, 1)
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert client.request("DELETE", f"/v0/topics/{topic}?if_empty=true").json["deleted"] is True
    assert client.request("DELETE", f"/v0/topics/{topic}?if_empty=true").json["deleted"] is False
