"""Forwarding, case by case: when copies are made, when they are logged, and which copies a start makes again."""

import errno
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.engine.cold_log import ColdLog
from tests.engine.driver import SMALL, records
from tests.engine.router_driver import RouterDriver
from topics.engine.topic.router import RouterSpec
from topics.engine.writing.intake import NewRecord
from topics.errors import StorageFull, TopicExistsIncompatible, TopicNotFound
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


def test_the_background_pass_takes_a_bounded_number_of_records() -> None:
    driver = RouterDriver()
    driver.route()
    driver.append(*range(2500), topic="a")
    heads = []
    for _ in range(4):
        driver.opened.tick()
        heads.append(driver.topic("b").head_seq)
    assert heads == [1024, 2048, 2500, 2500]


def test_who_waits_for_the_dest_is_woken_by_a_copy() -> None:
    driver = RouterDriver()
    driver.route()
    woken: list[int] = []
    driver.opened.engine.wait_append("b", lambda: woken.append(1))
    driver.append(1, topic="a")
    assert woken == []
    driver.opened.tick()
    assert woken == [1]


def test_an_urgent_source_is_served_first() -> None:
    driver = RouterDriver()
    order: list[str] = []
    for name, priority in (("low", -5), ("high", 900), ("middle", 100)):
        driver.put(name, priority=priority)
        driver.route(name, f"{name}.copy")
        driver.append(1, topic=name)
        driver.opened.engine.wait_append(f"{name}.copy", lambda name=name: order.append(name))  # type: ignore[misc]
    driver.opened.tick()
    assert order == ["high", "middle", "low"]


def test_under_pressure_every_source_is_one_band_lower() -> None:
    """The lowest band has no lower one: its sources are served in the order in which they came."""
    driver = RouterDriver()
    driver.opened.engine.forwarder.lower(is_lowered=True)
    order: list[str] = []
    for name, priority in (("low", -5), ("high", 900), ("middle", 100), ("higher", 600)):
        driver.put(name, priority=priority)
        driver.route(name, f"{name}.copy")
        driver.append(1, topic=name)
        driver.opened.engine.wait_append(f"{name}.copy", lambda name=name: order.append(name))  # type: ignore[misc]
    driver.opened.tick()
    assert order == ["high", "higher", "low", "middle"]


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
    removed: list[str] = []
    answers: list[object] = []
    driver.opened.engine.delete_topic("a", if_empty=False, done=answers.append, removed=removed)
    assert driver.answer(answers) is True
    assert removed == ["a->b"]
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
    page = driver.read(topic="b")
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 8, "source_trim")
    assert driver.content() == [(9, 7), (10, 8), (11, 9)]
    assert driver.router().forwarded_total == 1 + 7 + 3
    driver.kill()
    assert driver.read(topic="b").tombstone == page.tombstone
    assert driver.content() == [(9, 7), (10, 8), (11, 9)]


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
    while len(seen) < 17:
        log.opened.tick()
        records, _ = log.read("b")
        seen += [len(record.data) for record in records]
        log.delete("b", before_seq=log.topic("b").head_seq + 1)
    assert seen == [log.size_of(number) for number in range(4, 21)]
    assert log.tier.calls_of_owner == []


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
