"""The rules of one topic: retention, tombstones, pages, deletion. The place of a record (memory or file) must not
matter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.driver import SMALL, Driver, seqs_of, values
from topics.errors import CorruptRecord, InvalidRequest, RecordTooLarge, TopicFull
from topics.results import NewRecord, Tombstone
from topics.testing.fake_disk import Damage

Settle = Callable[[Driver], None]


def stay(driver: Driver) -> None:
    pass


def seal_small(driver: Driver) -> None:
    driver.reopen(replace(SMALL, segment_events_max=2))


# Where records are read from after this step.
PLACES: dict[str, Settle] = {
    "tail": stay,
    "wal": Driver.kill,
    "segments": Driver.checkpoint,
    "small segments": seal_small,
}
everywhere = pytest.mark.parametrize("settle", PLACES.values(), ids=PLACES.keys())


# Retention by count.


@everywhere
def test_cap_3_and_six_single_writes_invariant_15(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_records=3)
    for number in range(6):
        driver.append(number)
    settle(driver)
    assert driver.numbers() == (6, 4, 3, 3)
    page = driver.read(0)
    assert page.tombstone == Tombstone(1, 3, "cap", 3, 4, 6)
    assert seqs_of(page.records) == [4, 5, 6]
    assert driver.read(3).tombstone is None


@everywhere
def test_a_cursor_right_below_the_floor_gets_no_tombstone_and_one_lower_does_invariant_16(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_records=2)
    driver.append(*range(5))
    settle(driver)
    assert driver.topic().live.evict_floor == 4
    assert driver.read(3).tombstone is None
    assert driver.read(2).tombstone == Tombstone(3, 3, "cap", 1, 4, 5)


def test_a_batch_larger_than_the_cap_is_accepted_and_its_head_part_evicted() -> None:
    driver = Driver()
    driver.put(cap_records=2)
    appended = driver.append(*range(5))
    assert (appended.first_seq, appended.last_seq, appended.count) == (1, 5, 5)
    assert driver.numbers() == (5, 4, 2, 2)
    assert driver.read(0).tombstone == Tombstone(1, 3, "cap", 3, 4, 5)


@everywhere
def test_deleted_slots_inside_the_window_occupy_room(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_records=3)
    driver.append(NewRecord(1), NewRecord(2, tag="x"), NewRecord(3))
    driver.delete(tag="x")
    driver.append(4)
    settle(driver)
    assert driver.seqs() == [3, 4]
    assert driver.topic().live.evict_floor == 2


# Retention by bytes.


@everywhere
def test_the_oldest_go_until_the_bytes_fit(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_bytes=10)
    for text in ("aa", "bb", "c"):
        driver.append(text)
    assert driver.numbers() == (3, 2, 2, 7)
    driver.append("dddddd")
    settle(driver)
    assert driver.numbers() == (4, 4, 1, 8)
    assert driver.read(0).tombstone == Tombstone(1, 3, "cap", 3, 4, 4)


@everywhere
def test_a_record_larger_than_the_byte_cap_is_accepted_and_evicted_itself(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_bytes=10)
    driver.append("aa", "bb")
    assert driver.append("x" * 20).last_seq == 3
    settle(driver)
    assert driver.numbers() == (3, 4, 0, 0)
    page = driver.read(0)
    assert (page.tombstone, page.next_from_seq, page.caught_up) == (Tombstone(1, 3, "cap", 3, 4, 3), 3, True)
    driver.append("b")
    assert driver.seqs(3) == [4]


def test_bytes_count_data_and_meta_and_nothing_else() -> None:
    driver = Driver()
    driver.append(NewRecord({"a": 1}, tag="a long tag", node="a long node", meta=[1]))
    assert driver.numbers() == (1, 1, 1, 7 + 3)


def test_writes_on_their_way_are_counted_against_the_byte_cap() -> None:
    driver = Driver()
    driver.put(cap_bytes=10)
    answers = [driver.start_append(["xx"]) for _ in range(5)]
    driver.opened.engine.flush()
    assert [answer[0].last_seq for answer in answers] == [1, 2, 3, 4, 5]
    assert driver.numbers() == (5, 4, 2, 8)
    driver.kill()
    assert driver.numbers() == (5, 4, 2, 8)


def test_records_that_expire_under_writes_on_their_way_do_not_let_the_topic_grow_over_its_cap() -> None:
    driver = Driver()
    driver.put(cap_bytes=8, ttl_ms=1000)
    driver.append("aa", "bb")
    driver.clock.advance(900)
    answers = [driver.start_append(["cc"])]
    driver.clock.advance(200)
    answers += [driver.start_append([payload]) for payload in ("dd", "ee")]
    driver.opened.engine.flush()
    assert all(len(answer) == 1 for answer in answers)
    assert driver.numbers() == (5, 4, 2, 8)


def test_records_deleted_under_writes_on_their_way_do_not_let_the_topic_grow_over_its_cap() -> None:
    driver = Driver()
    driver.put(cap_bytes=8, durability="memory")
    driver.append("aa", "bb")
    answers = [driver.start_append(["cc"])]
    driver.opened.engine.delete_records("t", lambda _: None, before_seq=2)
    answers += [driver.start_append([payload]) for payload in ("dd", "ee", "ff")]
    driver.opened.engine.flush()
    assert all(len(answer) == 1 for answer in answers)
    assert driver.numbers()[3] <= 8
    assert driver.seqs() == [5, 6]


# `reject`.


def test_a_full_topic_refuses_before_any_seq_is_taken_invariant_19() -> None:
    driver = Driver()
    driver.put(cap_records=3, discard="reject")
    driver.append(1, 2)
    with pytest.raises(TopicFull) as caught:
        driver.append(3, 4)
    assert caught.value.message == 'topic "t" is full'
    assert caught.value.detail == {"topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    assert driver.append(3).last_seq == 3
    assert driver.numbers() == (3, 1, 3, 3)
    driver.delete(before_seq=2)
    assert driver.append(4).last_seq == 4
    assert driver.read(0).tombstone is None


def test_a_write_larger_than_the_whole_cap_never_fits() -> None:
    driver = Driver()
    driver.put(cap_records=2, cap_bytes=10, discard="reject")
    for payloads in ([1, 2, 3], ["x" * 9]):
        with pytest.raises(RecordTooLarge) as caught:
            driver.append(*payloads)
        assert caught.value.message == 'the write is larger than the whole cap of topic "t"'
    assert driver.append("x" * 8).last_seq == 1
    with pytest.raises(TopicFull):
        driver.append(1)


def test_writes_on_their_way_take_room_in_a_reject_topic() -> None:
    driver = Driver()
    driver.put(cap_records=2, discard="reject")
    driver.start_append([1])
    driver.start_append([2])
    with pytest.raises(TopicFull):
        driver.start_append([3])
    driver.opened.engine.flush()
    assert driver.seqs() == [1, 2]


def test_ttl_makes_room_in_a_reject_topic() -> None:
    driver = Driver()
    driver.put(cap_records=2, discard="reject", ttl_ms=100)
    driver.append(1, 2)
    driver.clock.advance(101)
    assert driver.append(3).last_seq == 3
    assert driver.read(0).tombstone == Tombstone(1, 2, "ttl", 2, 3, 3)


@everywhere
def test_tightening_a_reject_topic_only_blocks_further_writes(settle: Settle) -> None:
    driver = Driver()
    driver.append(1, 2, 3)
    driver.put(cap_records=2, discard="reject")
    settle(driver)
    assert driver.numbers() == (3, 1, 3, 3)
    with pytest.raises(TopicFull):
        driver.append(4)


# TTL.


@everywhere
def test_a_record_is_delivered_at_age_exactly_ttl_and_not_later_invariant_18(settle: Settle) -> None:
    driver = Driver()
    driver.put(ttl_ms=1000)
    driver.append(1)
    driver.clock.advance(1)
    driver.append(2)
    settle(driver)
    driver.clock.advance(999)
    assert driver.seqs() == [1, 2]
    driver.clock.advance(1)
    assert driver.seqs() == [2]
    assert driver.read(0).tombstone == Tombstone(1, 1, "ttl", 1, 2, 2)
    driver.clock.advance(1)
    assert driver.numbers() == (2, 3, 0, 0)


@everywhere
def test_the_largest_ttl_is_no_expiry(settle: Settle) -> None:
    driver = Driver()
    driver.put(ttl_ms=2**64 - 1)
    driver.append(1)
    settle(driver)
    driver.clock.advance(10**12)
    assert driver.seqs() == [1]


@everywhere
def test_the_reason_says_which_floors_reach_the_gap_invariant_17(settle: Settle) -> None:
    driver = Driver()
    driver.put(cap_records=3, ttl_ms=100)
    driver.append(*range(5))
    driver.clock.advance(200)
    driver.append(6)
    settle(driver)
    page = driver.read(0)
    assert page.tombstone == Tombstone(1, 5, "mixed", 5, 6, 6)
    assert driver.read(3).tombstone == Tombstone(4, 5, "ttl", 2, 6, 6)
    assert driver.topic().live.cap_floor == 3


def test_what_expired_takes_no_room_under_a_byte_cap_after_a_restart() -> None:
    driver = Driver()
    driver.put(ttl_ms=100, cap_bytes=10)
    driver.append("aaaa")
    driver.clock.advance(101)
    driver.append("bbbb")
    driver.kill()
    assert driver.read().tombstone == Tombstone(1, 1, "ttl", 1, 2, 2)


@everywhere
def test_a_clock_that_steps_back_neither_lowers_times_nor_floors_f01(settle: Settle) -> None:
    driver = Driver()
    driver.put(ttl_ms=1000)
    driver.append(1)
    driver.clock.advance(1001)
    driver.append(2)
    settle(driver)
    assert driver.seqs() == [2]
    driver.clock.set(driver.clock.now_ms() - 3_600_000)
    first = driver.read(0).records[0].ts
    assert driver.append(3).ts == first
    assert driver.seqs() == [2, 3]
    assert driver.topic().live.ttl_floor == 1


@pytest.mark.parametrize("selector", [{"before_seq": 5}, {"tag": "x"}])
def test_what_expired_before_a_delete_is_told_as_expired_after_a_restart_invariant_11(selector: dict[str, Any]) -> None:
    driver = Driver()
    driver.put(ttl_ms=1000)
    driver.append(NewRecord(1, tag="x"), NewRecord(2, tag="x"))
    driver.clock.advance(900)
    driver.append(NewRecord(3, tag="x"))
    driver.clock.advance(101)
    assert driver.read().tombstone == Tombstone(1, 2, "ttl", 2, 3, 3)
    assert driver.delete(**selector).deleted == 1
    for _ in range(2):
        assert driver.read().tombstone == Tombstone(1, 2, "ttl", 2, 3, 3)
        driver.kill()


def test_dead_slots_in_front_do_not_expire_invariant_14() -> None:
    """Deleted records are not reported as lost, whatever their age."""
    driver = Driver()
    driver.put(ttl_ms=1000)
    driver.append(NewRecord(1, tag="x"), NewRecord(2, tag="x"))
    driver.clock.advance(900)
    driver.append(3)
    driver.delete(tag="x")
    driver.clock.advance(900)
    assert driver.read(0).tombstone is None
    driver.kill()
    assert driver.read(0).tombstone is None


def test_a_lost_range_keeps_its_reason_in_a_topic_with_a_ttl() -> None:
    driver = Driver()
    driver.put(ttl_ms=10_000)
    driver.append(1)
    driver.delete(before_seq=2)
    driver.checkpoint()
    driver.lose_power()
    driver.clock.advance(9_000)
    head = driver.append(2).last_seq
    driver.clock.advance(9_000)
    page = driver.read(1)
    assert page.tombstone == Tombstone(2, head - 1, "power_loss", head - 2, head, head)
    assert driver.topic().live.ttl_floor == 0


def test_a_cap_takes_nothing_from_a_lost_range_that_the_ttl_has_passed() -> None:
    driver = Driver()
    driver.put(ttl_ms=1000, cap_records=3)
    driver.append(1, 2)
    driver.checkpoint()
    driver.clock.advance(1001)
    driver.lose_power(Damage.DROP)
    head = driver.topic().head_seq
    assert head > 5
    for start in (driver.kill, driver.reopen, driver.kill):
        assert driver.topic().live.cap_floor == 0
        assert driver.read(0).tombstone == Tombstone(1, head, "ttl", head, head + 1, head)
        start()


# Reconfiguration.


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
@pytest.mark.parametrize(
    ("tight", "relaxed"),
    [
        ({"cap_records": 2}, {}),
        ({"cap_bytes": 2}, {}),
        ({"cap_bytes": 2}, {"discard": "reject"}),
        ({"cap_bytes": 2}, {"cap_bytes": 2}),
        ({"ttl_ms": 10}, {}),
        ({"ttl_ms": 10}, {"ttl_ms": 10**9}),
    ],
)
def test_relaxing_or_restarting_brings_nothing_back_invariant_20_and_c11(
    end: Settle, tight: dict[str, Any], relaxed: dict[str, Any]
) -> None:
    driver = Driver()
    driver.put(durability="fsync")
    driver.append(*range(5))
    driver.clock.advance(50)
    driver.append(5, 6)
    driver.put(durability="fsync", **tight)
    assert driver.seqs() == [6, 7]
    end(driver)
    assert driver.seqs() == [6, 7]
    driver.put(durability="fsync", **relaxed)
    assert driver.seqs() == [6, 7]
    end(driver)
    assert driver.seqs() == [6, 7]
    assert driver.topic().live.evict_floor == 6


def test_caps_count_writes_that_are_on_their_way_when_the_config_changes() -> None:
    driver = Driver()
    driver.put(cap_records=2)
    driver.start_append([1, 2, 3])
    driver.put()
    assert driver.seqs() == [2, 3]
    driver.kill()
    assert driver.seqs() == [2, 3]


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen], ids=["kill", "stop"])
def test_the_byte_cap_of_a_new_config_holds_for_writes_on_their_way(end: Settle) -> None:
    driver = Driver()
    driver.put()
    driver.start_append(["aa", "bb"])
    changed: list[Any] = []
    driver.opened.engine.put_topic("t", replace_config(driver, cap_bytes=8), changed.append)
    late = driver.start_append(["cc"])
    driver.opened.engine.flush()
    driver.opened.engine.flush()
    assert changed == [False]
    assert late[0].last_seq == 3
    assert driver.numbers() == (3, 2, 2, 8)
    end(driver)
    assert driver.numbers() == (3, 2, 2, 8)


def replace_config(driver: Driver, **members: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(driver.topic().config, **members)


# Reading.


def test_an_empty_topic_is_caught_up_at_zero() -> None:
    driver = Driver()
    driver.put()
    page = driver.read(0)
    assert (page.records, page.next_from_seq, page.caught_up, page.tombstone) == ([], 0, True, None)
    assert driver.numbers() == (0, 1, 0, 0)


def test_a_cursor_above_the_head_is_told_so_invariant_21() -> None:
    driver = Driver()
    driver.append(*range(9))
    driver.drop()
    driver.append(1, 2)
    page = driver.read(9)
    assert page.tombstone == Tombstone(1, 2, "recreated", 2, 1, 2)
    assert seqs_of(page.records) == [1, 2]
    assert driver.read(page.next_from_seq).tombstone is None


def test_a_stale_cursor_on_an_empty_topic_misses_one_by_definition() -> None:
    driver = Driver()
    driver.put()
    page = driver.read(7)
    assert page.tombstone == Tombstone(1, 0, "recreated", 1, 1, 0)
    assert (page.next_from_seq, page.caught_up) == (0, True)


@everywhere
def test_any_limit_and_budget_read_every_record_once_invariants_8_and_9(settle: Settle) -> None:
    driver = Driver()
    sizes = [1, 9, 3, 3, 20, 1, 1, 6, 2, 9, 9, 1]
    driver.append(*["x" * (size - 2) if size > 1 else 1 for size in sizes])
    driver.delete(tag="none")
    settle(driver)
    for limit in (1, 2, 5, 1000):
        for budget in (1, 4, 12, 1000):
            cursor, found = 0, []
            while True:
                page = driver.read(cursor, limit=limit, bytes_max=budget)
                size = sum(len(record.data) for record in page.records)
                assert len(page) <= limit
                assert size <= budget or len(page) == 1
                found += seqs_of(page.records)
                cursor = page.next_from_seq
                if page.caught_up:
                    break
                assert page.records, "at least one"
            assert found == list(range(1, 13))


def test_bounds_of_zero_mean_the_default_and_large_ones_are_clamped() -> None:
    driver = Driver()
    driver.append(*range(1200))
    assert len(driver.read(0, limit=0)) == 256
    assert len(driver.read(0, limit=5000)) == 1000
    assert len(driver.read(0, limit=1, bytes_max=0)) == 1


@pytest.mark.parametrize("bounds", [{"from_seq": -1}, {"limit": -1}, {"bytes_max": -1}])
def test_negative_bounds_are_refused(bounds: dict[str, int]) -> None:
    driver = Driver()
    driver.append(1)
    with pytest.raises(InvalidRequest) as caught:
        driver.opened.engine.read("t", **bounds)
    assert caught.value.message == "from_seq, limit and bytes_max are not negative"


@everywhere
def test_a_reader_never_gets_its_own_records_and_still_catches_up_invariant_27(settle: Settle) -> None:
    driver = Driver()
    driver.append(NewRecord(1, node="a"), NewRecord(2, node="b"), NewRecord(3), NewRecord(4, node=""))
    settle(driver)
    page = driver.read(0, nodes=frozenset([b"a"]))
    assert (values(page), page.caught_up, page.records_scanned) == ([2, 3, 4], True, 4)
    assert values(driver.read(0, nodes=frozenset([b"a", b"b", b""]))) == [3]
    assert values(driver.read(0, limit=1, nodes=frozenset([b"a"]))) == [2]
    page = driver.read(1, limit=1, nodes=frozenset([b"b"]))
    assert (values(page), page.next_from_seq) == ([3], 3)
    driver.put(dedupe_node=False)
    assert values(driver.read(0, nodes=frozenset([b"a"]))) == [1, 2, 3, 4]


def test_a_page_of_filtered_records_only_is_empty_and_caught_up() -> None:
    driver = Driver()
    driver.append(NewRecord(1, node="a"), NewRecord(2, node="a"))
    page = driver.read(0, limit=1, nodes=frozenset([b"a"]))
    assert (page.records, page.next_from_seq, page.caught_up, page.tombstone) == ([], 2, True, None)


@everywhere
def test_a_page_does_not_go_through_everything_that_is_filtered_and_the_next_goes_on(settle: Settle) -> None:
    driver = Driver(replace(SMALL, segment_events_max=1000))
    for _ in range(2):
        driver.append(*[NewRecord(0, node="a")] * 3000)
    driver.append(1, NewRecord(2, node="a"), 3)
    settle(driver)
    page = driver.read(0, limit=10, nodes=frozenset([b"a"]))
    assert 0 < page.next_from_seq == page.records_scanned <= 10 * 10 + 5000
    assert (page.records, page.caught_up, page.lag) == ([], False, 6003 - page.next_from_seq)
    found: list[int] = []
    while not page.caught_up:
        page = driver.read(page.next_from_seq, limit=1, nodes=frozenset([b"a"]))
        found += values(page)
    assert found == [1, 3]


@everywhere
def test_a_page_does_not_go_through_everything_that_is_deleted_and_the_next_goes_on(settle: Settle) -> None:
    driver = Driver(replace(SMALL, segment_events_max=10_000))
    driver.append(0)
    driver.append(*[NewRecord(0, tag="x")] * 6000)
    driver.append(1)
    driver.delete(tag="x")
    settle(driver)
    page = driver.read(0, limit=2)
    assert (values(page), page.caught_up) == ([0], False)
    assert page.next_from_seq <= 2 * 10 + 5000
    assert driver.seqs(limit=2) == [1, 6002]


@everywhere
def test_a_few_large_records_are_not_all_read_for_a_small_page(settle: Settle) -> None:
    driver = Driver(replace(SMALL, segment_events_max=100, wal_file_bytes=1 << 20))
    for number in range(30):
        driver.append(str(number) * 5000)
    settle(driver)
    page = driver.read(0, bytes_max=25_000)
    assert seqs_of(page.records) == [1, 2, 3, 4]
    assert driver.seqs(limit=100) == list(range(1, 31))


# Damage.


@pytest.mark.parametrize("place", ["wal", "segments", "small segments"])
def test_a_page_ends_before_a_damaged_record_and_the_next_read_names_it_c06(place: str) -> None:
    driver = Driver()
    driver.append(*[f"record {number}" for number in range(1, 6)])
    PLACES[place](driver)
    # The file is damaged while the engine runs. Damage that a start finds is another case.
    path = next(
        path
        for path, content in driver.disk.files().items()
        if b"record 3" in content and (path.endswith(".data") or place == "wal")
    )
    driver.disk.poke(path, driver.disk.read(path).index(b"record 3"), b"R")
    page = driver.read(0)
    assert (values(page), page.next_from_seq, page.caught_up) == (["record 1", "record 2"], 2, False)
    with pytest.raises(CorruptRecord) as caught:
        driver.read(2)
    assert caught.value.detail == {"topic": "t", "seq": 3}
    assert caught.value.message.startswith('record 3 of topic "t" is damaged (')
    assert caught.value.message.endswith("; read on with from_seq=3, and run `topics verify` on the data directory")
    assert values(driver.read(3)) == ["record 4", "record 5"]
    driver.delete(before_seq=4)
    assert values(driver.read(0)) == ["record 4", "record 5"]


# Deletion.


@everywhere
def test_deleted_counts_live_records_only_and_repeating_gives_0_invariant_22(settle: Settle) -> None:
    driver = Driver()
    driver.append(*[NewRecord(n, tag="x" if n % 2 else "y") for n in range(1, 11)])
    settle(driver)
    assert driver.delete(tag="x").deleted == 5
    assert driver.delete(tag="x").deleted == 0
    settle(driver)
    assert driver.delete(tag_prefix="").deleted == 5
    assert driver.numbers() == (10, 11, 0, 0)
    settle(driver)
    assert driver.delete(before_seq=2**64 - 1).deleted == 0
    assert driver.read(0).tombstone is None


@everywhere
def test_a_match_with_before_seq_removes_the_intersection_only_invariant_24(settle: Settle) -> None:
    driver = Driver()
    driver.append(*[NewRecord(n, tag="x" if n % 2 else None) for n in range(1, 11)])
    settle(driver)
    deleted = driver.delete(tag="x", before_seq=6)
    assert (deleted.deleted, deleted.earliest_seq, deleted.head_seq, deleted.count) == (3, 2, 10, 7)
    assert driver.seqs() == [2, 4, 6, 7, 8, 9, 10]
    assert driver.topic().live.delete_below == 0


@everywhere
@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen], ids=["kill", "stop"])
@pytest.mark.parametrize("selector", [{"before_seq": 2**64 - 1}, {"tag": "x"}, {"tag_prefix": "x"}])
def test_records_written_after_a_delete_are_untouched_by_it_invariants_23_and_25(
    settle: Settle, end: Settle, selector: dict[str, Any]
) -> None:
    driver = Driver()
    driver.append(*[NewRecord(n, tag="x") for n in range(1, 10)])
    settle(driver)
    assert driver.delete(**selector).deleted == 9
    driver.append(NewRecord(10, tag="x"), NewRecord(11, tag="x"))
    for _ in range(3):
        assert driver.seqs() == [10, 11]
        end(driver)
    driver.checkpoint()
    end(driver)
    assert driver.seqs() == [10, 11]
    assert driver.numbers()[1:] == (10, 2, 4)


def test_a_delete_reaches_tail_wal_active_and_sealed_segments_alike() -> None:
    driver = Driver(replace(SMALL, segment_events_max=4, tail_cache_bytes=0))
    tagged = [NewRecord(n, tag=f"x{n % 2}") for n in range(1, 7)]
    driver.append(*tagged)
    driver.checkpoint()
    driver.append(*tagged)
    driver.kill()
    driver.append(*tagged)
    assert driver.delete(tag="x1").deleted == 9
    assert driver.seqs() == list(range(2, 19, 2))
    driver.kill()
    assert driver.seqs() == list(range(2, 19, 2))
    driver.checkpoint()
    driver.kill()
    assert driver.seqs() == list(range(2, 19, 2))
    assert driver.delete(tag_prefix="x").deleted == 9
    assert driver.numbers() == (18, 19, 0, 0)


def test_tags_of_the_active_segment_are_found_after_a_start_and_another_checkpoint() -> None:
    """The index is loaded from the file when first asked for: each seq once, in order."""
    driver = Driver(replace(SMALL, segment_events_max=100))
    driver.append(NewRecord(1, tag="x"), NewRecord(2, tag="x"))
    driver.reopen()
    driver.append(NewRecord(3, tag="x"), NewRecord(4, tag="x"))
    driver.checkpoint()
    driver.append(NewRecord(5, tag="x"))
    assert driver.topic().live.tagged_seqs(b"x", is_prefix=False, end_seq=100) == [1, 2, 3, 4, 5]
    assert driver.topic().live.tagged_seqs(b"", is_prefix=True, end_seq=5) == [1, 2, 3, 4]
    assert driver.delete(tag="x").deleted == 5


def test_deleting_moves_the_first_live_record_but_not_the_evict_floor_invariant_14() -> None:
    driver = Driver()
    driver.append(1, 2, 3)
    driver.delete(before_seq=3)
    assert (driver.topic().live.evict_floor, driver.topic().earliest_seq) == (1, 3)
    page = driver.read(0)
    assert (page.tombstone, seqs_of(page.records), page.earliest_seq) == (None, [3], 3)


def test_a_tombstone_may_be_lower_than_what_the_page_begins_with() -> None:
    driver = Driver()
    driver.put(cap_records=4)
    driver.append(*range(6))
    driver.delete(before_seq=5)
    page = driver.read(0)
    assert page.tombstone == Tombstone(1, 2, "cap", 2, 3, 6)
    assert (page.earliest_seq, seqs_of(page.records)) == (5, [5, 6])


# Lost ranges.


def test_the_rest_after_a_power_loss_is_one_tombstone_invariants_12_and_40() -> None:
    driver = Driver()
    driver.append(1, 2)
    driver.checkpoint()
    driver.append(3)
    driver.lose_power(Damage.DROP)
    head = driver.topic().head_seq
    assert head >= 3
    assert seqs_of(driver.read(0).records) == [1, 2]
    page = driver.read(2)
    assert page.tombstone == Tombstone(3, head, "power_loss", head - 2, head + 1, head)
    assert (page.records, page.next_from_seq, page.caught_up) == ([], head, True)
    assert driver.read(5).tombstone == Tombstone(6, head, "power_loss", head - 5, head + 1, head)
    assert driver.append(4).first_seq == head + 1
    page = driver.read(2)
    assert (page.tombstone is not None, seqs_of(page.records)) == (True, [head + 1])
    driver.kill()
    assert driver.seqs() == [1, 2, head + 1]


def test_a_lost_range_behind_an_evicted_one_is_told_by_the_next_read() -> None:
    driver = Driver()
    driver.append(*range(4))
    driver.checkpoint()
    driver.append(5)
    driver.lose_power(Damage.DROP)
    head = driver.topic().head_seq
    driver.append(6)
    driver.put(cap_records=4)
    driver.append(7, 8)
    page = driver.read(0)
    assert page.tombstone == Tombstone(1, 3, "cap", 3, 4, head + 3)
    assert seqs_of(page.records) == [4]
    page = driver.read(page.next_from_seq)
    assert page.tombstone == Tombstone(5, head, "power_loss", head - 4, head + 1, head + 3)
    assert seqs_of(page.records) == [head + 1, head + 2, head + 3]


# While a checkpoint is under way.


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
@pytest.mark.parametrize("selector", [{"tag": "x"}, {"before_seq": 8, "tag_prefix": "x"}, {"before_seq": 9}])
def test_what_is_deleted_during_a_checkpoint_stays_deleted_invariants_23_and_25(
    steps: int, end: Settle, selector: dict[str, Any]
) -> None:
    driver = Driver(replace(SMALL, segment_events_max=4))
    driver.put(durability="fsync")
    driver.append(*[NewRecord(n, tag="x" if n % 3 else None) for n in range(1, 7)])
    driver.checkpoint()
    driver.append(*[NewRecord(n, tag="x" if n % 3 else None) for n in range(7, 13)])
    driver.opened.checkpointer.start()
    for _ in range(steps):
        driver.runtime.checkpoints.step()
    driver.delete(**selector)
    driver.append(NewRecord(13, tag="x"))
    left = driver.seqs()
    numbers = driver.numbers()
    if end is not Driver.reopen:
        end(driver)
        assert (driver.seqs(), driver.numbers()) == (left, numbers)
    driver.finish_checkpoints()
    assert (driver.seqs(), driver.numbers()) == (left, numbers)
    for _ in range(2):
        driver.checkpoint()
        end(driver)
        assert (driver.seqs(), driver.numbers()) == (left, numbers)


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("tight", [{"cap_records": 3}, {"cap_bytes": 5}, {"ttl_ms": 10}])
def test_what_is_evicted_during_a_checkpoint_stays_away_invariant_20(steps: int, tight: dict[str, Any]) -> None:
    driver = Driver(replace(SMALL, segment_events_max=4))
    driver.append(*range(6))
    driver.checkpoint()
    driver.append(*range(6))
    driver.clock.advance(50)
    driver.append(7, 8, 9)
    driver.opened.checkpointer.start()
    for _ in range(steps):
        driver.runtime.checkpoints.step()
    driver.put(**tight)
    left = driver.seqs()
    assert len(left) in (3, 5)
    driver.finish_checkpoints()
    driver.put()
    for end in (Driver.kill, Driver.reopen, Driver.kill):
        assert driver.seqs() == left
        assert driver.numbers()[1:3] == (left[0], len(left))
        end(driver)
