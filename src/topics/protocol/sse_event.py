"""The data of server-sent events, declared once: events of a watch, and events of a stream of jobs.

`record` and `job` events are rendered as text from stored bytes: tests/server/api/test_rendered_answers.py holds them
to their struct.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from topics.protocol.member_types import U64
from topics.protocol.response_body import DiffRecord, Job, TombstoneReason


class RecordEvent(Struct, kw_only=True):
    """`record`: records of one topic, seqs ascending."""

    topic: str
    records: list[DiffRecord]
    from_seq: U64
    to_seq: U64
    head_seq: U64


class TombstoneEvent(Struct, kw_only=True):
    """`tombstone`: records that are gone. `from_seq_too_old` is the reason on the first read of a stream."""

    topic: str
    reason: TombstoneReason | Literal["from_seq_too_old"]
    gap_from: U64
    gap_to: U64
    earliest_seq: U64
    head_seq: U64


class CaughtUpEvent(Struct, kw_only=True):
    """`caught-up`: the client has every record up to the head."""

    topic: str
    head_seq: U64


class TopicDeletedEvent(Struct, kw_only=True):
    """`topic-deleted`: the topic is gone, and the watch of it has ended."""

    topic: str
    head_seq: U64 = 0
    reason: Literal["deleted"] = "deleted"


class PressureEvent(Struct, kw_only=True):
    """`error` with the code 429: the server holds new records of these topics back for a while."""

    code: Literal[429] = 429
    error: Literal["throttled"] = "throttled"
    retry_after_ms: U64
    topics: list[str]


class EndEvent(Struct, kw_only=True):
    """`error`: the last event of a watch."""

    code: str
    message: str


class JobEvent(Job, kw_only=True):
    """`job`: one job, leased to the worker. The member `topic` goes first on the wire."""

    topic: str


class WorkEndEvent(Struct, kw_only=True):
    """`error`: the last event of a stream of jobs."""

    code: int | str
    error: str
    topic: str
