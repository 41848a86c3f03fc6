"""The typed form of a read: `data` has a type, `meta` is a map, and `_rescued` has the text of what does not fit."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from topics.spark.errors import BadOption
from topics.spark.shaping.decode import Decoder, decode_metas
from topics.spark.shaping.fit import is_supported
from topics.spark.shaping.schema_option import VARIANT

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

RESCUED: Final = "_rescued"
META_DDL: Final = "map<string,string>"


def spark_type(ddl: str) -> "DataType":
    """The type that the DDL says. Needs a session."""
    from pyspark.sql.types import StructType, VariantType

    if ddl.strip().lower() == VARIANT:
        return VariantType()
    parsed: Any = StructType.fromDDL(f"`data` {ddl}")
    found: DataType = parsed["data"].dataType
    return found


def arrow_type(wanted: "DataType") -> pa.DataType:
    """The type of `data` in Arrow. Raises `BadOption` for a type that no JSON has."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        found = to_arrow_type(wanted, timezone="UTC")
    except PySparkException as error:
        raise BadOption(f"`data` cannot be {wanted.simpleString()}: {error}") from error
    if wanted.simpleString() == VARIANT:
        raise BadOption(
            '`data` can be a VARIANT where Spark itself parses it: topics.spark.read(spark, schema="variant", …), '
            'or topics.spark.typed(df, schema="variant")'
        )
    if not is_supported(found):
        raise BadOption(
            f"`data` cannot be {wanted.simpleString()}; its parts can be string, boolean, tinyint, smallint, int, "
            "bigint, float, double, decimal, timestamp, timestamp_ntz, date, array, map with string keys, and struct"
        )
    required = _required_member(found, "data")
    if required is not None:
        raise BadOption(f"`{required}` is NOT NULL, but a record may be without it; leave NOT NULL out")
    return found


def _required_member(wanted: pa.DataType, place: str) -> str | None:
    """The first member that must not be null. The key of a map is none."""
    if pa.types.is_map(wanted):
        return _required_member(wanted.item_type, f"{place}[]")
    if pa.types.is_list(wanted):
        return _required_member(wanted.value_type, f"{place}[]")
    if not pa.types.is_struct(wanted):
        return None
    for field in wanted:
        if not field.nullable:
            return f"{place}.{field.name}"
        found = _required_member(field.type, f"{place}.{field.name}")
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that Spark asks for, in their order. Sent to tasks."""

    wanted: pa.Schema

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, typed."""
        decoder = Decoder(self.wanted.field("data").type) if "data" in self.wanted.names else None
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            if decoder is not None:
                columns["data"], columns[RESCUED] = decoder.decode(columns["data"])
            if "meta" in columns:
                columns["meta"] = decode_metas(columns["meta"]).cast(self.wanted.field("meta").type)
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.wanted.names], schema=self.wanted)


def shape_of(requested: "StructType", text_schema: pa.Schema) -> Shape:
    """The shape that Spark asks for. `text_schema` has the other columns."""
    fields = []
    for field in requested.fields:
        if field.name == "data":
            fields.append(pa.field("data", arrow_type(field.dataType)))
        elif field.name == "meta":
            from pyspark.sql.pandas.types import to_arrow_type

            fields.append(pa.field("meta", to_arrow_type(field.dataType)))
        elif field.name == RESCUED:
            fields.append(pa.field(RESCUED, pa.string()))
        else:
            fields.append(text_schema.field(field.name))
    return Shape(pa.schema(fields))
