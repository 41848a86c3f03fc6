"""Routers and crashes, case by case: copies, cursors and keys of which a crash left only a part.

The sweep (`tests/crash/test_router_sweep.py`) searches for such cases. Cases that were found are kept here.
"""

import errno
from dataclasses import replace

import pytest

from tests.engine.driver import SMALL, records
from tests.engine.router_driver import RouterDriver
from topics.results import NewRecord
from topics.testing.fake_disk import CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

# Three topics that are created in a row are in three different shards.
THREE_SHARDS = replace(SMALL, wal_shards=3)


def begin_checkpoint(driver: RouterDriver) -> None:
    """A checkpoint that writes its segments and not its snapshot."""
    driver.opened.checkpointer.start()
    assert driver.runtime.checkpoints.step()


def by_hand(driver: RouterDriver, *source_seqs: int, router: str = "a->b") -> list[NewRecord]:
    """Records with the keys of copies that the router has not made."""
    source = driver.topic("a")
    return [
        NewRecord(
            f"by hand {seq}",
            meta={"_topics_router": {"idempotency_key": f"router:{router}:{source.id}:{source.epoch}:{seq}"}},
        )
        for seq in source_seqs
    ]


def write_by_hand(driver: RouterDriver, *source_seqs: int) -> None:
    driver.answer(driver.start_append(records(*by_hand(driver, *source_seqs)), topic="b"))


# Copies keep their seqs and data.


def test_copies_that_an_unfinished_checkpoint_put_away_are_not_made_again_behind_a_head_jump() -> None:
    """The seqs that a power loss skips follow these copies, also in the start after the next crash. Invariant 36."""
    driver = RouterDriver()
    driver.route()
    driver.append("direct", topic="b")
    driver.checkpoint()
    driver.append(1, 2, 3, topic="a")
    assert driver.payloads() == ["direct", 1, 2, 3]
    begin_checkpoint(driver)
    driver.append(4, topic="a")
    driver.opened.engine.wal.shards[1].sync()
    driver.lose_power()
    content = driver.content()
    assert [payload for _, payload in content] == ["direct", 1, 2, 3, 4]
    assert content[:4] == [(1, "direct"), (2, 1), (3, 2), (4, 3)]
    for _ in range(2):
        driver.kill()
        assert driver.content() == content
    driver.append(5, topic="a")
    begin_checkpoint(driver)
    driver.kill()
    assert driver.payloads() == ["direct", 1, 2, 3, 4, 5]
    assert driver.content()[:5] == content


def test_copies_of_an_unfinished_checkpoint_that_a_full_disk_does_not_let_in_are_made_again() -> None:
    """They get other seqs, because an earlier start had room for them. No copy is lost, and none exists twice.

    Invariant 36.
    """
    disk = FakeDisk()
    faults = FaultFs(disk)
    driver = RouterDriver(disk=disk, fs=faults)
    driver.route()
    driver.append("direct", topic="b")
    driver.checkpoint()
    driver.append(1, 2, 3, topic="a")
    assert driver.payloads() == ["direct", 1, 2, 3]
    begin_checkpoint(driver)
    driver.lose_power()
    assert driver.payloads() == ["direct", 1, 2, 3]
    faults.fail("pwrite", error=errno.ENOSPC, path=lambda path: ".idx" in path, lasts=True)
    driver.kill()
    faults.heal()
    assert driver.payloads() == ["direct", 1, 2, 3]
    driver.append(4, topic="a")
    driver.checkpoint()
    driver.kill()
    assert driver.payloads() == ["direct", 1, 2, 3, 4]


def test_a_lost_range_is_told_of_also_when_an_unfinished_checkpoint_holds_what_stands_behind_it() -> None:
    """Readers get the same tombstone between the two starts and after them. Invariants 12 and 40."""
    driver = RouterDriver(replace(SMALL, segment_events_max=10_000))
    driver.append("kept", topic="b")
    driver.checkpoint()
    driver.append("gone", topic="b")
    driver.lose_power()
    driver.append("behind", topic="b")
    tombstone = driver.read(1, topic="b").tombstone
    assert tombstone is not None
    assert tombstone.reason == "power_loss"
    begin_checkpoint(driver)
    driver.kill()
    found = driver.read(1, topic="b").tombstone
    assert found is not None
    assert (found.gap_from, found.gap_to) == (tombstone.gap_from, tombstone.gap_to)
    assert driver.payloads() == ["kept", "behind"]


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_what_takes_the_seqs_of_lost_source_records_is_copied_also_after_another_crash(durability: str) -> None:
    """After the power loss the cursor of logged copies is above the head of the source. Invariant 36."""
    driver = RouterDriver()
    driver.put("a", durability="memory")
    driver.put("b", durability=durability)
    driver.route()
    driver.append("first", topic="a")
    assert driver.payloads() == ["first"]
    driver.append("lost", topic="a")
    assert driver.payloads() == ["first", "lost"]
    driver.append("direct", topic="b")
    driver.topic("b").shard.sync()
    content = driver.content()
    driver.lose_power()
    assert driver.topic("a").head_seq == 0, "the power loss must have taken the source's records"
    assert driver.content() == content
    driver.append("new", topic="a")
    driver.append("newer", topic="a")
    content = driver.content()
    assert content[3:] == [(4, "new"), (5, "newer")]
    driver.kill()
    assert driver.content() == content
    driver.append("newest", topic="a")
    assert driver.payloads()[-1] == "newest"
    driver.kill()
    assert driver.payloads()[-2:] == ["newer", "newest"]


def test_a_source_trim_is_told_through_a_chain_also_when_the_crash_came_first() -> None:
    """When the process died, the last dest of the chain had not yet got the holes of the dest before it. Invariant
    35."""
    driver = RouterDriver(THREE_SHARDS)
    driver.put("a", cap_records=2)
    driver.route("a", "b")
    driver.route("b", "c")
    driver.append(1, topic="a")
    assert driver.payloads("c") == [1]
    driver.append(2, 3, 4, 5, topic="a")
    assert driver.payloads("b") == [1, 4, 5]
    for _ in range(2):
        driver.kill()
        assert driver.gaps("c") == [(2, 3, "source_trim")]
        assert driver.content("c") == [(1, 1), (4, 4), (5, 5)]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_what_the_source_lost_with_the_power_is_a_source_trim_in_dest(durability: str) -> None:
    """The range of the source is told in dest with its exact number of seqs. Invariants 33 and 35."""
    driver = RouterDriver()
    driver.put("b", durability=durability)
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.checkpoint()
    driver.append(3, topic="a")
    driver.lose_power()
    ((first, last, reason),) = driver.gaps("a")
    assert (first, reason) == (3, "power_loss")
    driver.append(4, topic="a")
    assert driver.payloads() == [1, 2, 4]
    gaps = driver.gaps()
    (trim,) = [gap for gap in gaps if gap[2] == "source_trim"]
    assert trim[1] - trim[0] == last - first
    assert driver.router().forwarded_total == 2 + (last - first + 1) + 1
    content = driver.content()
    for end in (driver.kill, driver.checkpoint, driver.reopen):
        end()
        assert driver.content() == content
        assert driver.gaps() == gaps


def test_what_was_copied_before_the_power_loss_is_not_told_again() -> None:
    """Copies in an `fsync` dest outlive their source records. Only the seqs after them are lost for dest."""
    driver = RouterDriver()
    driver.put("b", durability="fsync")
    driver.route()
    driver.append(1, topic="a")
    driver.append(2, 3, topic="a")
    assert driver.payloads() == [1, 2, 3]
    driver.lose_power()
    ((first, last, _),) = driver.gaps("a")
    assert first == 2, "the power loss must have taken the second write to the source"
    assert driver.content() == [(1, 1), (2, 2), (3, 3)]
    assert driver.gaps() == [(4, last, "source_trim")]
    assert driver.router().forwarded_total == last


def test_a_loss_with_the_power_is_told_through_a_chain() -> None:
    driver = RouterDriver(THREE_SHARDS)
    for name in ("b", "c"):
        driver.put(name, durability="fsync")
    driver.route()
    driver.route("b", "c")
    driver.append(1, topic="a")
    assert driver.payloads("c") == [1]
    driver.lose_power()
    driver.append(2, topic="a")
    last = driver.topic("a").head_seq - 1
    assert driver.content("c") == [(1, 1), (last + 1, 2)]
    assert driver.gaps("c") == driver.gaps("b") == [(2, last, "source_trim")]


@pytest.mark.parametrize("end", ["kill", "reopen", "lose_power"])
def test_what_an_ephemeral_source_had_not_passed_on_is_a_source_trim(end: str) -> None:
    driver = RouterDriver()
    driver.put("a", durability="ephemeral")
    driver.put("b", durability="fsync", cap_records=2, discard="reject")
    driver.route()
    driver.append(1, 2, 3, 4, topic="a")
    assert driver.payloads() == [1, 2]
    driver.checkpoint()
    getattr(driver, end)()
    assert driver.content() == [(1, 1), (2, 2)]
    assert driver.gaps() == [(3, 4, "source_trim")]


def test_an_ephemeral_dest_stays_empty_when_its_source_has_a_lost_range_invariant_41() -> None:
    driver = RouterDriver()
    driver.put("b", durability="ephemeral")
    driver.route()
    driver.append(1, topic="a")
    driver.lose_power()
    driver.append(2, topic="a")
    assert driver.payloads() == [2]
    driver.topic("a").shard.sync()
    driver.kill()
    assert driver.content() == []
    driver.append(3, topic="a")
    assert driver.payloads() == [3]


def test_a_chained_dest_gets_what_a_capped_dest_before_it_evicted_when_only_its_shard_was_not_written() -> None:
    """No record is lost between the shards of a chain, and the order is kept. Invariants 30 and 36."""
    driver = RouterDriver(THREE_SHARDS)
    driver.put("a")
    driver.put("b", cap_records=2)
    driver.route("b", "c")
    driver.append("old", topic="b")
    assert driver.payloads("c") == ["old"]
    driver.route("a", "b")
    shards = driver.opened.engine.wal.shards
    held = driver.topic("c").shard
    assert held not in (driver.topic("a").shard, driver.topic("b").shard)
    held.hold(lambda: None)
    for number in range(4):
        driver.append(number, topic="a")
        for _ in range(2):
            driver.opened.engine.forwarder.tick()
        driver.opened.engine.flush()
    driver.append("direct", topic="b")
    assert len(shards) == 3
    driver.kill()
    assert driver.payloads("c") == ["old", 0, 1, 2, 3, "direct"]


def test_a_router_from_a_capped_dest_begins_at_its_head_also_after_a_kill() -> None:
    """A new router copies no older records. The older records of its source are derived copies without frames."""
    driver = RouterDriver(THREE_SHARDS)
    driver.put("b", cap_records=4)
    driver.route("a", "b")
    driver.append(1, 2, 3, topic="a")
    assert driver.payloads("b") == [1, 2, 3]
    driver.route("b", "c")
    driver.kill()
    assert driver.payloads("c") == []
    assert driver.payloads("b") == [1, 2, 3]
    driver.append(4, 5, topic="a")
    assert driver.content("c") == [(1, 4), (2, 5)]
    driver.kill()
    assert driver.content("c") == [(1, 4), (2, 5)]
    assert driver.payloads("b") == [2, 3, 4, 5]


# Exactly once: the evidence is in dest, not in memory.


@pytest.mark.parametrize("checkpoints", range(4))
def test_a_record_by_hand_stands_for_the_copy_after_a_start_too(checkpoints: int) -> None:
    """While a record with the key of a copy is live in dest, the copy is not made. Invariants 33 and 36."""
    driver = RouterDriver()
    driver.route(guarantee="exactly_once")
    driver.append(1, topic="a")
    write_by_hand(driver, 2, 4)
    for _ in range(checkpoints):
        driver.append("filler", topic="b")
        driver.checkpoint()
    driver.kill()
    driver.append(2, 3, topic="a")
    expected = ["by hand 2", "by hand 4", *["filler"] * checkpoints]
    found = driver.payloads()
    assert sorted(map(str, found)) == sorted(map(str, [1, 3, *expected]))
    assert driver.router().forwarded_total == 3
    driver.kill()
    driver.append(4, 5, topic="a")
    assert driver.payloads() == [*found, 5]
    assert driver.router().forwarded_total == 5


def test_a_record_by_hand_that_was_there_before_its_router_stands_for_the_copy() -> None:
    """The key of a live record counts, even if the record was written before the router became `exactly_once`."""
    driver = RouterDriver()
    driver.put("a")
    driver.append("old", topic="b")
    write_by_hand(driver, 1)
    driver.checkpoint()
    driver.route(guarantee="exactly_once")
    driver.append(1, topic="a")
    assert driver.payloads() == ["old", "by hand 1"]
    driver.route()
    write_by_hand(driver, 2)
    driver.route(guarantee="exactly_once")
    driver.kill()
    driver.append(2, 3, topic="a")
    assert driver.payloads() == ["old", "by hand 1", "by hand 2", 3]


def test_the_evidence_goes_with_the_record_also_after_a_start() -> None:
    """When every record with the key is deleted or evicted, the copy is made. One of two records is enough to prevent
    it."""
    driver = RouterDriver()
    driver.route(guarantee="exactly_once")
    write_by_hand(driver, 1, 2)
    write_by_hand(driver, 2)
    driver.checkpoint()
    driver.delete("b", seqs=[1, 3])
    driver.kill()
    driver.append(1, 2, topic="a")
    assert driver.content() == [(2, "by hand 2"), (4, 1)]
    driver.kill()
    assert driver.content() == [(2, "by hand 2"), (4, 1)]


def test_a_copy_whose_evidence_a_cap_took_is_made_once_also_after_a_start() -> None:
    """Also copies of that copy are made once. The decision is logged, because a start cannot make it. Invariant 36."""
    driver = RouterDriver(THREE_SHARDS)
    driver.put("a")
    driver.put("b", cap_records=3)
    driver.route(guarantee="exactly_once")
    write_by_hand(driver, 4)
    for number in range(1, 4):
        driver.append(number, topic="a")
        driver.payloads()
    assert driver.payloads() == [1, 2, 3]
    driver.append(4, 5, topic="a")
    content = driver.content()
    assert content == [(4, 3), (5, 4), (6, 5)]
    driver.kill()
    assert driver.content() == content
    assert driver.router().forwarded_total == 5


def test_a_copy_whose_evidence_was_deleted_is_copied_on_once_also_after_a_start() -> None:
    """A start stops at the key, so copies of later records must have frames. Invariant 36."""
    driver = RouterDriver(THREE_SHARDS)
    for name in "abc":
        driver.put(name)
    driver.route(guarantee="exactly_once")
    driver.route("b", "c")
    write_by_hand(driver, 1)
    driver.checkpoint()
    driver.delete("b", seqs=[1])
    driver.append("copied", topic="a")
    assert driver.payloads("c") == ["copied"]
    driver.append("direct", topic="c")
    content = driver.content("c")
    driver.kill()
    assert driver.content("b") == [(2, "copied")]
    assert driver.content("c") == content


def write_past_a_key(driver: RouterDriver) -> list[tuple[int, object]]:
    """A key counts as the first copy. The second record is copied, and copied on into a topic that logs its copies.

    Returns the content of that topic.
    """
    write_by_hand(driver, 1)
    driver.append("stood for", topic="a")
    assert driver.payloads("c") == ["by hand 1"]
    driver.append("copied", topic="a")
    assert driver.payloads("c") == ["by hand 1", "copied"]
    driver.append("direct", topic="c")
    assert driver.router().forwarded_total == 2
    return driver.content("c")


@pytest.mark.parametrize("blow", ["kill", "power"])
def test_a_key_that_stood_for_a_copy_moves_no_seq(blow: str) -> None:
    """Later copies, and the copies of those, keep their seqs and exist once. Invariants 33 and 36."""
    driver = RouterDriver(THREE_SHARDS)
    for name in "abc":
        driver.put(name, durability="fsync")
    driver.route("a", "b", guarantee="exactly_once")
    driver.route("b", "c")
    content = write_past_a_key(driver)
    if blow == "kill":
        driver.kill()
    else:
        driver.lose_power()
    assert driver.content("b") == [(1, "by hand 1"), (2, "copied")]
    assert driver.content("c") == content
    assert driver.router().forwarded_total == 2


def test_a_key_whose_note_was_not_written_is_met_again_by_the_next_start() -> None:
    """No reader sees a copy that depends on the note before the note is written. Invariants 31, 33 and 36."""
    driver = RouterDriver(THREE_SHARDS)
    for name in "abc":
        driver.put(name)
    driver.route("a", "b", guarantee="exactly_once")
    driver.route("b", "c")
    write_by_hand(driver, 1)
    assert driver.payloads("c") == ["by hand 1"]
    driver.topic("b").shard.hold(lambda: None)
    driver.append("stood for", topic="a")
    assert driver.payloads("c") == ["by hand 1"]
    driver.append("copied", topic="a")
    assert driver.payloads("c") == ["by hand 1"], "it is on its way"
    driver.append("direct", topic="c")
    driver.kill()
    assert driver.content("b") == [(1, "by hand 1"), (2, "copied")]
    assert driver.content("c") == [(1, "by hand 1"), (2, "direct"), (3, "copied")]
    assert driver.router().forwarded_total == 2


def test_a_large_dest_is_looked_through_for_keys_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of dest waits until the search has ended. Then no record is there twice."""
    monkeypatch.setattr("topics.engine.routers.forwarding.SEARCH_SLOTS_MAX", 10)
    driver = RouterDriver()
    driver.put("a")
    driver.append(*range(25), topic="b")
    write_by_hand(driver, 1)
    driver.checkpoint()
    driver.route(guarantee="exactly_once")
    driver.append("suppressed", "copied", topic="a")
    engine = driver.opened.engine
    passes = 0
    while not engine.bring_up_to_date("b"):
        passes += 1
        engine.forwarder.tick()
    assert passes
    assert driver.payloads() == [*range(25), "by hand 1", "copied"]


# Classes.


def test_an_ephemeral_dest_is_empty_after_a_start_invariant_41() -> None:
    """It has no records, although the source has some. The count of forwarded records goes on. Invariants 33 and 41."""
    driver = RouterDriver()
    driver.put("b", durability="ephemeral")
    driver.route(filter="x")
    driver.append(NewRecord(1, tag="x"), topic="a")
    assert driver.payloads() == [1]
    driver.checkpoint()
    driver.append(NewRecord(2, tag="x"), NewRecord("not copied"), topic="a")
    assert driver.payloads() == [1, 2]
    driver.kill()
    assert driver.payloads() == []
    assert driver.topic("b").config.durability == "ephemeral"
    assert driver.router().forwarded_total == 2
    driver.append(NewRecord(3, tag="x"), topic="a")
    assert driver.payloads() == [3]
    assert driver.router().forwarded_total == 3
    driver.kill()
    assert driver.payloads() == []


def test_what_a_full_ephemeral_dest_holds_back_comes_after_a_start_invariants_34_and_41() -> None:
    """Copies in the dest end with the process. Records that were not copied yet are copied. Invariants 34 and 41."""
    driver = RouterDriver()
    driver.put("b", durability="ephemeral", cap_records=2, discard="reject")
    driver.route()
    driver.append(1, 2, 3, 4, 5, topic="a")
    assert driver.payloads() == [1, 2]
    driver.delete("b", seqs=[1])
    assert driver.payloads() == [2, 3]
    driver.kill()
    assert driver.payloads() == [4, 5]
    assert driver.router().forwarded_total == 5


def test_what_an_ephemeral_topic_passed_on_is_not_passed_on_again() -> None:
    """The last topic of the chain is stored and keeps its records, each once. Invariants 36 and 41."""
    driver = RouterDriver(THREE_SHARDS)
    driver.put("b", durability="ephemeral")
    driver.route("a", "b")
    driver.route("b", "c")
    driver.append(1, 2, topic="a")
    assert driver.payloads("c") == [1, 2]
    driver.kill()
    assert driver.payloads("b") == []
    driver.append(3, topic="a")
    assert driver.content("c") == [(1, 1), (2, 2), (3, 3)]
    driver.kill()
    assert driver.content("c") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("seed", range(12))
def test_a_dest_that_was_to_become_stored_when_the_power_went_is_empty(seed: int) -> None:
    """No copy of an ephemeral dest comes back, whichever part of the config change was written. Invariants 41 and
    42."""
    driver = RouterDriver()
    driver.put("b", durability="ephemeral")
    driver.route()
    driver.append(1, 2, topic="a")
    assert driver.payloads() == [1, 2]
    driver.topic("a").shard.sync()
    driver.topic("b").shard.sync()

    def stop(operation: str, path: str) -> None:
        if operation == "fdatasync":
            raise CrashNow

    driver.disk.on_operation = stop
    with pytest.raises(CrashNow):
        driver.put("b", durability="fsync")
    driver.disk.on_operation = None
    driver.lose_power(Damage.TORN, seed)
    assert driver.payloads() == []
    driver.append(3, topic="a")
    assert driver.payloads() == [3]


@pytest.mark.parametrize("source", ["memory", "disk"])
def test_a_reader_of_an_fsync_dest_sees_no_copy_that_a_power_loss_would_take(source: str) -> None:
    """A copy is as durable as the config of its dest says, whatever the class of its source is. Invariant 39."""
    driver = RouterDriver()
    driver.put("a", durability=source)
    driver.put("b", durability="fsync")
    driver.route()
    driver.append(1, 2, topic="a")
    content = driver.content()
    assert content == [(1, 1), (2, 2)]
    driver.lose_power()
    assert driver.content()[:2] == content


def test_copies_that_are_made_again_have_the_same_time_however_they_are_made() -> None:
    """A copy has the time of its source record, or the time of the copy before it if that is later. Invariant 36."""
    driver = RouterDriver()
    driver.route()
    for number in range(5):
        driver.append(number, topic="a")
        driver.clock.advance(10)
    live = [record.ts for record in driver.records("b")]
    sources = [record.ts for record in driver.records("a")]
    assert live == [driver.opened.engine.now_ms()] * 5
    driver.kill()
    assert [record.ts for record in driver.records("b")] == sources
    begin_checkpoint(driver)
    driver.clock.advance(1000)
    driver.append(5, topic="a")
    driver.payloads("b")
    driver.kill()
    assert [record.ts for record in driver.records("b")] == [record.ts for record in driver.records("a")]


def test_times_do_not_go_back_behind_copies_of_an_unfinished_checkpoint() -> None:
    """Times do not decrease with the seq. Only the segment knows the times of these copies."""
    driver = RouterDriver()
    driver.route()
    driver.checkpoint()
    driver.append(1, topic="a")
    start_ms = driver.clock.now_ms()
    driver.clock.advance(500)
    assert driver.payloads() == [1]
    begin_checkpoint(driver)
    driver.clock.set(start_ms + 10)
    driver.kill()
    driver.append(2, topic="a")
    assert driver.payloads() == [1, 2]
    times = [record.ts for record in driver.records("b")]
    assert times == sorted(times)
