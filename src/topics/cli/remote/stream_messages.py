"""How `topics stream read` and `topics stream tail` choose and print messages."""

import fnmatch
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.cli.output import message
from topics.cli.remote.forms import json_text, one_line
from topics.cli.remote.items import Directives, ItemPrinter
from topics.cli.remote.records import payload_condition
from topics.cli.remote.shown import show_time
from topics.cli.remote.stream_reading import Gone
from topics.protocol.stream_message import exact, payload_members

if TYPE_CHECKING:
    from topics.client.answers import StreamRecord

Matches = Callable[["StreamRecord"], bool]

# Which messages.


def matcher(conditions: list[str]) -> Matches:
    """Conditions that must all hold: header.NAME=GLOB, MEMBER=GLOB for a path in the payload, or text of it."""
    checks = [_condition(text) for text in conditions]
    return lambda record: all(check(record) for check in checks)


def _condition(text: str) -> Matches:
    member, equals, pattern = text.partition("=")
    kind, point, name = member.partition(".")
    if equals and point and kind == "header":
        return lambda record: fnmatch.fnmatchcase(_headers(record).get(name, ""), pattern)
    check = payload_condition(text)
    return lambda record: check(record.payload or b"")


def _headers(record: "StreamRecord") -> dict[str, str]:
    """Keys and values as text; bytes are base64."""
    return {_text(one.key, one.key_base64): _text(one.value, one.value_base64) for one in record.headers}


def _text(value: Any, base64: Any) -> str:
    if value is msgspec.UNSET:
        return str(base64)
    return value if isinstance(value, str) else json_text(value)


# Their form.


def row_of(record: "StreamRecord") -> dict[str, Any]:
    """The members of the HTTP interface. A payload that is JSON keeps its text, any other payload is base64."""
    row: dict[str, Any] = {
        "partition": record.partition,
        "offset": exact(record.offset),
        "id": str(record.id),
        "timestamp": exact(record.timestamp_us),
        "origin_timestamp": exact(record.origin_timestamp_us),
    }
    if record.headers:
        row["headers"] = record.headers
    row["payload_bytes"] = record.payload_bytes
    if record.payload is not None:
        members = payload_members(record.payload)
        row |= {"payload": msgspec.Raw(one_line(record.payload))} if "payload" in members else members
    return row


def _shown(record: "StreamRecord") -> str:
    """The payload for eyes: JSON in one line, text as text, other bytes as base64."""
    if record.payload is None:
        return f"({record.payload_bytes} bytes: too large to be shown here)"
    if "payload" in payload_members(record.payload):
        return one_line(record.payload).decode()
    try:
        return record.payload.decode()
    except UnicodeDecodeError:
        return f"base64:{b64encode(record.payload).decode()}"


class MessagePrinter(ItemPrinter):
    """Prints messages, and which ones are gone."""

    heading = f"{'PARTITION':>9}  {'OFFSET':>10}  {'TIME':24}  PAYLOAD"
    columns = ("partition", "offset", "timestamp", "id", "headers", "payload", "payload_base64")

    def gone(self, gone: Gone) -> None:
        text = f"messages {gone.first_offset} to {gone.last_offset} of partition {gone.partition} are gone"
        self.lost(text, {"gone": gone._asdict()})

    def line(self, item: "StreamRecord") -> str:
        return f"{item.partition:>9}  {item.offset:>10}  {show_time(item.timestamp_us // 1000):24}  {_shown(item)}"

    def row(self, item: "StreamRecord") -> dict[str, Any]:
        return row_of(item)

    def cells(self, item: "StreamRecord") -> list[str]:
        row = row_of(item)
        return [_cell(row.get(name)) for name in self.columns]

    def print_raw(self, item: "StreamRecord") -> None:
        if item.payload is None:
            message(f"topics: message {item.offset} of partition {item.partition}: {_shown(item)}")
        else:
            self._output.payload_bytes(item.payload)

    def directives(self, name: str) -> Directives:
        return {
            "t": name,
            "p": lambda record: str(record.partition),
            "o": lambda record: str(record.offset),
            "i": lambda record: str(record.id),
            "T": lambda record: show_time(record.timestamp_us // 1000),
            "m": lambda record: str(record.timestamp_us // 1000),
            "h": lambda record: json_text(_headers(record)),
            "d": _shown,
            "%": "%",
        }


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text(value)
