"""Whole batches, compared with Python's own decoder: a record is in the values as a whole, or its text is kept."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.shaping.decode import PIECE_RECORDS, Decoder, decode_metas, has_few_members
from topics.spark.shaping.fit import fitter

NAMES = st.sampled_from(["a", "b", "c", "A", "ü"])
SCALAR_TYPES = st.sampled_from(
    [
        *(pa.string(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.float32()),
        *(pa.decimal128(10, 2), pa.timestamp("us", tz="UTC"), pa.date32()),
    ]
)


def _structs(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(NAMES, types, min_size=1, max_size=4).map(lambda members: pa.struct(list(members.items())))


TYPES = st.recursive(
    SCALAR_TYPES,
    lambda types: st.one_of(types.map(pa.list_), types.map(lambda item: pa.map_(pa.string(), item)), _structs(types)),
    max_leaves=6,
)
NUMBERS = st.one_of(
    st.integers(-200, 200),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**20, 10**38]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, 12.25, 1e300, -0.0]),
)
TEXTS = st.sampled_from(["", "x", "ü\n", "5", "2026-01-31", "2026-01-31T08:00:00Z", '"}{', "\ud800"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=4),
    max_leaves=8,
)


def _values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of this type most of the time, so that whole records are common."""
    if pa.types.is_struct(kind):
        members = {field.name: st.none() | _values_of(field.type) for field in kind}
        return st.fixed_dictionaries({}, optional=members) | VALUES
    if pa.types.is_list(kind):
        return st.lists(_values_of(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(NAMES, _values_of(kind.item_type), max_size=3)
    return VALUES


@st.composite
def _texts(draw: st.DrawFn, kind: pa.DataType) -> str | None:
    shape = draw(st.sampled_from(["value", "value", "value", "value", "twice", "broken", "none", "spaced"]))
    if shape == "none":
        return None
    value = draw(_values_of(kind))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()) or "\ud800" in repr(value))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value)
    if shape == "twice" and text.startswith("{"):
        return '{"a":1,' + text[1:].lstrip() if len(text) > 2 else '{"a":1,"a":2}'
    if shape == "broken":
        return draw(st.sampled_from([text[:-1], text + text, text + "}", "", "{", "}", '{"a":"', "NaN"]))
    return f" \n{json.dumps(value, indent=1)} " if shape == "spaced" else text


CASES = TYPES.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(_texts(kind), max_size=6)))


def _has_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    return {**dict(pairs), **({"twice!": 1} if len(set(names)) < len(names) else {})}


def _plain(value: Any) -> Any:
    """What Arrow and Python's decoder have in common: null and missing are the same, and a map is an object."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        is_map = bool(value) and all(isinstance(item, tuple) for item in value)
        return _plain(dict(value)) if is_map else [_plain(item) for item in value]
    return value


def _same(found: Any, written: Any) -> bool:
    """Whether a value of Arrow is what JSON says."""
    if isinstance(found, dict) and isinstance(written, dict):
        return found.keys() == written.keys() and all(_same(found[name], written[name]) for name in found)
    if isinstance(found, list):
        # An empty map is an empty list in Arrow.
        return (found == [] and written == {}) or (
            isinstance(written, list)
            and len(found) == len(written)
            and all(_same(one, other) for one, other in zip(found, written, strict=True))
        )
    if isinstance(found, datetime):
        return found == datetime.fromisoformat(written)
    if isinstance(found, Decimal):
        return found == Decimal(repr(written))
    if isinstance(found, float) and isinstance(written, float):
        return found == written or found == pa.scalar(written).cast(pa.float32(), safe=False).as_py()
    if hasattr(found, "isoformat"):
        return bool(found.isoformat() == written)
    return (type(found) is type(written) and found == written) or (
        isinstance(found, float) and type(written) is int and found == written
    )


@given(CASES)
def test_every_record_is_in_the_values_as_a_whole_or_its_text_is_kept(
    case: tuple[pa.DataType, list[str | None]],
) -> None:
    """And a batch at once gives what records one by one give."""
    kind, texts = case
    decoded = Decoder(kind).decode(pa.array(texts, pa.string()))
    for text, value, rescued in zip(texts, decoded.values.to_pylist(), decoded.rescued.to_pylist(), strict=True):
        if rescued is None:
            expected = None if text is None else json.loads(text, object_pairs_hook=_has_twice)
            assert _same(_plain(value), _plain(expected)), (text, value)
        else:
            assert rescued == text
    fit = fitter(kind)
    one_by_one = [(None, True) if text is None else fit(text) for text in texts]
    assert decoded.values.equals(pa.array([value for value, _ in one_by_one], kind))
    kept = [None if is_whole else text for text, (_, is_whole) in zip(texts, one_by_one, strict=True)]
    assert decoded.rescued.to_pylist() == kept


ORDER = pa.struct([("id", pa.int64()), ("amount", pa.float64())])


@pytest.mark.parametrize(
    "texts",
    [
        ['{"id":1}{"id":2}', ""],
        ['{"id":', "1}", '{"id":2}{"id":3}'],
        ['{"id":1}{"id":2}', '{"id":3', '{"id":4}'],
        ['{"id":1},', '{"id":2}'],
        ['{"id":1}\n{"id":2}', "  "],
        ['[{"id":1},{"id":2}]', '{"id":3}'],
    ],
)
def test_rows_are_not_shifted_by_texts_that_are_not_one_object(texts: list[str]) -> None:
    decoded = Decoder(ORDER).decode(pa.array(texts))
    for text, value, rescued in zip(texts, decoded.values.to_pylist(), decoded.rescued.to_pylist(), strict=True):
        try:
            expected = json.loads(text)
        except ValueError:
            expected = None
        if isinstance(expected, dict):
            assert (value["id"], rescued) == (expected["id"], None)
        else:
            assert (value, rescued) == (None, text)


def test_one_record_that_does_not_fit_changes_no_other_one() -> None:
    count = 3 * PIECE_RECORDS
    texts = [f'{{"id":{number},"amount":{number}.5}}' for number in range(count)]
    texts[PIECE_RECORDS] = '{"id":7,"more":true}'
    decoded = Decoder(ORDER).decode(pa.array(texts))
    expected = [{"id": number, "amount": number + 0.5} for number in range(count)]
    expected[PIECE_RECORDS] = {"id": 7, "amount": None}
    assert decoded.values.to_pylist() == expected
    assert [row for row, text in enumerate(decoded.rescued.to_pylist()) if text is not None] == [PIECE_RECORDS]


NESTED = pa.struct([("a", pa.int64()), ("s", ORDER), ("l", pa.list_(ORDER))])


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ('{"a":1,"x":null,"s":{"id":2,"y":null}}', True),
        ('{"a":1,"x":[]}', False),
        ('{"a":1,"x":{}}', False),
        ('{"a":1,"x":"2026-01-31"}', False),
        ('{"a":1,"s":{"id":2,"y":[null]}}', False),
        ('{"a":1,"s":{"y":1}}', False),
        ('{"a":1,"s":null,"l":[{"id":3},null]}', True),
        ('{"a":1,"l":[{"id":3,"y":4}]}', False),
        ('{"a":1,"x":7,"x":8}', False),
    ],
)
def test_members_that_the_type_does_not_name_rescue_a_record_but_not_those_beside_it(text: str, is_whole: bool) -> None:
    texts = [text, '{"a":5,"s":{"id":6}}', None, '{"s":null}']
    decoded = Decoder(NESTED).decode(pa.array(texts))
    fit = fitter(NESTED)
    assert decoded.values.equals(pa.array([None if each is None else fit(each).value for each in texts], NESTED))
    assert decoded.rescued.to_pylist() == [None if is_whole else text, None, None, None]


def test_records_with_very_many_other_members_get_no_column_for_each_of_them() -> None:
    """Columns for all of them would have 33 million values, and more with more members."""
    texts = pa.array([json.dumps({"id": row} | {f"{row}_{number}": 1 for number in range(500)}) for row in range(256)])
    assert not has_few_members(texts)
    assert has_few_members(pa.array(['{"id":1,"a":2,"b":{"c":3}}'] * PIECE_RECORDS))
    decoded = Decoder(ORDER).decode(texts)
    assert decoded.values.field("id").to_pylist() == list(range(256))
    assert decoded.rescued.equals(texts)


@pytest.mark.parametrize("opening", ["[", '{"id":'])
def test_nesting_of_any_depth_is_rescued(opening: str) -> None:
    places = ['{"id":1,"x":%s}', '{"id":1,"amount":%s}', "%s"]
    nested = opening * 100_000 + "1" + ("]" if opening == "[" else "}") * 100_000
    texts = [place % each for place in places for each in (nested, opening * 100_000)]
    decoded = Decoder(ORDER).decode(pa.array([*texts, '{"id":7}']))
    assert all(found.as_py() == text for found, text in zip(decoded.rescued, texts, strict=False))
    assert decoded.values.to_pylist() == [None] * len(texts) + [{"id": 7, "amount": None}]


def test_slices_and_empty_batches_are_decoded() -> None:
    texts = pa.array(['{"id":1}', None, '{"id":3}', '{"id":4}'])
    decoded = Decoder(ORDER).decode(texts.slice(1, 2))
    assert decoded.values.to_pylist() == [None, {"id": 3, "amount": None}]
    assert len(Decoder(ORDER).decode(texts.slice(0, 0)).values) == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"src":"api","n":1.50,"deep":{"a":[true,null]},"none":null}',
         [("src", "api"), ("n", "1.50"), ("deep", '{"a":[true,null]}'), ("none", None)]),
        ("{}", []),
        ("5", [("_topics_original_meta", "5")]),
        ('{"a":1,"a":2}', [("_topics_original_meta", '{"a":1,"a":2}')]),
        ('{"a":"\\ud800"}', [("_topics_original_meta", '{"a":"\\ud800"}')]),
        ('{"a":{"b":"\\ud800"}}', [("_topics_original_meta", '{"a":{"b":"\\ud800"}}')]),
    ],
)  # fmt: skip
def test_a_meta_is_a_map_and_what_is_no_map_stays_as_text(text: str, found: list[tuple[str, str]]) -> None:
    assert decode_metas(pa.array([text, None], pa.string())).to_pylist() == [found, None]
