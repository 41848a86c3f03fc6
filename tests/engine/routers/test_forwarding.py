"""Forwarding, case by case: when copies are made, when they are logged, and which copies a start makes again."""

import errno
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.engine.driver import SMALL, records
from tests.engine.router_driver import RouterDriver
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
