"""What the answers of a server mean: values of the contract, or the error classes of `topics.errors`."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from topics.client.retrying import Unreachable
from topics.errors import BadFrame, TopicsError
from topics.formats.records import Record
from topics.protocol import response_body as wire
from topics.protocol import stream_body
from topics.protocol.error_codes import ERROR_CODES
from topics.results import Extended, GroupChanged, GroupCursor, Job, Settled, Tombstone

T = TypeVar("T")

_ERROR_BY_CODE: Final = {entry.code: entry.error for entry in ERROR_CODES}
_LEASE_PREFIX: Final = "lease_"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """The server answered with an error. Another try may help: see `retrying`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.error: TopicsError = error_of(answer)
        # The traceback of the caller shows this error only.
        self.error.__cause__ = None
        self.retry_after_s: float = retry_after_s(answer)


class Page(NamedTuple):
    """One read. The next read begins after `next_from_seq`. `caught_up` says that no record is left."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


class FramesGap(NamedTuple):
    """Seqs of records that are gone, both ends included."""

    first_seq: int
    last_seq: int
    reason: str


class Frames(NamedTuple):
    """Records as segment frames, one after the other. `next_seq` is the seq to continue with."""

    body: bytes
    next_seq: int
    head_seq: int
    epoch: int
    gap: FramesGap | None
    # Number of the topic; 0 if the server does not send it. Together with `epoch` it tells topics of one name apart.
    topic_id: int = 0


class StreamRecord(NamedTuple):
    """A message of a stream. `payload` has the bytes that were sent; None if there are too many for this interface.

    Times are microseconds since 1970, `timestamp_us` when it was appended, `origin_timestamp_us` as its sender gave it.
    """

    partition: int
    offset: int
    id: int
    timestamp_us: int
    origin_timestamp_us: int
    headers: list[stream_body.StreamHeader]
    payload: bytes | None
    payload_bytes: int


class StreamPage(NamedTuple):
    """Messages of a partition. The next page begins at `next_offset`; the next message sent gets `end_offset`."""

    records: list[StreamRecord]
    next_offset: int
    end_offset: int


class _MessageAsSent(stream_body.StreamMessage, kw_only=True):
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _MessagesAsSent(stream_body.StreamMessages, kw_only=True):
    messages: list[_MessageAsSent]  # type: ignore[assignment]


def stream_page(answer: Answer) -> StreamPage:
    found = decoded(_MessagesAsSent)(answer)
    records = [_stream_record(message, found.partition) for message in found.messages]
    return StreamPage(records, int(found.next_offset), int(found.end_offset))


def _stream_record(message: _MessageAsSent, partition: int) -> StreamRecord:
    payload: bytes | None = None
    if isinstance(message.payload_base64, str):
        payload = b64decode(message.payload_base64)
    elif message.payload is not msgspec.UNSET:
        payload = bytes(message.payload)
    return StreamRecord(
        partition,
        int(message.offset),
        int(message.id),
        int(message.timestamp),
        int(message.origin_timestamp),
        message.headers if isinstance(message.headers, list) else [],
        payload,
        message.payload_bytes,
    )


_decoders: Final[dict[object, msgspec.json.Decoder[Any]]] = {}


def _decoder(wanted: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder is made once for each struct of the contract."""
    decoder = _decoders.get(wanted)
    if decoder is None:
        decoder = _decoders[wanted] = msgspec.json.Decoder(wanted)
    return decoder


def decoded(wanted: type[T]) -> Callable[[Answer], T]:
    """A function that reads an answer as this struct of the contract."""

    def decode(answer: Answer) -> T:
        return from_json(answer.body, wanted)

    return decode


class _ListPage(Protocol):
    next_cursor: str | msgspec.UnsetType


_L = TypeVar("_L", bound=_ListPage)


def list_page(wanted: type[_L], cursor: str | None) -> Callable[[Answer], _L]:
    """A function that reads a page of a list, which was asked for by this cursor."""

    def decode(answer: Answer) -> _L:
        page = from_json(answer.body, wanted)
        if cursor is not None and page.next_cursor == cursor:
            raise no_progress(f"the page after {cursor!r} of a list is followed by itself")
        return page

    return decode


def no_progress(what: str) -> TopicsError:
    """The error for an answer after which the next request would be the same, without end."""
    return TopicsError(f"the server answers without progress: {what}; look for a proxy or a cache before it")


def from_json(text: bytes | msgspec.Raw, wanted: type[T]) -> T:
    """Raises `Unreachable`: something that is not a server of topics answered."""
    try:
        return _decoder(wanted).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(text)[:200].decode(errors="replace")
        raise Unreachable(f"the answer is not one of a server of topics: {error}: {shown}") from error


def error_of(answer: Answer) -> TopicsError:
    """The error in the answer, as the class that the engine raises."""
    try:
        members = msgspec.json.decode(answer.body, type=wire.ErrorEnvelope).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = answer.body[:200].decode(errors="replace")
        # The answer comes from a proxy, or from another kind of server.
        kind = Unreachable if answer.status in {502, 503, 504} else TopicsError
        return kind(f"answer {answer.status}: {text}")
    return error_from(members.code, members.message, None if members.detail is msgspec.UNSET else members.detail)


def error_from(code: str, message: str, detail: Mapping[str, object] | None = None) -> TopicsError:
    # Without the constructor of the class, which would make the message from other arguments.
    found = _ERROR_BY_CODE.get(code, TopicsError)
    error = found.__new__(found)
    TopicsError.__init__(error, message, detail)
    return error


def retry_after_s(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


# Records.


def record_of(sent: wire.DiffRecord) -> Record:
    return Record(
        sent.seq,
        sent.ts,
        None if sent.node is msgspec.UNSET else sent.node,
        None if sent.tag is msgspec.UNSET else sent.tag,
        bytes(sent.data),
        None if sent.meta is msgspec.UNSET else bytes(sent.meta),
    )


def page_of(answer: Answer, from_seq: int) -> Page:
    sent = from_json(answer.body, wire.Diff)
    lost = sent.tombstone
    # The cursor goes back only at a topic that was created again.
    goes_on = sent.next_from_seq > from_seq or sent.next_from_seq == sent.head_seq
    if not goes_on and (lost is None or lost.reason != "recreated"):
        raise no_progress(f'a read of "{sent.topic}" from seq {from_seq} on ends at {sent.next_from_seq}')
    return Page(
        sent.topic,
        [record_of(record) for record in sent.records],
        sent.next_from_seq,
        sent.head_seq,
        sent.earliest_seq,
        None
        if lost is None
        else Tombstone(lost.gap_from, lost.gap_to, lost.reason, lost.missed_estimate, lost.earliest_seq, lost.head_seq),
    )


# Queues.


def job_of(sent: wire.Job) -> Job:
    return Job(
        sent.seq,
        sent.ts,
        None if sent.tag is msgspec.UNSET else sent.tag,
        bytes(sent.data),
        None if sent.meta is msgspec.UNSET else bytes(sent.meta),
        int(sent.lease_id.removeprefix(_LEASE_PREFIX), 16),
        sent.deadline,
        sent.deliveries,
    )


def jobs_of(answer: Answer) -> list[Job]:
    return [job_of(job) for job in from_json(answer.body, wire.Claimed).claimed]


def acked_of(answer: Answer) -> Settled:
    sent = from_json(answer.body, wire.Acked)
    return Settled(sent.acked, sent.skipped, sent.ready, sent.in_flight, _sync_ms(sent.performance))


def nacked_of(answer: Answer) -> Settled:
    sent = from_json(answer.body, wire.Nacked)
    return Settled(sent.nacked, sent.skipped, sent.ready, sent.in_flight, _sync_ms(sent.performance))


def extended_of(answer: Answer) -> Extended:
    sent = from_json(answer.body, wire.Extended)
    return Extended(sent.deadlines, sent.skipped)


def _sync_ms(performance: wire.Performance) -> float:
    return 0.0 if performance.fsync_ms is msgspec.UNSET else performance.fsync_ms


# Consumer groups.


def cursor_of(sent: wire.GroupMembers) -> GroupCursor:
    return GroupCursor(sent.group, sent.seq, sent.head_seq, sent.lag, sent.last_commit_ts)


def group_of(answer: Answer) -> GroupCursor:
    return cursor_of(from_json(answer.body, wire.GroupState))


def groups_of(answer: Answer) -> list[GroupCursor]:
    sent = from_json(answer.body, wire.GroupList)
    return [GroupCursor(one.group, one.seq, sent.head_seq, one.lag, one.last_commit_ts) for one in sent.groups]


def put_group_of(answer: Answer) -> GroupChanged:
    sent = from_json(answer.body, wire.PutGroup)
    return GroupChanged(cursor_of(sent), created=sent.created, moved=not sent.created)


def committed_of(answer: Answer) -> GroupChanged:
    sent = from_json(answer.body, wire.Committed)
    return GroupChanged(cursor_of(sent), created=False, moved=sent.moved)


# Files.


def frames_of(answer: Answer) -> Frames:
    headers = answer.headers
    try:
        gap = _gap(headers["topics-gap"]) if "topics-gap" in headers else None
        return Frames(
            answer.body,
            int(headers["topics-next-seq"]),
            int(headers["topics-head-seq"]),
            int(headers["topics-epoch"]),
            gap,
            int(headers.get("topics-id", "0")),
        )
    except (KeyError, ValueError) as error:
        raise BadFrame(f"the answer has no frames of segments: {error!r}") from error


def _gap(text: str) -> FramesGap:
    seqs, reason = text.split(";", 1)
    first_seq, last_seq = seqs.split("-", 1)
    return FramesGap(int(first_seq), int(last_seq), reason)
