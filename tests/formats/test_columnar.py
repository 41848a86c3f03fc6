"""Segments by columns: what the decoder of single frames says, and not a byte of damage unseen."""

import json
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import flip, json_texts, labels
from topics.errors import BadFrame, CorruptRecord
from topics.formats import columnar, frame_table, segment, segment_index
from topics.formats.columnar import COLUMNS, COLUMNS_ON_DEMAND, GAP_COLUMNS, Origin, RecordFilter, record_batches
from topics.formats.frame_table import FrameTable
from topics.formats.records import Record

ORIGIN: Final = Origin("orders", 3, "seg-1")
EVERY_COLUMN: Final = COLUMNS + COLUMNS_ON_DEMAND
WITH_GAPS: Final = COLUMNS + GAP_COLUMNS

Rows = list[dict[str, Any]]


class Segment(NamedTuple):
    data: bytes
    idx: bytes
    first_seq: int


def make_segment(slots: Iterable[tuple[Record | None, int]], first_seq: int) -> Segment:
    """A segment with a record or a hole for every seq; each with its delete byte."""
    frames: list[bytes] = []
    entries: list[tuple[int, int, int, int]] = []
    offset, ts = 0, 0
    for record, delete_byte in slots:
        if record is None:
            entries.append((0, 0, ts, 0))
            continue
        frame = segment.encode(record)[:-1] + bytes((delete_byte,))
        ts = record.ts
        entries.append((offset, len(frame), ts, frame[4]))
        frames.append(frame)
        offset += len(frame)
    return Segment(b"".join(frames), segment_index.encode(entries), first_seq)


def naive_rows(data: bytes, *, include_deleted: bool = False) -> Rows:
    """What the decoder of single frames makes of it."""
    rows = []
    for frame in segment.walk(data, 0, len(data)):
        if frame.deleted and not include_deleted:
            continue
        record = segment.decode(data, frame)
        value_end = frame.end - segment.TRAILER_BYTES
        rows.append(
            {
                "topic": "orders",
                "seq": record.seq,
                "ts": record.ts * 1000,
                "node": record.node,
                "tag": record.tag,
                "data": record.data.decode(),
                "meta": None if record.meta is None else record.meta.decode(),
                "value": data[value_end - frame.data_len : value_end],
                "epoch": 3,
                "deleted": frame.deleted,
                "segment": "seg-1",
                "checksum": int.from_bytes(data[value_end : value_end + 8], "little", signed=True),
            }
        )
    return rows


def rows_of(table: FrameTable, columns: Sequence[str] = COLUMNS, **options: Any) -> Rows:
    rows: Rows = []
    for batch in record_batches(table, ORIGIN, columns=columns, **options):
        batch.validate(full=True)
        assert batch.schema == columnar.schema(columns)
        assert batch.num_rows
        position = batch.schema.get_field_index("ts")
        if position >= 0:
            batch = batch.set_column(position, "ts", batch.column("ts").view("int64"))
        rows += batch.to_pylist()
    return rows


def by_index(made: Segment, **options: Any) -> FrameTable:
    return frame_table.from_index(made.data, made.idx, made.first_seq, **options)


def seqs_of(rows: Rows) -> list[int]:
    return [row["seq"] for row in rows]


@st.composite
def slots(draw: st.DrawFn, *, first_seq: int = 5) -> Segment:
    found: list[tuple[Record | None, int]] = []
    for seq in range(first_seq, first_seq + draw(st.integers(0, 9))):
        if draw(st.sampled_from((True, True, True, False))):
            record = Record(
                seq,
                draw(st.integers(0, columnar.TS_MAX_MS)),
                draw(labels),
                draw(labels),
                draw(json_texts()),
                draw(st.none() | json_texts()),
            )
            found.append((record, draw(st.sampled_from((0, 1, 0xD5)))))
        else:
            found.append((None, 0))
    return make_segment(found, first_seq)


def plain(count: int = 8, *, first_seq: int = 11) -> Segment:
    """Small, with all there is: labels, metas, a hole, a deleted record."""
    found: list[tuple[Record | None, int]] = []
    for place in range(count):
        record = Record(
            first_seq + place,
            1_700_000_000_000 + place,
            f"n{place % 2}" if place % 3 else None,
            f"tag-{place}" if place % 4 else None,
            b'{"a":%d}' % place,
            b'{"m":1}' if place == 1 else None,
        )
        found.append((None, 0) if place == 5 else (record, 0xD5 if place == 3 else 0))
    return make_segment(found, first_seq)


def load(shared_fixtures: Path, first_seq: int) -> Segment:
    stem = shared_fixtures / "topics-segments" / "00000001" / f"seg-{first_seq:016d}"
    return Segment(stem.with_suffix(".data").read_bytes(), stem.with_suffix(".idx").read_bytes(), first_seq)


def as_shown(row: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"$seq": row["seq"], "$ts": row["ts"] // 1000, "data": json.loads(row["data"])}
    for key, name in (("node", "$node"), ("tag", "$tag")):
        if row[key] is not None:
            shown[name] = row[key]
    if row["meta"] is not None:
        shown["meta"] = json.loads(row["meta"])
    return shown


@pytest.mark.parametrize("with_index", [True, False])
def test_foreign_segments_hold_the_live_records_they_should(shared_fixtures: Path, with_index: bool) -> None:
    expected = json.loads((shared_fixtures / "topics-segments" / "expected.json").read_text("utf-8"))
    shown = []
    for first_seq in (1, 101, 201):
        made = load(shared_fixtures, first_seq)
        table = by_index(made) if with_index else frame_table.from_frames(made.data)
        assert table.index_problem is None
        assert table.bad == ()
        shown += [as_shown(row) for row in rows_of(table)]
    assert len(shown) == 280
    assert shown == expected


# The same as the decoder of single frames.


@given(made=slots(), batch_records=st.integers(1, 5), verify=st.booleans(), include_deleted=st.booleans())
def test_all_columns_are_those_of_the_decoder_of_single_frames(
    made: Segment, batch_records: int, verify: bool, include_deleted: bool
) -> None:
    """Empty is not absent, a null meta is a meta, holes are nothing."""
    expected = naive_rows(made.data, include_deleted=include_deleted)
    where = RecordFilter(include_deleted=include_deleted)
    options: dict[str, Any] = {"verify": verify, "where": where, "batch_records": batch_records}
    for table in (by_index(made), frame_table.from_frames(made.data)):
        assert table.index_problem is None
        assert rows_of(table, EVERY_COLUMN, **options) == expected


@given(made=slots(), columns=st.permutations(EVERY_COLUMN + GAP_COLUMNS), count=st.integers(1, 6))
def test_any_columns_in_any_order_are_given_as_they_are_asked_for(
    made: Segment, columns: Sequence[str], count: int
) -> None:
    known = {"kind": "record", "gap_to": None, "gap_reason": None}
    expected = [{name: (row | known)[name] for name in columns[:count]} for row in naive_rows(made.data)]
    assert rows_of(by_index(made), columns[:count]) == expected


@given(
    made=slots(),
    seqs=st.tuples(st.integers(0, 16), st.integers(0, 16)),
    times=st.tuples(st.none() | st.integers(0, columnar.TS_MAX_MS), st.none() | st.integers(0, columnar.TS_MAX_MS)),
    tag=labels,
    tag_prefix=st.none() | st.text(max_size=1),
    node=labels,
    exclude_nodes=st.lists(st.text(max_size=2), max_size=2),
    hidden=st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=4),
)
def test_filters_leave_what_a_loop_over_all_records_would(
    made: Segment,
    seqs: tuple[int, int],
    times: tuple[int | None, int | None],
    tag: str | None,
    tag_prefix: str | None,
    node: str | None,
    exclude_nodes: list[str],
    hidden: list[tuple[int, int]],
) -> None:
    def is_wanted(row: dict[str, Any]) -> bool:
        return (
            seqs[0] <= row["seq"] <= seqs[1]
            and (times[0] is None or row["ts"] // 1000 >= times[0])
            and (times[1] is None or row["ts"] // 1000 < times[1])
            and (tag is None or row["tag"] == tag)
            and (tag_prefix is None or (row["tag"] is not None and row["tag"].startswith(tag_prefix)))
            and (node is None or row["node"] == node)
            and row["node"] not in exclude_nodes
            and not any(first <= row["seq"] <= last for first, last in hidden)
        )

    where = RecordFilter(
        first_seq=seqs[0],
        last_seq=seqs[1],
        from_ts=times[0],
        before_ts=times[1],
        tag=tag,
        tag_prefix=tag_prefix,
        node=node,
        exclude_nodes=tuple(exclude_nodes),
        hidden=tuple(hidden),
    )
    expected = [row for row in naive_rows(made.data) if is_wanted(row)]
    for table in (by_index(made), by_index(made, wanted=seqs), frame_table.from_frames(made.data)):
        assert rows_of(table, EVERY_COLUMN, where=where) == expected


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_records(make: type[bytes]) -> None:
    made = plain()
    table = frame_table.from_index(make(made.data), make(made.idx), made.first_seq)
    assert rows_of(table) == rows_of(by_index(made))


def test_a_map_can_be_closed_while_its_batches_are_in_use() -> None:
    made = plain()
    mapped = mmap.mmap(-1, len(made.data))
    mapped.write(made.data)
    with memoryview(mapped) as view:
        batches = list(record_batches(frame_table.from_index(view, made.idx, made.first_seq), ORIGIN))
    mapped.close()
    assert [row["seq"] for batch in batches for row in batch.to_pylist()] == [11, 12, 13, 15, 17, 18]


def test_bounds_beyond_all_numbers_are_no_bounds() -> None:
    made = plain()
    where = RecordFilter(last_seq=2**64 - 1, before_ts=2**64, hidden=((2**63, 2**64 - 1),))
    assert rows_of(by_index(made), where=where) == rows_of(by_index(made))


def test_a_part_of_both_files_is_read_with_its_offset_in_the_file() -> None:
    made = plain()
    third = segment_index.entry_at(made.idx, 2).offset
    part = frame_table.from_index(made.data[third:], made.idx[40:], made.first_seq + 2, data_start=third)
    assert part.index_problem is None
    assert rows_of(part) == [row for row in rows_of(by_index(made)) if row["seq"] >= made.first_seq + 2]


def test_batches_end_at_so_many_rows_or_bytes_but_have_one_row_at_least() -> None:
    made = plain(5)
    sizes = [
        [batch.num_rows for batch in record_batches(by_index(made), ORIGIN, **limits)]
        for limits in ({"batch_records": 2}, {"batch_bytes_max": 1}, {"batch_bytes_max": 130}, {})
    ]
    assert sizes[0] == [2, 1, 1]  # The fourth is deleted.
    assert sizes[1] == [1, 1, 1, 1]
    assert sum(sizes[2]) == 4
    assert len(sizes[2]) in (2, 3)
    assert sizes[3] == [4]


def test_frames_of_one_size_are_verified_as_well_as_others() -> None:
    """Their checksums are computed in another way."""
    made = make_segment([(Record(seq, seq, None, None, b'"x%03d"' % seq, None), 0) for seq in range(1, 101)], 1)
    assert rows_of(by_index(made)) == [{key: row[key] for key in COLUMNS} for row in naive_rows(made.data)]
    size = len(made.data) // 100
    damaged = Segment(flip(made.data, 57 * size + 35, 1), made.idx, 1)
    with pytest.raises(CorruptRecord, match="record 58 of topic"):
        rows_of(by_index(damaged))


# Damage.


def test_every_changed_byte_of_data_is_found_or_is_a_delete_byte(full: bool) -> None:
    """And named: the neighbours of the bad record are delivered, with a gap row in its place."""
    made = plain()
    intact = rows_of(by_index(made), WITH_GAPS)
    frames = list(segment.walk(made.data, 0, len(made.data)))
    for position in range(len(made.data)):
        frame = next(frame for frame in frames if frame.offset <= position < frame.end)
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255) if full else (1, 255):
            table = by_index(Segment(flip(made.data, position, bits), made.idx, made.first_seq))
            rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
            others = [row for row in intact if row["seq"] != frame.seq]
            if position == frame.end - 1:
                assert [row for row in rows if row["seq"] != frame.seq] == others
                assert all(row["kind"] == "record" for row in rows)
            elif frame.deleted and rows == intact:
                continue  # Nothing of it is delivered, so its bytes do not matter.
            else:
                gap = [row for row in rows if row["kind"] == "gap"]
                assert [(row["seq"], row["gap_to"], row["gap_reason"]) for row in gap] == [
                    (frame.seq, frame.seq, "corrupt")
                ]
                assert [row for row in rows if row["kind"] == "record"] == others
                assert seqs_of(rows) == sorted(seqs_of(rows))


def test_every_changed_byte_of_bare_frames_is_found_or_is_a_delete_byte(full: bool) -> None:
    """Without an index the seq of a bad frame follows from its neighbours; holes beside it are taken for damage."""
    made = plain()
    intact = rows_of(frame_table.from_frames(made.data), WITH_GAPS)
    frames = list(segment.walk(made.data, 0, len(made.data)))
    for position in range(len(made.data)):
        frame = next(frame for frame in frames if frame.offset <= position < frame.end)
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255) if full else (1, 255):
            data = flip(made.data, position, bits)
            table = frame_table.from_frames(data, first_seq=11, last_seq=18)
            rows = rows_of(table, WITH_GAPS, on_corrupt="rows", where=RecordFilter(first_seq=11, last_seq=18))
            others = [row for row in intact if row["seq"] != frame.seq]
            assert [row for row in rows if row["kind"] == "record" and row["seq"] != frame.seq] == others
            gaps = [row for row in rows if row["kind"] == "gap"]
            if position == frame.end - 1:
                assert gaps == []
            else:
                assert len(gaps) == 1
                assert gaps[0]["seq"] <= frame.seq <= gaps[0]["gap_to"]
                assert not any(gaps[0]["seq"] <= seq <= gaps[0]["gap_to"] for seq in seqs_of(others))


def test_every_changed_byte_of_an_index_changes_no_row_and_is_reported_where_it_matters() -> None:
    """A hint of a delete, and the place and time of a hole, mean nothing to a reader."""
    made = plain()
    expected = rows_of(by_index(made))
    hole, hint = 5 * segment_index.ENTRY_BYTES, 16
    for position in range(len(made.idx)):
        for bits in (1, 0x7F, 0x80, 0xFF):
            table = by_index(Segment(made.data, flip(made.idx, position, bits), made.first_seq))
            assert rows_of(table) == expected
            assert table.bad == ()
            means_nothing = hole <= position < hole + 16 and not hole + 4 <= position < hole + 8
            if position % segment_index.ENTRY_BYTES == hint and bits == 0x80:
                means_nothing = True
            if position == hole + hint and bits <= 0x80:
                continue
            assert (table.index_problem is None) == means_nothing, position


@pytest.mark.parametrize("idx_of", [lambda idx: b"", lambda idx: idx[:-1], lambda idx: idx[20:], lambda idx: idx * 2])
def test_an_index_that_is_short_long_or_shifted_is_repaired_and_reported(idx_of: Any) -> None:
    made = plain()
    broken = Segment(made.data, idx_of(made.idx), made.first_seq)
    table = by_index(broken, last_seq=made.first_seq + 7)
    assert table.index_problem is not None
    assert rows_of(table, EVERY_COLUMN) == rows_of(by_index(made), EVERY_COLUMN)


def test_an_index_of_equal_frames_that_is_one_off_is_repaired() -> None:
    """All offsets and lengths are right, and every entry is for another seq."""
    made = make_segment([(Record(seq, 7, None, None, b"1", None), 0) for seq in range(1, 5)], 1)
    shifted = Segment(made.data, made.idx, 2)
    table = frame_table.from_index(shifted.data, shifted.idx, 2, last_seq=5)
    assert table.index_problem == "index entry 0 is for seq 2, its frame is seq 1"


def test_a_bad_frame_under_a_bad_index_is_still_the_only_one() -> None:
    made = plain()
    frames = list(segment.walk(made.data, 0, len(made.data)))
    for at in (0, 5, 25):  # A length, the seq, an inner length.
        data = flip(made.data, frames[2].offset + at, 0x40)
        table = by_index(Segment(data, flip(made.idx, 1, 0xFF), made.first_seq))
        rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
        assert [(row["seq"], row["gap_to"]) for row in rows if row["kind"] == "gap"] == [(13, 13)]
        assert [row["seq"] for row in rows if row["kind"] == "record"] == [11, 12, 15, 17, 18]


def test_a_cut_off_end_is_damage_up_to_the_last_seq() -> None:
    made = plain()
    for cut in (1, 30, 60):
        table = frame_table.from_frames(made.data[:-cut], first_seq=11, last_seq=18)
        rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
        assert rows[-1]["gap_reason"] == "corrupt"
        assert rows[-1]["gap_to"] == 18


def test_the_error_names_topic_seq_file_and_offset() -> None:
    made = plain()
    frame = list(segment.walk(made.data, 0, len(made.data)))[2]
    damaged = Segment(flip(made.data, frame.end - 12, 1), made.idx, made.first_seq)
    with pytest.raises(CorruptRecord) as caught:
        rows_of(by_index(damaged))
    assert caught.value.detail == {"topic": "orders", "seq": 13}
    assert f'record 13 of topic "orders" is damaged (seg-1, offset {frame.offset}: checksum' in caught.value.message


def test_damage_of_what_is_hidden_or_not_wanted_hides_nothing_else() -> None:
    made = plain()
    frame = list(segment.walk(made.data, 0, len(made.data)))[2]
    damaged = by_index(Segment(flip(made.data, frame.end - 12, 1), made.idx, made.first_seq))
    for where in (RecordFilter(hidden=((13, 13),)), RecordFilter(first_seq=14), RecordFilter(last_seq=12)):
        assert rows_of(damaged, where=where) == rows_of(by_index(made), where=where)


def test_a_damaged_tag_is_damage_also_for_those_who_ask_for_another() -> None:
    """Otherwise the record would be left out without a word."""
    made = plain()
    damaged = Segment(made.data.replace(b"tag-2", b"tag-9"), made.idx, made.first_seq)
    with pytest.raises(CorruptRecord, match="record 13 "):
        rows_of(by_index(damaged), where=RecordFilter(tag="tag-2"))


def test_a_gap_row_has_the_time_of_its_record_and_no_content() -> None:
    made = plain()
    frame = list(segment.walk(made.data, 0, len(made.data)))[2]
    damaged = by_index(Segment(flip(made.data, frame.end - 12, 1), made.idx, made.first_seq))
    columns = EVERY_COLUMN + GAP_COLUMNS
    gap = next(row for row in rows_of(damaged, columns, on_corrupt="rows") if row["kind"] == "gap")
    assert {name: value for name, value in gap.items() if value is not None} == {
        "topic": "orders",
        "seq": 13,
        "ts": 1_700_000_000_002_000,
        "epoch": 3,
        "kind": "gap",
        "gap_to": 13,
        "gap_reason": "corrupt",
    }


def raw_frame(seq: int, *, flags: int = 3, node: bytes = b"n", tag: bytes = b"t", data: bytes = b'{"d":1}') -> bytes:
    """A frame with a right checksum, whatever else is wrong with it."""
    core = pack("<BQQHHI", flags, seq, 2, len(node), len(tag), len(data)) + node + tag + data
    return pack("<I", len(core) + 9) + core + pack("<QB", xxh3_64_intdigest(core), 0)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (raw_frame(2, tag=b"\xff"), "tag or node is not UTF-8"),
        (raw_frame(2, node=b"\xed\xa0\x80"), "tag or node is not UTF-8"),
        (raw_frame(2, data=b'{"d":"\xff"}'), "payload is not UTF-8"),
        (raw_frame(2, data=b"null"), "the payload is not an envelope"),
        (raw_frame(2, data=b""), "the payload is not an envelope"),
        (raw_frame(2, data=b'{"d":1,"m":2,"x":3}'), "the payload is not an envelope"),
        (raw_frame(2, flags=7), "flags 7 are unknown"),
        (raw_frame(2, flags=1), "flags 1 are unknown, or do not fit"),
    ],
    ids=["tag", "node", "text", "no object", "empty", "third member", "unknown flag", "missing flag"],
)
def test_a_valid_frame_that_holds_no_record_is_damage(frame: bytes, message: str) -> None:
    data = raw_frame(1) + frame + raw_frame(3)
    table = frame_table.from_frames(data, first_seq=1, last_seq=3)
    with pytest.raises(CorruptRecord, match=message):
        rows_of(table)
    rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
    assert [(row["seq"], row["kind"]) for row in rows] == [(1, "record"), (2, "gap"), (3, "record")]


def test_a_label_that_is_no_text_is_damage_also_for_those_who_filter_by_it() -> None:
    table = frame_table.from_frames(raw_frame(1) + raw_frame(2, tag=b"\xff"), first_seq=1, last_seq=2)
    with pytest.raises(CorruptRecord, match="record 2 "):
        rows_of(table, ("seq",), where=RecordFilter(tag="t"))


@given(garbage=st.binary(max_size=200), idx=st.binary(max_size=80))
def test_any_bytes_are_read_as_damage_or_nothing(garbage: bytes, idx: bytes) -> None:
    for table in (frame_table.from_frames(garbage), frame_table.from_index(garbage, idx, 1)):
        rows = rows_of(table, WITH_GAPS, on_corrupt="rows")
        assert all(row["kind"] == "gap" for row in rows)
        assert bool(rows) == bool(garbage)


def test_a_seq_or_time_that_no_column_can_hold_is_an_error_and_never_another_number() -> None:
    for record in (Record(2**63, 1, None, None, b"1", None), Record(1, 2**62, None, None, b"1", None)):
        with pytest.raises(BadFrame, match="is larger than a"):
            rows_of(frame_table.from_frames(segment.encode(record)))


def test_nothing_at_all_is_no_batch() -> None:
    assert rows_of(frame_table.from_index(b"", b"", 1)) == []
    assert rows_of(frame_table.from_frames(b"")) == []
