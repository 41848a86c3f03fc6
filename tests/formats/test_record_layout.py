"""Raw records taken apart, in both forms, and turned from one form into the other."""

import pytest
from hypothesis import given

from tests.formats.strategies import batches, seqs, u64
from topics.formats import envelope, record_layout, segment, wal_frame
from topics.formats.record_layout import (
    SEGMENT_BODY,
    WAL_BODY,
    RawParts,
    RecordForm,
    decode_raw,
    raw_node,
    raw_size,
    raw_tag,
    split_raw,
)
from topics.formats.records import Record, RecordBatch
from topics.formats.wal_frame import FLAG_MORE

FORMS = [WAL_BODY, SEGMENT_BODY]


def raws_of(batch: RecordBatch, form: RecordForm, *, first_seq: int = 5, ts: int = 1000) -> list[bytes]:
    _, bodies = wal_frame.encode_appends(3, first_seq, ts, batch, durable=True)
    if form is WAL_BODY:
        return bodies
    frames = map(segment.from_wal_body, bodies)
    return [segment.check(frame, 0, len(frame)).body_in(frame) for frame in frames]


@pytest.mark.parametrize("form", FORMS, ids=repr)
@given(batch=batches(), first_seq=seqs, ts=u64)
def test_parts_of_a_raw_record_are_what_was_written(
    form: RecordForm, batch: RecordBatch, first_seq: int, ts: int
) -> None:
    payloads = [envelope.encode(b"%d" % len(payload), b"[]" if payload else None) for payload in batch.envelopes]
    batch = RecordBatch(payloads, batch.sizes, batch.tags, batch.nodes)
    raws = raws_of(batch, form, first_seq=first_seq, ts=ts)
    absent = [None] * len(batch)
    written = zip(batch.nodes or absent, batch.tags or absent, batch.envelopes, strict=True)
    for seq, (raw, (node, tag, payload)) in enumerate(zip(raws, written, strict=True), first_seq):
        assert split_raw(raw, form) == RawParts(ts, node, tag, payload)
        assert (raw_node(raw, form), raw_tag(raw, form)) == (node, tag)
        assert raw_size(raw, form) == envelope.accounted_bytes(payload)
        data, meta = envelope.split(payload)
        record = decode_raw(raw, form)
        assert record == Record(
            seq, ts, None if node is None else node.decode(), None if tag is None else tag.decode(), data, meta
        )


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_an_empty_node_or_tag_is_not_a_missing_one(form: RecordForm) -> None:
    batch = RecordBatch([b'{"d":1}'] * 2, [1, 1], tags=[b"", None], nodes=[None, b""])
    first, second = raws_of(batch, form)
    assert (raw_node(first, form), raw_tag(first, form)) == (None, b"")
    assert (raw_node(second, form), raw_tag(second, form)) == (b"", None)


@given(batch=batches())
def test_both_forms_give_the_same_segment_frames(batch: RecordBatch) -> None:
    frames = list(segment.from_raws(raws_of(batch, WAL_BODY), WAL_BODY))
    assert list(segment.from_raws(raws_of(batch, SEGMENT_BODY), SEGMENT_BODY)) == frames


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=repr)
@given(batch=batches())
def test_raw_records_become_frames_of_another_topic(form: RecordForm, closes: bool, batch: RecordBatch) -> None:
    raws = raws_of(batch, form)
    frames = wal_frame.seal_copies(raws, form, 9, closes=closes)
    for left, raw in enumerate(raws, 1 - len(raws)):
        size = wal_frame.FRAME_LEN_BYTES + int.from_bytes(frames[: wal_frame.FRAME_LEN_BYTES], "little")
        body = wal_frame.body_of(frames[:size])
        assert body is not None
        header = wal_frame.body_header(body)
        assert (header.type, header.topic_id) == (wal_frame.FrameType.APPEND, 9)
        follows = 0 if closes and left == 0 else FLAG_MORE
        assert header.flags == raw[form.flags_at] & record_layout.LABEL_FLAGS | follows
        assert split_raw(body, WAL_BODY) == split_raw(raw, form)
        frames = frames[size:]
    assert frames == b""


def test_the_body_of_a_frame_is_given_only_with_a_right_checksum() -> None:
    frames, (body,) = wal_frame.encode_appends(3, 5, 1000, RecordBatch([b'{"d":1}'], [1]), durable=False)
    assert wal_frame.body_of(frames) == body
    assert wal_frame.body_of(frames[:-1] + bytes((frames[-1] ^ 1,))) is None
    assert wal_frame.body_of(frames[:11]) is None
