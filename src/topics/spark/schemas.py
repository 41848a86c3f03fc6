"""The schema of every table, in one place: Arrow for the batches, DDL text for Spark.

Spark takes a schema as DDL, so that this module needs no Spark. Spark compares the first batch of a task with the
requested schema: names, order, types, and which columns may be null. So every batch gets exactly the requested schema.
A read that asks for an unknown column or another type is refused before a task starts.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]

from topics.formats import columnar, columnar_messages
from topics.spark import options
from topics.spark.errors import BadOption
from topics.spark.options import Format, ReadOptions
from topics.spark.shaping.shape import META_DDL, RESCUED

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# `options` has the same names without Arrow.
assert options.COLUMNS == columnar.COLUMNS
assert options.COLUMNS_ON_DEMAND == columnar.COLUMNS_ON_DEMAND
assert options.GAP_COLUMNS == columnar.GAP_COLUMNS
assert options.STREAM_COLUMNS == columnar_messages.COLUMNS

_TYPED: Final = ("data", "meta")
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_DDL_BY_TYPE: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    _TIMESTAMP: "timestamp",
}


def _required(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, wanted, nullable=False) for name, wanted in types.items()]


_SEGMENTS: Final = pa.schema(
    [
        *_required(topic=pa.string(), topic_id=pa.int64(), epoch=pa.int64(), first_seq=pa.int64(), last_seq=pa.int64()),
        *_required(records=pa.int64(), live=pa.int64(), bytes=pa.int64(), min_ts=_TIMESTAMP, max_ts=_TIMESTAMP),
        *_required(tier=pa.string(), uri=pa.string(), sealed=pa.bool_()),
        # Only a sealed segment has a digest.
        pa.field("digest", pa.string()),
    ]
)
_TOPICS: Final = pa.schema(
    [
        *_required(name=pa.string(), id=pa.int64(), type=pa.string(), epoch=pa.int64(), head_seq=pa.int64()),
        *_required(earliest_seq=pa.int64(), evict_floor=pa.int64(), count=pa.int64(), bytes=pa.int64()),
        *_required(config=pa.string()),
    ]
)
_GAPS: Final = pa.schema(
    [
        *_required(topic=pa.string(), gap_from=pa.int64()),
        # The last seq of a topic that is gone is not known.
        pa.field("gap_to", pa.int64()),
        *_required(reason=pa.string()),
    ]
)
_TABLES: Final = {"segments": _SEGMENTS, "topics": _TOPICS, "gaps": _GAPS}


def schema_of(read: ReadOptions, source: Format = "topics") -> pa.Schema:
    """The Arrow schema of what these options read."""
    if source == "topics_streams":
        return columnar_messages.schema(read.columns_with_gaps)
    if read.table == "records":
        return columnar.schema(read.columns_with_gaps)
    return _TABLES[read.table]


def ddl(schema: pa.Schema, data_type: str | None = None) -> str:
    """The schema as DDL for Spark. With a type for `data` it is that of a typed read."""
    typed = {} if data_type is None else {"data": data_type, "meta": META_DDL}
    columns = [
        f"`{field.name}` {typed.get(field.name) or _DDL_BY_TYPE[field.type]}{'' if field.nullable else ' not null'}"
        for field in schema
    ]
    return ", ".join([*columns, f"`{RESCUED}` string"] if data_type is not None and "data" in schema.names else columns)


def read_schema(read: ReadOptions, wanted: "StructType", source: Format = "topics") -> pa.Schema:
    """The Arrow schema of the batches of a read with these options, as Spark requests it. Typed columns are text."""
    is_text = read.schema is None
    requested = [
        (
            field.name,
            "string" if field.name in _TYPED and not is_text else field.dataType.simpleString(),
            field.nullable,
        )
        for field in wanted.fields
        if is_text or field.name != RESCUED
    ]
    names = wanted.fieldNames()
    if not is_text and ("data" in names) != (RESCUED in names):
        raise BadOption(f"the schema must have both `data` and `{RESCUED}`, where data goes that does not fit")
    return requested_schema(schema_of(read, source), requested)


def requested_schema(known: pa.Schema, requested: Iterable[tuple[str, str, bool]]) -> pa.Schema:
    """The part of a known schema that Spark asks for: name, simple type and nullability of each column.

    Raises `BadOption` for an unknown column or another type. The columns that tell gap rows from records, when the read
    has them, must be requested: no schema hides a gap.
    """
    fields = []
    for name, wanted_type, nullable in requested:
        position = known.get_field_index(name)
        if position < 0:
            raise BadOption(f"the schema has column `{name}`, which is none of {', '.join(known.names)}")
        field = known.field(position)
        if _DDL_BY_TYPE[field.type] != wanted_type.lower():
            raise BadOption(
                f"the schema has column `{name}` as {wanted_type}, it is {_DDL_BY_TYPE[field.type]}; cast it afterwards"
            )
        if field.nullable and not nullable:
            raise BadOption(f"the schema has column `{name}` as not null, but it can be null")
        fields.append(field.with_nullable(nullable))
    names = [field.name for field in fields]
    if "kind" in known.names and "kind" not in names:
        raise BadOption("the schema must have column `kind`: rows can be gaps, and nothing else tells them apart")
    return pa.schema(fields)


def with_schema(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The same rows under exactly this schema: its columns, its order, its nullability."""
    return pa.RecordBatch.from_arrays(_columns(batch, wanted.names), schema=wanted)


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    return [batch.column(name) for name in names]
