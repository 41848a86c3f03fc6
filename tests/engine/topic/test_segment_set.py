"""Segments of one topic, made by real checkpoints."""

import errno
from typing import Any

import pytest

from tests.engine.driver import Driver
from tests.engine.small_log import SmallLog
from topics.engine.topic.segment_set import SegmentSet, SlotRun
from topics.formats.snapshot import SegmentState
from topics.results import NewRecord
from topics.storage.segments.cache import TagSelector
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs


@pytest.fixture
def driver() -> Driver:
    """Seqs 1 to 17 in segments of 7: two sealed, the active one from 15 on. Sizes are 1 (seqs 1 to 9) and 2."""
    driver = Driver()
    for seq in range(1, 18):
        driver.append(NewRecord(seq, tag=f"t{seq % 3}"))
        driver.clock.advance(10)
    driver.checkpoint()
    return driver


@pytest.fixture
def segments(driver: Driver) -> SegmentSet:
    return driver.topic().live.segments


def bounds(segments: SegmentSet) -> list[tuple[int, int, bool]]:
    return [(state.first_seq, state.last_seq, state.sealed) for state in segments.segments]


def pending_seqs(segments: SegmentSet, states: list[SegmentState]) -> list[int]:
    return [seq for first, last in segments.pending_runs(states) for seq in range(first, last + 1)]


def test_segments_cover_the_topic(segments: SegmentSet) -> None:
    assert bounds(segments) == [(1, 7, True), (8, 14, True), (15, 17, False)]
    assert (segments.first_seq, segments.end_seq) == (1, 18)
    assert segments.live_numbers() == (17, 9 + 2 * 8)


@pytest.mark.parametrize(("seq", "first_seq"), [(1, 1), (7, 1), (8, 8), (14, 8), (15, 15), (17, 15), (18, None)])
def test_a_seq_is_in_one_segment(segments: SegmentSet, seq: int, first_seq: int | None) -> None:
    state = segments.segment_of(seq)
    assert (state.first_seq if state is not None else None) == first_seq


def test_a_chunk_ends_with_its_segment(segments: SegmentSet) -> None:
    last_seq, slots, _ = segments.read_run(5, 17)
    assert (last_seq, len(slots)) == (7, 3)
    last_seq, slots, _ = segments.read_run(16, 16)
    assert (last_seq, len(slots)) == (16, 1)
    assert segments.read_run(18, 20) == SlotRun(20, [None] * 3)


def test_a_gap_between_segments_reads_as_dead(driver: Driver) -> None:
    segments = driver.topic().live.segments
    segments.drop([segments.segments[1]])
    assert segments.read_run(8, 17) == SlotRun(14, [None] * 7)
    assert segments.next_live(8) == 15
    assert [seq for seq, _, _ in segments.live_sizes(6)] == [6, 7, 15, 16, 17]


@pytest.mark.parametrize("seqs", [[3], [1, 2, 3, 4, 5, 6, 7], [7, 8, 15], [2, 2, 99]])
def test_deletes_count_each_live_record_once_invariant_22(segments: SegmentSet, seqs: list[int]) -> None:
    inside = sorted({seq for seq in seqs if seq <= 17})
    assert segments.kill_many(seqs)[0] == len(inside)
    assert segments.kill_many(seqs) == (0, 0)
    assert segments.live_numbers()[0] == 17 - len(inside)
    assert [seq for seq, _, _ in segments.live_sizes(1)] == [seq for seq in range(1, 18) if seq not in inside]
    assert pending_seqs(segments, segments.segments) == inside


def test_pending_deletes_are_seen_by_every_reader_and_cleared_by_the_checkpoint(driver: Driver) -> None:
    segments = driver.topic().live.segments
    assert driver.topic().delete_seqs([3, 16]) == 2
    assert segments.read_run(2, 4)[1][1] is None
    assert segments.next_live(3) == 4
    driver.checkpoint()
    segments = driver.topic().live.segments
    assert not any(segments.has_pending(state) for state in segments.segments)
    assert segments.read_run(2, 4)[1][1] is None
    assert [seq for seq, _, _ in segments.live_sizes(15)] == [15, 17]


def test_forgetting_drops_whole_segments_and_the_head_of_the_front_one(segments: SegmentSet) -> None:
    assert segments.forget_below(10, 1) == (9, 9)
    assert bounds(segments) == [(8, 14, True), (15, 17, False)]
    assert [state.first_seq for state in segments.dropped] == [1]
    assert segments.live_numbers() == (8, 16)
    segments.release_block()
    assert segments.forget_below(12, 10) == (2, 4)
    assert segments.forget_below(12, 12) == (0, 0)
    assert segments.forget_below(100, 12) == (6, 12)
    assert bounds(segments) == []


def test_deleting_below_marks_only_the_segment_that_stays(segments: SegmentSet) -> None:
    assert segments.kill_below(10, 1) == (9, 9)
    assert segments.kill_below(10, 1) == (0, 0)
    assert segments.live_numbers() == (8, 16)
    assert pending_seqs(segments, [segments.segments[1]]) == [8, 9]


@pytest.mark.parametrize("seq", [1, 4, 7, 8, 15])
def test_the_expired_run_ends_before_the_first_good_record_invariant_18(driver: Driver, seq: int) -> None:
    segments = driver.topic().live.segments
    first_ts = driver.read(0, limit=1).records[0].ts
    assert segments.expired_last_seq(1, first_ts + 10 * (seq - 1)) == seq - 1
    assert segments.expired_last_seq(1, first_ts + 10 * (seq - 1) + 1) == seq
    assert segments.expired_last_seq(seq, first_ts) == seq - 1


def test_a_dead_segment_in_the_middle_goes_as_a_whole(segments: SegmentSet) -> None:
    segments.kill_many(list(range(8, 15)))
    segments.drop_dead()
    assert bounds(segments) == [(1, 7, True), (15, 17, False)]
    assert [state.first_seq for state in segments.dropped] == [8]
    segments.kill_many([15, 16, 17])
    segments.drop_dead()
    assert bounds(segments) == [(1, 7, True), (15, 17, False)], "the active one still grows"


def test_numbers_can_be_counted_again_from_the_files(segments: SegmentSet) -> None:
    segments.mark_pending([2, 9, 16, 99])
    for state in segments.segments:
        segments.recount(state, 4)
    assert [state.live_count for state in segments.segments] == [4, 6, 2]
    assert segments.live_numbers() == (12, 4 + 1 + 5 * 2 + 2 * 2)


def test_tags_of_sealed_and_active_segments_are_found(segments: SegmentSet) -> None:
    sealed, _, active = segments.segments
    assert segments.tagged(sealed, TagSelector(b"t0", False, 1, 100)) == [3, 6]
    assert segments.tagged(sealed, TagSelector(b"t", True, 3, 6)) == [3, 4, 5]
    assert segments.built_tags(active).seqs_by_prefix(b"t") == [15, 16, 17]


def test_a_lost_sidecar_is_built_again(driver: Driver) -> None:
    directory = "/data/topics/00000001"
    tags = f"{directory}/seg-0000000000000001.tags"
    before = driver.disk.read(tags)
    driver.disk.unlink(tags)
    segments = driver.topic().live.segments
    assert segments.tagged(segments.segments[0], TagSelector(b"t0", False, 1, 100)) == [3, 6]
    assert driver.disk.read(tags) == before


# Files that cannot be read.


def fail_reads(fs: FaultFs, error: int) -> None:
    fs.fail("open", "exists", "size", "map", "pread", error=error, lasts=True, path=lambda path: "/topics/" in path)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("config", [{"cap_records": 12}, {"cap_bytes": 200}, {"ttl_ms": 135}])
def test_retention_goes_on_without_segment_files_and_counts_again_with_them(
    caplog: pytest.LogCaptureFixture, config: dict[str, Any], error: int
) -> None:
    """A topic whose files fail answers every write, and ends like a topic whose files never failed."""
    disk, clock = FakeDisk(), ManualClock()
    log = SmallLog(disk, clock=clock)
    log.create(durability="fsync")
    for seq in range(1, 24):
        log.append(tag=f"t{seq % 4}")
        clock.advance(10)
    log.checkpoint()
    # In every segment some records are dead, so that a count without the file is too high.
    log.delete(tag="t1")
    log.checkpoint()
    disk.kill()
    ends: list[tuple[Any, ...]] = []
    for is_failing in (False, True):
        fork, now = disk.clone(), ManualClock(clock.now_ms(), clock.monotonic_ms())
        fs = FaultFs(fork)
        log = SmallLog(fs, clock=now)
        caplog.clear()
        if is_failing:
            fail_reads(fs, error)
        log.create(durability="fsync", **config)
        for _ in range(3):
            log.append()
            now.advance(10)
            topic = log.topic()
            topic.refresh(now.now_ms())
            assert topic.count >= 3
        warned = [record.getMessage() for record in caplog.records if "wait for a segment file" in record.message]
        assert len(warned) == len(set(warned)), "one warning for each file, not one for each call"
        assert bool(warned) == is_failing
        fs.heal()
        log.append()
        topic.refresh(now.now_ms())
        assert not topic.live.segments.unread
        shown = log.seqs(), topic.count, topic.size_bytes, topic.earliest_seq
        log.checkpoint()
        fork.kill()
        log = SmallLog(fork, clock=now)
        topic = log.topic()
        assert (log.seqs(), topic.count, topic.size_bytes, topic.earliest_seq) == shown
        ends.append(shown)
    assert ends[0] == ends[1]
    assert ends[0][0][0] > 2, "retention took something"


def test_records_that_a_checkpoint_filed_since_a_delete_was_logged_are_deleted_also_if_they_cannot_be_read() -> None:
    """The delete knows nothing of them. No live record is taken for dead, and the numbers are right in the end."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    log = SmallLog(fs)
    log.create(durability="fsync")
    for _ in range(12):
        log.append()
    log.checkpoint()
    assert log.delete(seqs=[3]) == 1
    segments = log.topic().live.segments
    segments.release_block()
    for state in segments.segments:
        log.engine.core.cache.forget(log.topic().id, state.first_seq)
    fail_reads(fs, errno.EMFILE)
    log.topic().delete_seqs([2, 3, 4, 8])
    assert segments.unread == (1, 6)
    assert log.topic().count >= 8
    fs.heal()
    assert log.seqs() == [1, 5, 6, 7, 9, 10, 11, 12]
    assert not segments.unread
    log.checkpoint()
    disk.kill()
    assert SmallLog(disk).seqs() == [1, 5, 6, 7, 9, 10, 11, 12]
