"""Segments that are replaced while the log is used: readers see no change, deletes hold, refusals name the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import sampled_range
from tests.engine.offers import offered, purged
from tests.engine.small_log import ROOT, SEGMENT_EVENTS, HeldRuntime, SmallLog
from tests.storage.directories import verified
from topics.engine.checkpointing.replacement import Offer, ReplacedSegment
from topics.engine.manifest import take_manifest
from topics.engine.pins import PIN_MS_MAX
from topics.errors import (
    Closed,
    CorruptRecord,
    Damaged,
    InvalidRequest,
    NotFound,
    SegmentBusy,
    SegmentChanged,
    StorageFull,
    TopicNotFound,
)
from topics.formats.snapshot import SegmentState
from topics.testing.fake_disk import Damage, FakeDisk

# Seqs of records that every test deletes, by their tag.
DEAD = [2, 3, 7, 9]
SEQS = [seq for seq in range(1, 13) if seq not in DEAD]


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def fill(log: SmallLog) -> None:
    """Two sealed segments and an active one. The delete bytes of dead records are set."""
    for seq in range(1, 13):
        log.append(tag="dead" if seq in DEAD else f"live{seq % 2}")
    log.checkpoint()
    log.delete(tag="dead")
    log.checkpoint()


@pytest.fixture
def log(disk: FakeDisk) -> SmallLog:
    log = SmallLog(disk)
    fill(log)
    return log


def sealed(log: SmallLog) -> list[SegmentState]:
    return [state for state in log.topic().live.segments.segments if state.sealed]


def replace(log: SmallLog, offer: Offer) -> ReplacedSegment:
    results: list[ReplacedSegment | Exception] = []
    log.opened.replacer.replace(offer, results.append)
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def purge(log: SmallLog, disk: FakeDisk) -> int:
    """How many records were left out of the new files."""
    return sum(replace(log, purged(disk, ROOT, log.topic(), state)).removed_count for state in sealed(log))


def data_bytes(disk: FakeDisk) -> int:
    return sum(len(content) for path, content in disk.files().items() if path.endswith(".data"))


def marks(disk: FakeDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".replaced")]


def reopened(disk: FakeDisk, damage: Damage | None = None) -> SmallLog:
    if damage is None:
        disk.kill()
    else:
        disk.crash(damage, 7)
    return SmallLog(disk)


# While a replacement runs.


def test_readers_see_the_same_before_and_after_and_the_files_are_smaller(disk: FakeDisk, log: SmallLog) -> None:
    before = log.read()
    size = data_bytes(disk)
    digests = [state.digest for state in sealed(log)]
    assert purge(log, disk) == len(DEAD)
    assert log.read() == before
    assert log.seqs() == SEQS
    assert data_bytes(disk) < size
    assert all(state.digest not in digests for state in sealed(log))
    manifest = take_manifest(log.engine, "a")
    for segment in manifest["segments"]:
        assert disk.size(segment["uri"].removeprefix("file://")) == segment["data_len"]


def test_a_segment_can_be_replaced_again_after_more_deletes(disk: FakeDisk, log: SmallLog) -> None:
    purge(log, disk)
    log.delete(tag="live0")
    log.checkpoint()
    assert purge(log, disk) > 0
    assert log.seqs() == [seq for seq in SEQS if seq % 2]
    assert reopened(disk).seqs() == [seq for seq in SEQS if seq % 2]


def test_deletes_by_tag_find_their_records_in_a_replaced_segment(disk: FakeDisk, log: SmallLog) -> None:
    purge(log, disk)
    assert log.delete(tag="live1") == len([seq for seq in SEQS if seq % 2])
    assert log.delete(tag="dead") == 0
    assert log.seqs() == [seq for seq in SEQS if seq % 2 == 0]


def test_a_delete_that_no_file_knows_of_holds_and_takes_no_record_out(disk: FakeDisk, log: SmallLog) -> None:
    """The delete is pending. The offered pair must still have the record; the next checkpoint sets its delete byte."""
    log.delete(tag="live0")
    left = [seq for seq in SEQS if seq % 2]
    assert purge(log, disk) == len(DEAD)
    assert log.seqs() == left
    log.checkpoint()
    assert log.seqs() == left
    assert log.topic().live.segments.segments[0].live_count == len([seq for seq in left if seq <= SEGMENT_EVENTS])
    assert reopened(disk).seqs() == left


def test_deletes_and_checkpoints_in_the_middle_of_a_replacement_hold(disk: FakeDisk) -> None:
    """The replacement waits for a checkpoint that sets delete bytes, and another checkpoint begins while it waits."""
    runtime = HeldRuntime()
    # Less than half of the segment is deleted when the checkpoint begins: the checkpoint does not write it again.
    log = SmallLog(disk, runtime=runtime, segment_events_max=12)
    line = runtime.checkpoints
    for seq in range(1, 13):
        log.append(tag="dead" if seq in DEAD else f"live{seq % 2}")
    log.checkpointer.start()
    line.run_all()
    log.delete(tag="dead")
    log.checkpointer.start()
    line.run_all()
    log.delete(tag="live0", before_seq=5)
    log.checkpointer.start()
    results: list[Any] = []
    first = sealed(log)[0]
    log.opened.replacer.replace(purged(disk, ROOT, log.topic(), first), results.append)
    with pytest.raises(SegmentBusy):
        log.opened.replacer.replace(purged(disk, ROOT, log.topic(), first), results.append)
    # The job of the checkpoint runs, then the replacement. The owner does not know the result yet.
    line.step()
    line.begin()
    log.delete(tag="live0")
    assert log.seqs() == [seq for seq in SEQS if seq % 2]
    line.run_all()
    (replaced,) = results
    assert (replaced.topic, replaced.removed_count) == ("a", len(DEAD))
    log.checkpointer.start()
    line.run_all()
    assert log.seqs() == [seq for seq in SEQS if seq % 2]
    assert reopened(disk, Damage.DROP).seqs() == [seq for seq in SEQS if seq % 2]


def test_a_segment_whose_records_all_die_meanwhile_is_gone(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    log.append(count=2 * SEGMENT_EVENTS, tag="x")
    log.append(count=1)
    log.checkpointer.start()
    runtime.checkpoints.run_all()
    results: list[Any] = []
    log.opened.replacer.replace(purged(disk, ROOT, log.topic(), sealed(log)[0]), results.append)
    log.delete(tag="x")
    log.topic().live.segments.drop_dead()
    runtime.checkpoints.run_all()
    assert [type(result) for result in results] == [SegmentChanged]
    assert log.seqs() == [2 * SEGMENT_EVENTS + 1]


def test_a_topic_that_goes_meanwhile_takes_its_segments_along(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    log.append(count=SEGMENT_EVENTS)
    log.checkpointer.start()
    runtime.checkpoints.run_all()
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    results: list[Any] = []
    log.opened.replacer.replace(offer, results.append)
    log.drop()
    log.append(count=2)
    runtime.checkpoints.run_all()
    assert [type(result) for result in results] == [SegmentChanged]
    assert log.seqs() == [1, 2]


def test_the_files_of_a_topic_that_is_gone_already_are_gone(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime)
    log.append(count=SEGMENT_EVENTS)
    log.checkpointer.start()
    runtime.checkpoints.run_all()
    topic, state = log.topic(), sealed(log)[0]
    offer = purged(disk, ROOT, topic, state)
    log.drop()
    with pytest.raises(TopicNotFound):
        log.opened.replacer.replace(offer, lambda result: None)


def test_an_index_that_is_bad_is_put_right(disk: FakeDisk, log: SmallLog) -> None:
    state = sealed(log)[0]
    path = f"{ROOT}/topics/00000001/seg-0000000000000001"
    index = disk.read(f"{path}.idx")
    disk.replace(f"{path}.idx", bytes(len(index)))
    replaced = replace(log, offered(disk, ROOT, log.topic(), state, disk.read(f"{path}.data"), index))
    assert (replaced.removed_count, replaced.state.digest) == (0, state.digest)
    assert disk.read(f"{path}.idx") == index
    assert log.seqs() == SEQS


# Marks and starts.


def test_a_mark_stays_until_both_kept_snapshots_are_younger(disk: FakeDisk, log: SmallLog) -> None:
    purge(log, disk)
    assert len(marks(disk)) == 2
    for _ in range(2):
        log.append()
        log.checkpoint()
        assert len(marks(disk)) <= 2
    log.append()
    log.checkpoint()
    assert marks(disk) == []
    assert reopened(disk).seqs()[: len(SEQS)] == SEQS


def test_a_mark_that_a_start_finds_goes_later(disk: FakeDisk, log: SmallLog) -> None:
    purge(log, disk)
    log = reopened(disk)
    assert len(marks(disk)) == 2
    for _ in range(3):
        log.append()
        log.checkpoint()
    assert marks(disk) == []


def test_marks_go_with_their_segment(disk: FakeDisk, log: SmallLog) -> None:
    purge(log, disk)
    log.delete(before_seq=11)
    for _ in range(3):
        log.append()
        log.checkpoint()
    assert marks(disk) == []


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
@pytest.mark.parametrize("damage", [None, Damage.DROP])
def test_a_start_on_the_snapshot_before_the_newest_reads_the_same(
    disk: FakeDisk, log: SmallLog, checkpoints: int, damage: Damage | None
) -> None:
    purge(log, disk)
    for _ in range(checkpoints):
        log.append()
        log.checkpoint()
    expected = log.seqs()
    newest = max(path for path in disk.files() if "/snapshot." in path)
    disk.poke(newest, 40, b"\xa5\x5a")
    log = reopened(disk, damage)
    assert newest in log.warnings
    assert log.seqs() == expected
    log.checkpoint()
    assert reopened(disk, Damage.DROP).seqs() == expected


def test_a_start_on_a_snapshot_from_before_the_segment_was_sealed_reads_the_same(disk: FakeDisk) -> None:
    """The previous snapshot calls the segment active, with a length between those of the new and the old file."""
    log = SmallLog(disk)
    log.append(count=SEGMENT_EVENTS - 1, tag="dead")
    log.checkpoint()
    log.append(tag="live")
    log.append(tag="live")
    log.delete(tag="dead")
    log.checkpoint()
    assert purge(log, disk) == SEGMENT_EVENTS - 1
    newest = max(path for path in disk.files() if "/snapshot." in path)
    disk.poke(newest, 40, b"\xa5\x5a")
    log = reopened(disk)
    assert log.seqs() == [SEGMENT_EVENTS, SEGMENT_EVENTS + 1]
    assert [state.live_count for state in sealed(log)] == [1]
    log.append(count=3)
    log.checkpoint()
    assert reopened(disk, Damage.DROP).seqs() == list(range(SEGMENT_EVENTS, SEGMENT_EVENTS + 5))


@pytest.mark.parametrize("is_newest_bad", [False, True])
def test_whatever_byte_of_a_mark_is_wrong_the_records_are_right_or_the_start_is_refused(is_newest_bad: bool) -> None:
    """Also when the only readable snapshot was taken before the segment was sealed."""
    disk = FakeDisk()
    log = SmallLog(disk)
    log.append(count=SEGMENT_EVENTS - 1, tag="dead")
    log.checkpoint()
    log.append(count=2)
    log.delete(tag="dead")
    log.checkpoint()
    purge(log, disk)
    log.append()
    expected = log.seqs()
    if is_newest_bad:
        disk.poke(max(path for path in disk.files() if "/snapshot." in path), 40, b"\xa5\x5a")
    disk.kill()
    (mark,) = marks(disk)
    refused: set[str] = set()
    for place in sampled_range(disk.size(mark), 7):
        hurt = disk.clone()
        hurt.poke(mark, place, bytes([hurt.read(mark)[place] ^ 1 << place % 8]))
        assert any(finding.severity == "damage" for finding in verified(hurt))
        try:
            assert SmallLog(hurt).seqs() == expected
        except Damaged as error:
            refused.add(error.path)
    assert refused == ({mark} if is_newest_bad else set())


def test_a_start_without_snapshots_reads_the_same(disk: FakeDisk, log: SmallLog) -> None:
    for _ in range(3):
        log.append(count=9)
        log.checkpoint()
    purge(log, disk)
    expected = log.seqs()
    for path in list(disk.files()):
        if "/meta/" in path or "/wal/" in path:
            disk.unlink(path)
    assert reopened(disk).seqs() == expected


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_verify_finds_nothing_wrong(disk: FakeDisk, log: SmallLog, checkpoints: int) -> None:
    purge(log, disk)
    for _ in range(checkpoints):
        log.append()
        log.checkpoint()
    log.opened.release()
    disk.kill()
    assert [finding for finding in verified(disk) if finding.severity != "note"] == []


def test_a_replaced_segment_moves_to_the_cold_tier(disk: FakeDisk) -> None:
    log = SmallLog(disk, cold_dir="/cold", hot_retain_segments=0)
    fill(log)
    purge(log, disk)
    log.checkpoint()
    for _ in range(4):
        log.opened.relocator.tick()
    assert {state.tier for state in sealed(log)} == {"cold"}
    assert log.seqs() == SEQS
    for _ in range(3):
        log.append()
        log.checkpoint()
    assert marks(disk) == []
    disk.kill()
    log = SmallLog(disk, cold_dir="/cold", hot_retain_segments=0)
    assert log.seqs()[: len(SEQS)] == SEQS


# Refusals.


def test_a_segment_of_another_digest_is_not_replaced_and_its_own_is_told(disk: FakeDisk, log: SmallLog) -> None:
    state = sealed(log)[0]
    offer = purged(disk, ROOT, log.topic(), state)
    with pytest.raises(SegmentChanged) as refused:
        replace(log, offer._replace(digest=bytes(16)))
    assert refused.value.detail == {"digest": state.digest.hex()}
    replace(log, offer)
    # The request is repeated, as by a client that did not get the answer.
    with pytest.raises(SegmentChanged) as refused:
        replace(log, offer)
    assert refused.value.detail == {"digest": sealed(log)[0].digest.hex()}


def test_only_the_live_instance_of_a_topic_is_meant(disk: FakeDisk, log: SmallLog) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    for other in (offer._replace(topic_id=99), offer._replace(epoch=offer.epoch + 1)):
        with pytest.raises(TopicNotFound):
            replace(log, other)


def test_a_segment_that_is_not_there_or_still_grows_is_not_replaced(disk: FakeDisk, log: SmallLog) -> None:
    active = log.topic().live.segments.segments[-1]
    assert not active.sealed
    offer = purged(disk, ROOT, log.topic(), active)
    for first_seq in (active.first_seq, 2, 1000):
        with pytest.raises(SegmentChanged):
            replace(log, offer._replace(first_seq=first_seq))


def test_a_cold_segment_is_not_replaced(disk: FakeDisk) -> None:
    log = SmallLog(disk, cold_dir="/cold", hot_retain_segments=0)
    fill(log)
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    log.opened.relocator.tick()
    with pytest.raises(SegmentChanged, match="cold tier"):
        replace(log, offer)


def test_a_pinned_segment_is_replaced_when_the_pin_has_ended(disk: FakeDisk, log: SmallLog) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    take_manifest(log.engine, "a", pin_ms=PIN_MS_MAX)
    with pytest.raises(SegmentBusy, match="is pinned for 3600 s more by 1 manifests of readers") as busy:
        replace(log, offer)
    assert busy.value.detail == {"pinned_until_ms": log.clock.now_ms() + PIN_MS_MAX}
    log.clock.advance(PIN_MS_MAX)
    assert replace(log, offer).removed_count == 2


def test_a_segment_does_not_move_while_it_is_replaced(disk: FakeDisk) -> None:
    runtime = HeldRuntime()
    log = SmallLog(disk, runtime=runtime, cold_dir="/cold", hot_retain_segments=0)
    log.append(count=SEGMENT_EVENTS)
    log.checkpointer.start()
    runtime.checkpoints.run_all()
    results: list[Any] = []
    log.opened.replacer.replace(purged(disk, ROOT, log.topic(), sealed(log)[0]), results.append)
    log.opened.relocator.tick()
    assert sealed(log)[0].tier == "hot"
    runtime.checkpoints.run_all()
    assert isinstance(results[0], ReplacedSegment)


@pytest.mark.parametrize("name", ["../topics/00000001/topic.json", "/etc/passwd", "a/b", "", ".hidden", "a.tmp"])
def test_names_that_are_more_than_names_are_refused(disk: FakeDisk, log: SmallLog, name: str) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    for bad in (offer._replace(data_name=name), offer._replace(idx_name=name)):
        with pytest.raises(InvalidRequest):
            replace(log, bad)


def test_after_a_refusal_the_segment_can_be_replaced(disk: FakeDisk, log: SmallLog) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    with pytest.raises(NotFound):
        replace(log, offer._replace(data_name="missing.data"))
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    with pytest.raises(StorageFull):
        replace(log, offer)
    disk.capacity_bytes = None
    assert log.seqs() == SEQS
    assert replace(log, offer).removed_count == 2
    assert log.seqs() == SEQS


def test_a_damaged_segment_is_named(disk: FakeDisk, log: SmallLog) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    disk.poke(f"{ROOT}/topics/00000001/seg-0000000000000001.data", 40, b"\xff\xff")
    with pytest.raises(CorruptRecord, match=r"seg-0000000000000001\.data"):
        replace(log, offer)


def test_a_log_that_is_closed_replaces_nothing(disk: FakeDisk, log: SmallLog) -> None:
    offer = purged(disk, ROOT, log.topic(), sealed(log)[0])
    log.close()
    with pytest.raises(Closed):
        replace(log, offer)
