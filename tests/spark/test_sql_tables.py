"""Options of a table of SQL: into the comment of its first column, and back."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from topics.spark.errors import BadOption
from topics.spark.sql_tables import (
    NameInQuery,
    is_of_topic,
    is_table,
    options_of_new,
    read_options,
    replace_names,
    require_write_options,
    table_name,
    with_comment,
)

URL = "http://127.0.0.1:1"
# What Spark passes when a table is made.
MADE = {"owner": "me", "provider": "topics", "option.subscribe": "orders", "subscribe": "orders"}


def columns(comment: str | None = None) -> StructType:
    metadata = {} if comment is None else {"comment": comment}
    return StructType([StructField("topic", StringType(), metadata=metadata), StructField("seq", LongType())])


def test_options_of_a_table_are_those_that_were_given_and_the_server() -> None:
    assert is_table(MADE)
    assert not is_table({"subscribe": "orders"})
    assert options_of_new(MADE, {"TOPICS_URL": URL}) == {"subscribe": "orders", "endpoint": URL}
    given = {**MADE, "option.endpoint": URL, "endpoint": URL, "comment": "mine", "x": "a property"}
    assert options_of_new(given, {"TOPICS_URL": "other"}) == {"subscribe": "orders", "endpoint": URL}
    assert options_of_new({**MADE, "path": "file:/data", "location": "file:/data"}, {}) == {
        "subscribe": "orders",
        "path": "/data",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"option.token": "secret"}, "not `token`"),
        ({"option.endpoint": URL, "path": "/data"}, "not both"),
        ({"option.subscribePatern": "x"}, "did you mean `subscribePattern`"),
        ({}, "no server"),
    ],
)
def test_options_that_a_table_cannot_have_are_refused_when_it_is_made(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        options_of_new({**MADE, **given}, {})


def test_the_comment_brings_the_options_back() -> None:
    options = {"subscribe": "it's \\ here", "endpoint": URL}
    text = with_comment("`topic` string not null, `data` struct<a: int, b: string not null>, `x, y` bigint", options)
    comment, rest = text.removeprefix("`topic` string COMMENT '").split("', `data` ")
    assert rest == "struct<a: int, b: string not null>, `x, y` bigint"
    schema = columns(comment.replace("\\'", "'").replace("\\\\", "\\"))
    assert is_of_topic(schema)
    assert read_options({}, schema) == options


def test_options_beside_a_table_are_refused_and_without_a_table_they_count() -> None:
    made = columns('topics: {"subscribe":"orders"}')
    with pytest.raises(BadOption, match="`tag` cannot be given"):
        read_options({"tag": "x"}, made)
    assert read_options({"tag": "x"}, columns()) == {"tag": "x"}
    assert not is_of_topic(columns("a comment of mine"))
    with pytest.raises(BadOption, match="without a list of columns"):
        read_options({}, columns("a comment of mine"))
    with pytest.raises(BadOption, match="WITH"):
        require_write_options({})


def test_names_in_a_query_are_replaced_and_texts_are_not() -> None:
    seen: list[NameInQuery] = []

    def replacement(found: NameInQuery) -> str | None:
        seen.append(found)
        return None if found.name == "kept" else table_name(found.name)

    query = "SELECT 'db.a', \"db.b\", `db.c` FROM DB.`my-topic` JOIN db.kept JOIN my.db.d -- db.e"
    changed = replace_names(query, ["db"], replacement)
    assert changed == query.replace("DB.`my-topic`", "my_topic")
    assert seen == [("db", "my-topic", True), ("db", "kept", False)]
