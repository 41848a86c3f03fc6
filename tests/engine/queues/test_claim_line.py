"""Claims that wait for jobs: what wakes which claim, in which order, and that an ended claim leaves nothing behind."""

import errno
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.driver import SMALL
from tests.engine.queue_driver import QueueDriver
from topics.engine.queues.claim_line import ClaimLine
from topics.engine.queues.jobs import Claim, Claimed, Counters
from topics.engine.topic.router import RouterSpec
from topics.errors import Closed, StorageFull, TopicNotFound
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs


class Waiting:
    """A claim that waits, and its answer once it has one."""

    def __init__(self, driver: QueueDriver, node: str = "w", max_jobs: int = 1, lease_ms: int | None = None) -> None:
        self.driver = driver
        self.answers: list[Any] = []
        self.claim: Claim = driver.queues.claim("q", node, max_jobs, lease_ms, self.answers.append, waits=True)
        driver.opened.engine.flush()

    @property
    def seqs(self) -> list[int] | None:
        """None while the claim waits."""
        if not self.answers:
            return None
        (claimed,) = self.answers
        assert isinstance(claimed, Claimed), claimed
        return [job.seq for job in claimed.jobs]

    def end_wait(self) -> None:
        self.driver.queues.end_wait(self.claim)
        self.driver.opened.engine.flush()

    def cancel(self) -> None:
        self.driver.queues.cancel(self.claim)
        self.driver.opened.engine.flush()


def assert_no_claim_waits(driver: QueueDriver) -> None:
    queues: Any = driver.queues
    assert queues._claiming._lines == {}
    assert queues._leases.waiters._waiters == {}
    assert not driver.topic("q").has_waiters


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_claim_that_waits_gets_the_next_job(durability: str, leases_durable: bool) -> None:
    driver = QueueDriver(durability=durability, leases_durable=leases_durable)
    waiting = Waiting(driver)
    assert waiting.seqs is None
    driver.add("a", "b")
    driver.settle(waiting.answers)
    assert waiting.seqs == [1]
    assert driver.counters() == Counters(1, 1, 0)
    assert_no_claim_waits(driver)


def test_a_claim_does_not_wait_while_there_are_jobs() -> None:
    driver = QueueDriver()
    driver.add(1, 2)
    assert Waiting(driver, max_jobs=5).seqs == [1, 2], "also when there are fewer than it asks for"
    assert_no_claim_waits(driver)


def test_claims_that_wait_get_jobs_in_the_order_in_which_they_came() -> None:
    driver = QueueDriver()
    line = [Waiting(driver, max_jobs=2) for _ in range(4)]
    driver.add("a")
    assert [waiting.seqs for waiting in line] == [[1], None, None, None]
    driver.add("b", "c")
    assert [waiting.seqs for waiting in line] == [[1], [2], [3], None]
    line.append(Waiting(driver, max_jobs=2))
    driver.add("d", "e", "f")
    assert [waiting.seqs for waiting in line] == [[1], [2], [3], [4, 6], [5]], "one job a turn"
    assert_no_claim_waits(driver)


def test_a_claim_does_not_overtake_the_ones_that_wait() -> None:
    """The lease of the only job has ended, and the first call to notice it is a new claim."""
    driver = QueueDriver(lease_ms=1000)
    driver.add("a")
    driver.claim("gone")
    waiting = Waiting(driver, "first")
    driver.clock.advance(1001)
    assert driver.claim("second") == []
    assert waiting.seqs == [1]


def test_a_job_that_is_given_back_wakes_a_claim() -> None:
    driver = QueueDriver()
    driver.add("a")
    driver.claim("v")
    waiting = Waiting(driver)
    driver.nack("v", 1)
    assert waiting.seqs == [1]
    assert waiting.answers[0].jobs[0].deliveries == 2


def test_a_lease_that_ends_wakes_a_claim_by_itself() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add("a")
    driver.claim("v")
    waiting = Waiting(driver)
    driver.pass_time(1000)
    assert waiting.seqs is None
    driver.pass_time(1)
    assert waiting.seqs == [1]
    assert_no_claim_waits(driver)


def test_a_delay_that_ends_wakes_a_claim_by_itself() -> None:
    driver = QueueDriver()
    driver.add("a")
    driver.claim("v")
    waiting = Waiting(driver)
    driver.nack("v", 1, delay_ms=500)
    assert waiting.seqs is None
    driver.pass_time(500)
    assert waiting.seqs == [1]


def test_no_timer_runs_while_no_claim_waits() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add("a")
    driver.claim("v")
    timers: Any = driver.runtime
    assert timers._later == []
    Waiting(driver)
    Waiting(driver)
    assert len(timers._later) == 1, "one timer for all claims that wait"


def test_acks_of_others_leave_claims_waiting() -> None:
    driver = QueueDriver()
    driver.add("a", "b")
    driver.claim("v", 2)
    waiting = Waiting(driver)
    driver.ack("v", 1, 2)
    assert waiting.seqs is None
    driver.add("c")
    assert waiting.seqs == [3]


def test_a_wait_that_ends_is_answered_without_jobs() -> None:
    driver = QueueDriver()
    waiting = Waiting(driver)
    waiting.end_wait()
    assert waiting.answers == [Claimed([], 0)]
    assert_no_claim_waits(driver)
    driver.add("a")
    assert driver.claimed_seqs() == [1]


def test_a_cancelled_claim_takes_no_job() -> None:
    driver = QueueDriver()
    cancelled, other = Waiting(driver, "gone"), Waiting(driver)
    cancelled.cancel()
    driver.add("a")
    assert cancelled.answers == []
    assert other.seqs == [1]
    assert_no_claim_waits(driver)


def test_a_claim_that_is_cancelled_in_its_window_leaves_the_job_to_the_others() -> None:
    driver = QueueDriver(claim_jitter_ms=50)
    first, second = Waiting(driver, "gone"), Waiting(driver)
    driver.pass_time(50)
    driver.opened.engine.flush()
    driver.add("a")
    first.cancel()
    driver.pass_time(50)
    driver.opened.engine.flush()
    assert first.answers == []
    assert second.seqs == [1], "the job woke the first claim only"


def test_jobs_that_an_answered_caller_does_not_want_are_ready_at_once() -> None:
    driver = QueueDriver()
    first, second = Waiting(driver, "gone"), Waiting(driver)
    driver.add("a")
    driver.queues.give_back(first.claim, first.answers[0].jobs)
    driver.opened.engine.flush()
    assert second.seqs == [1]
    assert second.answers[0].jobs[0].lease_id == 2


def test_jobs_are_not_given_back_to_a_queue_that_took_the_name() -> None:
    driver = QueueDriver()
    waiting = Waiting(driver)
    driver.add("a")
    driver.drop("q")
    driver.put("q", type="queue")
    driver.add("b")
    (job,) = driver.claim("v")
    assert (job.seq, job.lease_id) == (1, 1)
    driver.queues.give_back(waiting.claim, waiting.answers[0].jobs)
    assert driver.counters() == Counters(0, 1, 0)


def test_a_queue_that_ends_refuses_the_claims_that_wait() -> None:
    driver = QueueDriver()
    waiting = Waiting(driver)
    driver.drop("q")
    assert [type(answer) for answer in waiting.answers] == [TopicNotFound]


def test_an_engine_that_stops_refuses_the_claims_that_wait() -> None:
    driver = QueueDriver()
    waiting = Waiting(driver)
    driver.opened.engine.stop_writes()
    driver.opened.engine.flush()
    assert [type(answer) for answer in waiting.answers] == [Closed]
    assert_no_claim_waits(driver)


@pytest.mark.parametrize("waits", [False, True])
def test_an_engine_that_stops_refuses_the_claims_of_an_open_window(waits: bool) -> None:
    """No timer closes the window any more."""
    driver = QueueDriver(claim_jitter_ms=5000)
    answers: list[Any] = []
    driver.queues.claim("q", "w", 1, None, answers.append, waits=waits)
    driver.opened.engine.stop_writes()
    driver.opened.engine.flush()
    assert [type(answer) for answer in answers] == [Closed]
    assert_no_claim_waits(driver)
    driver.pass_time(5000)
    assert len(answers) == 1


def test_an_engine_that_stops_refuses_claims_that_wait_for_copies() -> None:
    driver = QueueDriver()
    created: list[Any] = []
    driver.opened.engine.put_router("feed", RouterSpec(source="source", dest="q"), created.append)
    driver.answer(created)
    driver.append(*range(3000), topic="source")
    answers = driver.start_claim()
    driver.opened.engine.flush()
    assert answers == []
    driver.opened.engine.stop_writes()
    driver.opened.engine.flush()
    assert [type(answer) for answer in answers] == [Closed]


def test_dead_letters_pass_and_the_claim_waits_on() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.add("a")
    driver.claim("v")
    waiting = Waiting(driver)
    driver.nack("v", 1)
    for _ in range(8):
        driver.opened.engine.flush()
    assert waiting.seqs is None
    assert driver.letters() == [("a", 1)]
    driver.add("b")
    assert waiting.seqs == [2]


def test_a_claim_passes_more_dead_letters_than_one_pass_moves() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.add(*range(250))
    assert len(driver.claim("v", 250)) == 250
    waiting = Waiting(driver)
    driver.nack("v", *range(1, 251))
    for _ in range(40):
        driver.opened.engine.flush()
    assert waiting.seqs is None
    assert driver.counters() == Counters(0, 0, 250)
    driver.add("b")
    driver.settle(waiting.answers)
    assert waiting.seqs == [251]


def test_a_job_that_comes_while_a_dead_letter_moves_is_not_missed() -> None:
    """The claim is in a pass when the job is published, so no wake finds it idle."""
    driver = QueueDriver(max_deliveries=1, dead_letter="dead", durability="fsync")
    driver.put("dead", durability="fsync")
    driver.add("a")
    driver.claim("v")
    waiting = Waiting(driver)
    answers: list[Any] = []
    driver.queues.nack("q", "v", [1], [], 0, answers.append)
    driver.start_append("b", topic="q")
    for _ in range(8):
        driver.opened.engine.flush()
    assert driver.letters() == [("a", 1)]
    assert waiting.seqs == [2]


def test_dead_letters_that_cannot_be_written_do_not_make_a_waiting_claim_spin() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.put("dead", cap_records=1, discard="reject")
    driver.append("full", topic="dead")
    driver.add(*range(150))
    driver.claim("v", 150)
    waiting = Waiting(driver)
    driver.nack("v", *range(1, 151))
    for _ in range(10):
        driver.opened.engine.flush()
    assert waiting.seqs is None
    waiting.end_wait()
    assert waiting.seqs == []


def test_the_next_claim_gets_the_job_of_one_whose_lease_could_not_be_logged() -> None:
    faults = FaultFs(FakeDisk())
    driver = QueueDriver(replace(SMALL, wal_shards=1), fs=faults, leases_durable=True)
    driver.add("a")
    driver.claim("v", lease_ms=1000)
    first, second = Waiting(driver), Waiting(driver)
    faults.fail("pwrite", error=errno.ENOSPC, path=lambda path: "wal-" in path)
    driver.pass_time(1001)
    for _ in range(4):
        driver.opened.engine.flush()
    assert [type(answer) for answer in first.answers] == [StorageFull]
    assert second.seqs == [1]


def test_a_window_opens_for_claims_that_are_woken() -> None:
    """Claims that come within the window share the jobs with the ones that waited."""
    driver = QueueDriver(claim_jitter_ms=50)
    waiting = Waiting(driver, max_jobs=5)
    driver.pass_time(50)
    driver.opened.engine.flush()
    assert waiting.seqs is None
    driver.add(*range(4))
    assert waiting.seqs is None
    answers = driver.start_claim("v", 5)
    driver.pass_time(50)
    driver.opened.engine.flush()
    assert waiting.seqs == [1, 3]
    assert [job.seq for job in answers[0].jobs] == [2, 4]


def test_copies_of_a_router_wake_a_claim() -> None:
    driver = QueueDriver()
    driver.put("source")
    answers: list[Any] = []
    driver.opened.engine.put_router("r", RouterSpec(source="source", dest="q"), answers.append)
    driver.settle(answers)
    waiting = Waiting(driver)
    driver.append("a", topic="source")
    for _ in range(8):
        driver.opened.tick()
    assert waiting.seqs == [1]


def test_a_line_gives_out_its_oldest_idle_claims() -> None:
    driver = QueueDriver()
    topic = driver.topic("q")
    claims = [Claim(topic, "w", 1, 1000, lambda _: None, waits=True) for _ in range(4)]
    line = ClaimLine(lambda: None)
    for claim in claims:
        line.join(claim)
    assert line.take(4) == [], "all of them are in a pass"
    for claim in reversed(claims):
        line.rest(claim)
    assert line.take(2) == claims[:2]
    line.rest(claims[0])
    line.leave(claims[2])
    assert line.take(5) == [claims[0], claims[3]]
    assert len(line) == 3
    assert claims[2] not in line
    assert line.is_idle(claims[2]) is False
