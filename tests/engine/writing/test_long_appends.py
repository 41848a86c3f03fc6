"""Batches that go into the log over several turns: whole, in order, and with other calls between the turns."""

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.driver import SMALL, Driver
from topics.engine.config import DURABILITIES
from topics.engine.topic.appended import Appended
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicFull
from topics.results import NewRecord

SETTINGS = replace(SMALL, long_write_bytes=100, long_write_turn_bytes=150)
LARGE = ["x" * 60] * 9


def append(driver: Driver, payloads: list[Any], topic: str = "t", **members: Any) -> list[Any]:
    answers: list[Any] = []
    batch = batch_of_records([NewRecord(payload) for payload in payloads])
    driver.opened.engine.append(topic, batch, answers.append, **members)
    return answers


def flush(driver: Driver) -> None:
    # A write that waits for the end of a long one is submitted by the next flush.
    for _ in range(4):
        driver.opened.engine.flush()


def seqs(answers: list[Any]) -> tuple[int, int]:
    (answer,) = answers
    assert isinstance(answer, Appended)
    return answer.first_seq, answer.last_seq


@pytest.mark.parametrize("durability", DURABILITIES)
def test_writes_of_one_turn_keep_their_order(durability: str) -> None:
    driver = Driver(SETTINGS)
    driver.put("t", durability=durability)
    answers = [append(driver, payloads) for payloads in (["a"], LARGE, ["b"], LARGE, ["c"])]
    flush(driver)
    assert [seqs(answer) for answer in answers] == [(1, 1), (2, 10), (11, 11), (12, 20), (21, 21)]


def test_a_long_write_that_creates_its_topic_is_its_first_write() -> None:
    driver = Driver(SETTINGS)
    answers = [append(driver, payloads) for payloads in (LARGE, ["b"], LARGE)]
    flush(driver)
    assert [seqs(answer) for answer in answers] == [(1, 9), (10, 10), (11, 19)]
    assert [answer[0].created for answer in answers] == [True, False, False]


def test_a_repeat_of_a_long_write_adds_nothing() -> None:
    driver = Driver(SETTINGS)
    first, second = append(driver, LARGE, key="k"), append(driver, LARGE, key="k")
    flush(driver)
    assert (seqs(first), seqs(second)) == ((1, 9), (1, 9))
    assert [first[0].deduped, second[0].deduped] == [False, True]


def test_a_long_write_is_refused_by_a_full_topic_as_a_whole() -> None:
    driver = Driver(SETTINGS)
    driver.put("t", cap_records=10, discard="reject")
    append(driver, ["a", "b"])
    flush(driver)
    with pytest.raises(TopicFull):
        append(driver, LARGE)
    assert driver.topic("t").count == 2
