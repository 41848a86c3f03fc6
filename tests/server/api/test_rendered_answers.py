"""Answers that are rendered as text have the members of their struct, in the order of the struct, and no others."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from topics.engine.queues.jobs import Claimed
from topics.engine.topic.appended import Appended
from topics.engine.topic.reading import Page
from topics.formats import envelope, wal_frame
from topics.formats.record_layout import WAL_BODY
from topics.formats.records import RecordBatch
from topics.protocol import response_body, sse_event, ws_message
from topics.protocol.record_text import record_texts
from topics.results import Job, Tombstone
from topics.server.api.appending import appended_members, seqs_member
from topics.server.api.queues import claimed_text
from topics.server.api.records import diff_text
from topics.server.api.work import job_event_text
from topics.server.api.ws_commands import ack_text
from topics.server.live.reading import Reading, ReadOptions, RenderedRecords
from topics.server.live.sse_feed import record_event_text
from topics.server.live.ws_feed import record_message_text

S = TypeVar("S", bound=Struct)

TS = 1_790_000_000_123
TOMBSTONE = Tombstone(2, 6, "cap", 5, 7, 2**64 - 1)
RECORDS = [
    response_body.DiffRecord(seq=7, ts=TS, node='n"1', tag="t€", data=Raw(b'{"n":1}'), meta=Raw(b"[]")),
    response_body.DiffRecord(seq=8, ts=TS, data=Raw(b"null")),
]


def read(shape: type[S], text: bytes) -> S:
    """The struct in the text. Its members are those of the text, in the same order, at every depth."""
    decoded = msgspec.json.decode(text, type=shape, strict=True)
    written = msgspec.json.encode(decoded)
    assert json.loads(written, object_pairs_hook=list) == json.loads(text, object_pairs_hook=list)
    return decoded


def page(tombstone: Tombstone | None = None, *, cold_records: int = 0) -> Page:
    envelopes = [envelope.encode(b'{"n":1}', b"[]"), envelope.encode(b"null")]
    batch = RecordBatch(envelopes, [9, 4], ["t€".encode(), None], [b'n"1', None])
    bodies = wal_frame.encode_appends(1, 7, TS, batch, durable=False)[1]
    return Page("a-topic", 8, 9, 7, tombstone, 3, cold_records, [(WAL_BODY, bodies)])


def texts_of(shown: Page) -> list[bytes]:
    return record_texts(shown.chunks, include_tags=True, include_meta=True)


def appended(*, created: bool = False, deduped: bool = False) -> Appended:
    return Appended("a-topic", 5, 7, 9, 3, TS, created, deduped, 0.125, 1.5)


@pytest.mark.parametrize("tombstone", [None, TOMBSTONE])
@pytest.mark.parametrize("cold_records", [0, 2])
def test_a_diff(tombstone: Tombstone | None, cold_records: int) -> None:
    shown = page(tombstone, cold_records=cold_records)
    assert read(response_body.Diff, diff_text(shown, b",".join(texts_of(shown)), 0.25)) == response_body.Diff(
        topic="a-topic",
        records=RECORDS,
        next_from_seq=8,
        head_seq=9,
        earliest_seq=7,
        caught_up=False,
        tombstone=None
        if tombstone is None
        else response_body.Tombstone(
            gap_from=2, gap_to=6, reason="cap", missed_estimate=5, earliest_seq=7, head_seq=2**64 - 1
        ),
        lag=1,
        performance=response_body.Performance(
            server_total_ms=0.25, records_scanned=3, cold_segments_read=cold_records or UNSET
        ),
    )


@pytest.mark.parametrize("parked_ms", [0.0, 12.5])
@pytest.mark.parametrize("with_seqs", [True, False])
@pytest.mark.parametrize("warnings", [[], ['"durabilty"', "two"]])
def test_an_append(parked_ms: float, with_seqs: bool, warnings: list[str]) -> None:
    result = appended(created=True)
    seqs = seqs_member(result) if with_seqs else ""
    members = appended_members(result, elapsed_ms=0.25, parked_ms=parked_ms, seqs=seqs, warnings=warnings)
    assert read(response_body.Appended, b"{%b}" % members.encode()) == response_body.Appended(
        topic="a-topic",
        first_seq=5,
        last_seq=7,
        seqs=[5, 6, 7] if with_seqs else UNSET,
        head_seq=9,
        count=3,
        created=True,
        deduped=False,
        warnings=warnings or UNSET,
        performance=response_body.Performance(
            server_total_ms=0.25, wal_append_ms=0.125, fsync_ms=1.5, throttle_wait_ms=parked_ms or UNSET
        ),
    )


def test_a_repeated_append() -> None:
    members = appended_members(appended(deduped=True), elapsed_ms=0.25, parked_ms=1.0, seqs="")
    answer = read(response_body.Appended, b"{%b}" % members.encode())
    assert answer.deduped
    assert answer.performance == response_body.Performance(server_total_ms=0.25)


@pytest.mark.parametrize("with_seqs", [True, False])
def test_an_ack_of_a_publish(with_seqs: bool) -> None:
    result = appended()
    seqs = seqs_member(result) if with_seqs else '"seqs":null,'
    members = appended_members(result, elapsed_ms=0.25, parked_ms=0.0, seqs=seqs, warnings=["one"])
    reply = read(ws_message.AckReply, ack_text(Raw(b'{"any":1}'), members))
    assert (bytes(reply.request_id), reply.seqs) == (b'{"any":1}', [5, 6, 7] if with_seqs else None)
    assert reply.warnings == ["one"]
    assert (reply.topic, reply.first_seq, reply.last_seq, reply.head_seq, reply.count) == ("a-topic", 5, 7, 9, 3)


JOBS = [
    Job(seq=3, ts=TS, tag="t€", data=b'{"n":1}', meta=b"[]", lease_id=31, deadline=TS + 5, deliveries=2),
    Job(seq=4, ts=TS, tag=None, data=b"null", meta=None, lease_id=32, deadline=TS + 5, deliveries=1),
]
SHOWN_JOBS = [
    response_body.Job(
        seq=3,
        lease_id="lease_1f",
        deadline=TS + 5,
        ts=TS,
        tag="t€",
        deliveries=2,
        data=Raw(b'{"n":1}'),
        meta=Raw(b"[]"),
    ),
    response_body.Job(seq=4, lease_id="lease_20", deadline=TS + 5, ts=TS, deliveries=1, data=Raw(b"null")),
]


def test_a_claim() -> None:
    text = claimed_text("jobs", Claimed(JOBS, 6), 0.25)
    assert read(response_body.Claimed, text) == response_body.Claimed(
        topic="jobs",
        claimed=SHOWN_JOBS,
        count=2,
        ready=6,
        performance=response_body.Performance(server_total_ms=0.25),
    )


@pytest.mark.parametrize(("job", "shown"), list(zip(JOBS, SHOWN_JOBS, strict=True)))
def test_a_pushed_job(job: Job, shown: response_body.Job) -> None:
    frame = job_event_text("jobs", job)
    start, _, data = frame.partition(b"\ndata: ")
    assert start == b"id: %d\nevent: job" % job.seq
    event = msgspec.json.decode(data, type=sse_event.JobEvent, strict=True)
    assert json.loads(msgspec.json.encode(event)) == json.loads(data)
    assert event == sse_event.JobEvent(topic="jobs", **msgspec.structs.asdict(shown))


def test_pushed_records() -> None:
    shown = page()
    renderer = RenderedRecords(include_tags=True, include_meta=True, include_data=True)
    reading = Reading(shown, ReadOptions(1000, 1000, include_tags=True), renderer, 1, 6)
    assert read(sse_event.RecordEvent, record_event_text(6, reading)) == sse_event.RecordEvent(
        topic="a-topic", records=RECORDS, from_seq=6, to_seq=8, head_seq=9
    )
    assert read(ws_message.RecordMessage, record_message_text(6, reading)) == ws_message.RecordMessage(
        topic="a-topic", records=RECORDS, from_seq=6, to_seq=8, head_seq=9
    )
