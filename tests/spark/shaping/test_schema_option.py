"""The forms of the option `schema`, and a schema that is kept."""

import json
from pathlib import Path

import pytest

from topics.errors import FutureVersion
from topics.spark.errors import BadOption
from topics.spark.shaping.schema_option import KEPT_NAME, given_type, inferred_type


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ("id bigint, amount double", "struct<id bigint, amount double>"),
        ("`a b` array<struct<x:int>>", "struct<`a b` array<struct<x:int>>>"),
        (" struct<id:bigint> ", "struct<id:bigint>"),
        ("map<string, double>", "map<string, double>"),
        ("decimal(10, 2)", "decimal(10, 2)"),
        ("VARIANT", "VARIANT"),
        ("Infer", None),
    ],
)
def test_ddl_is_a_type_or_the_members_of_a_structure(schema: str, ddl: str | None) -> None:
    assert given_type(schema) == ddl


def test_a_file_has_a_json_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"type": "object", "properties": {"id": {"type": "integer"}}}
    (tmp_path / "order.json").write_text(json.dumps(document))
    (tmp_path / "broken.json").write_text("{")
    assert given_type(f"{tmp_path}/order.json") == "struct<`id`:bigint>"
    assert given_type((tmp_path / "order.json").as_uri()) == "struct<`id`:bigint>"
    monkeypatch.chdir(tmp_path)
    assert given_type("order.json") == "struct<`id`:bigint>"
    for name in ("nowhere.json", "broken.json", "http://host/order.json"):
        with pytest.raises(BadOption, match="is no file with a JSON Schema"):
            given_type(name)
    with pytest.raises(BadOption, match="option `schema` is empty"):
        given_type(" ")


def test_an_inferred_schema_is_kept_and_not_inferred_again(tmp_path: Path) -> None:
    place = str(tmp_path / "kept")
    assert inferred_type(None, lambda: ['{"a":1}']) == "struct<`a`:bigint>"
    assert inferred_type(place, lambda: ['{"a":1}', None]) == "struct<`a`:bigint>"
    # Records that came later have another member. The sample is not even taken.
    assert inferred_type(place, lambda: pytest.fail("asked again")) == "struct<`a`:bigint>"
    kept = tmp_path / "kept" / KEPT_NAME
    assert json.loads(kept.read_text()) == {"v": 1, "schema": "struct<`a`:bigint>", "sampled": 2}


def test_of_two_first_reads_the_schema_of_one_wins(tmp_path: Path) -> None:
    place = str(tmp_path)

    def sample_while_another_is_first() -> list[str]:
        assert inferred_type(place, lambda: ['{"other":1}']) == "struct<`other`:bigint>"
        return ['{"mine":1}']

    assert inferred_type(place, sample_while_another_is_first) == "struct<`other`:bigint>"


def test_a_kept_schema_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / KEPT_NAME).write_text("{")
    with pytest.raises(BadOption, match="remove it to infer a new schema"):
        inferred_type(str(tmp_path), list)
    (tmp_path / KEPT_NAME).write_text('{"v":2,"schema":"int","sampled":1}')
    with pytest.raises(FutureVersion):
        inferred_type(str(tmp_path), list)
    with pytest.raises(BadOption, match="schemaLocation"):
        inferred_type("ftp://host/x", list)
