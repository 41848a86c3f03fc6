"""Redrive: which jobs it moves, what they carry, where it stops, and what it leaves alone."""

from typing import Any

import msgspec
import pytest

from tests.engine.driver import SMALL
from tests.engine.queue_driver import QueueDriver
from topics.engine.queues.redrive import Redriven, RedriveSpec
from topics.engine.writing.intake import batch_of_records
from topics.errors import InvalidRequest, NoDeadLetter, NotAQueue, TopicFull, TopicNotFound
from topics.limits import REDRIVE_BATCH_JOBS
from topics.results import NewRecord


def with_letters(count: int, **config: Any) -> QueueDriver:
    """A queue whose first `count` jobs are dead letters."""
    driver = QueueDriver(max_deliveries=1, dead_letter="dead", **config)
    driver.add(*range(1, count + 1))
    kill_all(driver)
    return driver


def kill_all(driver: QueueDriver) -> None:
    while jobs := driver.claim("w", 100):
        driver.nack("w", *(job.seq for job in jobs))
        driver.claim("other", 1)


def start(driver: QueueDriver, name: str = "q", **spec: Any) -> list[Any]:
    answers: list[Any] = []
    driver.queues.redrive(name, RedriveSpec(**spec), answers.append)
    return answers


def redrive(driver: QueueDriver, name: str = "q", **spec: Any) -> Redriven:
    answers = start(driver, name, **spec)
    while not answers:
        driver.opened.engine.flush()
        driver.runtime.take_turn()
    result: Redriven = driver.settle(answers)
    return result


def data(driver: QueueDriver, topic: str) -> list[Any]:
    return [msgspec.json.decode(record.data) for record in driver.read(topic=topic, limit=1000).records]


def test_dead_letters_go_back_into_their_queue_and_begin_anew() -> None:
    driver = with_letters(3)
    assert data(driver, "dead") == [1, 2, 3]
    result = redrive(driver)
    assert result[:5] == ("dead", "q", 3, 3, 0)
    assert (result.next_from_seq, result.until_seq, result.remaining, result.stopped) == (3, 3, 0, "end")
    assert (data(driver, "dead"), data(driver, "q")) == ([], [1, 2, 3])
    assert [job.deliveries for job in driver.claim("w", 9)] == [1, 1, 1]
    assert redrive(driver).moved == 0


def test_a_redriven_job_says_where_it_was_and_how_often() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    batch = batch_of_records([NewRecord(1, tag="t", node="n", meta={"mine": 1.5, "$redrive_count": "no number"})])
    driver.opened.engine.append("q", batch, [].append)
    driver.opened.engine.flush()
    for count in ("1", "2"):
        kill_all(driver)
        letter = driver.read(topic="dead").records[0]
        assert redrive(driver).moved == 1
        record = driver.read(topic="q").records[-1]
        assert (record.tag, record.node) == ("t", "n")
        assert msgspec.json.decode(record.meta or b"") == {
            "mine": 1.5,
            "$redrive_from": "dead",
            "$redrive_src_seq": str(letter.seq),
            "$redrive_count": count,
        }


def test_the_reason_of_a_nack_is_in_the_dead_letter_and_not_in_the_redriven_job() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead", leases_durable=True, durability="fsync")
    driver.add(1)
    driver.claim("w")
    driver.nack("w", 1, reason="no such customer")
    driver.checkpoint()
    driver.reopen()
    driver.claim("w")
    meta = msgspec.json.decode(driver.read(topic="dead").records[0].meta or b"")
    assert meta["$dead_letter_reason"] == "no such customer"
    redrive(driver)
    assert b"dead_letter" not in (driver.read(topic="q").records[0].meta or b"")


def test_letters_of_other_queues_stay() -> None:
    driver = with_letters(1)
    driver.put("p", type="queue", max_deliveries=1, dead_letter="dead")
    driver.add(7, topic="p")
    driver.claim("w", topic="p")
    driver.nack("w", 1, topic="p")
    driver.claim("w", topic="p")
    driver.add({"no": "letter"}, topic="dead")
    assert redrive(driver)[2:6] == (1, 1, 0, 3)
    assert data(driver, "dead") == [7, {"no": "letter"}]
    assert redrive(driver, "p").moved == 1
    assert data(driver, "p") == [7]


def test_letters_go_to_another_queue_if_the_call_says_so() -> None:
    driver = with_letters(2)
    driver.add("no letter", topic="dead")
    driver.put("p", type="queue")
    assert redrive(driver, "dead", to="p")[:3] == ("dead", "p", 2)
    assert (data(driver, "dead"), data(driver, "p")) == (["no letter"], [1, 2])


def test_ready_jobs_go_from_queue_to_queue_and_others_stay() -> None:
    driver = QueueDriver()
    driver.put("p", type="queue")
    driver.add(1, 2, 3, 4, 5)
    driver.claim("w", 3)
    driver.nack("w", 1)
    driver.nack("w", 2, delay_ms=500)
    assert redrive(driver, to="p")[2:5] == (3, 3, 2)
    assert (data(driver, "q"), data(driver, "p")) == ([2, 3], [1, 4, 5])
    assert driver.ack("w", 3).settled == 1
    driver.pass_time(600)
    assert driver.claimed_seqs("w", 9) == [2]


def test_filters_by_tag_time_and_seq() -> None:
    driver = QueueDriver()
    driver.put("p", type="queue")
    times = []
    for number, tag in enumerate(["a:1", "a:2", "b", None, "a:1"]):
        driver.clock.advance(1000)
        times.append(driver.opened.engine.now_ms())
        driver.opened.engine.append("q", batch_of_records([NewRecord(number, tag=tag)]), [].append)
        driver.opened.engine.flush()
    for spec, expected in (
        ({"tag": "a:1"}, [0, 4]),
        ({"tag_prefix": "a:"}, [0, 1, 4]),
        ({"from_ts": times[1], "to_ts": times[3]}, [1, 2]),
        ({"from_seq": 1, "until_seq": 3}, [1, 2]),
        ({"until_seq": 99, "tag_prefix": ""}, [0, 1, 2, 4]),
        ({"limit": 2}, [0, 1]),
    ):
        dry = redrive(driver, to="p", dry_run=True, **spec)
        assert (dry.moved, dry.matched) == (0, len(expected)), spec
        assert [msgspec.json.decode(record.data) for record in dry.jobs] == expected
    assert redrive(driver, to="p", tag="a:1", limit=1)[2:] == (1, 1, 0, 1, 5, 4, "limit", [])
    assert redrive(driver, to="p", tag="a:1", from_seq=1)[2:] == (1, 1, 0, 5, 5, 0, "end", [])
    assert (data(driver, "q"), data(driver, "p")) == ([1, 2, 3], [0, 4])


def test_a_dry_run_shows_a_few_jobs_and_moves_none() -> None:
    driver = with_letters(25)
    result = redrive(driver, dry_run=True)
    assert (result.moved, result.matched, result.stopped) == (0, 25, "end")
    assert [msgspec.json.decode(record.data) for record in result.jobs] == list(range(1, 11))
    assert len(data(driver, "dead")) == 25


def test_letters_that_die_again_meanwhile_are_for_the_next_call() -> None:
    driver = with_letters(2)
    until_seq = redrive(driver, limit=1).until_seq
    kill_all(driver)
    assert data(driver, "dead") == [2, 1]
    assert redrive(driver, until_seq=until_seq).moved == 1
    assert data(driver, "dead") == [1]


def test_a_call_ends_when_its_time_is_over_and_the_next_one_goes_on() -> None:
    count = REDRIVE_BATCH_JOBS + 10
    driver = QueueDriver()
    driver.put("p", type="queue")
    driver.add(*range(count))
    first = redrive(driver, to="p", max_ms=0)
    assert (first.moved, first.stopped, first.remaining) == (0, "time", count)
    answers = start(driver, to="p", max_ms=50)
    driver.opened.engine.flush()
    driver.clock.advance(60)
    driver.opened.engine.flush()
    driver.runtime.take_turn()
    second = driver.settle(answers)
    assert second[2:] == (REDRIVE_BATCH_JOBS, REDRIVE_BATCH_JOBS, 0, REDRIVE_BATCH_JOBS, count, 10, "time", [])
    assert redrive(driver, to="p", from_seq=second.next_from_seq).moved == 10
    assert data(driver, "p")[-1] == count - 1


def test_a_rate_paces_the_batches() -> None:
    driver = QueueDriver()
    driver.put("p", type="queue")
    driver.add(*range(5))
    answers = start(driver, to="p", rate=10)
    for moved in range(1, 6):
        for _ in range(4):
            driver.opened.engine.flush()
            driver.runtime.take_turn()
        assert driver.topic("p").count == moved
        driver.pass_time(100)
    assert driver.settle(answers).moved == 5


def test_two_calls_with_one_source_move_each_job_once() -> None:
    driver = with_letters(20)
    both = [start(driver, limit=15), start(driver)]
    while not all(both):
        driver.opened.engine.flush()
        driver.runtime.take_turn()
    assert [answers[0].moved for answers in both] == [15, 5]
    assert data(driver, "q") == list(range(1, 21))


def test_a_repeat_with_the_same_key_counts_what_was_moved() -> None:
    driver = with_letters(5, durability="fsync")
    assert redrive(driver, limit=3, key="k").moved == 3
    driver.kill()
    assert redrive(driver, limit=3, key="k")[2:4] == (3, 3)
    assert data(driver, "dead") == [4, 5]
    assert redrive(driver, limit=4, key="k").moved == 4
    assert data(driver, "q") == [1, 2, 3, 4]


@pytest.mark.parametrize("discard", ["old", "reject"])
@pytest.mark.parametrize("cap", [{"cap_records": 4}, {"cap_bytes": 250}])
def test_a_redrive_stops_before_the_dest_would_lose_a_job(discard: str, cap: dict[str, int]) -> None:
    driver = with_letters(6)
    driver.put("p", type="queue", discard=discard, **cap)
    driver.add(0, topic="p")
    result = redrive(driver, "dead", to="p")
    assert (result.moved, result.stopped) == (3, "full")
    assert (data(driver, "p"), data(driver, "dead")) == ([0, 1, 2, 3], [4, 5, 6])
    with pytest.raises(TopicFull, match="has no room for another job: let workers drain it, or raise its cap"):
        redrive(driver, "dead", to="p")
    driver.claim("w", 9, topic="p")
    driver.ack("w", 1, 2, 3, 4, topic="p")
    assert redrive(driver, "dead", to="p").moved == 3


def test_what_cannot_be_redriven_is_refused_with_what_to_do() -> None:
    driver = QueueDriver()
    driver.put("log")
    driver.put("p", type="queue")
    with pytest.raises(NoDeadLetter, match="has no dead_letter: set one, or name the queue that its jobs go to"):
        start(driver)
    with pytest.raises(InvalidRequest, match="`to` is the queue itself"):
        start(driver, to="q")
    with pytest.raises(NotAQueue):
        start(driver, "log")
    with pytest.raises(NotAQueue):
        start(driver, to="log")
    with pytest.raises(TopicNotFound):
        start(driver, to="nowhere")
    with pytest.raises(TopicNotFound):
        start(driver, "nowhere")
    with pytest.raises(InvalidRequest, match="at most 200 bytes"):
        start(driver, to="p", key="k" * 201)


def test_a_queue_without_a_dead_letter_yet_has_nothing_to_redrive() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.add(1)
    assert redrive(driver) == Redriven("dead", "q", 0, 0, 0, 1, 1, 0, "end", [])


def test_a_job_that_is_on_its_way_is_not_claimed() -> None:
    driver = QueueDriver()
    driver.put("p", type="queue")
    driver.add(1, 2)
    answers = start(driver, to="p", limit=1)
    assert driver.claimed_seqs("w", 9) == [2]
    while not answers:
        driver.runtime.take_turn()
        driver.opened.engine.flush()
    assert answers[0].moved == 1


def test_the_oldest_ready_job_is_known_without_a_look_at_the_others() -> None:
    driver = QueueDriver(SMALL, leases_durable=True, durability="fsync")
    depth = driver.queues.depth
    assert depth(driver.topic("q")).oldest_ready_ts is None
    times = []
    for number in range(4):
        times.append(driver.opened.engine.now_ms())
        driver.add(number)
        driver.clock.advance(1000)
    assert depth(driver.topic("q")) == (4, 0, 0, 0, times[0])
    driver.claim("w", 2)
    assert depth(driver.topic("q")) == (2, 2, 0, 0, times[2])
    driver.checkpoint()
    driver.reopen()
    assert depth(driver.topic("q")) == (2, 2, 0, 0, times[2])
    driver.nack("w", 2)
    assert depth(driver.topic("q")) == (3, 1, 0, 0, times[1])
    driver.claim("w", 9)
    driver.nack("w", 1, delay_ms=500)
    assert depth(driver.topic("q")) == (0, 3, 1, 0, None)
