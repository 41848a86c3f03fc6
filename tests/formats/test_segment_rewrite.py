"""Segments written again: byte for byte what the writer of segments makes of the same frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from tests.engine.small_log import ROOT, SmallLog
from topics.errors import BadFrame
from topics.formats import segment, segment_index
from topics.formats.frame_table import FrameTable, from_frames, from_index, salvage
from topics.formats.record_layout import DELETED
from topics.formats.records import Record
from topics.formats.segment_rewrite import (
    deleted_frames,
    index_of_frames,
    keep_frames,
    stored_checksums,
    tags_of_frames,
)
from topics.storage import layout
from topics.storage.segments.frame_walk import walk_entries
from topics.testing.fake_disk import FakeDisk


def table_of(records: list[Record]) -> FrameTable:
    return from_frames(b"".join(map(segment.encode, records)))


def record(seq: int, ts: int, tag: str | None = None, node: str | None = None) -> Record:
    return Record(seq, ts, node, tag, b'{"n":%d}' % seq, None)


def test_everything_is_what_the_writer_made() -> None:
    disk = FakeDisk()
    log = SmallLog(disk, segment_events_max=50)
    for number in range(40):
        log.append(count=1 + number % 4, tag=f"t{number % 5}" if number % 3 else None, node="n" if number % 2 else None)
        if number % 4 == 0:
            log.delete(seqs=[log.topic().head_seq])
        if number % 7 == 0:
            log.checkpoint()
    log.delete(seqs=list(range(2, 40, 3)))
    log.checkpoint()
    states = [state for state in log.topic().live.segments.segments if state.sealed]
    assert states
    holes = 0
    for state in states:
        data, idx, tags = (
            disk.read(f"{ROOT}/{layout.segment_object(1, state.first_seq, kind)}") for kind in ("data", "idx", "tags")
        )
        table = from_frames(data, first_seq=state.first_seq, last_seq=state.last_seq)
        assert index_of_frames(table, state.first_seq, state.last_seq) == idx
        assert tags_of_frames(table, state.first_seq) == tags
        assert xxh3_128_digest(stored_checksums(table).tobytes()) == state.digest
        holes += state.entry_count - len(table)
    assert holes


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 1000),
)
def test_an_index_is_the_one_that_walking_gives(steps: list[tuple[int, bool, bool]], first_seq: int) -> None:
    records = []
    seq = first_seq - 1
    for step, has_tag, has_node in steps:
        seq += step if records else 1
        records.append(record(seq, 1000 + seq, "tag" if has_tag else None, "" if has_node else None))
    table = table_of(records)
    expected = segment_index.encode(walk_entries(table.data, first_seq, None))
    assert index_of_frames(table, first_seq, seq) == expected


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_kept_frames_are_the_same_bytes_back_to_back(kept: list[bool]) -> None:
    records = [record(seq, seq * 10, "t" * (seq % 4) if seq % 2 else None) for seq in range(5, 5 + len(kept))]
    table = keep_frames(table_of(records), np.array(kept))
    wanted = [item for item, keeps in zip(records, kept, strict=True) if keeps]
    assert bytes(table.data) == b"".join(map(segment.encode, wanted))
    assert table.headers["seq"].tolist() == [item.seq for item in wanted]
    if kept[-1]:
        idx = index_of_frames(table, 5, 4 + len(kept))
        assert idx == segment_index.encode(walk_entries(table.data, 5, None))
        again = from_index(table.data, idx, 5, last_seq=4 + len(kept))
        assert (again.index_problem, again.bad, len(again)) == (None, (), len(wanted))


def test_deleted_frames_are_those_with_their_delete_byte_set() -> None:
    frames = [bytearray(segment.encode(record(seq, seq))) for seq in (1, 2, 3)]
    frames[1][-1] = DELETED
    table = from_frames(b"".join(map(bytes, frames)))
    assert deleted_frames(table).tolist() == [False, True, False]


def test_damage_gets_no_index() -> None:
    data = bytearray(table_of([record(seq, seq) for seq in (1, 2, 3)]).data)
    data[60] ^= 1
    table = salvage(from_frames(bytes(data), first_seq=1, last_seq=3))
    with pytest.raises(BadFrame, match="checksum"):
        index_of_frames(table, 1, 3)


@pytest.mark.parametrize("bounds", [(2, 3), (1, 2), (1, 4)])
def test_frames_of_other_seqs_get_no_index(bounds: tuple[int, int]) -> None:
    table = table_of([record(seq, seq) for seq in (1, 2, 3)])
    with pytest.raises(BadFrame, match="are not the frames of seqs"):
        index_of_frames(table, *bounds)


def test_no_frames_get_no_index() -> None:
    with pytest.raises(BadFrame, match="no frame"):
        index_of_frames(from_frames(b""), 1, 1)
    assert tags_of_frames(from_frames(b""), 1) == b""
