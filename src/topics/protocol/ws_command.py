"""Commands of a WebSocket client: their structs, and their checks.

`op` says which command a message is. The JSON rules of request bodies apply. A command that breaks one of them is
refused without its `request_id`, which is then not known for sure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from topics.protocol.body_decoder import (
    BodyDecoder,
    check_repeats,
    check_text,
    check_values,
    decoded,
    pairs_of,
)
from topics.protocol.member_types import U32, U64
from topics.protocol.request_body import WriteBody

# The reply to a command without a `request_id` has this one.
NO_REQUEST_ID: Final = Raw(b"null")


def _no_request_id() -> Raw:
    """Not a plain default: a schema of the command could not show it."""
    return NO_REQUEST_ID


class TopicStart(Struct, kw_only=True):
    """Where a subscription begins."""

    from_seq: U64 = 0
    tail: bool = False


class Subscribe(Struct, kw_only=True, tag_field="op", tag="subscribe"):
    """Subscribe to topics."""

    request_id: Raw = field(default_factory=_no_request_id)
    topic: str | None = None
    topics: dict[str, TopicStart] = {}
    from_seq: U64 = 0
    tail: bool = False
    node: str | list[str] | None = None
    limit: U32 = 1000
    max_batch_bytes: U64 = 1_048_576
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False

    def starts(self) -> dict[str, TopicStart]:
        """Every named topic, and where its subscription begins."""
        starts: dict[str, TopicStart] = {}
        if self.topic is not None:
            starts[self.topic] = TopicStart(from_seq=self.from_seq, tail=self.tail)
        return starts | self.topics


class Unsubscribe(Struct, kw_only=True, tag_field="op", tag="unsubscribe"):
    """End subscriptions."""

    request_id: Raw = field(default_factory=_no_request_id)
    topic: str | None = None
    topics: list[str] = []

    def names(self) -> list[str]:
        return self.topics if self.topic is None else [self.topic, *self.topics]


class Publish(WriteBody, kw_only=True, tag_field="op", tag="publish"):
    """A write: the members of a write, and its topic."""

    request_id: Raw = field(default_factory=_no_request_id)
    topic: str
    return_seqs: bool = True


class Ping(Struct, kw_only=True, tag_field="op", tag="ping"):
    """Check that the server answers."""

    request_id: Raw = field(default_factory=_no_request_id)


Command = Subscribe | Unsubscribe | Publish | Ping

_decode: Final = msgspec.json.Decoder(Command).decode
_STARTS: Final = BodyDecoder(TopicStart)
_RANGES: Final = BodyDecoder(Subscribe)
_START_NAMES: Final = frozenset(TopicStart.__struct_fields__)
_NAMES_BY_SHAPE: Final = {
    shape: frozenset(shape.__struct_fields__) | {"op"} for shape in (Subscribe, Unsubscribe, Publish, Ping)
}


def decode_long_command(text: bytes) -> Command:
    """A command that is no `publish`, and longer than most. Its values are counted before it is parsed."""
    check_values(text)
    return decode_command(text)


def decode_command(text: bytes) -> Command:
    """The command in the text. Raises `InvalidRequest`. `checked_publish` checks the records of a `Publish`."""
    command: Any = decoded(_decode, text)
    if isinstance(command, Publish):
        return command
    check_values(text)
    check_text(text)
    pairs = pairs_of(text)
    check_repeats(pairs, _NAMES_BY_SHAPE[type(command)])
    if isinstance(command, Subscribe):
        for name, value in pairs:
            if name == "topics":
                check_repeats(value, frozenset(command.topics))
                for _, start in value:
                    check_repeats(start, _START_NAMES)
        _RANGES.check_ranges(command)
        for start in command.topics.values():
            _STARTS.check_ranges(start)
    found: Command = command
    return found
