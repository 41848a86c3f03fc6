"""What fits a type and what does not, one JSON text at a time."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from topics.spark.shaping.fit import fitter, is_supported

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
UTC_TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), '"ü"', "ü"),
        (pa.bool_(), "true", True),
        (pa.int8(), "-128", -128),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "9007199254740993.0", 9007199254740992.0),
        (pa.float64(), "100000000000000000000", 1e20),
        (pa.float32(), "0.5", 0.5),
        (pa.decimal128(5, 2), "123.450", Decimal("123.45")),
        (pa.decimal128(5, 2), "0e99999999999", Decimal(0)),
        (pa.decimal128(38, 0), "99999999999999999999999999999999999999", Decimal(10**38 - 1)),
        (UTC_TIME, '"2026-01-31T09:00:00.25+01:00"', datetime(2026, 1, 31, 8, 0, 0, 250_000, UTC)),
        (pa.timestamp("us"), '"2026-01-31 09:00:00"', datetime(2026, 1, 31, 9)),  # noqa: DTZ001
        (pa.date32(), '"2026-01-31"', date(2026, 1, 31)),
        (pa.list_(pa.int64()), "[1,null,3]", [1, None, 3]),
        (pa.map_(pa.string(), pa.int64()), '{"x":1,"y":null}', [("x", 1), ("y", None)]),
        (STRUCT, '{"b":null}', {"b": None}),
        (STRUCT, '{"a":1,"other":null}', {"a": 1}),
    ],
)
def test_a_value_that_fits_is_there_as_a_whole(kind: pa.DataType, text: str, value: Any) -> None:
    assert fitter(kind)(text) == (value, True)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "5", None),
        (pa.string(), '"\\ud800"', None),
        (pa.string(), "{}", None),
        (pa.bool_(), "1", None),
        (pa.int8(), "128", None),
        (pa.int64(), "9223372036854775808", None),
        (pa.int64(), "1.0", None),
        (pa.int64(), "true", None),
        (pa.int64(), '"1"', None),
        (pa.float64(), "12345678901234567890", None),
        (pa.float64(), "1e400", None),
        (pa.float64(), "1" + "0" * 400, None),
        (pa.float64(), "NaN", None),
        (pa.float32(), "16777217", None),
        (pa.float32(), "1e39", None),
        (pa.decimal128(5, 2), "0.001", None),
        (pa.decimal128(5, 2), "1000", None),
        (pa.decimal128(5, 2), "1e999999999", None),
        (pa.decimal128(5, 2), '"1.25"', None),
        (UTC_TIME, '"2026-01-31T09:00:00"', None),
        (UTC_TIME, '"2026-01-31T09:00:00.1234567Z"', None),
        (UTC_TIME, '"2026-02-30T09:00:00Z"', None),
        (UTC_TIME, '"0001-01-01T00:00:00+12:00"', None),
        (UTC_TIME, "1790000000000", None),
        (pa.timestamp("us"), '"2026-01-31T09:00:00Z"', None),
        (pa.date32(), '"2026-02-30"', None),
        (pa.list_(pa.int64()), "{}", None),
        (pa.list_(pa.int64()), '[1,"x"]', [1, None]),
        (pa.map_(pa.string(), pa.int64()), '{"x":1,"x":2}', [("x", 2)]),
        (pa.map_(pa.string(), pa.int64()), '{"\\ud800":1}', []),
        (STRUCT, '{"a":1,"c":2}', {"a": 1}),
        (STRUCT, '{"a":1,"a":2}', {"a": 2}),
        (STRUCT, '{"a":"1","b":"x"}', {"a": None, "b": "x"}),
        (STRUCT, "[]", None),
        (STRUCT, "null", None),
        (STRUCT, '{"a":1', None),
        (STRUCT, '{"a":' + "[" * 100_000, None),
        (STRUCT, '{"a":' + "9" * 5000 + "}", None),
    ],
)
def test_a_value_that_does_not_fit_is_null_and_what_fits_around_it_stays(
    kind: pa.DataType, text: str, value: Any
) -> None:
    assert fitter(kind)(text) == (value, False)


def test_types_that_no_json_has_are_not_supported() -> None:
    assert is_supported(pa.struct([("a", pa.list_(pa.date32()))]))
    assert not is_supported(pa.struct([("a", pa.list_(pa.binary()))]))
    assert not is_supported(pa.duration("us"))
