"""Readers that wait for something new."""

from typing import Any

import pytest

from tests.engine.driver import Driver
from topics.errors import TopicNotFound


class Woken:
    """Counts the calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def waiting(driver: Driver, topic: str = "t") -> Woken:
    woken = Woken()
    driver.opened.engine.wait_append(topic, woken)
    return woken


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_publication_wakes_everybody_once(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability)
    all_woken = [waiting(driver) for _ in range(3)]
    driver.append(1)
    driver.append(2)
    assert [woken.count for woken in all_woken] == [1, 1, 1]
    again = waiting(driver)
    driver.append(3)
    assert again.count == 1


def test_what_is_not_published_wakes_nobody() -> None:
    driver = Driver()
    driver.put()
    driver.put("other")
    woken = waiting(driver)
    driver.append(1, topic="other")
    driver.start_append([1])
    assert woken.count == 0
    driver.opened.engine.flush()
    assert woken.count == 1


def test_writes_of_one_turn_wake_once() -> None:
    driver = Driver()
    driver.put(durability="fsync")
    woken = waiting(driver)
    for number in range(5):
        driver.start_append([number])
    driver.opened.engine.flush()
    assert woken.count == 1


def test_a_woken_reader_finds_the_records() -> None:
    driver = Driver()
    driver.put()
    heads: list[int] = []
    driver.opened.engine.wait_append("t", lambda: heads.append(driver.topic().head_seq))
    driver.append(1, 2)
    assert heads == [2]


def test_the_end_of_the_topic_wakes_too() -> None:
    driver = Driver()
    driver.put()
    woken = waiting(driver)
    driver.drop()
    assert woken.count == 1
    driver.append(1)
    assert woken.count == 1


def test_who_does_not_want_to_wait_any_more_is_not_called() -> None:
    driver = Driver()
    driver.put()
    woken, other = waiting(driver), waiting(driver)
    driver.opened.engine.cancel_wait("t", woken)
    driver.append(1)
    assert (woken.count, other.count) == (0, 1)


def test_a_wait_can_be_cancelled_whatever_became_of_the_topic() -> None:
    driver = Driver()
    engine = driver.opened.engine
    driver.put()
    woken = waiting(driver)
    engine.cancel_wait("t", woken)
    engine.cancel_wait("t", woken)
    driver.drop()
    engine.cancel_wait("t", woken)
    driver.put()
    other = waiting(driver)
    engine.cancel_wait("t", woken)
    driver.append(1)
    assert (woken.count, other.count) == (0, 1)


def test_nobody_waits_for_a_topic_that_does_not_exist() -> None:
    with pytest.raises(TopicNotFound):
        waiting(Driver())


def test_a_look_makes_the_topic_more_urgent_and_a_read_too() -> None:
    driver = Driver()
    driver.put()
    engine, topic = driver.opened.engine, driver.topic()
    assert (engine.effective_priority(topic), topic.last_read_ts) == (0, None)
    engine.touch(topic)
    assert (engine.effective_priority(topic), topic.last_read_ts) == (500, engine.now_ms())
    driver.clock.advance(30_000)
    assert engine.effective_priority(topic) == 250
    assert engine.effective_priority(topic, waited_ms=1000) == 350
    driver.read()
    assert engine.effective_priority(topic) == 500


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_an_answer_says_how_long_the_log_took(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability)
    answers: list[Any] = [driver.append(1), driver.append(2, key="k")]
    for answer in answers:
        assert (answer.write_ms > 0) == (durability != "ephemeral")
        assert (answer.sync_ms > 0) == (durability == "fsync")
    repeat = driver.append(3, key="k")
    assert (repeat.deduped, repeat.write_ms, repeat.sync_ms) == (True, 0.0, 0.0)
