"""WAL frames become segment frames, many at a time: the same bytes as one at a time, and never from a bad frame."""

from array import array
from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.strategies import batches, flip, flips
from topics.errors import BadFrame, Torn
from topics.formats import envelope, filing, segment, segment_index, wal_frame
from topics.formats.filing import Run
from topics.formats.record_layout import LABEL_FLAGS, WAL_BODY, raw_tag, split_raw
from topics.formats.records import RecordBatch
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType

FRAME_BYTES_MAX: Final = 1 << 20
ALL: Final = 10**9


def write(topic_id: int, first_seq: int, *texts: bytes, tags: list[bytes | None] | None = None) -> bytes:
    envelopes = [envelope.encode(text) for text in texts]
    batch = RecordBatch(envelopes, [len(text) for text in texts], tags)
    return wal_frame.encode_appends(topic_id, first_seq, 1000 + first_seq, batch, durable=False)[0]


def frame(topic_id: int, seq: int, flags: int) -> bytes:
    (body,) = wal_frame.encode_appends(topic_id, seq, 1, RecordBatch([b'{"d":1}'], [1]), durable=False)[1]
    return wal_frame.seal_bodies([b"%b%c%b" % (body[:1], flags, body[2:])])


def runs(*frames: bytes) -> list[Run]:
    found = filing.scan(b"".join(frames), ALL, FRAME_BYTES_MAX)
    assert found.error is None
    return found.runs


def spans(found: Iterable[Run]) -> list[tuple[int, int, int, int]]:
    """Topic, first seq, records, records of whole writes."""
    return [(run.topic_id, run.first_seq, len(run.ends), run.whole_count) for run in found]


def frames_of(run: Run) -> list[bytes]:
    return [run.frames[start:end] for start, end in zip([0, *run.ends], run.ends, strict=False)]


def check_columns(run: Run, bodies: list[bytes]) -> None:
    """Compares a run with what the codecs for single records make of the WAL bodies."""
    assert frames_of(run) == [segment.from_wal_body(body) for body in bodies]
    headers = [wal_frame.body_header(body) for body in bodies]
    assert [run.first_seq + place for place in range(len(bodies))] == [header.seq for header in headers]
    assert list(run.times) == [header.ts for header in headers]
    assert list(run.flags) == [header.flags & LABEL_FLAGS for header in headers]
    envelopes = [split_raw(body, WAL_BODY).envelope for body in bodies]
    sizes = [filing.size_bytes(run, place, place + 1) for place in range(len(bodies))]
    assert sizes == list(map(filing.accounted_bytes, envelopes))
    tagged = [(header.seq, raw_tag(body, WAL_BODY)) for header, body in zip(headers, bodies, strict=True)]
    seqs_by_tag: dict[bytes, array[int]] = {}
    filing.add_tags(run, 0, len(bodies), seqs_by_tag)
    found = [(seq, tag) for tag, seqs in seqs_by_tag.items() for seq in seqs]
    assert sorted(found) == [(seq, tag) for seq, tag in tagged if tag is not None]
    assert filing.checksum_bytes(run, 0, len(bodies)) == b"".join(map(segment.frame_checksum, frames_of(run)))


@given(batches(), st.sampled_from([1, 2**56 - 1, 2**56, 2**63]), st.integers(1, 2**40))
def test_a_write_of_any_records_gives_the_frames_of_its_records(batch: RecordBatch, topic_id: int, seq: int) -> None:
    data, bodies = wal_frame.encode_appends(topic_id, seq, 1_700_000_000_000, batch, durable=True)
    found = filing.scan(data, ALL, FRAME_BYTES_MAX)
    assert (found.error, found.frame_count, found.end) == (None, len(bodies), len(data))
    (run,) = found.runs
    check_columns(run, bodies)
    assert run.begins_write
    assert not run.is_open
    assert run.whole_count == len(bodies)


@given(batches())
def test_bodies_that_were_never_in_a_log_give_the_same(batch: RecordBatch) -> None:
    data, bodies = wal_frame.encode_appends(1, 5, 1_700_000_000_000, batch, durable=True)
    (from_log,) = runs(data)
    (from_bodies,) = filing.runs_of(bodies)
    check_columns(from_bodies, bodies)
    assert from_bodies.whole_count == from_log.whole_count == len(bodies)
    assert spans(filing.runs_of([*bodies, wal_frame.encode_appends(1, 900, 1, batch, durable=True)[1][0]])) == [
        (1, 5, len(bodies), len(bodies)),
        (1, 900, 1, 1),
    ]


@given(batches(), st.data(), st.integers(0, 2**31))
def test_index_entries_of_any_part_lead_to_its_frames(batch: RecordBatch, data: st.DataObject, offset: int) -> None:
    (run,) = runs(wal_frame.encode_appends(1, 1, 1_700_000_000_000, batch, durable=True)[0])
    start = data.draw(st.integers(0, len(batch) - 1))
    stop = data.draw(st.integers(start + 1, len(batch)))
    entries = list(segment_index.decode(filing.encode_entries(run, start, stop, offset)))
    frames = frames_of(run)[start:stop]
    assert [entry.length for entry in entries] == [len(frame) for frame in frames]
    assert [entry.ts for entry in entries] == list(run.times[start:stop])
    assert [entry.flags for entry in entries] == list(run.flags[start:stop])
    places = [offset + sum(map(len, frames[:place])) for place in range(len(frames))]
    assert [entry.offset for entry in entries] == places
    assert filing.checksum_bytes(run, start, stop) == b"".join(map(segment.frame_checksum, frames))


def test_writes_of_several_topics_are_one_run_for_each_topic() -> None:
    found = runs(write(1, 5, b"1", b"2"), write(2, 9, b"1"), write(1, 7, b"3"), write(2, 10, b"2"))
    assert spans(found) == [(1, 5, 3, 3), (2, 9, 2, 2)]


def test_a_seq_that_does_not_follow_begins_another_run() -> None:
    found = runs(write(1, 5, b"1"), write(1, 7, b"2"), write(2, 1, b"1"), write(1, 7, b"2"), write(1, 8, b"3"))
    assert spans(found) == [(1, 5, 1, 1), (1, 7, 1, 1), (2, 1, 1, 1), (1, 7, 2, 2)]


def test_a_run_says_which_of_its_writes_are_whole() -> None:
    open_write = [frame(1, 1, FLAG_FIRST), frame(1, 2, FLAG_FIRST | FLAG_MORE), frame(1, 3, FLAG_MORE)]
    (run,) = runs(*open_write)
    assert (run.begins_write, run.is_open, run.whole_count, len(run.ends)) == (True, True, 1, 3)
    (run,) = runs(frame(1, 4, FLAG_MORE), frame(1, 5, 0), frame(1, 6, FLAG_FIRST))
    assert (run.begins_write, run.is_open, run.whole_count, len(run.ends)) == (False, False, 3, 3)
    first, second = runs(*open_write, frame(2, 1, FLAG_FIRST), frame(1, 4, FLAG_FIRST))[::2]
    assert (first.is_open, first.whole_count) == (True, 1)
    assert (second.begins_write, second.whole_count) == (True, 1)


def test_other_frames_of_a_topic_are_runs_without_records() -> None:
    note = wal_frame.encode_control(FrameType.NOTE, 1, 1, b"\x80", flags=FLAG_FIRST | FLAG_MORE)
    evict = wal_frame.encode_control(FrameType.EVICT, 1, 1, b"\x80", flags=0)
    found = runs(note, frame(1, 1, FLAG_MORE), wal_frame.encode_sync_mark(1, 1), evict, frame(1, 2, FLAG_FIRST))
    assert spans(found) == [(1, 0, 0, 0), (1, 1, 1, 0), (1, 0, 0, 0), (1, 2, 1, 1)]
    assert [(run.begins_write, run.is_open) for run in found] == [
        (True, True),
        (False, True),
        (False, False),
        (True, False),
    ]


def test_no_more_frames_are_taken_than_asked_for() -> None:
    data = write(1, 1, b"1", b"2") + write(1, 3, b"3") + b"\xff" * 50
    found = filing.scan(data, 2, FRAME_BYTES_MAX)
    assert (found.frame_count, found.end, found.error) == (2, len(write(1, 1, b"1", b"2")), None)
    assert isinstance(filing.scan(data, 4, FRAME_BYTES_MAX).error, BadFrame)


@pytest.mark.parametrize("cut", [1, 20, 45])
def test_a_frame_that_is_cut_off_ends_the_scan(cut: int) -> None:
    whole = write(1, 1, b"1")
    found = filing.scan(whole + write(1, 2, b"2")[:cut], ALL, FRAME_BYTES_MAX)
    assert (found.frame_count, found.end) == (1, len(whole))
    assert isinstance(found.error, Torn)


def test_zeros_end_the_scan_cleanly() -> None:
    found = filing.scan(write(1, 1, b"1") + bytes(100), ALL, FRAME_BYTES_MAX)
    assert (found.frame_count, found.error) == (1, None)


@given(batches(), st.data())
def test_a_changed_byte_ends_the_scan_where_it_ends_the_scan_of_a_start(
    batch: RecordBatch, draw: st.DataObject
) -> None:
    data = wal_frame.encode_appends(3, 1, 1_700_000_000_000, batch, durable=True)[0]
    data = flip(data, *draw.draw(flips(len(data))))
    wanted = wal_frame.scan(data, 0, len(data), FRAME_BYTES_MAX)
    found = filing.scan(data, ALL, FRAME_BYTES_MAX)
    assert found.frame_count == len(wanted.frames)
    assert type(found.error) is type(wanted.error)
    assert [run.frames for run in found.runs] == [
        b"".join(segment.from_wal_body(frame.body_in(data)) for frame in wanted.frames)
    ] * bool(wanted.frames)


def test_a_meta_counts() -> None:
    batch = RecordBatch([envelope.encode(b"1", b'{"a":2}'), envelope.encode(b'"x"')], [8, 3])
    (run,) = runs(wal_frame.encode_appends(1, 1, 1, batch, durable=False)[0])
    assert [filing.size_bytes(run, place, place + 1) for place in (0, 1)] == [8, 3]


def test_a_meta_counts_in_a_run_whose_frames_are_apart() -> None:
    """Frames of another topic are between the writes of the run."""
    texts = [b"1", b'22,"m":3', b"333"]
    (own, _) = runs(write(1, 1, texts[0]), write(2, 1, b"9"), write(1, 2, texts[1]), write(1, 3, texts[2]))
    expected = [filing.accounted_bytes(envelope.encode(text)) for text in texts]
    assert [filing.size_bytes(own, place, place + 1) for place in range(3)] == expected == [1, 3, 3]
