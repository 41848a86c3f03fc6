"""Schemas: what Spark is told is what it gets, nulls included."""

import pyarrow as pa
import pytest

from topics.formats import columnar, frame_table, segment
from topics.formats.records import Record
from topics.spark.errors import BadOption
from topics.spark.options import parse_options
from topics.spark.schemas import ddl, requested_schema, schema_of, with_schema


def schema(**given: str) -> pa.Schema:
    return schema_of(parse_options({"endpoint": "h", "subscribe": "t"} | given, mode="batch"))


def test_records_have_the_documented_columns() -> None:
    assert ddl(schema()) == (
        "`topic` string not null, `seq` bigint not null, `ts` timestamp not null, `node` string, `tag` string, "
        "`data` string, `meta` string"
    )
    assert ddl(schema(gaps="rows", columns="seq,checksum,value,epoch,deleted,segment")) == (
        "`seq` bigint not null, `checksum` bigint, `value` binary, `epoch` bigint not null, `deleted` boolean, "
        "`segment` string, `kind` string not null, `gap_to` bigint, `gap_reason` string"
    )


def test_streams_have_the_documented_columns() -> None:
    given = {"path": "/d", "stream": "s", "topic": "t"}
    options = parse_options(given, mode="stream", source="topics_streams")
    assert ddl(schema_of(options, "topics_streams")) == (
        "`stream` string not null, `topic` string not null, `partition` int not null, `offset` bigint not null, "
        "`id` string, `timestamp` timestamp not null, `origin_timestamp` timestamp, `headers` binary, `payload` binary"
    )


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        (
            "segments",
            "topic topic_id epoch first_seq last_seq records live bytes min_ts max_ts tier uri sealed digest",
        ),
        ("topics", "name id type epoch head_seq earliest_seq evict_floor count bytes config"),
        ("gaps", "topic gap_from gap_to reason"),
    ],
)
def test_other_tables_have_the_documented_columns(table: str, columns: str) -> None:
    found = schema(table=table)
    assert found.names == columns.split()
    assert ddl(found)


def test_a_requested_part_keeps_its_order_and_nullability() -> None:
    wanted = requested_schema(schema(), [("ts", "timestamp", True), ("seq", "bigint", False)])
    assert wanted == pa.schema([pa.field("ts", pa.timestamp("us", tz="UTC")), pa.field("seq", pa.int64(), False)])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (("payload", "string", True), "column `payload`, which is none of topic, seq, ts, node, tag, data, meta"),
        (("seq", "int", True), "column `seq` as int, it is bigint; cast it afterwards"),
        (("tag", "string", False), "column `tag` as not null, but it can be null"),
    ],
)
def test_what_is_not_there_is_refused_before_a_task_starts(column: tuple[str, str, bool], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        requested_schema(schema(), [column])


def test_no_schema_hides_gaps() -> None:
    with pytest.raises(BadOption, match="must have column `kind`"):
        requested_schema(schema(gaps="rows"), [("seq", "bigint", False)])


def test_a_batch_gets_exactly_the_schema_that_was_asked_for() -> None:
    frame = segment.encode(Record(1, 2, None, None, b"3", None))
    (batch,) = columnar.record_batches(frame_table.from_frames(frame), columnar.Origin("t"))
    wanted = requested_schema(schema(), [("data", "string", True), ("seq", "bigint", True)])
    found = with_schema(batch, wanted)
    assert found.schema.equals(wanted, check_metadata=True)
    assert found.to_pylist() == [{"data": "3", "seq": 1}]
