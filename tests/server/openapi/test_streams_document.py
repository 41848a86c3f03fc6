"""The AsyncAPI document: well-formed, whole, and in agreement with what really comes over the streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server.clients import CLIENTS, HTTP1, Client
from tests.server.event_streams import EVENT_STREAMS
from tests.server.openapi_document import ask
from tests.server.running import Running, running
from tests.server.ws_peer import ws_client
from topics.protocol import sse_event, ws_command, ws_message

REFERENCE = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string", "pattern": "^#/"}}}
NAMED = {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9_-]+$"}}
# The parts of the AsyncAPI 3.0 standard that the document uses.
STANDARD: dict[str, Any] = {
    "type": "object",
    "required": ["asyncapi", "info"],
    "additionalProperties": False,
    "properties": {
        "asyncapi": {"const": "3.0.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "defaultContentType": {"type": "string"},
        "servers": NAMED
        | {
            "additionalProperties": {
                "type": "object",
                "required": ["host", "protocol"],
                "properties": {
                    "host": {"type": "string", "pattern": "^[^/]+$"},
                    "protocol": {"type": "string"},
                    "security": {"type": "array", "items": REFERENCE},
                },
                "additionalProperties": False,
            }
        },
        "channels": NAMED
        | {
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "address": {"type": ["string", "null"]},
                    "title": {"type": "string"},
                    "description": {"type": "string"},
                    "servers": {"type": "array", "items": REFERENCE, "uniqueItems": True},
                    "messages": NAMED | {"additionalProperties": REFERENCE},
                    "parameters": NAMED
                    | {
                        "additionalProperties": {
                            "type": "object",
                            "properties": {"description": {"type": "string"}},
                            "additionalProperties": False,
                        }
                    },
                },
                "additionalProperties": False,
            }
        },
        "operations": NAMED
        | {
            "additionalProperties": {
                "type": "object",
                "required": ["action", "channel"],
                "properties": {
                    "action": {"enum": ["send", "receive"]},
                    "channel": REFERENCE,
                    "messages": {"type": "array", "items": REFERENCE},
                },
                "additionalProperties": False,
            }
        },
        "components": {
            "type": "object",
            "properties": {
                "schemas": NAMED,
                "messages": NAMED
                | {
                    "additionalProperties": {
                        "type": "object",
                        "required": ["name", "payload"],
                        "properties": {
                            "name": {"type": "string"},
                            "title": {"type": "string"},
                            "summary": {"type": "string", "minLength": 1},
                            "contentType": {"type": "string"},
                            "payload": REFERENCE,
                        },
                        "additionalProperties": False,
                    }
                },
                "securitySchemes": NAMED,
            },
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def document(server: Running) -> dict[str, Any]:
    fetched: dict[str, Any] = ask(server, "GET", "/v0/asyncapi.json").json
    return fetched


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def found(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_the_document_has_the_form_of_the_standard(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(STANDARD).validate(document)
    for reference in set(references(document)):
        assert found(document, reference), reference
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for channel in document["channels"].values():
        assert re.findall(r"{(\w+)}", channel["address"]) == list(channel.get("parameters", ()))


def test_every_message_of_the_streams_is_in_the_document(document: dict[str, Any]) -> None:
    declared = {
        shape.__name__
        for module in (sse_event, ws_message, ws_command)
        for shape in vars(module).values()
        if isinstance(shape, type) and shape.__module__ == module.__name__
    }
    assert document["components"]["messages"].keys() == declared - {"TopicStart"}


def test_what_comes_over_the_streams_fits_the_document(server: Running, document: dict[str, Any], topic: str) -> None:
    with CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic(topic, cap_records=2)
        client.write(topic, records=[{"data": number, "tag": "a", "meta": {"k": 1}} for number in range(3)])
        seen = watched(server, document, client, topic) | worked(server, document, client, f"{topic}-jobs")
        seen |= spoken(server, document, topic)
    # These need load, or a command that is wrong.
    assert document["components"]["messages"].keys() - seen == {
        "Subscribe",
        "Unsubscribe",
        "Publish",
        "Ping",
        "PressureEvent",
        "EndEvent",
        "EndMessage",
        "TopicDeletedMessage",
        "WorkEndEvent",
    }


def fitting(document: dict[str, Any], channel: str, name: str, payload: Any) -> str:
    """The message that the payload is one of. A reply comes before the messages that lack its members."""
    for reference in document["operations"][f"send_{channel}"]["messages"]:
        shape = reference["$ref"].rpartition("/")[2]
        message = document["components"]["messages"][shape]
        schema = message["payload"] | {"components": document["components"]}
        if message["name"] == name and jsonschema.Draft202012Validator(schema).is_valid(payload):
            return str(shape)
    raise AssertionError(f"no message {name} of {channel} fits {payload}")


def watched(server: Running, document: dict[str, Any], client: Client, topic: str) -> set[str]:
    session = client.request("POST", "/v0/watch", {"topics": {topic: {}}, "include_tags": True}).json
    with EVENT_STREAMS[HTTP1]((server.host, server.port), session["stream_url"]) as stream:
        events = [event for event in stream.until("caught-up") if event.name != "retry"]
        client.request("DELETE", f"/v0/topics/{topic}")
        events += stream.until("topic-deleted")
    client.put_topic(topic, cap_records=2)
    return {fitting(document, "watch", event.name, event.data) for event in events}


def worked(server: Running, document: dict[str, Any], client: Client, queue: str) -> set[str]:
    client.put_topic(queue, type="queue")
    client.write(queue, records=[{"data": 1, "tag": "a"}])
    with EVENT_STREAMS[HTTP1]((server.host, server.port), f"/v0/topics/{queue}/work?node=w") as stream:
        return {fitting(document, "work", "job", stream.until("job")[-1].data)}


def spoken(server: Running, document: dict[str, Any], topic: str) -> set[str]:
    with ws_client(server) as ws:
        messages = [ws.reply("publish", topic=topic, records=[{"data": number}]) for number in range(3)]
        messages.append(ws.reply("ping"))
        ws.send("subscribe", request_id=1, topic=topic, from_seq=0)
        messages += ws.receive_until("caught_up")
        messages.append(ws.reply("unsubscribe", topic=topic))
        messages.append(ws.reply("subscribe", topic=f"{topic}-nowhere"))
    return {fitting(document, "ws", message["op"], message) for message in messages}


def test_the_document_is_there_before_the_log_is(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False) as server:
        assert ask(server, "GET", "/v0/asyncapi.json").json["servers"]["ws"]["protocol"] == "ws"
