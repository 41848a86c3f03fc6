"""Calls on the engine: their answers, the moment of each answer, and calls that are not answered yet."""

import errno
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.driver import ROOT, SMALL, Driver, records, seqs_of, untimed, values
from topics.engine.config import TopicConfig
from topics.engine.topic.appended import Appended
from topics.errors import (
    Closed,
    InvalidRequest,
    StorageFull,
    Throttled,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
    WalFailed,
)
from topics.results import NewRecord, Tombstone
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

CLASSES = ("ephemeral", "memory", "disk", "fsync")
STORED = ("memory", "disk", "fsync")


def faulty(settings: Any = None) -> tuple[Driver, FaultFs]:
    disk = FakeDisk()
    fs = FaultFs(disk)
    return Driver(settings or replace(SMALL, wal_shards=1), disk=disk, fs=fs), fs


def is_wal(path: str) -> bool:
    return "/wal" in path


# Topics.


def test_put_creates_once_and_then_replaces_the_whole_config() -> None:
    driver = Driver()
    assert driver.put(cap_records=3, ttl_ms=5) is True
    assert driver.put(cap_bytes=7) is False
    assert driver.topic().config == TopicConfig(cap_bytes=7)


@pytest.mark.parametrize("name", ["", ".x", "-x", "a b", "a/b", "a>b", "é", "x" * 256, "x\n"])
def test_a_name_is_checked_when_something_is_created(name: str) -> None:
    driver = Driver()
    message = f"{name!r} is not a topic name: 1 to 255 letters, digits and . _ : - with a letter or digit first"
    for call in (lambda: driver.put(name), lambda: driver.append(1, topic=name)):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.message == message
    with pytest.raises(TopicNotFound):
        driver.read(topic=name)
    assert driver.drop(name) is False


def test_the_longest_and_the_oddest_names_are_fine() -> None:
    driver = Driver()
    for name in ("x" * 255, "0", "A.b_c:d-e", "x..", "COM1"):
        assert driver.put(name) is True
    driver.reopen()
    assert len(driver.opened.engine.topics) == 5


def test_the_type_of_a_topic_is_fixed() -> None:
    driver = Driver()
    driver.put(type="queue")
    with pytest.raises(TopicExistsIncompatible) as caught:
        driver.put()
    assert caught.value.message == 'topic "t" is a queue'
    assert caught.value.detail == {"topic": "t", "existing_type": "queue", "requested_type": "log"}


def test_what_does_not_exist_is_said_to() -> None:
    driver = Driver()
    for call in (driver.read, lambda: driver.delete(before_seq=1), lambda: driver.append(1, create=False)):
        with pytest.raises(TopicNotFound) as caught:
            call()
        assert caught.value.message == 'topic "t" does not exist'
        assert caught.value.detail == {"topic": "t"}
    assert driver.drop() is False


def test_a_queue_is_not_its_own_dead_letter() -> None:
    driver = Driver()
    engine = driver.opened.engine
    config = TopicConfig(type="queue", dead_letter="t")
    with pytest.raises(InvalidRequest) as refused:
        engine.put_topic("t", config, pytest.fail)
    assert refused.value.detail == {"dead_letter": "t"}
    with pytest.raises(InvalidRequest) as refused:
        engine.append("t", records(1), pytest.fail, config=config)
    assert refused.value.detail == {"dead_letter": "t"}
    driver.put(type="queue", dead_letter="u")
    with pytest.raises(InvalidRequest):
        driver.put(type="queue", dead_letter="t")
    assert driver.put("log", dead_letter="log") is True


def test_a_name_is_told_before_the_size_of_the_write() -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest):
        driver.opened.engine.append(
            ".x", records(1, 2), pytest.fail, config=TopicConfig(discard="reject", cap_records=1)
        )


def test_auto_create_of_the_inline_config_is_asked_when_the_write_does_not_say() -> None:
    driver = Driver()
    answers: list[Any] = []
    config = TopicConfig(auto_create=False, cap_records=2)
    with pytest.raises(TopicNotFound):
        driver.opened.engine.append("t", records(1), answers.append, config=config)
    driver.opened.engine.append("t", records(1), answers.append, config=config, create=True)
    assert driver.answer(answers).created is True
    assert driver.topic().config == config


def test_a_drop_ends_the_instance_invariant_21() -> None:
    driver = Driver()
    driver.append(1, 2, key="k")
    first_id = driver.topic().id
    with pytest.raises(TopicNotEmpty) as caught:
        driver.drop(if_empty=True)
    assert (caught.value.message, caught.value.detail) == ('topic "t" is not empty', {"topic": "t", "count": 2})
    assert driver.drop() is True
    assert driver.drop() is False
    again = driver.append(3, key="k")
    assert (again.first_seq, again.created, again.deduped) == (1, True, False)
    assert driver.topic().id > first_id
    driver.kill()
    assert values(driver.read()) == [3]


def test_an_empty_topic_is_dropped_also_if_it_must_be_empty() -> None:
    driver = Driver()
    driver.append(1)
    driver.delete(before_seq=2)
    assert driver.drop(if_empty=True) is True


def test_the_number_of_topics_is_bounded() -> None:
    driver = Driver(replace(SMALL, topics_max=2))
    driver.put("a")
    driver.append(1, topic="b")
    for call in (lambda: driver.put("c"), lambda: driver.append(1, topic="c")):
        with pytest.raises(Throttled) as caught:
            call()
        assert caught.value.message == "there are 2 topics already"
        assert caught.value.detail == {"limit": "max_topics", "max": 2}
    driver.put("a", cap_records=1)
    driver.drop("a")
    assert driver.put("c") is True


def test_the_live_bytes_of_all_topics_are_bounded() -> None:
    driver = Driver(replace(SMALL, total_bytes_max=10))
    driver.append("xxxx", topic="a")
    with pytest.raises(Throttled) as caught:
        driver.append("xxx", topic="b")
    assert caught.value.message == "the server's byte quota is used up"
    assert caught.value.detail == {"limit": "max_total_bytes", "max": 10}
    assert list(driver.opened.engine.topics) == ["a"], "a refused write creates nothing"
    driver.drop("a")
    assert driver.append("xxx", topic="b").last_seq == 1
    with pytest.raises(Throttled):
        driver.append("xxxx", topic="b")
    driver.delete(topic="b", before_seq=2)
    assert driver.append("xxxx", topic="b").last_seq == 2


def test_new_limits_count_from_the_next_call_on_and_noted_writes_stay() -> None:
    driver = Driver()
    driver.append("xxxx", topic="a")
    engine = driver.opened.engine
    noted = driver.start_append(["xxxx"], topic="a")
    engine.change_limits(topics_max=1, routers_max=1, total_bytes_max=14)
    assert driver.answer(noted).last_seq == 2
    for payload, topic in (("xxxx", "a"), ("x", "b")):
        with pytest.raises(Throttled):
            driver.append(payload, topic=topic)
    engine.change_limits(topics_max=0, routers_max=0, total_bytes_max=0)
    assert driver.append("xxxx", topic="a").last_seq == 3
    assert driver.append("x", topic="b").last_seq == 1


def test_calls_during_a_drop_meet_the_next_instance() -> None:
    driver = Driver()
    driver.append(1, 2)
    dropped: list[Any] = []
    driver.opened.engine.delete_topic("t", if_empty=False, done=dropped.append)
    late = driver.start_append([3])
    config: list[Any] = []
    driver.opened.engine.put_topic("t", TopicConfig(cap_records=5), config.append)
    again: list[Any] = []
    driver.opened.engine.delete_topic("nothing", if_empty=False, done=again.append)
    for _ in range(3):
        driver.opened.engine.flush()
    assert (dropped, again, config) == ([True], [False], [False])
    assert (late[0].first_seq, late[0].created) == (1, True)
    assert driver.topic().config.cap_records == 5


def test_writes_during_a_change_of_config_wait_for_it() -> None:
    driver = Driver()
    driver.put(durability="ephemeral")
    driver.append(1)
    changed: list[Any] = []
    driver.opened.engine.put_topic("t", TopicConfig(durability="fsync"), changed.append)
    late = driver.start_append([2])
    assert late == []
    driver.opened.engine.flush()
    driver.opened.engine.flush()
    assert changed == [False]
    assert late[0].first_seq == 2
    driver.lose_power()
    assert driver.seqs() == [2]
    assert driver.read().tombstone == Tombstone(1, 1, "power_loss", 1, 2, 2)


def test_a_refused_change_lets_the_waiting_writes_go_on() -> None:
    driver, fs = faulty()
    driver.append(1)
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    changed: list[Any] = []
    driver.opened.engine.put_topic("t", TopicConfig(cap_records=1), changed.append)
    late = driver.start_append([2])
    driver.opened.engine.flush()
    fs.heal()
    driver.opened.engine.flush()
    assert isinstance(changed[0], StorageFull)
    assert late[0].last_seq == 2
    assert driver.topic().config == TopicConfig()


# Appending.


@pytest.mark.parametrize("durability", CLASSES)
def test_seqs_are_contiguous_from_1_invariants_1_and_4(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability)
    now_ms = driver.clock.now_ms()
    assert untimed(driver.append(1, 2, 3)) == Appended("t", 1, 3, 3, 3, now_ms, False, False)
    assert untimed(driver.append(4)) == Appended("t", 4, 4, 4, 1, now_ms, False, False)
    assert seqs_of(driver.read().records) == [1, 2, 3, 4]


@pytest.mark.parametrize("durability", STORED)
def test_a_staged_write_is_invisible(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability)
    driver.start_append([1])
    assert driver.numbers() == (0, 1, 0, 0)
    assert driver.read().caught_up
    driver.opened.engine.flush()
    assert driver.numbers() == (1, 1, 1, 1)


def test_writes_of_one_turn_are_answered_in_order_invariant_2() -> None:
    driver = Driver()
    answers = [driver.start_append([number] * (number % 3 + 1)) for number in range(20)]
    driver.opened.engine.flush()
    spans = [(answer[0].first_seq, answer[0].last_seq) for answer in answers]
    assert spans[0][0] == 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))
    assert driver.topic().head_seq == spans[-1][1] == sum(number % 3 + 1 for number in range(20))
    assert [answer[0].created for answer in answers] == [True] + [False] * 19
    driver.kill()
    assert driver.seqs(limit=100) == list(range(1, spans[-1][1] + 1))


@pytest.mark.parametrize("durability", STORED)
def test_a_write_without_room_changes_nothing_and_can_be_tried_again_invariant_3(durability: str) -> None:
    driver, fs = faulty()
    driver.put(durability=durability)
    driver.append(1)
    before = driver.numbers()
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    with pytest.raises(StorageFull) as caught:
        driver.append(2, 3)
    assert caught.value.message == "no space or no file descriptors left; nothing was written"
    assert driver.numbers() == before
    fs.heal()
    assert driver.append(4).first_seq == 2
    driver.kill()
    assert values(driver.read()) == [1, 4]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_topic_that_cannot_be_created_answers_its_first_writes(durability: str) -> None:
    driver, fs = faulty()
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    answers: list[Any] = []
    config = TopicConfig(durability=durability)  # type: ignore[arg-type]
    for _ in range(2):
        driver.opened.engine.append("t", records(1), answers.append, config=config)
    driver.opened.engine.flush()
    assert [type(answer) for answer in answers] == [StorageFull, StorageFull]
    with pytest.raises(TopicNotFound):
        driver.topic()
    fs.heal()
    assert driver.append(1).first_seq == 1


@pytest.mark.parametrize("durability", STORED)
def test_a_failed_sync_answers_everything_that_waits_for_it(durability: str) -> None:
    """A `disk` write whose frames are on disk still waits for its reservation, and that is never synced."""
    driver, fs = faulty()
    driver.put(durability=durability)
    fs.fail("fdatasync", path=is_wal, lasts=True)
    answers = [driver.start_append([1]), driver.start_append([2], key="k")]
    driver.opened.engine.flush()
    if durability == "memory":
        assert [answer[0].last_seq for answer in answers] == [1, 2]
        return
    assert [type(answer[0]) for answer in answers] == [WalFailed, WalFailed]
    message = "WAL shard 0 is read-only after a failed sync; check the disk, then restart"
    assert (answers[0][0].message, answers[0][0].detail) == (message, {"shard": 0})
    assert driver.numbers() == (0, 1, 0, 0)
    with pytest.raises(WalFailed):
        driver.append(3)
    assert driver.read().caught_up, "reads go on"


def test_a_failed_sync_of_the_creation_answers_writes_that_are_committed() -> None:
    driver, fs = faulty()
    fs.fail("fdatasync", path=is_wal, lasts=True)
    answers: list[Any] = []
    for durability in ("ephemeral", "memory"):
        config = TopicConfig(durability=durability)  # type: ignore[arg-type]
        driver.opened.engine.append(durability, records(1), answers.append, config=config)
    driver.opened.engine.flush()
    assert [type(answer) for answer in answers] == [WalFailed, WalFailed]


def test_a_refused_reservation_is_asked_for_again() -> None:
    driver, fs = faulty()
    driver.put()
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    answers = [driver.start_append([0] * 200), driver.start_append([1] * 200, key="k")]
    driver.opened.engine.flush()
    assert [type(answer[0]) for answer in answers] == [StorageFull, StorageFull]
    fs.heal()
    for number in range(3):
        assert driver.append(*[number] * 200).first_seq == 1 + 200 * number
    driver.lose_power(Damage.DROP)
    assert driver.topic().head_seq >= 600


# Idempotency keys.


@pytest.mark.parametrize("durability", CLASSES)
def test_the_same_key_within_the_window_appends_once_invariant_28(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability, idempotency_window_ms=100)
    first = driver.append(1, 2, key="k")
    driver.append(3)
    driver.clock.advance(99)
    again = driver.append("other payload", key="k")
    assert again == Appended("t", 1, 2, 2, 2, first.ts, False, True)
    assert driver.topic().head_seq == 3


def test_the_same_key_on_its_way_twice_appends_once_invariant_28() -> None:
    driver = Driver()
    answers = [driver.start_append([number], key="k") for number in range(4)]
    driver.opened.engine.flush()
    assert [answer[0].deduped for answer in answers] == [False, True, True, True]
    assert {(answer[0].first_seq, answer[0].last_seq) for answer in answers} == {(1, 1)}
    assert values(driver.read()) == [0]


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
def test_a_key_is_known_across_a_restart_until_its_window_ends_invariant_29_and_h13(end: Any) -> None:
    driver = Driver()
    driver.put(durability="fsync", idempotency_window_ms=100)
    driver.append(1, 2, key="k")
    driver.append(3, key="")
    driver.clock.advance(99)
    end(driver)
    assert driver.append(4, key="k") == Appended("t", 1, 2, 2, 2, driver.clock.now_ms() - 99, False, True)
    assert driver.append(4, key="").deduped is True
    driver.clock.advance(1)
    assert driver.append(4, key="k").first_seq == 4


def test_a_key_used_again_does_not_prolong_the_window_of_others_after_a_restart() -> None:
    driver = Driver()
    driver.put(idempotency_window_ms=100)
    driver.append(1, key="a")
    driver.clock.advance(50)
    driver.append(2, key="b")
    driver.clock.advance(50)
    driver.append(3, key="a")
    driver.clock.advance(50)
    driver.kill()
    assert driver.append(4, key="b").deduped is False
    assert driver.append(5, key="a").deduped is True


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
def test_a_key_of_a_stored_class_survives_a_time_as_ephemeral_and_a_checkpoint_in_it(end: Any) -> None:
    driver = Driver()
    driver.put(durability="fsync")
    stored = driver.append(1, key="stored")
    driver.put(durability="ephemeral")
    driver.append(2, key="in memory")
    driver.checkpoint()
    end(driver)
    assert driver.append(3, key="in memory").deduped is False
    repeat = driver.append(3, key="stored")
    assert (repeat.deduped, repeat.first_seq, repeat.ts) == (True, stored.first_seq, stored.ts)


def test_a_key_of_an_ephemeral_write_is_stored_with_its_records_once_the_class_is() -> None:
    driver = Driver()
    driver.put(durability="ephemeral")
    driver.append(1, key="k")
    driver.put(durability="fsync")
    driver.checkpoint()
    driver.lose_power()
    assert driver.append(2, key="k").deduped is True
    assert values(driver.read()) == [1]


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("end", [None, Driver.kill, Driver.reopen, Driver.lose_power])
def test_a_key_whose_window_has_ended_does_not_come_back_with_a_longer_one(checkpoint: bool, end: Any) -> None:
    driver = Driver()
    driver.put(durability="fsync", idempotency_window_ms=100)
    driver.append(1, key="old")
    driver.clock.advance(60)
    driver.append(2, key="new")
    driver.put(durability="fsync", idempotency_window_ms=50)
    driver.put(durability="fsync", idempotency_window_ms=10_000)
    if checkpoint:
        driver.checkpoint()
    if end is not None:
        end(driver)
    assert driver.append(3, key="old").deduped is False
    assert driver.append(3, key="new").deduped is True


def test_a_failed_write_is_not_remembered_h11() -> None:
    driver, fs = faulty()
    driver.put()
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    answers = [driver.start_append([1], key="k") for _ in range(2)]
    driver.opened.engine.flush()
    assert [type(answer[0]) for answer in answers] == [StorageFull, StorageFull]
    fs.heal()
    assert driver.append(1, key="k").deduped is False
    assert driver.append(1, key="k").deduped is True


def test_a_repeat_is_answered_even_by_a_full_topic() -> None:
    driver = Driver()
    driver.put(cap_records=1, discard="reject")
    driver.append(1, key="k")
    assert driver.append(1, key="k").deduped is True


def test_a_window_of_0_remembers_nothing() -> None:
    driver = Driver()
    driver.put(idempotency_window_ms=0)
    assert [driver.append(1, key="k").deduped for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("x" * 257, "an idempotency key has at most 256 bytes"),
        ("é" * 129, "an idempotency key has at most 256 bytes"),
        ("\ud800", "the idempotency key is not valid Unicode"),
    ],
)
def test_a_key_is_a_short_string(key: str, message: str) -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest) as caught:
        driver.append(1, key=key)
    assert caught.value.message == message
    assert driver.opened.engine.topics == {}
    assert driver.append(1, key="é" * 128).last_seq == 1


# Deleting.


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({}, "say what to delete: before_seq, a tag, or both"),
        ({"tag": "a", "tag_prefix": "b"}, "delete by a tag or by a prefix of it, not both"),
        ({"before_seq": -1}, "before_seq is out of range"),
        ({"before_seq": 2**64}, "before_seq is out of range"),
        ({"tag": "\ud800"}, "the tag is not valid Unicode"),
        ({"tag_prefix": "\ud800"}, "the tag is not valid Unicode"),
    ],
)
def test_a_bad_selector_is_refused_and_nothing_is_logged(selector: dict[str, Any], message: str) -> None:
    """A frame that cannot be read would make the next start fail."""
    driver = Driver()
    driver.append(1)
    with pytest.raises(InvalidRequest) as caught:
        driver.delete(**selector)
    assert caught.value.message == message
    driver.kill()
    assert driver.seqs() == [1]


def test_a_bad_selector_is_told_before_the_topic_is_looked_for() -> None:
    with pytest.raises(InvalidRequest):
        Driver().delete("nowhere")


@pytest.mark.parametrize("durability", STORED)
def test_a_delete_that_cannot_be_logged_deletes_nothing(durability: str) -> None:
    driver, fs = faulty()
    driver.put(durability=durability)
    driver.append(1, 2)
    fs.fail("pwrite", error=errno.ENOSPC, path=is_wal, lasts=True)
    with pytest.raises(StorageFull):
        driver.delete(before_seq=2)
    assert driver.seqs() == [1, 2]


def test_a_delete_does_not_reach_writes_on_their_way_invariant_23() -> None:
    driver = Driver()
    driver.append(1)
    driver.start_append([2])
    assert driver.delete(before_seq=2**64 - 1).deleted == 1
    assert driver.seqs() == [2]
    driver.kill()
    assert driver.seqs() == [2]


def test_a_delete_says_what_is_left() -> None:
    driver = Driver()
    driver.append(NewRecord("aa", tag="x"), NewRecord("b"))
    deleted = driver.delete(tag="x")
    assert (deleted.topic, deleted.deleted, deleted.earliest_seq, deleted.head_seq) == ("t", 1, 2, 2)
    assert (deleted.count, deleted.size_bytes) == (1, 3)


# Durability classes.


@pytest.mark.parametrize("durability", STORED)
def test_a_kill_takes_nothing_and_the_head_is_exact_invariant_40(durability: str) -> None:
    driver = Driver()
    driver.put(durability=durability)
    driver.append(1, 2, 3)
    for _ in range(2):
        driver.kill()
        assert driver.numbers() == (3, 1, 3, 3)
    assert driver.append(4).first_seq == 4


def test_fsync_keeps_everything_answered_invariant_39() -> None:
    driver = Driver()
    driver.put(durability="fsync")
    driver.append(NewRecord(1, tag="t", node="n", meta={"m": 1}), 2)
    before = driver.read().records
    for damage in Damage:
        driver.lose_power(damage, seed=1)
        assert driver.read().records == before
    assert driver.numbers()[0] == 2


def test_memory_may_lose_a_suffix_and_takes_its_seqs_again() -> None:
    driver = Driver()
    driver.put(durability="memory")
    driver.append(1)
    driver.checkpoint()
    driver.append(2)
    driver.lose_power(Damage.DROP)
    assert driver.numbers() == (1, 1, 1, 1)
    assert driver.append(3).first_seq == 2
    assert driver.read(2).tombstone is None


def test_ephemeral_keeps_its_config_and_the_head_of_the_last_checkpoint_invariant_41() -> None:
    driver = Driver()
    driver.put(durability="ephemeral", cap_records=9)
    driver.append(1, 2)
    driver.kill()
    assert driver.topic().config == TopicConfig(durability="ephemeral", cap_records=9)
    assert driver.numbers() == (0, 1, 0, 0)
    driver.append(1, 2, 3)
    driver.checkpoint()
    driver.append(4)
    for _ in range(2):
        driver.kill()
        assert driver.numbers() == (3, 4, 0, 0)
        assert driver.read().tombstone == Tombstone(1, 3, "power_loss", 3, 4, 3)
        assert driver.topic().live.lost.pairs() == [(1, 3)]
    driver.append(5)
    driver.reopen()
    assert driver.read().tombstone == Tombstone(1, 4, "power_loss", 4, 5, 4)


def test_floors_fall_back_with_the_head_of_an_ephemeral_topic() -> None:
    """Other records will get the seqs that these keys belong to."""
    driver = Driver()
    driver.put(durability="ephemeral")
    driver.append(1, 2, 3, 4)
    driver.put(durability="ephemeral", cap_records=3)
    assert driver.seqs() == [2, 3, 4]
    driver.kill()
    driver.append(1, 2)
    assert driver.seqs() == [1, 2]
    assert driver.read().tombstone is None


@pytest.mark.parametrize("end", [Driver.kill, Driver.lose_power], ids=["kill", "power loss"])
def test_records_of_a_stored_class_survive_a_time_as_ephemeral(end: Any) -> None:
    driver = Driver()
    driver.append(1, 2)
    driver.put(durability="ephemeral")
    driver.append(3)
    driver.put(durability="fsync")
    driver.append(4)
    assert driver.seqs() == [1, 2, 3, 4]
    end(driver)
    assert driver.seqs() == [1, 2, 4]
    assert driver.read(2).tombstone == Tombstone(3, 3, "power_loss", 1, 4, 4)
    assert driver.append(5).first_seq == 5


def test_a_checkpoint_saves_what_was_written_while_ephemeral() -> None:
    driver = Driver()
    driver.put(durability="ephemeral")
    driver.append(1, 2)
    driver.put(durability="disk")
    driver.append(3)
    driver.checkpoint()
    driver.lose_power()
    assert driver.seqs()[:3] == [1, 2, 3]


@pytest.mark.parametrize("end", [Driver.kill, Driver.lose_power], ids=["kill", "power loss"])
def test_a_key_is_known_when_an_unfinished_checkpoint_saved_what_was_written_while_ephemeral_n18(end: Any) -> None:
    """The record has no frame, and neither had its key: the repeated write was appended once more."""
    kept = 0
    for steps in range(5):
        driver = Driver()
        driver.append(0)
        driver.checkpoint()
        driver.put(durability="ephemeral")
        first = driver.append(1, 2, key="k")
        driver.put(durability="fsync")
        driver.opened.checkpointer.start()
        for _ in range(steps):
            driver.runtime.checkpoints.step()
        end(driver)
        is_kept = driver.seqs() == [1, 2, 3]
        kept += is_kept
        again = driver.append(1, 2, key="k")
        assert again.deduped == is_kept, f"after {steps} steps of the checkpoint"
        assert not is_kept or again.first_seq == first.first_seq
    assert 0 < kept < 5


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
def test_a_checkpoint_beside_a_longer_window_keeps_the_key_n18(end: Any) -> None:
    """The old window ends while the new config is being logged. The config was asked for before, so the key is known:
    before the end of the process and after it."""
    driver = Driver()
    driver.put(durability="fsync", idempotency_window_ms=60)
    driver.append(1, key="k")
    answers: list[Any] = []
    config = TopicConfig(durability="fsync", idempotency_window_ms=2000)
    driver.opened.engine.put_topic("t", config, answers.append)
    driver.clock.advance(100)
    driver.opened.checkpointer.start()
    driver.finish_checkpoints()
    driver.opened.engine.flush()
    driver.finish_checkpoints()
    assert answers == [False]
    assert driver.append(1, key="k").deduped
    end(driver)
    assert driver.append(1, key="k").deduped


@pytest.mark.parametrize("end", [Driver.kill, Driver.reopen, Driver.lose_power], ids=["kill", "stop", "power loss"])
def test_what_is_deleted_while_ephemeral_stays_deleted_invariant_25(end: Any) -> None:
    driver = Driver()
    driver.append(NewRecord(1, tag="x"), NewRecord(2), NewRecord(3, tag="x"))
    driver.put(durability="ephemeral")
    assert driver.delete(tag="x").deleted == 2
    end(driver)
    assert driver.seqs() == [2]


@pytest.mark.parametrize("selector", [{"tag": "x"}, {"tag_prefix": "x"}, {"seqs": [1]}, {"before_seq": 2}])
@pytest.mark.parametrize("steps", range(5))
def test_what_an_unfinished_checkpoint_flagged_is_counted_as_deleted_invariant_25(
    selector: dict[str, Any], steps: int
) -> None:
    driver = Driver()
    driver.put(durability="fsync")
    driver.append(NewRecord(0, tag="x"))
    driver.checkpoint()
    driver.append(*range(1, 7))
    driver.delete(**selector)
    driver.opened.checkpointer.start()
    for _ in range(steps):
        driver.runtime.checkpoints.step()
    driver.lose_power()
    assert driver.numbers() == (7, 2, 6, 6)
    assert driver.seqs() == [2, 3, 4, 5, 6, 7]


def test_leaving_the_disk_class_gives_its_reservation_back() -> None:
    """The sync of the config covers every answered write, so the head of an `fsync` topic is exact."""
    driver = Driver()
    driver.append(1, 2)
    assert driver.topic().writes.ceiling > 3
    driver.put(durability="fsync")
    driver.append(3)
    driver.lose_power()
    assert driver.numbers() == (3, 1, 3, 3)
    driver.put(durability="disk")
    driver.append(4)
    driver.lose_power()
    assert driver.topic().head_seq >= 4
    assert driver.topic().live.lost


@pytest.mark.parametrize("damage", Damage)
def test_a_power_loss_evicts_nothing_from_a_topic_with_a_small_cap_n01(damage: Damage) -> None:
    """The head jumps over the reservation, and the seqs that it jumps over take no room under the cap."""
    driver = Driver()
    driver.put(durability="disk", cap_records=100)
    for number in range(100):
        driver.append(number)
    driver.clock.advance(3000)
    driver.opened.engine.wal.tick()
    for _ in range(2):
        driver.lose_power(damage)
        head_seq, _, count, _ = driver.numbers()
        assert (head_seq > 100, count) == (True, 100)
        assert driver.seqs() == list(range(1, 101))
        assert driver.read(100).tombstone == Tombstone(
            101, head_seq, "power_loss", head_seq - 100, head_seq + 1, head_seq
        )
    first_seq = driver.append("next").first_seq
    assert first_seq == head_seq + 1
    assert driver.seqs() == [*range(2, 101), first_seq], "the cap goes on where it was"
    driver.put(durability="disk", cap_records=3)
    assert driver.seqs() == [99, 100, first_seq]
    driver.append(1, 2)
    assert driver.seqs() == [first_seq, first_seq + 1, first_seq + 2]
    assert driver.read(100).tombstone is not None
    driver.append(3)
    assert driver.topic().live.lost.pairs() == [], "a range below the floor is forgotten"
    driver.reopen()
    assert driver.seqs() == [first_seq + 1, first_seq + 2, first_seq + 3]


def test_a_cap_evicts_the_same_after_every_restart_when_a_range_is_lost() -> None:
    """Floors by count have no frame: a start computes them with the lost ranges, and they never fall."""
    driver = Driver()
    driver.put(durability="disk", cap_records=8, cap_bytes=1000)
    driver.append(*range(5))
    driver.opened.engine.wal.tick()
    driver.lose_power()
    for round_ in range(12):
        driver.append(round_)
        numbers, seqs = driver.numbers(), driver.seqs()
        assert len(seqs) == min(5 + round_ + 1, 8)
        for end in (driver.kill, driver.checkpoint, driver.kill, driver.reopen):
            end()
            assert (driver.numbers(), driver.seqs()) == (numbers, seqs)


def test_no_answered_seq_of_the_disk_class_is_assigned_again_invariant_40() -> None:
    driver = Driver()
    highest = 0
    for round_ in range(6):
        for number in range(40):
            highest = driver.append(*[number] * 9).last_seq
        driver.lose_power(Damage.DROP, round_)
        assert driver.topic().head_seq >= highest


def test_a_clean_stop_leaves_no_lost_range_behind() -> None:
    driver = Driver()
    driver.append(1, 2)
    driver.reopen()
    driver.reopen()
    driver.lose_power()
    assert driver.numbers() == (2, 1, 2, 2)
    assert driver.read().tombstone is None


@pytest.mark.parametrize("shards", [(1, 3), (3, 1), (2, 8), (8, 2)])
def test_another_shard_count_loses_nothing_invariant_44(shards: tuple[int, int]) -> None:
    before, after = (replace(SMALL, wal_shards=count) for count in shards)
    driver = Driver(before)
    for number in range(12):
        driver.append(number, topic=f"t{number}")
    for settings in (after, before, after):
        driver.kill(settings)
        assert [values(driver.read(topic=f"t{number}")) for number in range(12)] == [[n] for n in range(12)]


# The end.


def test_a_closed_engine_refuses_every_change() -> None:
    driver = Driver()
    driver.append(1)
    closed: list[Any] = []
    driver.opened.close(closed.append)
    driver.finish_checkpoints()
    assert closed == [None]
    for call in (
        lambda: driver.append(2),
        lambda: driver.append(2, topic="other"),
        driver.put,
        driver.drop,
        lambda: driver.delete(before_seq=2),
    ):
        with pytest.raises(Closed) as caught:
            call()
        assert caught.value.message == "the log is closed"
    assert driver.seqs() == [1]


def test_what_is_on_its_way_is_answered_when_the_engine_closes() -> None:
    driver = Driver()
    answers = driver.start_append([1])
    driver.opened.close(lambda _: None)
    driver.finish_checkpoints()
    assert answers[0].last_seq == 1
    driver.opened.release()
    driver.opened = driver._open()
    assert driver.seqs() == [1]
    assert driver.disk.exists(f"{ROOT}/topics/00000001/topic.json")


def test_what_expired_before_a_byte_cap_struck_is_still_said_to_have_expired_after_a_crash() -> None:
    """Both floors come back, so the reason is `mixed` before and after the crash. Invariants 11 and 17."""
    driver = Driver()
    driver.put("t", durability="fsync", ttl_ms=1000, cap_bytes=90)
    driver.append(1, 1)
    driver.clock.advance(1001)
    driver.append("x" * 40)
    driver.append("x" * 60)
    before = driver.read()
    assert before.tombstone is not None
    assert (before.tombstone.gap_to, before.tombstone.reason) == (3, "mixed")
    driver.lose_power()
    assert driver.read().tombstone == before.tombstone
