"""Commands of WebSocket clients: their structs, and that a publish is a write with a topic."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest, TopicsError
from topics.protocol.write_body import WriteLimits, checked_publish, decode_write
from topics.protocol.ws_command import Ping, Publish, Subscribe, TopicStart, Unsubscribe, decode_command

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.lists(
    st.fixed_dictionaries({"data": JSON}, optional={"tag": st.text(max_size=4), "meta": JSON, "node": st.none()}),
    max_size=3,
)
WRITES = st.fixed_dictionaries(
    {"records": RECORDS},
    optional={
        "node": st.text(max_size=4),
        "idempotency_key": st.none() | st.text(max_size=4),
        "create": st.booleans() | st.none(),
        "config": st.none() | st.fixed_dictionaries({"ttl_ms": st.integers(-1, 1)}),
        "disable_backpressure": st.booleans(),
        "unknown": JSON,
    },
)
HEADS = st.fixed_dictionaries(
    {"topic": st.text(max_size=5)}, optional={"request_id": JSON, "return_seqs": st.booleans(), "more": JSON}
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":\t")])


def published(text: bytes) -> Any:
    command = decode_command(text)
    assert isinstance(command, Publish)
    return checked_publish(text, command)


def outcome(decode: Any, text: bytes) -> object:
    """The result of a write: its records and options, or the code of its refusal."""
    try:
        write = decode(text)
        batch = write.batch(WriteLimits())
    except TopicsError as error:
        return error.code
    return batch.envelopes, batch.sizes, batch.tags, batch.nodes, write.key, write.create, write.config


@given(WRITES, HEADS, SEPARATORS, st.booleans(), st.randoms(use_true_random=False))
def test_a_publish_is_the_write_that_it_carries(
    write: dict[str, Any], head: dict[str, Any], separators: tuple[str, str], is_ascii: bool, random: Any
) -> None:
    members = list((write | head | {"op": "publish"}).items())
    random.shuffle(members)
    text = json.dumps(dict(members), separators=separators, ensure_ascii=is_ascii).encode()
    alone = json.dumps(write, separators=separators, ensure_ascii=is_ascii).encode()
    assert outcome(published, text) == outcome(decode_write, alone)
    try:
        command = decode_command(text)
    except InvalidRequest:
        return
    assert isinstance(command, Publish)
    assert command.topic == head["topic"]
    assert command.return_seqs == head.get("return_seqs", True)
    assert json.loads(bytes(command.request_id)) == head.get("request_id")


@given(WRITES, HEADS, st.sampled_from(["op", "topic", "request_id", "return_seqs", "records", "node", "create"]))
def test_a_member_that_is_given_twice_is_found(write: dict[str, Any], head: dict[str, Any], name: str) -> None:
    members = {"request_id": 1, "return_seqs": False, "node": "n", "create": True} | write | head | {"op": "publish"}
    once = json.dumps({name: members[name]}, separators=(",", ":"))
    text = once[:-1] + "," + json.dumps(members, separators=(",", ":"))[1:]
    with pytest.raises(InvalidRequest):
        published(text.encode())


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_text_is_a_command_or_refused(text: bytes) -> None:
    with suppress(InvalidRequest):
        decode_command(text)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (b'{"op":"ping"}', Ping),
        (b'{"request_id":1,"op":"ping"}', Ping),
        (b'{"op":"subscribe"}', Subscribe),
        (b'{"op":"unsubscribe"}', Unsubscribe),
        (b'{"topic":"t","records":[],"op":"publish"}', Publish),
    ],
)
def test_the_op_decides_wherever_it_stands(text: bytes, shape: type[msgspec.Struct]) -> None:
    assert type(decode_command(text)) is shape


def test_a_topic_and_topics_are_one_list_of_starts() -> None:
    command = decode_command(
        b'{"op":"subscribe","topic":"a","from_seq":3,"topics":{"b":{"tail":true},"a":{"from_seq":5}}}'
    )
    assert isinstance(command, Subscribe)
    assert command.starts() == {"a": TopicStart(from_seq=5), "b": TopicStart(tail=True)}


def test_names_to_leave_are_given_back_as_they_came() -> None:
    command = decode_command(b'{"op":"unsubscribe","topic":"a","topics":["b","a"]}')
    assert isinstance(command, Unsubscribe)
    assert command.names() == ["a", "b", "a"]
