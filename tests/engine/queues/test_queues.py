"""Queues on an engine: which claim gets which job, which leases survive a crash, and what happens when a call fails."""

import errno
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.engine.driver import SMALL, SteppedBackground
from tests.engine.queue_driver import QueueDriver
from tests.engine.topic.test_fetch import CoolFs
from topics.engine.queues.jobs import Counters
from topics.engine.topic.router import RouterSpec
from topics.errors import Closed, ColdUnavailable, NotAQueue, StorageFull, Throttled, TopicNotFound
from topics.results import NewRecord
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
STORED = CLASSES[1:]


# What a callback of the WAL submits is written by the next flush of the only shard.
ONE_SHARD = replace(SMALL, wal_shards=1)


def is_wal(path: str) -> bool:
    return "wal-" in path


# Claims.


@pytest.mark.parametrize("durability", CLASSES)
def test_jobs_go_out_by_seq_with_a_lease_each(durability: str) -> None:
    driver = QueueDriver(durability=durability)
    driver.append(NewRecord({"n": 1}, tag="a", node="x", meta={"k": 1}), 2, 3, topic="q")
    now_ms = driver.clock.now_ms()
    jobs = driver.claim("w", 2)
    assert [tuple(job) for job in jobs] == [
        (1, now_ms, "a", b'{"n":1}', b'{"k":1}', 1, now_ms + 30_000, 1),
        (2, now_ms, None, b"2", None, 2, now_ms + 30_000, 1),
    ]
    assert driver.counters() == Counters(1, 2, 0)
    assert driver.claimed_seqs("v", 5) == [3]
    assert driver.claimed_seqs("v", 5) == []


def test_a_power_loss_takes_no_job_of_a_queue_with_a_small_cap_n01() -> None:
    """The head jumps over the reservation. Claims pass over the lost seqs, and no job is evicted for them."""
    driver = QueueDriver(durability="disk", cap_records=10)
    driver.add(*range(10))
    driver.ack("w", *driver.claimed_seqs("w", 3))
    driver.clock.advance(3000)
    driver.opened.engine.wal.tick()
    driver.lose_power()
    head_seq = driver.topic("q").head_seq
    assert head_seq > 10
    assert driver.counters() == Counters(7, 0, 0)
    driver.add("new")
    assert driver.claimed_seqs("w", 20) == [4, 5, 6, 7, 8, 9, 10, head_seq + 1]


def test_a_claim_tells_how_many_jobs_are_ready_after_it() -> None:
    driver = QueueDriver()
    driver.add(1, 2, 3)
    assert driver.settle(driver.start_claim(max_jobs=2)).ready == 1


def test_calls_on_what_is_no_queue_are_refused() -> None:
    driver = QueueDriver()
    driver.put("log")
    answers: list[Any] = []
    done = answers.append
    for name, error in (("log", NotAQueue), ("nowhere", TopicNotFound)):
        with pytest.raises(error):
            driver.queues.claim(name, "w", 1, None, done)
        with pytest.raises(error):
            driver.queues.ack(name, "w", [1], [], done)
        with pytest.raises(error):
            driver.queues.nack(name, "w", [1], [], 0, done)
        with pytest.raises(error):
            driver.queues.extend(name, "w", [1], [], 1000, done)
        with pytest.raises(error):
            driver.queues.counters(name)
        with pytest.raises(error):
            driver.queues.wait_jobs(name, lambda: None)


def test_a_lease_ends_one_millisecond_behind_its_deadline() -> None:
    """Invariant 48."""
    driver = QueueDriver(lease_ms=1000)
    driver.add(1)
    driver.claim("a")
    driver.clock.advance(1000)
    assert driver.counters() == Counters(0, 1, 0)
    assert driver.claim("b") == []
    driver.clock.advance(1)
    assert driver.counters() == Counters(1, 0, 0)
    (job,) = driver.claim("b")
    assert (job.deliveries, job.lease_id) == (2, 2)


def test_returned_jobs_come_first_lowest_seq_first() -> None:
    driver = QueueDriver()
    driver.add(*range(6))
    driver.claim("a", 4)
    driver.nack("a", 3)
    driver.nack("a", 1)
    assert driver.claimed_seqs("b", 1) == [1]
    assert driver.claimed_seqs("b", 3) == [3, 5, 6]


def test_lease_times_are_pulled_into_range() -> None:
    driver = QueueDriver(lease_ms=5000)
    driver.add(1, 2, 3)
    now_ms = driver.clock.now_ms()
    times = [driver.claim("w", lease_ms=given)[0].deadline - now_ms for given in (0, 2**64 - 1, None)]
    assert times == [100, 86_400_000, 5000]


def test_a_claim_has_at_most_so_many_bytes_and_one_job_at_least() -> None:
    driver = QueueDriver()
    large = "x" * 1_000_000
    for _ in range(10):
        driver.add(large)
    assert len(driver.claim("w", 100)) == 9
    assert len(driver.claim("w", 100)) == 1


def test_new_settings_are_those_of_later_claims() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1, 2)
    (first,) = driver.claim("w")
    driver.put("q", type="queue", lease_ms=5000)
    (second,) = driver.claim("w")
    assert second.deadline - first.deadline == 4000
    assert driver.counters() == Counters(0, 2, 0)


def test_a_new_instance_knows_nothing_of_the_leases_before_it() -> None:
    driver = QueueDriver()
    driver.add(1, 2)
    driver.claim("w", 2)
    driver.drop("q")
    driver.put("q", type="queue")
    driver.add(3)
    assert driver.counters() == Counters(1, 0, 0)
    assert driver.ack("w", 1).skipped == [1]
    (job,) = driver.claim("w")
    assert (job.seq, job.lease_id, job.deliveries) == (1, 1, 1)


def test_reads_change_no_counters_invariant_53() -> None:
    driver = QueueDriver()
    driver.add(1, 2, 3)
    driver.claim("w", 2)
    before = driver.counters()
    assert driver.seqs(topic="q") == [1, 2, 3]
    assert driver.counters() == before


def test_a_queue_that_is_closed_hands_out_nothing() -> None:
    driver = QueueDriver()
    driver.add(1)
    driver.opened.engine.stop_writes()
    with pytest.raises(Closed):
        driver.start_claim()


@pytest.mark.parametrize("durability", STORED)
def test_a_claim_gets_what_a_router_copied(durability: str) -> None:
    driver = QueueDriver(durability=durability)
    driver.put("source")
    made: list[Any] = []
    driver.opened.engine.put_router("source->q", RouterSpec(source="source", dest="q"), made.append)
    assert driver.settle(made) is True
    driver.append(1, 2, topic="source")
    jobs = driver.claim("w", 5)
    assert [(job.seq, job.data) for job in jobs] == [(1, b"1"), (2, b"2")]
    driver.ack("w", 1)
    driver.kill()
    assert [job.data for job in driver.claim("w", 5)] == [b"2"]


# Acks.


@pytest.mark.parametrize("durability", CLASSES)
def test_an_acked_job_is_gone_invariant_47(durability: str) -> None:
    driver = QueueDriver(durability=durability)
    driver.add(1, 2, 3)
    driver.claim("w", 3)
    settled = driver.ack("w", 2, 1)
    assert (settled.settled, settled.skipped, settled.ready, settled.in_flight) == (2, [], 0, 1)
    assert (settled.sync_ms > 0) == (durability == "fsync")
    assert driver.seqs(topic="q") == [3]
    driver.clock.advance(86_400_001)
    assert driver.claimed_seqs("w", 9) == [3]


def test_only_who_has_an_unexpired_lease_can_ack() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1, 2)
    driver.claim("w", 1)
    assert driver.ack("other", 1).skipped == [1]
    assert driver.ack("w", 7, 2, 1, 1).skipped == [7, 2, 1]
    driver.claim("w", 1)
    driver.clock.advance(1001)
    assert driver.ack("w", 2).skipped == [2], "the lease has ended, although there was no other claim"
    assert driver.counters() == Counters(1, 0, 0)


def test_g01_a_token_of_an_earlier_delivery_does_nothing_invariant_51() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1)
    (old,) = driver.claim("w")
    driver.clock.advance(1001)
    (new,) = driver.claim("w")
    for call in (driver.ack, driver.nack):
        assert call("w", 1, lease_ids=[old.lease_id]).skipped == [1]
    assert driver.extend("w", 1, lease_ids=[old.lease_id], lease_ms=9999).skipped == [1]
    assert driver.counters() == Counters(0, 1, 0)
    assert driver.ack("w", 1, lease_ids=[new.lease_id]).settled == 1


def test_g02_without_a_token_the_node_acks_only_what_it_has() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1)
    driver.claim("slow")
    driver.clock.advance(1001)
    driver.claim("fast")
    assert driver.ack("slow", 1).skipped == [1]
    assert driver.ack("fast", 1).settled == 1


def test_two_acks_of_one_job_at_a_time_act_once() -> None:
    driver = QueueDriver(durability="fsync")
    driver.add(1)
    driver.claim("w")
    first: list[Any] = []
    driver.queues.ack("q", "w", [1], [], first.append)
    assert driver.ack("w", 1).skipped == [1]
    assert first[0].settled == 1


def test_a_lease_does_not_run_out_while_its_ack_is_being_logged_g03() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1)
    driver.claim("w")
    driver.clock.advance(1000)
    answers: list[Any] = []
    driver.queues.ack("q", "w", [1], [], answers.append)
    driver.clock.advance(10)
    claimed = driver.start_claim("v")
    assert driver.settle(answers).settled == 1
    assert claimed[0].jobs == []
    assert driver.counters() == Counters(0, 0, 0)


def test_g13_a_job_that_was_deleted_is_no_longer_leased() -> None:
    driver = QueueDriver()
    driver.append(NewRecord(1, tag="a"), NewRecord(2, tag="b"), NewRecord(3, tag="a"), topic="q")
    driver.claim("w", 2)
    driver.nack("w", 2, delay_ms=100)
    driver.delete("q", tag_prefix="")
    assert driver.counters() == Counters(0, 0, 0)
    assert driver.ack("w", 1, 2, 3).skipped == [1, 2, 3]
    driver.clock.advance(1000)
    assert driver.claim("w", 9) == []


def test_a_lease_protects_no_job_from_a_cap_an_age_or_a_delete() -> None:
    driver = QueueDriver(cap_records=3, ttl_ms=1000)
    driver.add(1, 2, 3)
    driver.claim("w", 2)
    driver.add(4)
    assert driver.counters() == Counters(2, 1, 0)
    driver.delete("q", before_seq=3)
    assert driver.counters() == Counters(2, 0, 0)
    driver.clock.advance(1001)
    assert driver.counters() == Counters(0, 0, 0)
    assert driver.claim("w", 9) == []


@pytest.mark.parametrize("leases_durable", [False, True])
def test_an_ack_that_cannot_be_logged_returns_the_job(leases_durable: bool) -> None:
    faults = FaultFs(FakeDisk())
    driver = QueueDriver(fs=faults, leases_durable=leases_durable)
    driver.add(1, 2)
    driver.claim("w", 2)
    faults.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    with pytest.raises(StorageFull):
        driver.ack("w", 1)
    assert driver.counters() == Counters(1, 1, 0)
    if leases_durable:
        with pytest.raises(StorageFull):
            driver.extend("w", 2, lease_ms=60_000)
        assert driver.counters() == Counters(1, 1, 0), "leased as before"
        with pytest.raises(StorageFull):
            driver.nack("w", 2, delay_ms=60_000)
        assert driver.counters() == Counters(2, 0, 0)
        with pytest.raises(StorageFull):
            driver.claim("v", 2)
        assert driver.counters() == Counters(2, 0, 0)
    faults.heal()
    assert driver.claim("v")[0].deliveries == 2


def test_a_move_whose_deletion_cannot_be_logged_is_finished_later() -> None:
    faults = FaultFs(FakeDisk())
    driver = QueueDriver(ONE_SHARD, fs=faults, max_deliveries=1, dead_letter="dead")
    driver.put("dead")
    driver.add(1, 2)
    driver.claim("w")
    driver.nack("w", 1)
    answers = driver.start_claim()
    driver.opened.engine.wal.flush()
    assert driver.topic("dead").count == 1
    faults.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    assert [job.seq for job in driver.settle(answers).jobs] == [2]
    assert driver.counters() == Counters(1, 1, 1), "the job is a dead letter, and still counts here"
    faults.heal()
    assert driver.claim("w", 9) == []
    driver.opened.engine.flush()
    assert driver.counters() == Counters(0, 1, 1)
    assert driver.letters() == [(1, 1)]


# Nacks and extensions.


def test_a_job_that_is_given_back_is_ready_at_once_or_when_it_is_due() -> None:
    """Invariant 48."""
    driver = QueueDriver()
    driver.add(1, 2)
    driver.claim("w", 2)
    assert driver.nack("w", 1)[:4] == (1, [], 1, 1)
    assert driver.nack("w", 2, 1, delay_ms=500)[:4] == (1, [1], 1, 0)
    assert driver.counters() == Counters(1, 0, 0), "delayed jobs are in neither"
    assert driver.claimed_seqs("v", 9) == [1]
    driver.clock.advance(499)
    assert driver.claim("v", 9) == []
    driver.clock.advance(1)
    assert driver.claimed_seqs("v", 9) == [2]


def test_g04_an_extended_lease_keeps_its_id_and_count_invariant_49() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1, 2)
    first, _ = driver.claim("w", 2)
    driver.clock.advance(900)
    extended = driver.extend("w", 1, 7, lease_ms=5000)
    assert extended == ({1: driver.clock.now_ms() + 5000}, [7])
    driver.clock.advance(101)
    (again,) = driver.claim("v", 9)
    assert (again.seq, again.deliveries) == (2, 2)
    driver.clock.advance(4000)
    assert driver.ack("w", 1, lease_ids=[first.lease_id]).settled == 1


def test_an_extension_may_also_be_shorter() -> None:
    driver = QueueDriver(lease_ms=60_000)
    driver.add(1)
    driver.claim("w")
    driver.extend("w", 1, lease_ms=100)
    driver.clock.advance(101)
    assert driver.claimed_seqs("v") == [1]


def test_no_seqs_are_nothing_to_do() -> None:
    driver = QueueDriver()
    assert driver.ack("w")[:4] == (0, [], 0, 0)
    assert driver.nack("w")[:4] == (0, [], 0, 0)
    assert driver.extend("w", lease_ms=1000) == ({}, [])


def test_released_leases_are_exactly_those_that_are_named() -> None:
    driver = QueueDriver()
    driver.add(1, 2, 3)
    jobs = driver.claim("w", 3)
    driver.nack("w", 3)
    (third,) = driver.claim("w")
    driver.queues.release("q", [(1, jobs[0].lease_id), (3, jobs[2].lease_id), (9, 9)])
    assert driver.counters() == Counters(1, 2, 0)
    assert driver.queues.live_leases("q", [(job.seq, job.lease_id) for job in (*jobs, third)]) == [
        (2, jobs[1].lease_id),
        (3, third.lease_id),
    ]
    driver.queues.release("nowhere", [(1, 1)])


# The clock.


def test_a_clock_that_is_set_back_neither_prolongs_a_lease_nor_brings_it_back() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1)
    driver.claim("w")
    driver.clock.advance(500)
    driver.counters()
    driver.clock.set(driver.clock.now_ms() - 400)
    driver.clock.advance(500)
    assert driver.counters() == Counters(0, 1, 0)
    driver.clock.advance(1)
    assert driver.counters() == Counters(1, 0, 0)


# Windows.


def test_claims_of_one_window_share_evenly_invariant_52() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    driver.add(*range(7))
    answers = [driver.start_claim(f"w{place}", 5) for place in range(3)]
    driver.pass_time(19)
    assert answers == [[], [], []]
    driver.pass_time(1)
    shares = [[job.seq for job in driver.settle(answer).jobs] for answer in answers]
    assert shares == [[1, 4, 7], [2, 5], [3, 6]]


def test_who_has_enough_is_passed_over_and_everybody_keeps_its_own_time() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    driver.add(*range(6))
    answers = [driver.start_claim("a", 1, lease_ms=1000), driver.start_claim("b", 9, lease_ms=2000)]
    driver.pass_time(20)
    first, second = (driver.settle(answer).jobs for answer in answers)
    assert ([job.seq for job in first], [job.seq for job in second]) == ([1], [2, 3, 4, 5, 6])
    assert second[0].deadline - first[0].deadline == 1000


def test_who_comes_later_opens_a_window_of_its_own() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    driver.add(1, 2)
    first = driver.start_claim("a", 9)
    driver.pass_time(20)
    second = driver.start_claim("b", 9)
    assert [job.seq for job in driver.settle(first).jobs] == [1, 2]
    assert second == []
    driver.pass_time(20)
    assert driver.settle(second).jobs == []


def test_nobody_gets_jobs_after_going_away() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    driver.add(1)
    answers: list[Any] = []
    claim = driver.queues.claim("q", "gone", 1, None, answers.append)
    stays = driver.start_claim("stays")
    claim.is_cancelled = True
    driver.pass_time(20)
    assert [job.seq for job in driver.settle(stays).jobs] == [1]
    assert answers == []


def test_jobs_for_somebody_who_went_away_while_their_leases_were_logged_are_ready_again() -> None:
    driver = QueueDriver(leases_durable=True, durability="fsync")
    driver.add(1, 2)
    driver.claim("w")
    answers: list[Any] = []
    claim = driver.queues.claim("q", "gone", 1, None, answers.append)
    claim.is_cancelled = True
    assert driver.settle(answers).jobs == []
    assert driver.counters() == Counters(1, 1, 0)


def test_a_topic_that_ends_ends_its_window() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    answers = driver.start_claim()
    driver.drop("q")
    driver.pass_time(20)
    with pytest.raises(TopicNotFound):
        driver.settle(answers)


def test_a_log_that_closes_ends_its_windows() -> None:
    driver = QueueDriver(claim_jitter_ms=20)
    answers = driver.start_claim()
    driver.opened.engine.stop_writes()
    driver.pass_time(20)
    with pytest.raises(Closed):
        driver.settle(answers)


# Waiting for jobs.


class Woken:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def woken_by(driver: QueueDriver) -> Woken:
    woken = Woken()
    driver.queues.wait_jobs("q", woken)
    return woken


def test_who_waits_is_woken_once_by_new_jobs_and_by_those_that_come_back() -> None:
    driver = QueueDriver()
    woken = woken_by(driver)
    driver.add(1, 2)
    assert woken.count == 1
    driver.claim("w", 2)
    woken = woken_by(driver)
    driver.nack("w", 1)
    assert woken.count == 1
    woken = woken_by(driver)
    driver.ack("w", 2)
    driver.add(3)
    assert woken.count == 1


def test_who_waits_is_woken_when_a_delay_or_a_lease_ends() -> None:
    driver = QueueDriver(lease_ms=1000)
    driver.add(1, 2)
    woken = woken_by(driver)
    driver.claim("w", 2)
    driver.nack("w", 1, delay_ms=500)
    assert woken.count == 1
    woken = woken_by(driver)
    driver.pass_time(499)
    assert woken.count == 0
    driver.pass_time(1)
    assert woken.count == 1
    woken = woken_by(driver)
    driver.pass_time(501)
    assert woken.count == 1


def test_who_waits_is_woken_by_the_end_of_the_topic_and_not_after_cancelling() -> None:
    driver = QueueDriver()
    driver.add(1)
    driver.claim("w")
    cancelled, woken = woken_by(driver), woken_by(driver)
    driver.queues.cancel_wait("q", cancelled)
    driver.queues.cancel_wait("q", cancelled)
    driver.drop("q")
    assert (cancelled.count, woken.count) == (0, 1)
    driver.queues.cancel_wait("q", woken)


# Dead letters.


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_job_is_delivered_so_often_and_then_is_a_dead_letter_once_invariant_50(
    durability: str, leases_durable: bool
) -> None:
    driver = QueueDriver(max_deliveries=2, dead_letter="dead", durability=durability, leases_durable=leases_durable)
    driver.append(NewRecord({"n": 1}, tag="t", node="x", meta={"k": [1]}), 2, topic="q")
    for delivery in (1, 2):
        jobs = driver.claim("w", 1)
        assert (jobs[0].seq, jobs[0].deliveries) == (1, delivery)
        driver.nack("w", 1)
    assert driver.claimed_seqs("w", 1) == [2]
    assert driver.counters() == Counters(0, 1, 1)
    (letter,) = driver.read(topic="dead").records
    assert (letter.seq, letter.data, letter.tag, letter.node) == (1, b'{"n":1}', "t", "x")
    assert letter.meta == (
        b'{"k":[1],"$dead_letter_from":"q","$dead_letter_deliveries":"2","$dead_letter_src_seq":"1"}'
    )
    assert driver.seqs(topic="q") == [2]
    assert driver.topic("dead").config.durability == "disk"


def test_a_claim_is_answered_when_its_dead_letters_are_there() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.add(1)
    driver.claim("w")
    driver.nack("w", 1)
    claimed = driver.settle(driver.start_claim())
    assert (claimed.jobs, claimed.ready) == ([], 0)
    assert driver.letters() == [(1, 1)]


@pytest.mark.parametrize("config", [{"max_deliveries": 1}, {"dead_letter": "dead"}])
def test_without_a_limit_or_a_place_a_job_is_delivered_without_end(config: dict[str, Any]) -> None:
    driver = QueueDriver(**config)
    driver.add(1)
    for delivery in range(1, 6):
        assert driver.claim("w")[0].deliveries == delivery
        driver.nack("w", 1)
    assert driver.letters() == []


def test_g07_a_dead_letter_that_finds_no_room_stays_a_job_and_is_tried_again() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.put("dead", cap_records=1, discard="reject")
    driver.add(1, 2, 3)
    driver.claim("w", 3)
    driver.nack("w", 1, 2)
    assert driver.claim("w", 5) == []
    assert driver.counters() == Counters(1, 1, 1)
    assert driver.letters() == [(1, 1)]
    driver.delete("dead", before_seq=2)
    driver.claim("w", 5)
    assert driver.counters() == Counters(0, 1, 2)
    assert driver.letters() == [(2, 2)]


def test_more_dead_letters_than_one_pass_moves_are_left_to_the_next() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.add(*range(150))
    driver.claim("w", 150)
    driver.nack("w", *range(1, 151))
    assert driver.claim("w", 5) == []
    assert driver.counters() == Counters(50, 0, 100)
    driver.claim("w", 5)
    assert driver.counters() == Counters(0, 0, 150)
    assert driver.topic("dead").count == 150


def test_a_queue_of_dead_letters_is_a_queue_like_any_other() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.put("dead", type="queue", max_deliveries=1, dead_letter="buried")
    driver.add("job")
    for topic in ("q", "dead"):
        driver.claim("w", topic=topic)
        driver.nack("w", 1, topic=topic)
        driver.claim("w", topic=topic)
    (record,) = driver.read(topic="buried").records
    assert msgspec.json.decode(record.meta or b"") == {
        "$dead_letter_from": "dead",
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
    }


def test_a_queue_that_ends_while_its_job_moves_ends_quietly() -> None:
    driver = QueueDriver(max_deliveries=1, dead_letter="dead")
    driver.put("dead", durability="fsync")
    driver.add(1)
    driver.claim("w")
    driver.nack("w", 1)
    answers = driver.start_claim()
    dropped: list[Any] = []
    driver.opened.engine.delete_topic("q", if_empty=False, done=dropped.append)
    assert driver.settle(answers).jobs == []
    assert dropped == [True]
    assert driver.letters() == [(1, 1)]


# Starts.


@pytest.mark.parametrize("restart", ["reopen", "kill"])
@pytest.mark.parametrize("durability", STORED)
def test_without_durable_leases_every_job_is_ready_after_a_start(durability: str, restart: str) -> None:
    """Invariant 48."""
    driver = QueueDriver(durability=durability)
    driver.add(1, 2, 3)
    driver.claim("w", 2)
    driver.ack("w", 1)
    getattr(driver, restart)()
    assert driver.counters() == Counters(2, 0, 0)
    assert [(job.seq, job.deliveries) for job in driver.claim("w", 9)] == [(2, 1), (3, 1)]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("restart", ["reopen", "kill", "lose_power"])
def test_durable_leases_are_there_after_a_start_g15(restart: str, checkpointed: bool) -> None:
    driver = QueueDriver(durability="fsync", leases_durable=True, lease_ms=10_000)
    driver.add(*range(6))
    first, second, *_ = driver.claim("w", 5)
    driver.ack("w", 3)
    driver.nack("w", 4)
    driver.nack("w", 5, delay_ms=5000)
    driver.extend("w", 2, lease_ms=20_000)
    if checkpointed:
        driver.checkpoint()
    getattr(driver, restart)()
    assert driver.counters() == Counters(2, 2, 0)
    assert [(job.seq, job.deliveries) for job in driver.claim("v", 9)] == [(4, 2), (6, 1)]
    driver.clock.advance(5000)
    assert [(job.seq, job.deliveries) for job in driver.claim("v", 9)] == [(5, 2)]
    assert driver.ack("w", 1, lease_ids=[first.lease_id]).settled == 1
    driver.clock.advance(5001)
    assert driver.ack("w", 2, lease_ids=[second.lease_id]).settled == 1, "extended before the start"


def test_f02_a_lease_that_ended_does_not_come_back_with_a_clock_that_was_set_back() -> None:
    driver = QueueDriver(durability="fsync", leases_durable=True, lease_ms=1000)
    driver.add(1)
    driver.claim("w")
    driver.clock.advance(1001)
    (again,) = driver.claim("v", lease_ms=5000)
    driver.clock.set(driver.clock.now_ms() - 3_600_000)
    driver.kill()
    assert driver.ack("w", 1).skipped == [1]
    assert driver.ack("v", 1, lease_ids=[again.lease_id]).settled == 1


@pytest.mark.parametrize("restart", ["reopen", "kill", "lose_power"])
@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", CLASSES)
def test_no_lease_id_is_given_out_again_after_a_start(durability: str, leases_durable: bool, restart: str) -> None:
    driver = QueueDriver(durability=durability, leases_durable=leases_durable)
    seen: set[int] = set()
    for turn in range(4):
        driver.add(1, 2)
        ids = {job.lease_id for job in driver.claim("w", 2)}
        assert len(ids) == 2
        assert not seen or min(ids) > max(seen)
        seen |= ids
        if turn == 2:
            driver.checkpoint()
        getattr(driver, restart)()


def test_the_first_id_is_one_and_a_clean_stop_skips_none() -> None:
    driver = QueueDriver()
    driver.add(1, 2, 3)
    assert driver.claim("w", 2)[1].lease_id == 2
    driver.reopen()
    assert driver.claim("w")[0].lease_id == 3


def test_leases_that_are_durable_no_more_are_forgotten_by_a_start() -> None:
    driver = QueueDriver(leases_durable=True)
    driver.add(1, 2)
    driver.claim("w", 2)
    driver.put("q", type="queue")
    assert driver.counters() == Counters(0, 2, 0)
    driver.nack("w", 1)
    driver.put("q", type="queue", leases_durable=True)
    driver.kill()
    assert driver.counters() == Counters(2, 0, 0)


def test_leases_from_before_they_were_durable_are_in_the_next_checkpoint() -> None:
    driver = QueueDriver()
    driver.add(1, 2)
    driver.claim("w", 1)
    driver.put("q", type="queue", leases_durable=True)
    driver.claim("w", 1)
    driver.checkpoint()
    driver.kill()
    assert driver.counters() == Counters(0, 2, 0)


def test_jobs_in_segments_and_in_the_log_of_the_last_start_are_jobs() -> None:
    driver = QueueDriver()
    driver.add(*range(20))
    driver.checkpoint()
    driver.add(*range(10))
    driver.kill()
    driver.add(*range(5))
    assert driver.claimed_seqs("w", 3) == [1, 2, 3]
    seqs = driver.claimed_seqs("w", 100)
    while more := driver.claimed_seqs("w", 100):
        seqs += more
    assert seqs == list(range(4, 36))
    driver.ack("w", *range(1, 36, 2))
    driver.checkpoint()
    driver.kill()
    assert driver.counters() == Counters(17, 0, 0)


def test_what_a_power_loss_took_is_no_job() -> None:
    driver = QueueDriver(durability="disk")
    driver.add(1, 2)
    driver.lose_power(Damage.DROP)
    driver.add(3)
    assert [job.data for job in driver.claim("w", 9)][-1:] == [b"3"]
    assert driver.counters().ready == 0


def test_g06_a_crash_between_the_two_steps_of_a_move_leaves_one_copy() -> None:
    """The copy is logged with its note; the process dies before the job is deleted."""
    for shards in (1, 3):
        driver = QueueDriver(
            replace(SMALL, wal_shards=shards),
            max_deliveries=1,
            dead_letter="dead",
        )
        driver.put("dead")
        driver.add(1, 2)
        driver.claim("w", 2)
        driver.nack("w", 1)
        driver.start_claim()
        driver.topic("dead").shard.flush()
        assert driver.topic("dead").count == 1
        assert driver.topic("q").count == 2
        driver.kill()
        assert driver.letters() == [(1, 1)]
        assert driver.seqs(topic="q") == [2]
        driver.kill()
        driver.checkpoint()
        driver.kill()
        assert (driver.letters(), driver.seqs(topic="q")) == ([(1, 1)], [2])


def test_a_checkpoint_between_the_two_steps_of_a_move_forgets_neither() -> None:
    """The frame of the deletion would follow the position that the snapshot notes, but it is never written."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    driver = QueueDriver(ONE_SHARD, disk=disk, fs=faults, max_deliveries=1, dead_letter="dead")
    driver.put("dead")
    driver.add(1, 2)
    driver.claim("w", 2)
    driver.nack("w", 1)
    driver.start_claim()
    driver.opened.engine.wal.flush()
    assert (driver.topic("dead").count, driver.topic("q").count) == (1, 2)
    faults.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    driver.opened.checkpointer.start()
    driver.finish_checkpoints()
    assert driver.topic("q").count == 2
    faults.heal()
    driver.kill()
    assert driver.opened.report.snapshot_number == 1
    assert (driver.letters(), driver.seqs(topic="q")) == ([(1, 1)], [2])


def test_a_note_about_a_job_whose_seq_another_one_has_deletes_nothing() -> None:
    """In class `memory`, other records get the seqs that a power loss took."""
    driver = QueueDriver(max_deliveries=1, dead_letter="dead", durability="memory")
    driver.put("dead", durability="fsync")
    assert driver.topic("dead").shard is not driver.topic("q").shard
    driver.add("done")
    driver.claim("w")
    driver.ack("w", 1)
    driver.add("lost")
    driver.claim("w")
    driver.nack("w", 2)
    driver.claim("w")
    assert driver.letters() == [("lost", 2)]
    driver.clock.advance(5)
    driver.lose_power(Damage.DROP)
    assert driver.topic("q").head_seq == 1
    driver.delete("q", before_seq=2)
    driver.add("kept")
    driver.kill()
    assert driver.seqs(topic="q") == [2]
    assert [job.data for job in driver.claim("w", 9)] == [b'"kept"']


# Files that are slow.


def test_a_claim_waits_for_bytes_that_are_not_at_hand_without_the_owner() -> None:
    fs = CoolFs(FakeDisk())
    driver = QueueDriver(fs=fs)
    driver.add(*range(20))
    driver.checkpoint()
    slow = SteppedBackground()
    background = driver.runtime.background
    driver.runtime.background = (  # type: ignore[method-assign]
        lambda name: slow if name == "claims" else background(name)  # type: ignore[assignment, return-value]
    )
    fs.cool()
    answers = driver.start_claim("w", 3)
    driver.opened.engine.flush()
    joined = driver.start_claim("v", 3)
    driver.opened.engine.flush()
    assert (answers, joined) == ([], [])
    assert slow.step()
    shares = [[job.seq for job in driver.settle(answer).jobs] for answer in (answers, joined)]
    assert shares == [[1, 3, 5], [2, 4, 6]]


def test_a_job_that_cannot_be_read_now_fails_the_claim_and_stays() -> None:
    faults = FaultFs(FakeDisk())
    driver = QueueDriver(fs=faults)
    driver.add(*range(20))
    driver.checkpoint()
    driver.claim("w")
    faults.fail("pread", "map", "open", lasts=True, path=lambda path: "seg-" in path)
    driver.opened.engine.core.cache.close()
    with pytest.raises(ColdUnavailable):
        driver.claim("w")
    faults.heal()
    assert driver.claimed_seqs("w") == [2]


def test_a_damaged_job_stands_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    disk = FakeDisk()
    driver = QueueDriver(disk=disk, lease_ms=1000)
    driver.add(*[f"job-{number}" for number in range(1, 8)])
    driver.checkpoint()
    (path,) = [path for path in disk.files() if path.endswith(".data")]
    disk.poke(path, disk.read(path).index(b"job-3"), b"JOB")
    assert driver.claimed_seqs("w", 9) == [1, 2, 4, 5, 6, 7]
    assert 'job 3 of queue "q" is damaged' in caplog.text
    assert driver.counters() == Counters(0, 6, 0)
    driver.ack("w", 1, 2, 4, 5, 6, 7)
    driver.clock.advance(1000)
    assert driver.counters() == Counters(1, 0, 0), "it is tried again"
    assert driver.claim("w", 9) == []
    driver.delete("q", before_seq=4)
    assert driver.counters() == Counters(0, 0, 0)


def test_a_full_commit_queue_leaves_the_lease_where_it_is() -> None:
    driver = QueueDriver()
    driver.add(1)
    driver.claim("w")
    driver.opened.engine.wal.throttle(Throttled("wait"))
    with pytest.raises(Throttled):
        driver.ack("w", 1)
    driver.opened.engine.wal.throttle(None)
    assert driver.ack("w", 1).settled == 1


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_claim_whose_lease_cannot_be_logged_fails_and_delivers_nothing_g12(leases_durable: bool) -> None:
    driver = QueueDriver(leases_durable=leases_durable)
    driver.add(1, 2)
    driver.claim("w")
    driver.nack("w", 1)
    driver.opened.engine.wal.throttle(Throttled("wait"))
    if leases_durable:
        with pytest.raises(Throttled):
            driver.claim("w", 2)
        assert driver.counters() == Counters(2, 0, 0)
    driver.opened.engine.wal.throttle(None)
    assert [(job.seq, job.deliveries) for job in driver.claim("w", 2)] == [(1, 2), (2, 1)]


def test_the_first_claim_of_a_start_fails_when_no_ids_can_be_reserved() -> None:
    driver = QueueDriver()
    driver.add(1)
    driver.opened.engine.wal.throttle(Throttled("wait"))
    with pytest.raises(Throttled):
        driver.claim("w")
    driver.opened.engine.wal.throttle(None)
    assert driver.claim("w")[0].lease_id == 1
