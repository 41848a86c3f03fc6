"""The AsyncAPI 3 document of a server: the streams of watches and of jobs, and the messages of WebSockets.

The structs of the messages give everything but the words of this module. OpenAPI says of the same endpoints how a
stream is opened; this document says what comes over it.
"""

from typing import Any, Final, NamedTuple

import msgspec

from topics.protocol import sse_event, ws_command, ws_message
from topics.server.openapi.named_shapes import name_pairs
from topics.version import VERSION

ASYNCAPI_VERSION: Final = "3.0.0"

_SCHEMA: Final = "#/components/schemas/{name}"
_BEARER: Final = "#/components/securitySchemes/bearer"
_ABOUT: Final = (
    "What a topics server pushes. Every message is one JSON object. Clients ignore members and messages that they do "
    "not know. How a stream is opened, with which parameters, scopes and errors, is in `/v0/openapi.json`."
)


class _Channel(NamedTuple):
    """`sent` are messages that clients get, by their names on the wire; `received` are messages that clients send."""

    address: str
    title: str
    description: str
    sent: tuple[tuple[str, type[msgspec.Struct]], ...]
    received: tuple[tuple[str, type[msgspec.Struct]], ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    protocol: str = "http"


_SSE: Final = "Server-sent events: the name of a message is the `event` of its frame, its payload is the `data`. "

_CHANNELS: Final = {
    "watch": _Channel(
        "/v0/watch/{wid}",
        "Records of many topics",
        _SSE + "The `id` of an event holds the cursors of the session, for `Last-Event-ID`. A comment is sent after a "
        "time of silence.",
        (
            ("record", sse_event.RecordEvent),
            ("tombstone", sse_event.TombstoneEvent),
            ("caught-up", sse_event.CaughtUpEvent),
            ("topic-deleted", sse_event.TopicDeletedEvent),
            ("error", sse_event.PressureEvent),
            ("error", sse_event.EndEvent),
        ),
        parameters=(("wid", "The watch session, from `POST /v0/watch`."),),
    ),
    "work": _Channel(
        "/v0/topics/{topic}/work",
        "Jobs of a queue",
        _SSE + "The `id` of a job is its seq. Acks, nacks and extends are separate calls.",
        (("job", sse_event.JobEvent), ("error", sse_event.WorkEndEvent)),
        parameters=(("topic", "Name of the queue."),),
    ),
    "ws": _Channel(
        "/v0/ws",
        "Subscribe and publish over a WebSocket",
        "Text frames. The member `op` of a message is its name. A reply has the `request_id` of its command.",
        (
            ("record", ws_message.RecordMessage),
            ("tombstone", ws_message.TombstoneMessage),
            ("caught_up", ws_message.CaughtUpMessage),
            ("topic_deleted", ws_message.TopicDeletedMessage),
            ("subscribed", ws_message.SubscribedReply),
            ("unsubscribed", ws_message.UnsubscribedReply),
            ("pong", ws_message.PongReply),
            ("ack", ws_message.AckReply),
            ("error", ws_message.ErrorReply),
            ("error", ws_message.EndMessage),
        ),
        (
            ("subscribe", ws_command.Subscribe),
            ("unsubscribe", ws_command.Unsubscribe),
            ("publish", ws_command.Publish),
            ("ping", ws_command.Ping),
        ),
        protocol="ws",
    ),
}


def asyncapi_document(address: str) -> dict[str, Any]:
    """The document of a server that listens at this host and port."""
    shapes = {shape for channel in _CHANNELS.values() for _, shape in (*channel.sent, *channel.received)}
    _, schemas = msgspec.json.schema_components(sorted(shapes, key=lambda shape: shape.__name__), ref_template=_SCHEMA)
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {"title": "topics", "version": VERSION, "description": _ABOUT, "license": {"name": "MIT"}},
        "defaultContentType": "application/json",
        "servers": {
            protocol: {
                "host": address,
                "protocol": protocol,
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            }
            for protocol in ("http", "ws")
        },
        "channels": {name: _channel(channel) for name, channel in _CHANNELS.items()},
        "operations": dict(_operations()),
        "components": {
            "schemas": name_pairs(schemas),
            "messages": {
                shape.__name__: _message(name, shape)
                for channel in _CHANNELS.values()
                for name, shape in (*channel.sent, *channel.received)
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of the server."}
            },
        },
    }


def _channel(channel: _Channel) -> dict[str, Any]:
    made: dict[str, Any] = {
        "address": channel.address,
        "title": channel.title,
        "description": channel.description,
        "servers": [{"$ref": f"#/servers/{channel.protocol}"}],
        "messages": {
            shape.__name__: {"$ref": f"#/components/messages/{shape.__name__}"}
            for _, shape in (*channel.sent, *channel.received)
        },
    }
    if channel.parameters:
        made["parameters"] = {name: {"description": description} for name, description in channel.parameters}
    return made


def _operations() -> list[tuple[str, dict[str, Any]]]:
    """From the view of the server, as the standard asks."""
    return [
        (
            f"{action}_{name}",
            {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{shape.__name__}"} for _, shape in messages],
            },
        )
        for name, channel in _CHANNELS.items()
        for action, messages in (("send", channel.sent), ("receive", channel.received))
        if messages
    ]


def _message(name: str, shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "name": name,
        "title": shape.__name__,
        "summary": " ".join((shape.__doc__ or name).split()),
        "contentType": "application/json",
        "payload": {"$ref": _SCHEMA.format(name=shape.__name__)},
    }
