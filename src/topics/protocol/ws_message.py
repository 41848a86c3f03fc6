"""Messages that a WebSocket client gets, declared once. `op` says which message it is.

`record` and `ack` messages are rendered as text: tests/server/api/test_rendered_answers.py holds them to their struct.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from topics.limits import MIB
from topics.protocol.member_types import U64
from topics.protocol.response_body import DiffRecord, Performance, TombstoneReason, WatchedTopic

# More than any message of the server: records have 1 MiB together, or are one larger record, and a reply names at most
# 4096 topics.
MESSAGE_BYTES_MAX: Final = 16 * MIB

# Pushed.


class RecordMessage(Struct, kw_only=True, tag_field="op", tag="record"):
    """Records of one topic, seqs ascending."""

    topic: str
    from_seq: U64
    to_seq: U64
    head_seq: U64
    records: list[DiffRecord]


class TombstoneMessage(Struct, kw_only=True, tag_field="op", tag="tombstone"):
    """Records that are gone."""

    topic: str
    reason: TombstoneReason
    gap_from: U64
    gap_to: U64
    earliest_seq: U64
    head_seq: U64


class CaughtUpMessage(Struct, kw_only=True, tag_field="op", tag="caught_up"):
    """The client has every record up to the head."""

    topic: str
    head_seq: U64


class TopicDeletedMessage(Struct, kw_only=True, tag_field="op", tag="topic_deleted"):
    """The topic is gone, and so is the subscription."""

    topic: str
    head_seq: U64 = 0
    reason: Literal["deleted"] = "deleted"


class EndMessage(Struct, kw_only=True, tag_field="op", tag="error"):
    """An error that belongs to no command."""

    code: str
    message: str


# Replies to commands, each with the `request_id` of its command.


class SubscribedReply(Struct, kw_only=True, tag_field="op", tag="subscribed"):
    request_id: Raw
    topics: dict[str, WatchedTopic]


class UnsubscribedReply(Struct, kw_only=True, tag_field="op", tag="unsubscribed"):
    request_id: Raw
    topics: list[str]


class PongReply(Struct, kw_only=True, tag_field="op", tag="pong"):
    request_id: Raw


class AckReply(Struct, kw_only=True, tag_field="op", tag="ack"):
    """The seqs that a `publish` got. `seqs` is null with `return_seqs` false."""

    request_id: Raw
    topic: str
    first_seq: U64
    last_seq: U64
    seqs: list[U64] | None
    head_seq: U64
    count: U64
    created: bool
    deduped: bool
    warnings: list[str] | UnsetType = UNSET
    performance: Performance


class ErrorReply(Struct, kw_only=True, tag_field="op", tag="error"):
    """A command that was refused."""

    request_id: Raw
    code: str
    message: str
