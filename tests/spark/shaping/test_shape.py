"""Typed batches under the schema that Spark asks for, without a session."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType, VariantType

from topics.spark.errors import BadOption
from topics.spark.shaping.shape import RESCUED, arrow_type, shape_of

TEXT = pa.schema([pa.field("seq", pa.int64(), nullable=False), ("data", pa.string()), ("meta", pa.string())])
ORDER = StructType().add("id", LongType())


def test_batches_get_exactly_the_columns_that_spark_asks_for() -> None:
    requested = (
        StructType()
        .add(RESCUED, StringType())
        .add("meta", MapType(StringType(), StringType()))
        .add("data", ORDER)
        .add("seq", LongType(), nullable=False)
    )
    shape = pickle.loads(pickle.dumps(shape_of(requested, TEXT)))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3]), pa.array(['{"id":7}', '{"id":"x"}', None]), pa.array(['{"k":"v"}', None, None])],
        schema=TEXT,
    )
    (typed,) = shape.apply([batch])
    assert typed.schema == shape.wanted
    assert typed.to_pylist() == [
        {RESCUED: None, "meta": [("k", "v")], "data": {"id": 7}, "seq": 1},
        {RESCUED: '{"id":"x"}', "meta": None, "data": {"id": None}, "seq": 2},
        {RESCUED: None, "meta": None, "data": None, "seq": 3},
    ]


def test_columns_without_data_are_left_alone() -> None:
    (typed,) = shape_of(StructType().add("seq", LongType(), nullable=False), TEXT).apply(
        [pa.RecordBatch.from_arrays([pa.array([1])], schema=pa.schema([TEXT.field("seq")]))]
    )
    assert typed.to_pylist() == [{"seq": 1}]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (StructType().add("a", ArrayType(BinaryType())), "cannot be struct<a:array<binary>>"),
        (VariantType(), "typed"),
        (StructType().add("a", ArrayType(StructType().add("b", LongType(), nullable=False))), r"`data.a\[\].b` is NOT"),
        (MapType(StringType(), StructType().add("b", LongType(), nullable=False)), r"`data\[\].b` is NOT"),
    ],
)
def test_types_that_records_cannot_have_are_refused(wanted: StructType, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        arrow_type(wanted)
