"""Forwarding, case by case: when copies are made, when they are logged, and which copies a start makes again."""

import errno
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.engine.cold_log import ColdLog
from tests.engine.driver import SMALL, records
from tests.engine.router_driver import RouterDriver
from topics.engine.topic.router import Router, RouterSpec
from topics.errors import StorageFull, TopicExistsIncompatible, TopicNotFound
from topics.limits import FORWARD_RETRY_MS_MIN
from topics.results import NewRecord
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs


def test_a_source_write_adds_the_same_frames_whatever_the_number_of_routers_invariant_32() -> None:
    counts = []
    for dests in (0, 1, 5):
        driver = RouterDriver()
        driver.put("a")
        for number in range(dests):
            driver.route("a", f"dest{number}")
        driver.append(0, topic="a")
        before = driver.frames()
        driver.append(1, 2, 3, topic="a")
        for number in range(dests):
            assert driver.payloads(f"dest{number}") == [0, 1, 2, 3]
        counts.append(driver.frames() - before)
    assert len(set(counts)) == 1


def test_the_nth_copy_has_the_nth_seq_behind_the_dest_base() -> None:
    driver = RouterDriver()
    driver.append("old", "older", topic="b")
    driver.append("not copied", topic="a")
    driver.route()
    assert driver.router().dest_base == 2
    driver.append(1, topic="a")
    driver.append(2, topic="a")
    assert driver.content()[2:] == [(3, 1), (4, 2)]
    driver.kill()
    assert driver.content()[2:] == [(3, 1), (4, 2)]


# When copies are made.


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_copies_follow_the_publication_without_a_read_or_a_tick_and_after_the_answer(durability: str) -> None:
    driver = RouterDriver()
    driver.put("a", durability=durability)
    driver.put("b", durability=durability)
    driver.route()
    heads: list[int] = []
    driver.opened.engine.append("a", records(1, 2), lambda _: heads.append(driver.topic("b").head_seq))
    driver.opened.engine.flush()
    assert heads == [0], "the write is answered first"
    driver.take_turns()
    assert driver.stored() == [(1, 1), (2, 2)]


def test_a_chain_of_derived_copies_is_made_in_one_turn() -> None:
    driver = RouterDriver()
    chain = ("a", "b", "c", "d", "e")
    for source, dest in pairwise(chain):
        driver.route(source, dest)
    driver.append(1, topic="a")
    assert driver.take_turns() == 1
    assert [driver.stored(topic) for topic in chain] == [[(1, 1)]] * 5


def test_a_chain_of_logged_copies_follows_by_itself() -> None:
    driver = RouterDriver()
    chain = ("a", "b", "c", "d", "e")
    for source, dest in pairwise(chain):
        driver.put(dest, ttl_ms=60_000)
        driver.route(source, dest)
    driver.append(1, topic="a")
    driver.take_turns()
    assert [driver.stored(topic) for topic in chain] == [[(1, 1)]] * 5


def test_a_pass_takes_a_bounded_number_of_records_and_the_rest_comes_in_later_turns() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(*range(2500), topic="a")
    heads = [driver.topic("b").head_seq]
    while driver.runtime.take_turn():
        heads.append(driver.topic("b").head_seq)
    assert heads == [0, 1024, 2048, 2500]


def test_there_are_turns_between_the_copies_of_a_fan_out() -> None:
    driver = RouterDriver()
    dests = [f"dest{number}" for number in range(30)]
    for dest in dests:
        driver.route("a", dest)
    driver.append(1, topic="a")
    counts = []
    while driver.runtime.take_turn():
        counts.append(sum(driver.topic(dest).head_seq for dest in dests))
    assert counts == [8, 16, 24, 30]


def test_a_fan_out_that_always_has_new_records_starves_none_of_its_routers() -> None:
    driver = RouterDriver()
    dests = [f"dest{number}" for number in range(50)]
    for dest in dests:
        driver.route("a", dest)
    for number in range(14):
        driver.append(number, topic="a")
        assert driver.runtime.take_turn()
    assert {driver.router(f"a->{dest}").cursor > 7 for dest in dests} == {True}, "each had its step in both rounds"


def test_a_cycle_leaves_turns_to_others_and_ends() -> None:
    driver = RouterDriver()
    driver.route("a", "b")
    driver.route("b", "a", allow_cycle=True)
    driver.append(*range(500), topic="a")
    turns = driver.take_turns()
    assert turns >= 4000 // 1024, "no turn copies more than two passes' worth"
    assert (driver.topic("a").head_seq, driver.topic("b").head_seq) == (2500, 2000)


def test_who_waits_for_the_dest_is_woken_by_a_copy() -> None:
    driver = RouterDriver()
    driver.route()
    woken: list[int] = []
    driver.opened.engine.wait_append("b", lambda: woken.append(1))
    driver.append(1, topic="a")
    assert woken == []
    driver.take_turns()
    assert woken == [1]


def test_only_what_is_held_back_waits_for_a_tick() -> None:
    driver = RouterDriver()
    driver.put("b", cap_records=2, discard="reject")
    driver.route()
    assert not driver.opened.tick(), "with nothing held back no tick is needed"
    driver.append(1, 2, 3, 4, topic="a")
    driver.take_turns()
    assert driver.stored() == [(1, 1), (2, 2)]
    assert driver.opened.tick()
    assert driver.take_turns() == 0, "a full dest costs no turns"
    driver.delete("b", before_seq=3)
    driver.opened.tick()
    driver.take_turns()
    assert driver.stored() == [(3, 3), (4, 4)]
    driver.clock.advance(1000)
    driver.opened.tick()
    assert not driver.opened.tick()


def test_a_router_that_is_held_back_delays_no_other_router_of_its_source() -> None:
    driver = RouterDriver()
    driver.put("full", cap_records=1, discard="reject")
    driver.route("a", "full")
    driver.route("a", "b")
    for number in range(3):
        driver.append(number, topic="a")
        driver.take_turns()
    assert driver.stored("full") == [(1, 0)]
    assert driver.stored("b") == [(1, 0), (2, 1), (3, 2)]


def test_routers_that_were_behind_at_a_kill_catch_up_with_the_first_tick() -> None:
    driver = RouterDriver()
    driver.put("b", ttl_ms=60_000)
    driver.route()
    driver.append(1, topic="a")
    driver.kill()
    driver.opened.tick()
    assert driver.stored() == [(1, 1)]


# Which source is served first.


def served_in_order(driver: RouterDriver, sources: Iterable[str]) -> list[str]:
    """Writes a record to each source, and notes the order in which the copies come."""
    order: list[str] = []
    for source in sources:
        driver.opened.engine.wait_append(f"{source}.copy", partial(order.append, source))
        driver.append(1, topic=source)
    return order


def sources_by_priority(driver: RouterDriver, priorities: dict[str, int], count: int = 1) -> list[str]:
    """Creates `count` sources of each priority, each with a router."""
    names = [f"{name}{place}" for name in priorities for place in range(count)]
    for name in names:
        driver.put(name, priority=priorities[name.rstrip("0123456789")])
        driver.route(name, f"{name}.copy")
    return names


def test_every_round_serves_every_band_by_its_weight() -> None:
    driver = RouterDriver()
    bands = {"low": -5, "middle": 100, "high": 300, "higher": 600, "highest": 900}
    order = served_in_order(driver, sources_by_priority(driver, bands, count=20))
    driver.take_turns()
    first_round = [name.rstrip("0123456789") for name in order[:16]]
    assert first_round == ["highest"] * 8 + ["higher"] * 4 + ["high"] * 2 + ["middle", "low"]
    assert len(order) == 100


def test_under_pressure_every_source_is_one_band_lower() -> None:
    """The lowest band has no lower one: its sources are served in the order in which they came."""
    driver = RouterDriver()
    driver.opened.engine.forwarder.lower(is_lowered=True)
    bands = {"low": -5, "high": 900, "middle": 100, "higher": 600}
    order = served_in_order(driver, sources_by_priority(driver, bands))
    driver.take_turns()
    assert order == ["high0", "higher0", "low0", "middle0"]


@pytest.mark.parametrize(("waited_ms", "first"), [(0, "urgent0"), (4900, "urgent0"), (10_000, "patient0")])
def test_a_source_that_waits_becomes_more_urgent(waited_ms: int, first: str) -> None:
    driver = RouterDriver()
    names = sources_by_priority(driver, {"patient": 0, "urgent": 600})
    order = served_in_order(driver, names[:1])
    driver.clock.advance(waited_ms)
    driver.opened.engine.wait_append("urgent0.copy", partial(order.append, "urgent0"))
    driver.append(1, topic="urgent0")
    driver.take_turns()
    assert order[0] == first
    assert len(order) == 2


# What is copied, and what a start makes of it.


def test_copies_of_what_the_source_lost_since_are_there_after_a_kill() -> None:
    driver = RouterDriver()
    driver.put("a", cap_records=2)
    driver.route()
    for number in range(8):
        driver.append(number, topic="a")
        driver.payloads()
    before = driver.content()
    assert len(before) == 8
    driver.kill()
    assert driver.content() == before
    driver.append(8, topic="a")
    driver.checkpoint()
    driver.kill()
    assert driver.payloads() == list(range(9))


def test_a_copy_outlives_its_deleted_source_record_also_after_a_kill() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(1, 2, 3, topic="a")
    assert driver.payloads() == [1, 2, 3]
    driver.delete("a", before_seq=3)
    driver.append(4, topic="a")
    driver.kill()
    assert driver.content() == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_record_deleted_before_its_turn_is_not_copied() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(1, 2, 3, topic="a")
    driver.delete("a", seqs=[2])
    assert driver.content() == [(1, 1), (2, 3)]
    assert driver.router().forwarded_total == 2
    driver.kill()
    assert driver.content() == [(1, 1), (2, 3)]


def test_copies_of_a_removed_source_stay() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(1, 2, topic="a")
    removed: list[Router] = []
    answers: list[object] = []
    driver.opened.engine.delete_topic("a", if_empty=False, done=answers.append, removed=removed)
    assert driver.answer(answers) is True
    assert [router.name for router in removed] == ["a->b"]
    driver.kill()
    assert driver.content() == [(1, 1), (2, 2)]
    assert not driver.opened.engine.routers
    driver.route()
    driver.append(3, topic="a")
    assert driver.payloads() == [1, 2, 3]


def test_a_source_trim_is_a_tombstone_and_counts_invariants_33_and_35() -> None:
    driver = RouterDriver()
    driver.put("a", cap_records=3)
    driver.route(filter="x")
    driver.append(NewRecord(1, tag="x"), NewRecord(2), topic="a")
    assert driver.payloads() == [1]
    driver.append(*[NewRecord(number, tag="x") for number in range(10)], topic="a")
    for _ in range(2):
        assert driver.gaps() == [(2, 8, "source_trim")]
        assert driver.content() == [(1, 1), (9, 7), (10, 8), (11, 9)]
        assert driver.router().forwarded_total == 1 + 7 + 3
        driver.kill()


@pytest.mark.parametrize("end", ["kill", "reopen", "lose_power", "checkpoint"])
def test_a_source_trim_takes_no_record_of_dest_n15(end: str) -> None:
    """An `fsync` dest of 100 records keeps all of them when one write to its capped source evicts ten that were not
    copied."""
    driver = RouterDriver()
    driver.put("a", durability="fsync", cap_records=10)
    driver.put("b", durability="fsync")
    driver.route()
    for number in range(10):
        driver.append(*range(number * 10, number * 10 + 10), topic="a")
        assert len(driver.payloads()) == number * 10 + 10
    driver.append(*range(100, 120), topic="a")
    for _ in range(2):
        assert driver.gaps() == [(101, 110, "source_trim")]
        assert driver.payloads() == [*range(100), *range(110, 120)]
        assert driver.topic("b").count == 110
        assert driver.router().forwarded_total == 120
        getattr(driver, end)()
    driver.append(*range(120, 140), topic="a")
    driver.append(140, topic="a")
    assert driver.gaps() == [(101, 110, "source_trim"), (121, 131, "source_trim")]
    assert driver.topic("b").live.lost.pairs("source_trim") == [(101, 110), (121, 131)]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_jobs_of_a_full_queue_stay_when_its_source_is_trimmed_n15(durability: str) -> None:
    """Ranges that touch are one. Claims pass over them."""
    driver = RouterDriver()
    driver.put("a", durability="fsync", cap_records=4)
    driver.put("b", type="queue", durability=durability, cap_records=5, discard="reject")
    driver.append(*range(5), topic="b")
    driver.route()
    for number in range(10, 20):
        driver.append(number, topic="a")
        assert driver.payloads() == list(range(5))
    assert driver.gaps() == [(6, 11, "source_trim")]
    assert driver.router().forwarded_total == 6
    claimed: list[Any] = []
    driver.opened.engine.queues.claim("b", "w", 10, None, claimed.append)
    for _ in range(4):
        driver.opened.engine.flush()
    assert [job.seq for job in claimed[0].jobs] == [1, 2, 3, 4, 5]
    driver.delete("b", before_seq=4)
    assert driver.content() == [(4, 3), (5, 4), (12, 16), (13, 17), (14, 18)]
    driver.opened.engine.queues.claim("b", "v", 10, None, claimed.append)
    for _ in range(4):
        driver.opened.engine.flush()
    assert [job.seq for job in claimed[1].jobs] == [12, 13, 14]


def test_holes_of_a_source_trim_take_no_room_under_a_cap() -> None:
    driver = RouterDriver()
    driver.put("a", cap_records=2)
    driver.put("b", cap_records=4)
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.append(*range(3, 9), topic="a")
    assert driver.content() == [(1, 1), (2, 2), (7, 7), (8, 8)]
    driver.append(9, topic="a")
    assert driver.content() == [(2, 2), (7, 7), (8, 8), (9, 9)]
    driver.append(10, 11, topic="a")
    assert driver.gaps() == [(1, 7, "cap")], "a range below the floor is forgotten"
    driver.kill()
    assert driver.content() == [(8, 8), (9, 9), (10, 10), (11, 11)]
    assert driver.topic("b").live.lost.pairs() == []


@pytest.mark.parametrize("end", ["kill", "reopen"])
def test_a_source_trim_in_a_cycle_is_told_as_often_as_a_record_is_copied_and_ends_invariant_38(end: str) -> None:
    """Each lost record would have come to each topic four more times."""
    driver = RouterDriver()
    driver.put("a", cap_records=2)
    driver.route("a", "b")
    driver.route("b", "a", allow_cycle=True)
    driver.append(*range(5), topic="a")
    assert driver.take_turns() < 30
    heads = driver.topic("a").head_seq, driver.topic("b").head_seq
    assert heads == (5 + 4 * 5, 4 * 5)
    assert sum(last - first + 1 for first, last, _ in driver.gaps("b")) == 4 * 3
    assert driver.router("b->a").forwarded_total == 4 * 5
    getattr(driver, end)()
    driver.take_turns()
    assert (driver.topic("a").head_seq, driver.topic("b").head_seq) == heads


def test_what_expired_before_its_turn_is_trimmed() -> None:
    driver = RouterDriver()
    driver.put("a", ttl_ms=100)
    driver.route()
    driver.append(1, topic="a")
    driver.clock.advance(101)
    driver.append(2, topic="a")
    page = driver.read(topic="b")
    assert page.tombstone is not None
    assert page.tombstone.reason == "source_trim"
    assert driver.content() == [(2, 2)]


def test_a_full_dest_holds_its_router_back_invariant_34() -> None:
    driver = RouterDriver()
    driver.put("b", cap_records=2, discard="reject")
    driver.route()
    driver.append(1, 2, 3, 4, 5, topic="a")
    assert driver.payloads() == [1, 2]
    driver.kill()
    assert driver.payloads() == [1, 2]
    driver.delete("b", before_seq=2)
    assert driver.payloads() == [2, 3]
    assert driver.router().forwarded_total == 3


def test_the_quota_holds_a_router_back() -> None:
    driver = RouterDriver(replace(SMALL, total_bytes_max=5))
    driver.route()
    driver.append(1, 2, 3, topic="a")
    assert driver.payloads() == [1, 2]


def test_a_chain_is_brought_up_to_date_from_its_far_end() -> None:
    driver = RouterDriver()
    for number in range(8):
        driver.route(f"t{number}", f"t{number + 1}")
    driver.route("t8", "t9")
    driver.append("x", topic="t0")
    assert driver.payloads("t8") == ["x"]
    assert driver.payloads("t9") == []
    assert driver.router("t8->t9").cursor == 1


def test_a_diamond_copies_once_on_each_side_h03() -> None:
    driver = RouterDriver()
    driver.route("a", "left")
    driver.route("a", "right")
    driver.route("left", "bottom")
    with pytest.raises(TopicExistsIncompatible):
        driver.route("right", "bottom")
    driver.append(1, topic="a")
    assert (driver.payloads("right"), driver.payloads("bottom")) == ([1], [1])


def test_exactly_once_needs_the_key_of_a_live_record_to_suppress() -> None:
    driver = RouterDriver()
    driver.route(guarantee="exactly_once")
    driver.append(1, topic="a")
    (copy,) = driver.records()
    assert copy.meta is not None
    origin = msgspec.json.decode(copy.meta)["_topics_router"]
    by_hand = [
        NewRecord("by hand", meta={"_topics_router": {**origin, "idempotency_key": origin["idempotency_key"][:-1] + n}})
        for n in "23"
    ]
    driver.answer(driver.start_append(records(*by_hand), topic="b"))
    driver.delete("b", seqs=[3])
    driver.append(2, 3, topic="a")
    assert driver.payloads() == [1, "by hand", 3]
    assert driver.router().forwarded_total == 3
    driver.kill()
    assert driver.payloads() == [1, "by hand", 3]
    assert driver.router().forwarded_total == 3


def test_a_copy_that_would_be_too_large_waits() -> None:
    driver = RouterDriver()
    driver.route(guarantee="exactly_once")
    driver.append(NewRecord(1, meta={"m": "x" * 16_300}), 2, topic="a")
    assert driver.payloads() == []
    driver.route(guarantee="at_least_once")
    assert driver.payloads() == [1, 2]


def test_copies_of_an_ephemeral_source_are_logged() -> None:
    driver = RouterDriver()
    driver.put("a", durability="ephemeral")
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.kill()
    assert driver.payloads() == [1, 2]
    driver.append(3, topic="a")
    assert driver.payloads() == [1, 2, 3]


def test_a_dest_that_becomes_stored_goes_on_behind_what_it_had() -> None:
    driver = RouterDriver()
    driver.put("b", durability="ephemeral")
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.put("b", durability="disk")
    driver.append(3, topic="a")
    assert driver.content() == [(1, 1), (2, 2), (3, 3)]
    driver.kill()
    assert driver.content() == [(3, 3)]


def test_a_direct_write_that_fails_leaves_the_copies_and_their_order() -> None:
    faults = FaultFs(FakeDisk())
    driver = RouterDriver(fs=faults)
    driver.route()
    driver.append(1, topic="a")
    assert driver.payloads() == [1]
    faults.fail("pwrite", error=errno.ENOSPC, path=lambda path: "/wal/" in path, lasts=True)
    with pytest.raises(StorageFull):
        driver.append("direct", topic="b")
    faults.heal()
    driver.append(2, topic="a")
    driver.append("direct", topic="b")
    assert driver.content() == [(1, 1), (2, "direct"), (3, 2)]


def test_a_queue_that_is_fed_hands_out_copies_at_once() -> None:
    driver = RouterDriver()
    driver.put("b", type="queue")
    driver.route()
    driver.append(1, topic="a")
    answers: list[object] = []
    driver.opened.engine.queues.claim("b", "w", 1, None, answers.append)
    driver.opened.engine.flush()
    driver.opened.engine.flush()
    (claimed,) = answers
    assert [job.seq for job in claimed.jobs] == [1]  # type: ignore[attr-defined]


def test_another_shard_count_keeps_copies_and_cursors() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.kill(replace(SMALL, wal_shards=3))
    driver.append(3, topic="a")
    assert driver.content() == [(1, 1), (2, 2), (3, 3)]
    driver.kill()
    assert driver.content() == [(1, 1), (2, 2), (3, 3)]


def test_a_dest_that_is_not_there_cannot_be_read() -> None:
    driver = RouterDriver()
    assert driver.opened.engine.bring_up_to_date("nothing")
    with pytest.raises(TopicNotFound):
        driver.read(topic="nothing")


# A source or a dest in the cold tier.


def routed(log: ColdLog, **spec: Any) -> None:
    answers: list[Any] = []
    log.engine.put_router("r", RouterSpec(source="a", dest="b", **spec), answers.append)
    log.engine.flush()
    assert answers == [True]


def test_a_router_that_was_held_back_copies_from_a_source_that_is_cold_by_now() -> None:
    log = ColdLog(FakeDisk())
    log.create("a", durability="fsync")
    log.create("b", durability="fsync", cap_records=3, discard="reject")
    routed(log)
    for number in range(1, 21):
        log.write(number)
    log.opened.tick()
    log.settle()
    assert log.topic("b").head_seq == 3
    assert log.topic("a").live.segments.is_cold(4)
    seen: list[int] = []
    log.tier.fail_after(0)
    log.delete("b", before_seq=4)
    log.opened.tick()
    assert log.topic("b").head_seq == 3, "the tier does not answer, and nothing is lost"
    log.tier.heal()
    log.clock.advance(FORWARD_RETRY_MS_MIN)
    while len(seen) < 17:
        log.opened.tick()
        records, _ = log.read("b")
        seen += [len(record.data) for record in records]
        log.delete("b", before_seq=log.topic("b").head_seq + 1)
    assert seen == [log.size_of(number) for number in range(4, 21)]
    assert log.tier.calls_of_owner == []


def test_a_router_that_cannot_read_its_source_tries_again_less_and_less_often() -> None:
    log = ColdLog(FakeDisk())
    log.create("a", durability="fsync")
    log.create("b", durability="fsync", cap_records=1, discard="reject")
    routed(log)
    for number in range(1, 21):
        log.write(number)
    log.opened.tick()
    log.settle()
    log.tier.fail_after(0)
    log.delete("b", before_seq=2)
    log.clock.advance(1000)
    router = log.engine.router("r")
    assert router.failure_count == 1
    tries: list[int] = []
    failures = 1
    for ms in range(0, 60_000, 50):
        must_come_soon = log.engine.forwarder.tick()
        log.engine.flush()
        if router.failure_count > failures:
            tries.append(ms)
            failures = router.failure_count
            assert not must_come_soon, "nothing polls until the next try"
        log.clock.advance(50)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits[:7] == [200, 400, 800, 1600, 3200, 6400, 10_000]
    assert set(waits[7:]) == {10_000}
    log.tier.heal()
    log.clock.advance(10_000)
    log.engine.forwarder.tick()
    log.engine.flush()
    assert [len(record.data) for record in log.read("b")[0]] == [log.size_of(2)]
    assert (router.failure_count, router.retry_at_ms) == (0, 0)


def test_an_exact_router_looks_into_a_cold_dest_for_copies_that_are_there() -> None:
    """The dest was searched, and the copy that was found there is cold when its source record comes up."""
    disk = FakeDisk()
    log = ColdLog(disk)
    log.create("a", durability="fsync")
    log.create("b", durability="fsync")
    routed(log, guarantee="exactly_once")
    for number in range(1, 16):
        log.write(number)
    log.opened.tick()
    log.settle()
    assert log.topic("b").live.segments.is_cold(1)
    disk.kill()
    log = ColdLog(disk)
    for number in range(16, 19):
        log.write(number)
    for _ in range(3):
        log.opened.tick()
        log.engine.flush()
    records, _ = log.read("b")
    assert [log.size_of(number) for number in range(1, 19)] == [
        len(msgspec.json.encode(msgspec.json.decode(record.data))) for record in records
    ]
    assert log.tier.calls_of_owner == []


# Callers that wait for copies.


def test_a_read_of_a_dest_copies_a_bounded_number_of_records_in_a_turn() -> None:
    driver = RouterDriver()
    driver.route("a", "b")
    driver.route("b", "c")
    driver.append(*range(5000), topic="a")
    woken: list[int] = []
    assert not driver.opened.engine.when_up_to_date("c", lambda: woken.append(driver.topic("c").head_seq))
    copied = [driver.topic("b").head_seq + driver.topic("c").head_seq]
    while driver.runtime.take_turn():
        driver.opened.engine.flush()
        copied.append(driver.topic("b").head_seq + driver.topic("c").head_seq)
    assert woken == [5000]
    # A turn makes a pass for the caller, a pass of the ready sources, and finishes the pass of a chain.
    assert max(after - before for before, after in pairwise([0, *copied])) <= 4 * 1024


def test_a_caller_does_not_wait_for_records_that_were_written_after_it_asked() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(*range(3000), topic="a")
    woken: list[int] = []
    assert not driver.opened.engine.when_up_to_date("b", lambda: woken.append(driver.router().cursor))
    for _ in range(20):
        # More records than a turn copies.
        driver.append(*range(5000), topic="a")
        driver.runtime.take_turn()
        driver.opened.engine.flush()
    assert len(woken) == 1
    assert 3000 <= woken[0] < driver.topic("a").head_seq - 10_000


def test_callers_of_many_dests_share_the_copies_of_a_turn() -> None:
    driver = RouterDriver()
    dests = [f"dest{number}" for number in range(5)]
    for dest in dests:
        driver.route("a", dest)
    driver.append(*range(2000), topic="a")
    woken: list[str] = []
    for dest in dests:
        assert not driver.opened.engine.when_up_to_date(dest, partial(woken.append, dest))
    heads = sum(driver.topic(dest).head_seq for dest in dests)
    assert heads <= 1024, "the calls of one turn copy no more than one of them"
    driver.take_turns()
    assert sorted(woken) == dests


def test_a_stop_ends_the_wait_for_copies() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(*range(3000), topic="a")
    woken: list[int] = []
    assert not driver.opened.engine.when_up_to_date("b", lambda: woken.append(1))
    driver.reopen()
    assert woken == [1]
    assert len(driver.payloads()) == 3000


def test_a_turn_copies_few_large_records() -> None:
    driver = RouterDriver(replace(SMALL, wal_file_bytes=1 << 24))
    driver.route()
    for number in range(9):
        driver.append(f"{number}" * 600_000, topic="a")
    assert not driver.opened.engine.bring_up_to_date("b")
    heads = [driver.topic("b").head_seq]
    while driver.runtime.take_turn():
        heads.append(driver.topic("b").head_seq)
    assert heads == [2, 4, 6, 8, 9]
