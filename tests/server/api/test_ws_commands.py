"""Commands over a WebSocket: what each of them answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Running, running
from tests.server.ws_peer import WsClient, ws_client


@pytest.fixture
def client(server: Running) -> Iterator[WsClient]:
    with ws_client(server) as connected:
        yield connected


def seqs_of(messages: list[dict[str, Any]]) -> list[int]:
    return [record["$seq"] for message in messages if message["op"] == "record" for record in message["records"]]


def refusal(message: dict[str, Any]) -> tuple[Any, str]:
    assert message.keys() == {"op", "request_id", "code", "message"}
    assert message["op"] == "error"
    assert message["message"]
    return message["request_id"], message["code"]


# What is no command.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "null",
        "[]",
        '"ping"',
        "{}",
        '{"request_id":1}',
        '{"op":null,"request_id":1}',
        '{"op":"PING","request_id":1}',
        '{"op":"dance","request_id":1}',
        '{"op":"ping","op":"ping","request_id":1}',
        '{"op":"ping","request_id":1,"request_id":2}',
        '{"op":"ping","request_id":1e400}',
        '{"op":"ping","request_id":' + "[" * 127 + "]" * 127 + "}",
        '{"op":"ping"} {"op":"ping"}',
        '{"op":"subscribe","request_id":1,"topic":1}',
        '{"op":"subscribe","request_id":1,"topic":"a","from_seq":-1}',
        '{"op":"subscribe","request_id":1,"topic":"a","from_seq":1.0}',
        '{"op":"subscribe","request_id":1,"topic":"a","from_seq":18446744073709551616}',
        '{"op":"subscribe","request_id":1,"topic":"a","tail":1}',
        '{"op":"subscribe","request_id":1,"topic":"a","limit":4294967296}',
        '{"op":"subscribe","request_id":1,"topic":"a","include_data":null}',
        '{"op":"subscribe","request_id":1,"topics":["a"]}',
        '{"op":"subscribe","request_id":1,"topics":{"a":null}}',
        '{"op":"subscribe","request_id":1,"topics":null}',
        '{"op":"subscribe","request_id":1,"topics":{"a":{"from_seq":1,"from_seq":2}}}',
        '{"op":"subscribe","request_id":1,"topics":{"a":{},"a":{}}}',
        '{"op":"subscribe","request_id":1,"topics":{"a":{"from_seq":18446744073709551616}}}',
        '{"op":"unsubscribe","request_id":1,"topics":{"a":{}}}',
        '{"op":"unsubscribe","request_id":1,"topics":[1]}',
        '{"op":"publish","request_id":1,"records":[{"data":1}]}',
        '{"op":"publish","request_id":1,"topic":null,"records":[{"data":1}]}',
        '{"op":"publish","request_id":1,"topic":"a"}',
        '{"op":"publish","request_id":1,"topic":"a","records":{}}',
        '{"op":"publish","request_id":1,"topic":"a","records":[{"tag":"x"}]}',
        '{"op":"publish","request_id":1,"topic":"a","records":[{"data":1,"data":2}]}',
        '{"op":"publish","request_id":1,"topic":"a","topic":"a","records":[{"data":1}]}',
        '{"op":"publish","request_id":1,"topic":"a","records":[{"data":1e400}]}',
        '{"op":"publish","request_id":1,"topic":"a","records":[{"data":1}],"config":{"ttl_ms":-1}}',
        '{"op":"publish","request_id":' + "[" * 127 + "]" * 127 + ',"topic":"a","records":[{"data":1}]}',
        '{"op":"publish","request_id":1,"topic":"a","records":[{"data":' + "[" * 125 + "]" * 125 + "}]}",
        '{"op":"publish","request_id":1,"topic":"a","records":[{"data":1}],"return_seqs":0}',
    ],
)
def test_what_is_no_command_is_invalid_json_of_nobody(client: WsClient, text: str) -> None:
    client.connection.send(text)
    assert refusal(client.receive()) == (None, "invalid_json")
    assert client.ask("ping")["op"] == "pong"


def test_a_binary_message_is_refused_and_the_connection_stays(client: WsClient) -> None:
    client.connection.send(b'{"op":"ping","request_id":1}')
    message = client.receive()
    assert message.keys() == {"op", "code", "message"}
    assert (message["op"], message["code"]) == ("error", "unsupported_message")
    assert client.ask("ping")["op"] == "pong"


@pytest.mark.parametrize(
    "request_id", ["1", '"a"', "null", "true", "1.50", '{ "a": [1, {}] }', "[ ]", '"\\u00e9"', "1E2"]
)
def test_a_request_id_comes_back_as_it_was_sent(client: WsClient, request_id: str) -> None:
    client.connection.send(f'{{"op": "ping", "request_id": {request_id}}}')
    assert client.connection.recv() == f'{{"op":"pong","request_id":{request_id}}}'


def test_unknown_members_are_passed_over(client: WsClient, topic: str) -> None:
    assert client.ask("ping", more=1) == {"op": "pong", "request_id": None}
    records = [{"data": 1, "$seq": 9}]
    assert client.ask("publish", topic=topic, records=records, more={"a": 1})["last_seq"] == 1
    assert client.ask("subscribe", topic=topic, more=1)["op"] == "subscribed"


# Publish.


def test_an_ack_has_the_members_of_an_answer_to_a_write(client: WsClient, topic: str) -> None:
    ack = client.ask("publish", request_id=7, topic=topic, records=[{"data": 1}, {"data": None, "tag": "x"}])
    performance = ack.pop("performance")
    assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert ack == {
        "op": "ack",
        "request_id": 7,
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }


def test_seqs_that_nobody_wants_are_null(client: WsClient, topic: str) -> None:
    ack = client.ask("publish", topic=topic, records=[{"data": 1}], return_seqs=False)
    assert (ack["seqs"], ack["request_id"]) == (None, None)


def test_a_repeated_key_appends_nothing(client: WsClient, topic: str) -> None:
    first = client.ask("publish", topic=topic, records=[{"data": 1}], idempotency_key="k")
    again = client.ask("publish", topic=topic, records=[{"data": 1}], idempotency_key="k")
    assert (first["deduped"], again["deduped"], again["seqs"]) == (False, True, [1])
    assert again["performance"].keys() == {"server_total_ms"}


def test_a_config_is_that_of_the_topic_that_is_made(client: WsClient, topic: str) -> None:
    records = [{"data": number} for number in range(5)]
    assert client.ask("publish", topic=topic, records=records, config={"cap_records": 2})["created"]
    assert client.ask("subscribe", topic=topic)["topics"][topic]["earliest_seq"] == 4


def test_nodes_tags_and_metas_are_stored(client: WsClient, topic: str) -> None:
    record = {"data": {"é": [1.50]}, "tag": "t", "meta": {"a": 1}}
    client.ask("publish", topic=topic, node="n", records=[record, record | {"node": "own"}])
    client.send("subscribe", topic=topic, include_tags=True)
    _, pushed, _ = client.receive_until("caught_up")
    shown = {"data": {"é": [1.50]}, "$tag": "t", "meta": {"a": 1}}
    assert [{name: record[name] for name in shown} for record in pushed["records"]] == [shown, shown]
    assert [record["$node"] for record in pushed["records"]] == ["n", "own"]


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"records": []}, "invalid_request"),
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ({"records": [{"data": "x" * 1_048_576}]}, "record_too_large"),
        ({"records": [{"data": 1, "tag": "x" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1}], "idempotency_key": "x" * 257}, "invalid_request"),
        ({"records": [{"data": 1}], "create": False}, "topic_not_found"),
        ({"records": [{"data": 1}], "config": {"auto_create": False}}, "topic_not_found"),
        ({"records": [{"data": 1}], "topic": "not a name"}, "invalid_request"),
        ({"records": [{"data": 1}] * 3, "config": {"discard": "reject", "cap_records": 2}}, "record_too_large"),
    ],
)
def test_a_write_is_refused_as_over_http(client: WsClient, topic: str, members: dict[str, Any], code: str) -> None:
    assert refusal(client.ask("publish", request_id=3, **{"topic": topic} | members)) == (3, code)


def test_a_full_topic_refuses_a_write(client: WsClient, topic: str) -> None:
    config = {"discard": "reject", "cap_records": 1}
    assert client.ask("publish", topic=topic, records=[{"data": 1}], config=config)["op"] == "ack"
    assert refusal(client.ask("publish", request_id=1, topic=topic, records=[{"data": 1}])) == (1, "topic_full")


def test_many_writes_at_once_are_all_acked(client: WsClient, topic: str) -> None:
    for number in range(500):
        client.send("publish", request_id=number, topic=topic, records=[{"data": number}])
    acks = [client.receive() for _ in range(500)]
    assert sorted(ack["request_id"] for ack in acks) == list(range(500))
    assert [ack["first_seq"] - 1 for ack in sorted(acks, key=lambda ack: ack["request_id"])] == list(range(500))


# Subscribe and unsubscribe.


def fill(client: WsClient, topic: str, count: int = 3, **members: Any) -> None:
    records = [{"data": number} for number in range(1, count + 1)]
    assert client.reply("publish", topic=topic, records=records, **members)["op"] == "ack"


def test_the_reply_comes_before_the_first_records(client: WsClient, topic: str) -> None:
    fill(client, topic)
    client.send("subscribe", request_id=1, topic=topic, from_seq=1)
    subscribed, pushed, caught_up = client.receive_until("caught_up")
    assert subscribed == {
        "op": "subscribed",
        "request_id": 1,
        "topics": {topic: {"from_seq": 1, "head_seq": 3, "earliest_seq": 1}},
    }
    records = pushed.pop("records")
    assert pushed == {"op": "record", "topic": topic, "from_seq": 1, "to_seq": 3, "head_seq": 3}
    assert [(record.pop("$seq"), record.pop("$ts") > 0, record) for record in records] == [
        (2, True, {"data": 2}),
        (3, True, {"data": 3}),
    ]
    assert caught_up == {"op": "caught_up", "topic": topic, "head_seq": 3}


def test_a_tail_begins_at_the_head(client: WsClient, topic: str) -> None:
    fill(client, topic)
    reply = client.ask("subscribe", topic=topic, from_seq=1, tail=True)
    assert reply["topics"][topic]["from_seq"] == 3
    assert client.receive()["op"] == "caught_up"
    client.send("publish", topic=topic, records=[{"data": 4}])
    assert seqs_of(client.receive_until("caught_up", head_seq=4)) == [4]


def test_an_entry_of_topics_wins_over_the_topic_itself(client: WsClient, topic: str) -> None:
    other = topic + "-other"
    fill(client, topic)
    fill(client, other)
    reply = client.ask("subscribe", topic=topic, from_seq=1, topics={topic: {"from_seq": 2}, other: {"tail": True}})
    assert {name: shown["from_seq"] for name, shown in reply["topics"].items()} == {topic: 2, other: 3}


def test_options_decide_what_a_frame_has(client: WsClient, topic: str) -> None:
    records = [{"data": "x" * 100, "meta": 1, "tag": "t", "node": "n"}, {"data": 2}, {"data": 3, "node": "m"}] * 2
    client.ask("publish", topic=topic, records=records)
    client.send("subscribe", topic=topic, limit=2, include_data=False, include_meta=False)
    frames = [message for message in client.receive_until("caught_up") if message["op"] == "record"]
    assert [seqs_of([message]) for message in frames] == [[1, 2], [3, 4], [5, 6]]
    assert [record.keys() - {"$seq", "$ts"} for record in frames[0]["records"]] == [{"$node"}, set()]
    client.send("subscribe", topic=topic, max_batch_bytes=1, node=["n", "m"])
    assert [seqs_of([message]) for message in client.receive_until("caught_up") if seqs_of([message])] == [[2], [5]]
    client.send("subscribe", topic=topic, limit=0, max_batch_bytes=0, node="n", include_tags=True)
    assert seqs_of(client.receive_until("caught_up")) == [2, 3, 5, 6]


def test_subscribing_again_starts_anew(client: WsClient, topic: str) -> None:
    fill(client, topic)
    for from_seq in (0, 2, 0):
        client.send("subscribe", topic=topic, from_seq=from_seq)
        assert seqs_of(client.receive_until("caught_up")) == list(range(from_seq + 1, 4))


def test_a_subscription_is_for_all_topics_or_for_none(client: WsClient, topic: str) -> None:
    fill(client, topic)
    topics: dict[str, Any] = {topic: {}, "nowhere": {}}
    assert refusal(client.ask("subscribe", request_id=1, topics=topics)) == (1, "topic_not_found")
    # Nothing is pushed: the next message is the next reply.
    assert client.ask("ping", request_id=2) == {"op": "pong", "request_id": 2}


def test_a_lenient_subscription_leaves_out_what_is_not_there(client: WsClient, topic: str) -> None:
    fill(client, topic)
    topics: dict[str, Any] = {topic: {"tail": True}, "nowhere": {}}
    assert client.ask("subscribe", topics=topics, lenient=True)["topics"].keys() == {topic}
    assert client.receive()["op"] == "caught_up"
    assert client.ask("subscribe", request_id=1, topic="nowhere", lenient=True) == {
        "op": "subscribed",
        "request_id": 1,
        "topics": {},
    }


@pytest.mark.parametrize("op", ["subscribe", "unsubscribe"])
def test_no_topic_is_an_invalid_request(client: WsClient, op: str) -> None:
    assert refusal(client.ask(op, request_id=1)) == (1, "invalid_request")
    assert refusal(client.ask(op, request_id=2, topic=None, topics={} if op == "subscribe" else [])) == (
        2,
        "invalid_request",
    )


def test_a_command_names_only_so_many_topics(client: WsClient) -> None:
    topics: dict[str, Any] = {f"t{number}": {} for number in range(257)}
    assert refusal(client.ask("subscribe", request_id=1, topics=topics)) == (1, "invalid_request")


def test_nothing_comes_of_a_topic_that_was_unsubscribed(client: WsClient, topic: str) -> None:
    fill(client, topic)
    client.send("subscribe", topic=topic)
    client.receive_until("caught_up")
    names = {"topic": topic, "topics": ["nowhere", topic]}
    assert client.ask("unsubscribe", request_id=1, **names) == {
        "op": "unsubscribed",
        "request_id": 1,
        "topics": [topic, "nowhere", topic],
    }
    fill(client, topic)
    assert client.ask("ping")["op"] == "pong"


# Keys.


def test_each_command_needs_its_scope_and_a_refusal_ends_nothing(tmp_path: Path) -> None:
    keys = "reader:read,writer:write,admin:write+admin,deleter:delete,all"
    with running(tmp_path, keys=keys) as server:
        may: dict[str, set[str]] = {}
        for key in ("all", "reader", "writer", "admin", "deleter"):
            with ws_client(server, key) as client:
                commands: dict[str, dict[str, Any]] = {
                    "publish": {"topic": "t", "records": [{"data": 1}]},
                    "publish with config": {"topic": "t", "records": [{"data": 1}], "config": {}},
                    "subscribe": {"topic": "t", "tail": True},
                    "unsubscribe": {"topic": "t"},
                    "ping": {},
                }
                for command, members in commands.items():
                    reply = client.reply(command.split(" ")[0], **members)
                    if reply["op"] == "error":
                        assert refusal(reply) == ("reply", "forbidden")
                    else:
                        may.setdefault(key, set()).add(command)
    always = {"unsubscribe", "ping"}
    assert may == {
        "all": {"publish", "publish with config", "subscribe"} | always,
        "reader": {"subscribe"} | always,
        "writer": {"publish"} | always,
        "admin": {"publish", "publish with config"} | always,
        "deleter": always,
    }


def test_a_key_names_only_topics_of_its_prefixes(tmp_path: Path) -> None:
    with running(tmp_path, keys="k::acme.|shared.") as server, ws_client(server, "k") as client:
        assert client.ask("publish", topic="acme.a", records=[{"data": 1}])["op"] == "ack"
        for op, members in (
            ("publish", {"topic": "other", "records": [{"data": 1}]}),
            ("subscribe", {"topic": "other", "lenient": True}),
            ("subscribe", {"topics": {"acme.a": {}, "other": {}}}),
            ("unsubscribe", {"topics": ["acme.a", "other"]}),
        ):
            assert refusal(client.ask(op, request_id=1, **members)) == (1, "forbidden")
        assert client.ask("subscribe", topic="acme.a")["op"] == "subscribed"
