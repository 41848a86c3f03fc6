"""Segments that another program wrote are read exactly, and written again byte for byte."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from topics.formats import segment, segment_index
from topics.formats.records import Record
from topics.formats.segment import SegmentFrame

FIRST_SEQS: Final = (1, 101, 201)


def load(shared_fixtures: Path, first_seq: int) -> tuple[bytes, bytes]:
    stem = shared_fixtures / "topics-segments" / "00000001" / f"seg-{first_seq:016d}"
    return stem.with_suffix(".data").read_bytes(), stem.with_suffix(".idx").read_bytes()


def frames_of(data: bytes) -> list[SegmentFrame]:
    return list(segment.walk(data, 0, len(data)))


def as_shown(record: Record) -> dict[str, Any]:
    """The record as a diff with tags shows it: absent means absent."""
    shown: dict[str, Any] = {"$seq": record.seq, "$ts": record.ts}
    if record.node is not None:
        shown["$node"] = record.node
    if record.tag is not None:
        shown["$tag"] = record.tag
    shown["data"] = json.loads(record.data)
    if record.meta is not None:
        shown["meta"] = json.loads(record.meta)
    return shown


def test_three_foreign_segments_hold_the_live_records_they_should(shared_fixtures: Path) -> None:
    expected = json.loads((shared_fixtures / "topics-segments" / "expected.json").read_text("utf-8"))
    seqs: list[int] = []
    shown: list[dict[str, Any]] = []
    for first_seq in FIRST_SEQS:
        data, _ = load(shared_fixtures, first_seq)
        for frame in frames_of(data):
            seqs.append(frame.seq)
            if not frame.deleted:
                shown.append(as_shown(segment.decode(data, frame)))
    assert seqs == list(range(1, 301))
    assert len(shown) == 280
    assert shown == expected


@pytest.mark.parametrize("first_seq", FIRST_SEQS)
def test_a_foreign_index_agrees_with_its_frames(shared_fixtures: Path, first_seq: int) -> None:
    data, idx = load(shared_fixtures, first_seq)
    segment_index.check(idx, entry_count=100, data_bytes=len(data))
    entries = list(segment_index.decode(idx))
    frames = frames_of(data)
    assert [frame.seq for frame in frames] == [first_seq + place for place in range(len(entries))]
    for entry, frame in zip(entries, frames, strict=True):
        assert (entry.offset, entry.length, entry.ts) == (frame.offset, frame.end - frame.offset, frame.ts)
        assert entry.flags & ~segment_index.FLAG_DELETED == frame.flags
        # The hint may be missing, but it never calls a live record deleted.
        assert frame.deleted or not entry.flags & segment_index.FLAG_DELETED


@pytest.mark.parametrize("first_seq", FIRST_SEQS)
def test_foreign_records_are_encoded_to_the_same_bytes(shared_fixtures: Path, first_seq: int) -> None:
    data, _ = load(shared_fixtures, first_seq)
    for frame in frames_of(data):
        written = data[frame.offset : frame.end - 1]
        assert segment.encode(segment.decode(data, frame))[:-1] == written
