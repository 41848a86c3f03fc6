import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.writing.intake import batch_of_payloads, batch_of_records
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats import envelope
from topics.limits import BATCH_RECORDS_MAX, JSON_DEPTH_MAX, RECORD_BYTES_MAX
from topics.results import NewRecord


def texts(payloads: list[Any]) -> list[bytes]:
    return [envelope.split(data)[0] for data in batch_of_payloads(payloads).envelopes]


def refusal(payloads: list[Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        batch_of_payloads(payloads)
    return caught.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_values_read_back_equal_invariant_10(values: list[Any]) -> None:
    try:
        "".join(map(repr, values)).encode()
        encoded = [msgspec.json.encode(value) for value in values]
    except UnicodeEncodeError:
        return
    assert texts(values) == encoded
    assert texts(encoded) == encoded
    assert [msgspec.json.decode(text) for text in texts(values)] == [msgspec.json.decode(text) for text in encoded]


@pytest.mark.parametrize(
    "text",
    [
        b"1 ",
        b" 1",
        b"\t[1 ,2]",
        b'{"a":1,"a":2}',
        b"1.0",
        b"1E+2",
        b"-0",
        b"123456789012345678901234567890",
        b"0.1000000000000000055511151231257827",
        b"1e308",
        b"0e999",
        b"1e-999",
        b'"1e999"',
        b'"\\"1e999"',
        b'"\\ud83d\\ude00"',
        '"é😀"'.encode(),
        b'"\x7f"',
        b"null",
    ],
)
def test_json_text_is_kept_byte_for_byte(text: bytes) -> None:
    assert texts([text]) == [text]
    assert texts([text, b"2"]) == [text, b"2"]
    assert batch_of_payloads([text]).sizes == [len(text)]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b'{"a":\r\n1, "b" : 1.0}', b'{"a":1,"b":1.0}'),
        (b"[1.0,\n1E+2,123456789012345678901234567890]", b"[1.0,1E+2,123456789012345678901234567890]"),
        (b'{"a":1,\n"a":2}', b'{"a":1,"a":2}'),
        (b'["a\\nb",\n"\\u0041 \\/"]', b'["a\\nb","\\u0041 \\/"]'),
        (b"1\n", b"1"),
    ],
)
def test_line_breaks_between_tokens_make_the_text_compact(text: bytes, stored: bytes) -> None:
    assert texts([text]) == [stored]
    assert texts([b" 2", text]) == [b" 2", stored]
    assert texts([{"a": 1}, text]) == [b'{"a":1}', stored]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"1,2",
        b"1 2",
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"-",
        b"NaN",
        b"-Infinity",
        b"tru",
        b"{a:1}",
        b"'a'",
        b"/* */1",
        b'"a\nb"',
        b'"\x01"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b"\xef\xbb\xbf1",
        b'"\\ud800"',
        b'"\\ude00"',
        b'"\\x"',
        b"]",
        b"1]",
        b"1],[2",
    ],
)
def test_what_is_not_one_json_value_is_refused(text: bytes) -> None:
    assert refusal([text]).startswith("a payload given as bytes is not ")
    assert refusal([b"1", text]).startswith("a payload given as bytes is not ")
    assert refusal([text, {"a": 1}]).startswith("a payload given as bytes is not ")


@pytest.mark.parametrize(
    "parts",
    [[b"[3", b"4]"], [b'"a', b'b"'], [b"1,2", b"[3", b"4]"], [b'  "', b'",1'], [b"1,2", b""], [b'{"a":1', b'"b":2}']],
)
def test_texts_that_are_only_valid_together_are_refused(parts: list[bytes]) -> None:
    assert refusal(parts).startswith("a payload given as bytes is not ")


@given(st.lists(st.sampled_from([b"1", b" ", b",", b'"', b"[", b"]", b"23", b"{", b"}", b":"]), min_size=1, max_size=7))
def test_no_split_of_a_text_passes_for_several(pieces: list[bytes]) -> None:
    """Any list of texts is accepted only if each of them is accepted alone."""
    try:
        batch_of_payloads([b"0", *pieces])
    except InvalidRequest:
        return
    for piece in pieces:
        assert texts([piece]) == [piece]


@pytest.mark.parametrize(
    "text", [b"1e999", b"-1e400", b"[1E+999]", b"9" * 400 + b".5", b"9" * 300 + b"e20", b"1e000000400"]
)
def test_a_number_beyond_a_double_is_refused(text: bytes) -> None:
    assert refusal([text]) == "a number overflows a double"
    assert refusal([text, b"1"]) == "a number overflows a double"
    assert refusal([{"x": text}, text]) == "a number overflows a double"


def test_an_integer_of_any_length_is_kept() -> None:
    assert texts([b"9" * 10_000, b"-" + b"1" * 400]) == [b"9" * 10_000, b"-" + b"1" * 400]


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": (1, -math.inf)}, {"a": None, "b": [[math.nan]]}])
def test_floats_that_json_does_not_know_are_refused_instead_of_becoming_null(value: Any) -> None:
    assert refusal([value]) == "a payload has a float that is NaN or infinite; JSON has no such numbers"


def test_nulls_themselves_are_fine() -> None:
    assert texts([None, [None, 1.5], {"null": "null"}]) == [b"null", b"[null,1.5]", b'{"null":"null"}']


@pytest.mark.parametrize("value", [object(), "\ud800", {"a": "\ud800"}, {(1, 2): 3}])
def test_a_value_that_is_not_json_is_refused(value: Any) -> None:
    assert refusal([value]).startswith("a payload cannot be written as JSON: ")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_is_bounded_for_texts_and_values_alike() -> None:
    deepest = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert texts([deepest, nested(JSON_DEPTH_MAX)]) == [deepest, deepest]
    too_deep = "JSON is nested deeper than 127 levels"
    assert refusal([b"[" + deepest + b"]"]) == too_deep
    assert refusal([b"[" + deepest + b"]", b"1"]) == too_deep
    assert refusal([nested(JSON_DEPTH_MAX + 1)]) == too_deep
    assert refusal([b"[" * 100_000]) == too_deep
    assert refusal([b'{"a":' * 100_000]) == too_deep


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = b'["' + b"[{" * 200 + b'\\"' + b"[" * 200 + b'"]'
    assert texts([text]) == [text]


def test_wide_is_not_deep() -> None:
    wide = [[i] for i in range(500)]
    assert msgspec.json.decode(texts([wide])[0]) == wide


def test_a_value_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert refusal([endless])


def test_a_write_has_one_to_ten_thousand_records() -> None:
    assert refusal([]) == "a write has at least one record"
    with pytest.raises(InvalidRequest, match=r"^a write has at least one record$"):
        batch_of_records([])
    assert len(batch_of_payloads([b"1"] * BATCH_RECORDS_MAX)) == BATCH_RECORDS_MAX
    with pytest.raises(BatchTooLarge) as caught:
        batch_of_payloads([b"1"] * (BATCH_RECORDS_MAX + 1))
    assert caught.value.message == "a write has at most 10000 records, this one has 10001"


def test_a_record_is_as_large_as_its_data_and_meta() -> None:
    fits = "x" * (RECORD_BYTES_MAX - 2)
    assert batch_of_payloads([fits]).sizes == [RECORD_BYTES_MAX]
    for payloads in ([fits + "x"], [1, fits + "x"]):
        with pytest.raises(RecordTooLarge) as caught:
            batch_of_payloads(payloads)
        assert caught.value.message == "a record has at most 1048576 bytes of JSON"
    with pytest.raises(RecordTooLarge):
        batch_of_records([NewRecord(fits, meta=1)])
    batch = batch_of_records([NewRecord({"a": 1}, tag="tag", node="node", meta={"m": 1})])
    assert (batch.sizes, batch.size_bytes) == ([7 + 7], 14)


def test_a_text_over_the_limit_only_by_its_blanks_is_stored_compact() -> None:
    blanks = b"[1," + b" " * RECORD_BYTES_MAX + b"2]"
    assert texts([blanks]) == [b"[1,2]"]
    assert batch_of_payloads([blanks, b"3"]).sizes == [5, 1]
    batch = batch_of_records([NewRecord(blanks, meta=b"[1," + b" " * 20_000 + b"2]")])
    assert (batch.envelopes, batch.sizes) == ([b'{"d":[1,2],"m":[1,2]}'], [10])


def test_meta_is_bounded_in_bytes_and_members() -> None:
    members = {str(i): i for i in range(64)}
    batch_of_records([NewRecord(1, meta=members), NewRecord(1, meta="x" * 16_382), NewRecord(1, meta=[0] * 65)])
    members["64"] = 64
    for meta in (members, b" " + msgspec.json.encode(members)):
        with pytest.raises(InvalidRequest, match=r"^meta has at most 64 members$"):
            batch_of_records([NewRecord(1, meta=meta)])
    with pytest.raises(InvalidRequest, match=r"^meta has at most 16384 bytes of JSON$"):
        batch_of_records([NewRecord(1, meta="x" * 16_383)])


@pytest.mark.parametrize("meta", [b"[", b"1,2", object(), math.nan])
def test_a_meta_that_is_not_json_is_refused(meta: Any) -> None:
    with pytest.raises(InvalidRequest):
        batch_of_records([NewRecord(1, meta=meta)])


def test_meta_may_be_anything_and_none_is_no_meta() -> None:
    batch = batch_of_records([NewRecord(1), NewRecord(1, meta="text"), NewRecord(1, meta=b"null")])
    assert [envelope.split(data)[1] for data in batch.envelopes] == [None, b'"text"', b"null"]


def test_empty_tags_and_nodes_are_tags_and_nodes() -> None:
    batch = batch_of_records([NewRecord(1, tag="", node=""), NewRecord(2)])
    assert (batch.tags, batch.nodes) == ([b"", None], [b"", None])
    plain = batch_of_records([NewRecord(1), NewRecord(2)])
    assert (plain.tags, plain.nodes) == (None, None)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (NewRecord(1, tag="\ud800"), "the tag is not valid Unicode"),
        (NewRecord(1, node="\udfff"), "the node is not valid Unicode"),
        (NewRecord(1, tag="é" * 129), "a tag has at most 256 bytes"),
        (NewRecord(1, node="x" * 129), "a node has at most 128 bytes"),
        (NewRecord(1, tag=5), "a tag is a string"),  # type: ignore[arg-type]
        (NewRecord(1, node=b"x"), "a node is a string"),  # type: ignore[arg-type]
    ],
)
def test_tags_and_nodes_are_short_strings(record: NewRecord, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        batch_of_records([record])
    assert caught.value.message == message


def test_tags_and_nodes_at_their_limit_are_taken() -> None:
    batch = batch_of_records([NewRecord(1, tag="é" * 128, node="x" * 128)])
    assert (batch.tags, batch.nodes) == (["é".encode() * 128], [b"x" * 128])


@pytest.mark.parametrize("payloads", ["abc", b"[1]", {"a": 1}])
def test_a_single_payload_is_not_taken_for_a_list_of_them(payloads: Any) -> None:
    assert refusal(payloads) == "a write is a list of payloads: put a single payload into a list"
    assert texts((1, 2)) == [b"1", b"2"]  # type: ignore[arg-type]
