"""The columns of a read, and the sample that tells a schema: a real server, no Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.world import World, world
from topics.errors import TopicNotFound
from topics.spark.errors import BadOption
from topics.spark.reading.columns import sample_texts, schema_text

PLAIN = "`topic` string not null, `seq` bigint not null, `ts` timestamp not null, `node` string, `tag` string"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "ddl"),
    [
        ({}, f"{PLAIN}, `data` string, `meta` string"),
        ({"schema": "id int"}, f"{PLAIN}, `data` struct<id int>, `meta` map<string,string>, `_rescued` string"),
        ({"SCHEMA": "int", "columns": "seq,data"}, "`seq` bigint not null, `data` int, `_rescued` string"),
        ({"schema": "int", "columns": "seq"}, "`seq` bigint not null"),
    ],
)
def test_a_schema_gives_data_a_type_and_a_column_for_what_does_not_fit(given: dict[str, str], ddl: str) -> None:
    assert schema_text(given) == ddl


def test_a_sample_has_the_oldest_and_the_newest_records_of_each_topic(place: World) -> None:
    place.client.create("other")
    place.fill("t", 250)
    place.checkpoint()
    place.fill("t", 50)
    place.fill("other", 3)
    given = {"endpoint": place.url, "subscribe": "t,other", "startingOffsets": "latest", "maxRecordsPerTrigger": "1"}
    oldest_and_newest = [f'{{"n":{number}}}' for number in (0, 1, 2, 3, 4, 295, 296, 297, 298, 299)]
    assert list(sample_texts(given, 10)) == ['{"n":300}', '{"n":301}', '{"n":302}', *oldest_and_newest]


def test_a_schema_is_inferred_from_the_server(place: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", place.url)
    given = {"subscribe": "t", "schema": "infer", "columns": "data"}
    with pytest.raises(BadOption, match="no record yet"):
        schema_text(given)
    place.fill("t", 5)
    assert schema_text(given) == "`data` struct<`n`:bigint>, `_rescued` string"
    with pytest.raises(TopicNotFound):
        schema_text({**given, "subscribe": "nowhere"})
