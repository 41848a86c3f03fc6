"""Types of samples, as Spark would write them."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.errors import BadOption
from topics.spark.shaping.infer import MEMBERS_MAX, infer


@pytest.mark.parametrize(
    ("texts", "ddl"),
    [
        (['{"id":1,"ok":true,"name":"x"}'], "struct<`id`:bigint,`ok`:boolean,`name`:string>"),
        (['{"n":1}', '{"n":1.5}', '{"n":null}'], "struct<`n`:double>"),
        (['{"n":1}', '{"n":"x"}', '{"n":"y"}', "{"], "struct<`n`:string>"),
        (['{"n":36893488147419103232}'], "struct<`n`:decimal(38,0)>"),
        (['{"n":36893488147419103232}', '{"n":1}'], "struct<`n`:bigint>"),
        (['{"a":null}'], "struct<`a`:string>"),
        (['{"a":[]}', '{"a":[{"b":1},{"c":[2.5]}]}'], "struct<`a`:array<struct<`b`:bigint,`c`:array<double>>>>"),
        (['{"a":{}}'], "struct<`a`:map<string,string>>"),
        (['{"Id":1}', '{"id":2}', '{"id":3}'], "struct<`id`:bigint>"),
        (['{"a`b":1,"":2}'], "struct<`a``b`:bigint>"),
        (["1", "2.5"], "double"),
        (["[1]", None], "array<bigint>"),
    ],
)  # fmt: skip
def test_a_schema_is_inferred(texts: list[str | None], ddl: str) -> None:
    assert infer(texts) == ddl


def test_a_sample_without_values_tells_no_schema() -> None:
    with pytest.raises(BadOption, match="no record yet"):
        infer([None, "null", "{"])


def test_members_and_depth_have_bounds() -> None:
    wide = json.dumps({f"m{number}": 1 for number in range(MEMBERS_MAX + 5)})
    assert infer([wide]).count(":bigint") == MEMBERS_MAX
    deep = "[" * 200 + "1" + "]" * 200
    assert infer([deep]).startswith("array<array<")


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-9, 9) | st.text("xy", max_size=2)), min_size=1))
def test_records_of_one_type_for_each_member_fit_the_schema_that_they_tell(records: list[dict[str, object]]) -> None:
    from topics.spark.shaping.decode import Decoder

    types = {name: type(record[name]) for record in records for name in record}
    alike = [{name: value for name, value in record.items() if isinstance(value, types[name])} for record in records]
    texts = [json.dumps(record) for record in alike]
    if not types or not any(alike):
        return
    known = {int: pa.int64(), str: pa.string()}
    kind = pa.struct(
        [(name, known[types[name]]) for name in dict.fromkeys(name for record in alike for name in record)]
    )
    expected = ",".join(f"`{field.name}`:{'bigint' if field.type == pa.int64() else 'string'}" for field in kind)
    assert infer(texts) == f"struct<{expected}>"
    assert Decoder(kind).decode(pa.array(texts)).rescued.null_count == len(texts)
