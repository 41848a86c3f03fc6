"""Work of ours on executors."""

import os
from typing import TYPE_CHECKING

import pytest

from topics.errors import CorruptRecord, Throttled, TopicNotFound
from topics.spark.jobs.spread import TaskFailed, core_count, spread
from topics.spark.loss import Gap, TopicsDataLoss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_item_is_worked_on_by_a_task_elsewhere_and_results_keep_their_order(spark: "SparkSession") -> None:
    results = spread(spark, list(range(8)), lambda number: (number, number**2, os.getpid()))
    assert [result[:2] for result in results] == [(number, number**2) for number in range(8)]
    assert os.getpid() not in {result[2] for result in results}
    assert core_count(spark) == 2


def test_no_items_are_no_query() -> None:
    assert spread(None, [], lambda item: item) == []  # type: ignore[arg-type]


def fail(number: int) -> int:
    match number:
        case 1:
            raise TopicNotFound("orders")
        case 2:
            raise CorruptRecord("orders", 5, "seg-1.data")
        case 3:
            raise TopicsDataLoss(Gap("orders", 1, 5, "ttl"))
        case 4:
            raise Throttled("not now")
        case _:
            raise OSError(28, "no room left", "/x/y")


def test_an_error_of_ours_arrives_as_what_it_was(spark: "SparkSession") -> None:
    with pytest.raises(TopicNotFound, match='topic "orders" does not exist'):
        spread(spark, [1], fail)
    with pytest.raises(CorruptRecord) as damaged:
        spread(spark, [2], fail)
    assert damaged.value.detail == {"topic": "orders", "seq": 5}
    with pytest.raises(TopicsDataLoss) as lost:
        spread(spark, [3], fail)
    assert lost.value.gap == Gap("orders", 1, 5, "ttl")


@pytest.mark.parametrize(("item", "message"), [(4, "not now"), (5, "OSError: [Errno 28] no room left: '/x/y'")])
def test_an_error_that_may_pass_fails_its_task_and_comes_out_in_one_line(
    spark: "SparkSession", item: int, message: str
) -> None:
    with pytest.raises(TaskFailed) as failed:
        spread(spark, [item], fail)
    assert failed.value.message == message
