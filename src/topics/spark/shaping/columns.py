"""`topics.spark.typed`: typed columns for any DataFrame with `data` as JSON text, of a topic or a lake, or a stream."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from topics.spark.errors import BadOption
from topics.spark.shaping.decode import Decoder, decode_metas
from topics.spark.shaping.infer import infer
from topics.spark.shaping.schema_option import SAMPLE_RECORDS, given_type
from topics.spark.shaping.shape import META_DDL, RESCUED, arrow_type, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def typed(
    rows: "DataFrame", schema: "str | DataType | None" = None, *, sample: "int | DataFrame | None" = None
) -> "DataFrame":
    """The rows with `data` as values of the schema, `meta` as a map, and `_rescued` with data that does not fit."""
    types = dict(rows.dtypes)
    if types.get("data") != "string":
        raise BadOption("there is no column `data` with JSON text")
    if RESCUED in types:
        raise BadOption(f"there is a column `{RESCUED}` already")
    data, rescued = _data_columns(_type_of(rows, schema, sample))
    columns = {"data": data.alias("data")}
    if types.get("meta") == "string":
        columns["meta"] = _meta_column().alias("meta")
    from pyspark.sql import functions as f

    kept: list[Column] = [columns.get(name, f.col(f"`{name}`")) for name in rows.columns]
    return rows.select(*kept, rescued.alias(RESCUED))


def _type_of(rows: "DataFrame", schema: "str | DataType | None", sample: "int | DataFrame | None") -> "DataType":
    from pyspark.sql.types import DataType

    if isinstance(schema, DataType):
        return schema
    known = None if schema is None else given_type(schema)
    if known is not None and sample is not None:
        raise BadOption("give `schema` or `sample`: a sample is for a schema that is to be inferred")
    if known is None:
        if schema is None and sample is None:
            raise BadOption("give `schema`, or `sample`: the records from which a schema is inferred")
        known = _infer(rows, SAMPLE_RECORDS if sample is None else sample)
    return spark_type(known)


def _infer(rows: "DataFrame", sample: "int | DataFrame") -> str:
    if isinstance(sample, int):
        if rows.isStreaming:
            raise BadOption(
                "a stream has no first records to infer a schema from; give a batch as `sample`, or `schema`"
            )
        sample = rows.limit(sample)
    return infer(row["data"] for row in sample.select("data").limit(100 * SAMPLE_RECORDS).collect())


def _data_columns(wanted: "DataType") -> "tuple[Column, Column]":
    """`data` and `_rescued`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType, VariantType

    text = f.col("data")
    if isinstance(wanted, VariantType):
        value = f.try_parse_json(text)
        # A VARIANT has 38 digits of a number; it has more only as a double.
        is_rescued = value.isNull() | text.rlike("[0-9.]{39,}")
        return value, f.when(is_rescued, text)
    kind = arrow_type(wanted)

    def decode(texts: pa.Array) -> pa.Array:
        decoded = Decoder(kind).decode(texts)
        return pa.StructArray.from_arrays([decoded.values, decoded.rescued], ["value", "rescued"])

    found = _arrow_column(decode, StructType().add("value", wanted).add("rescued", "string"), text)
    return found["value"], found["rescued"]


def _meta_column() -> "Column":
    from pyspark.sql.functions import col

    return _arrow_column(decode_metas, META_DDL, col("meta"))


def _arrow_column(function: Callable[[pa.Array], pa.Array], kind: "DataType | str", column: "Column") -> "Column":
    from pyspark.sql.pandas.functions import arrow_udf

    make: Any = arrow_udf
    found: Column = make(function, returnType=kind)(column)
    return found
