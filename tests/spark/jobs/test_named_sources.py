"""Topics and lakes that a query names become its inputs."""

import pytest

from topics.spark.jobs.named_sources import named_sources


def test_names_become_views_and_each_is_read_once() -> None:
    query = "SELECT * FROM topics.orders o JOIN topics.`my-topic` m USING (tag) JOIN lake.`./a b` l JOIN topics.orders"
    found = named_sources(query)
    assert found.query == "SELECT * FROM _orders_0 o JOIN _my_topic_1 m USING (tag) JOIN _lake_2 l JOIN _orders_0"
    assert dict(found.inputs) == {
        "_orders_0": "topic:orders",
        "_my_topic_1": "topic:my-topic",
        "_lake_2": "lake:./a b",
    }


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'topics.orders', \"lake.`x`\" FROM t",
        "SELECT 1 -- topics.orders\n",
        "SELECT 1 /* topics.orders */",
        "SELECT `topics.orders`, my.topics.x, mytopics.x FROM t",
        "SELECT * FROM lake.orders",
    ],
)
def test_texts_comments_and_other_names_are_left_alone(query: str) -> None:
    assert named_sources(query) == (query, ())
