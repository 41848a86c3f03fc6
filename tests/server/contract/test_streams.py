"""Streams over HTTP: what there is, and messages as JSON, with keys and limits, for readers that change nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pytest

from tests.server.clients import CLIENTS, HTTP1, Answer, Client
from tests.server.running import Running, running
from topics.protocol import stream_body
from topics.streams.consumers.polling import PollingStrategy
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.system import System

KEYS: Final = "all,reader:read:orders,writer:write,other:read:secret"
# Messages stay unsaved, however long the tests take.
TABLE: Final = {"message_saver": {"enabled": False}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("streams"), streams_port=0, streams_table=TABLE) as served:
        fill(system_of(served))
        yield served


def system_of(served: Running) -> System:
    system = served.server.streams.system
    assert system is not None
    return system


def fill(system: System) -> None:
    for name in ("orders", "orders-eu", "secrets", "x/y z"):
        system.create_stream(name)
    system.create_topic("orders", "events", partitions_count=2)
    system.create_topic("orders", "empty", partitions_count=0, message_expiry=5_000_000)
    system.create_topic("secrets", "t")
    system.create_topic("x/y z", "ü", partitions_count=1)
    system.create_group("orders", "events", "billing")
    system.join_group("orders", "events", "billing", 7)
    messages = [
        NewMessage(b'{"n": 1}', 2**127, {"trace": "t-1", "n": 2**60}, origin_timestamp=2**63),
        NewMessage(b"\x00\x01", 7),
        NewMessage(b'"text"', 8),
        NewMessage(b'{"broken', 9),
    ]
    system.send("orders", "events", encode_send(messages), PartitionId(0))


def get(client: Client, path: str, key: str | None = None) -> Answer:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return client.request("GET", path, headers=headers)


def members(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = answer.json
    assert found.pop("performance").keys() == {"server_total_ms"}
    return found


def test_streams_are_listed_in_pages_by_name(client: Client) -> None:
    first = members(get(client, "/v0/streams?page_size=3"))
    assert [stream["name"] for stream in first["streams"]] == ["orders", "orders-eu", "secrets"]
    assert first["streams"][0] | {"created_at": 0} == {
        "id": 0, "name": "orders", "created_at": 0, "topics": 2, "messages": 4, "bytes": 317
    }  # fmt: skip
    second = members(get(client, f"/v0/streams?page_size=3&cursor={quote(first['next_cursor'])}"))
    assert [stream["name"] for stream in second["streams"]] == ["x/y z"]
    assert "next_cursor" not in second
    assert [each["name"] for each in members(get(client, "/v0/streams?prefix=orders-"))["streams"]] == ["orders-eu"]
    assert get(client, "/v0/streams?cursor=!").refusal == (400, "invalid_request")


@pytest.mark.parametrize("stream", ["orders", "0"])
def test_a_stream_is_found_by_name_and_by_number(client: Client, stream: str) -> None:
    found = members(get(client, f"/v0/streams/{stream}"))
    assert (found["id"], found["name"], found["messages"]) == (0, "orders", 4)
    assert [(topic["id"], topic["name"], topic["partitions"]) for topic in found["topics"]] == [
        (0, "events", 2),
        (1, "empty", 0),
    ]


@pytest.mark.parametrize("path", ["orders/topics/events", "0/topics/0", "orders/topics/0"])
def test_a_topic_shows_partitions_and_groups(client: Client, path: str) -> None:
    found = members(get(client, f"/v0/streams/{path}"))
    msgspec.convert(found | {"performance": {"server_total_ms": 0.0}}, stream_body.StreamTopicState)
    assert (found["stream_id"], found["stream"], found["id"], found["name"]) == (0, "orders", 0, "events")
    assert (found["message_expiry_us"], found["max_bytes"], found["compression"]) == (None, None, "none")
    assert found["groups"] == [{"id": 0, "name": "billing", "members": 1}]
    assert [(each["id"], each["messages"], each["end_offset"]) for each in found["partitions"]] == [
        (0, 4, 4),
        (1, 0, 0),
    ]
    assert members(get(client, "/v0/streams/orders/topics/empty"))["message_expiry_us"] == 5_000_000


def test_a_partition_shows_its_numbers(client: Client) -> None:
    found = members(get(client, "/v0/streams/orders/topics/events/partitions/0"))
    assert found | {"created_at": 0} == {
        "id": 0,
        "created_at": 0,
        "earliest_offset": 0,
        "end_offset": 4,
        "messages": 4,
        "bytes": 317,
        "segments": 1,
        "unsaved_messages": 4,
        "is_writable": True,
        "stream_id": 0,
        "stream": "orders",
        "topic_id": 0,
        "topic": "events",
    }


def test_names_in_paths_are_escaped(client: Client) -> None:
    path = f"/v0/streams/{quote('x/y z', safe='')}/topics/{quote('ü')}"
    assert members(get(client, path))["name"] == "ü"
    assert members(get(client, f"{path}/partitions/0/messages"))["messages"] == []
    assert get(client, "/v0/streams/%ff/topics/t").refusal == (400, "invalid_request")
    assert get(client, "/v0/streams/orders/topics/%ff").refusal == (400, "invalid_request")


@pytest.mark.parametrize(
    "path",
    [
        "/v0/streams/nothing",
        "/v0/streams/99",
        "/v0/streams/99999999999999999999",
        "/v0/streams/orders/topics",
        "/v0/streams/orders/topics/nothing",
        "/v0/streams/orders/topics/7",
        "/v0/streams/orders/topics/events/partitions",
        "/v0/streams/orders/topics/events/partitions/2",
        "/v0/streams/orders/topics/events/partitions/x",
        "/v0/streams/orders/topics/events/partitions/0/messages/0",
        "/v0/streams/orders/topics/events/messages",
        "/v0/streams/",
    ],
)
def test_what_is_not_there_is_not_found(client: Client, path: str) -> None:
    assert get(client, path).refusal == (404, "not_found")


def test_nothing_can_be_changed(client: Client) -> None:
    for method in ("PUT", "POST", "DELETE"):
        for path in ("/v0/streams", "/v0/streams/orders", "/v0/streams/orders/topics/events/partitions/0/messages"):
            answer = client.request(method, path, {})
            assert answer.refusal == (405, "method_not_allowed")
            assert answer.headers["allow"] == "GET, HEAD"


# Messages.

MESSAGES: Final = "/v0/streams/orders/topics/events/partitions/0/messages"


def test_messages_are_json_where_they_can_be(client: Client) -> None:
    page = members(get(client, MESSAGES))
    msgspec.convert(page | {"performance": {"server_total_ms": 0.0}}, stream_body.StreamMessages)
    assert (page["stream"], page["topic"], page["partition"]) == ("orders", "events", 0)
    assert (page["next_offset"], page["end_offset"]) == (4, 4)
    first = page["messages"][0]
    assert first == {
        "offset": 0,
        "id": str(2**127),
        "timestamp": first["timestamp"],
        "origin_timestamp": str(2**63),
        "headers": [
            {"key": "trace", "kind": "string", "value": "t-1"},
            {"key": "n", "kind": "int64", "value": str(2**60)},
        ],
        "payload_bytes": 8,
        "payload": {"n": 1},
    }
    assert [message.get("payload") for message in page["messages"]] == [{"n": 1}, None, "text", None]
    others = [message.get("payload_base64") for message in page["messages"]]
    assert others == [None, "AAE=", None, base64.b64encode(b'{"broken').decode()]


def test_json_payloads_are_passed_on_byte_for_byte(client: Client) -> None:
    assert b'"payload":{"n": 1}' in get(client, MESSAGES).body


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("offset=2", [2, 3], 4),
        ("offset=1&count=2", [1, 2], 3),
        ("offset=4", [], 4),
        ("offset=9", [], 9),
        ("count=1", [0], 1),
        ("count=0", [0], 1),
        ("last=true&count=1", [3], 4),
        ("timestamp=0", [0, 1, 2, 3], 4),
        ("timestamp=99999999999999999", [], 4),
        ("max_bytes=1", [0], 1),
        ("offset=x&count=2", [0, 1], 2),
        ("offset=1&timestamp=0&last=true&count=1", [1], 2),
        ("timestamp=0&last=true&count=1", [0], 1),
    ],
)
def test_a_page_begins_and_ends_where_the_query_says(
    client: Client, query: str, offsets: list[int], next_offset: int
) -> None:
    page = members(get(client, f"{MESSAGES}?{query}"))
    assert [message["offset"] for message in page["messages"]] == offsets
    assert (page["next_offset"], page["end_offset"]) == (next_offset, 4)


def test_payloads_can_be_left_out(client: Client) -> None:
    page = members(get(client, f"{MESSAGES}?include_payload=false"))
    assert [message["payload_bytes"] for message in page["messages"]] == [8, 2, 6, 8]
    assert not any(message.keys() & {"payload", "payload_base64"} for message in page["messages"])


def test_reading_stores_no_offset(server: Running, client: Client) -> None:
    get(client, MESSAGES)
    assert list(Path(server.server.streams.directory).rglob("offsets/consumers/*")) == []


def test_a_page_has_a_bound_of_bytes_and_a_huge_payload_is_left_out(server: Running, client: Client) -> None:
    system = system_of(server)
    system.create_topic("orders", "large")
    payloads = [json.dumps("x" * 400_000).encode()] * 4 + [b"y" * (2**20 + 1)]
    for payload in payloads:
        system.send("orders", "large", encode_send([NewMessage(payload)]), PartitionId(0))
    path = "/v0/streams/orders/topics/large/partitions/0/messages"
    page = members(get(client, path))
    assert [message["offset"] for message in page["messages"]] == [0, 1]
    assert page["messages"][0]["payload"] == "x" * 400_000
    huge = members(get(client, f"{path}?offset=4"))["messages"]
    assert [(message["payload_bytes"], message.keys() & {"payload", "payload_base64"}) for message in huge] == [
        (2**20 + 1, set())
    ]
    system.delete_topic("orders", "large")


def test_a_damaged_message_is_told(server: Running, client: Client) -> None:
    system = system_of(server)
    topic = system.create_topic("orders", "damaged")
    system.send("orders", "damaged", encode_send([NewMessage(b"good"), NewMessage(b"bad!")]), PartitionId(0))
    system.flush("orders", "damaged", 0, fsync=False)
    (log,) = Path(server.server.streams.directory).glob(f"streams/0/topics/{topic.id}/partitions/0/*.log")
    data = log.read_bytes()
    log.write_bytes(data.replace(b"bad!", b"worse"[:4]))
    path = "/v0/streams/orders/topics/damaged/partitions/0/messages"
    answer = get(client, path)
    assert answer.refusal == (500, "corrupt_record")
    assert str(server.server.streams.directory) not in answer.body.decode()
    assert [message["offset"] for message in members(get(client, f"{path}?count=1"))["messages"]] == [0]
    system.delete_topic("orders", "damaged")


# Keys.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        running(tmp_path_factory.mktemp("guarded"), keys=KEYS, streams_port=0) as served,
        CLIENTS[HTTP1](served.host, served.port) as client,
    ):
        fill(system_of(served))
        yield client


def test_a_key_needs_the_scope_read(guarded: Client) -> None:
    assert get(guarded, "/v0/streams").refusal == (401, "unauthorized")
    assert get(guarded, "/v0/streams", "writer").refusal == (403, "forbidden")
    assert get(guarded, MESSAGES, "writer").refusal == (403, "forbidden")
    assert get(guarded, MESSAGES, "all").status == 200


def test_prefixes_of_a_key_limit_the_streams_that_it_sees(guarded: Client) -> None:
    assert [each["name"] for each in members(get(guarded, "/v0/streams", "reader"))["streams"]] == [
        "orders",
        "orders-eu",
    ]
    assert members(get(guarded, "/v0/streams?prefix=secret", "reader"))["streams"] == []
    for path in ("/v0/streams/orders", "/v0/streams/0", "/v0/streams/1", MESSAGES):
        assert get(guarded, path, "reader").status == 200
    # By name, by number, and a number without a stream: the answers are the same.
    refusals = {
        get(guarded, f"/v0/streams/{stream}{rest}", "reader").body
        for stream in ("secrets", "2", "99", "nothing")
        for rest in ("", "/topics/t", "/topics/t/partitions/0", "/topics/t/partitions/0/messages")
    }
    assert len(refusals) == 1
    assert get(guarded, "/v0/streams/secrets", "reader").refusal == (403, "forbidden")
    assert get(guarded, "/v0/streams/orders-us", "reader").refusal == (404, "not_found")


# Without streams.


def test_a_server_without_streams_has_none(tmp_path: Path) -> None:
    with running(tmp_path) as served, CLIENTS[HTTP1](served.host, served.port) as client:
        for path in ("/v0/streams", MESSAGES):
            answer = get(client, path)
            assert answer.refusal == (404, "not_found")
            assert "no streams" in answer.error["message"]


def test_messages_that_a_client_of_iggy_sees_are_the_same(server: Running, client: Client) -> None:
    polled = system_of(server).browse("orders", "events", 0, PollingStrategy.first(), 10, bytes_max=10_000)
    shown = members(get(client, MESSAGES))["messages"]
    assert [(str(message.id), message.timestamp) for message in polled] == [
        (message["id"], message["timestamp"]) for message in shown
    ]
