"""Rows as records: whatever is in a row arrives as it is in its own record, or the row is named and nothing is sent."""

import json
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BatchTooLarge
from topics.protocol.write_body import WriteLimits, decode_write
from topics.spark.errors import BadOption
from topics.spark.writing.body import (
    BadRow,
    ChunkCutter,
    ChunkLimits,
    RowChunk,
    check_columns,
    record_texts,
    refused_row,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value, ensure_ascii=False))
OBJECT_TEXT = st.dictionaries(TEXT, st.integers(), max_size=3).map(json.dumps)
# What stays inside of a record only if it is looked at.
TRICKY = st.sampled_from(
    ["", " ", "1,2", '1},{"data":2', '1,"tag":"x"', '"a', 'b"', "[1", "2]", "{", "nul", "\x00", " 1 ", "\n2", "01"]
)


def rows_of(**columns: list[Any]) -> pa.RecordBatch:
    types = {name: pa.binary() if name == "value" else pa.string() for name in columns}
    return pa.record_batch([pa.array(column, types[name]) for name, column in columns.items()], names=list(columns))


def decoded(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    texts = record_texts(batch, 0, 0)
    return [json.loads(text) for text in texts.to_pylist()]


def refusal(batch: pa.RecordBatch, part: int = 3, first_row: int = 100) -> str:
    with pytest.raises(BadRow) as caught:
        record_texts(batch, part, first_row)
    return caught.value.message


# Columns.


_PAYLOADS = (
    "exactly one column must hold the payload: `data` (JSON text), `value` (the same as binary) or `data_text` "
    "(plain text); there "
)
_PLACES = (
    "there is no place in a record for `seq`, `ts`; select among topic, data, value, data_text, tag, node, "
    "meta, and put everything else into `data`, for instance with to_json(struct(...))"
)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([("data", "string"), ("seq", "bigint"), ("ts", "timestamp")], _PLACES),
        ([("data", "struct<a:int>")], "column `data` must be string, not struct<a:int>; cast it, or use to_json()"),
        ([("value", "string")], "column `value` must be binary, not string; cast it, or use to_json()"),
        ([("data", "string"), ("value", "binary")], _PAYLOADS + "are data and value"),
        ([("tag", "string")], _PAYLOADS + "is none"),
        ([("data", "string"), ("data", "string")], "there are several columns `data`"),
    ],
)
def test_columns_that_cannot_be_records_are_refused_with_a_way_out(columns: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(BadOption) as caught:
        check_columns(columns, "orders")
    assert caught.value.message == text


def test_rows_need_a_topic_from_the_option_or_from_a_column() -> None:
    with pytest.raises(BadOption, match="give option `topic`, or have a column `topic`"):
        check_columns([("data", "string")], None)
    check_columns([("data", "string")], "orders")
    check_columns([("topic", "string"), ("data_text", "varchar(10)"), ("tag", "string")], None)


# Texts.


@given(st.lists(st.tuples(JSON_TEXT, TEXT | st.none(), TEXT | st.none(), OBJECT_TEXT | st.none()), min_size=1))
def test_any_payload_and_label_is_in_its_record_unchanged(
    rows: list[tuple[str, str | None, str | None, str | None]],
) -> None:
    names = ("data", "tag", "node", "meta")
    batch = rows_of(**{name: [row[i] for row in rows] for i, name in enumerate(names)})
    texts = record_texts(batch, 0, 0).to_pylist()
    for text, row in zip(texts, rows, strict=True):
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        wanted = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        assert members.keys() == wanted.keys()
        for name, value in wanted.items():
            if name in ("data", "meta"):
                assert bytes(members[name]).decode() == value
            else:
                assert msgspec.json.decode(members[name]) == value


@given(st.lists(JSON_TEXT | TRICKY, min_size=1, max_size=6))
def test_a_payload_is_one_json_value_or_its_row_is_named(values: list[str]) -> None:
    wrong = [row for row, value in enumerate(values) if not _is_json(value)]
    batch = rows_of(data=values)
    if wrong:
        assert refusal(batch).startswith(f"partition 3, row {100 + wrong[0]}: `data` is not JSON: ")
    else:
        assert [record["data"] for record in decoded(batch)] == [json.loads(value) for value in values]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(st.lists(TEXT, min_size=1))
def test_plain_text_becomes_a_json_string(values: list[str]) -> None:
    assert [record["data"] for record in decoded(rows_of(data_text=values))] == values


def test_every_control_character_survives() -> None:
    values = ["".join(map(chr, range(0x80))), *(chr(code) for code in range(0x80)), '\\"\\n', "\u2028é😀"]
    assert decoded(rows_of(data_text=values, tag=values)) == [{"data": value, "tag": value} for value in values]


def test_binary_values_are_json_as_they_are() -> None:
    assert record_texts(rows_of(value=[b'{"a": 1.50}', b"2"]), 0, 0).to_pylist() == [
        b'{"data":{"a": 1.50}}',
        b'{"data":2}',
    ]


def test_blanks_around_a_payload_go_and_those_inside_stay() -> None:
    texts = record_texts(rows_of(data=[' {"a": 1}\t', "2"]), 0, 0).to_pylist()
    assert texts == [b'{"data":{"a": 1}}', b'{"data":2}']


def test_a_slice_of_a_batch_is_only_its_own_rows() -> None:
    batch = rows_of(data=["1", "2", "3", "4"], tag=['"', None, "b\\", "c"]).slice(1, 2)
    assert decoded(batch) == [{"data": 2}, {"data": 3, "tag": "b\\"}]


def test_nulls_and_wrong_metas_name_their_row() -> None:
    assert refusal(rows_of(data=["1", None])) == "partition 3, row 101: `data` is null"
    assert refusal(rows_of(data_text=[None])) == "partition 3, row 100: `data_text` is null"
    assert refusal(rows_of(data=["1", "2", "3"], meta=[None, '{"a":1}', "{"])).startswith(
        "partition 3, row 102: `meta` is not JSON: "
    )


def test_depth_without_end_names_its_row() -> None:
    assert refusal(rows_of(data=["1", "[" * 100_000])).startswith("partition 3, row 101: `data` is not JSON: ")


def test_the_value_of_a_wrong_row_is_not_shown() -> None:
    assert "secret" not in refusal(rows_of(data=['{"secret"']))


# Chunks.


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), max_size=8), st.integers(1, 10), st.integers(1, 100)
)
def test_chunks_keep_all_records_in_order_within_the_limits(
    batches: list[list[int]], records_max: int, bytes_max: int
) -> None:
    cutter = ChunkCutter(ChunkLimits(records_max, bytes_max))
    values = [b"x" * size for batch in batches for size in batch]
    chunks: list[RowChunk] = []
    row = 0
    for batch in batches:
        texts = pa.array([b"x" * size for size in batch], pa.large_binary())
        cutter.add(texts, np.arange(row, row + len(batch)))
        row += len(batch)
        full = list(cutter.full())
        chunks += full
        assert cutter.size_bytes <= bytes_max + 41
    early = len(chunks)
    chunks += cutter.all()
    assert cutter.size_bytes == 0
    assert [text for chunk in chunks for text in chunk.texts.to_pylist()] == values
    assert [row for chunk in chunks for row in chunk.rows.tolist()] == list(range(len(values)))
    for index, chunk in enumerate(chunks):
        assert 0 < len(chunk) <= records_max
        assert chunk.size_bytes <= bytes_max or len(chunk) == 1
        if index < early:
            after = chunks[index + 1].texts[0].as_buffer().size + 1 if index + 1 < len(chunks) else bytes_max
            assert len(chunk) == records_max or chunk.size_bytes + after > bytes_max


def test_the_row_that_a_server_refuses_is_found_by_its_rules() -> None:
    values = ["1", "2", "1e999", "4"]
    chunk = RowChunk(record_texts(rows_of(data=values), 0, 0), np.array([10, 20, 30, 40]))
    with pytest.raises(Exception, match="overflows") as caught:
        decode_write(b'{"records":%b}' % chunk.records).batch(WriteLimits())
    found = refused_row(chunk, 7, caught.value)  # type: ignore[arg-type]
    assert str(found) == "partition 7, row 30: malformed JSON body: a number overflows a double"


def test_a_refusal_without_a_row_names_all_of_them() -> None:
    chunk = RowChunk(record_texts(rows_of(data=["1", "2"]), 0, 0), np.array([10, 20]))
    assert str(refused_row(chunk, 7, BatchTooLarge("no"))) == "partition 7, rows 10 to 20: no"
