"""Old sealed segments move to the cold tier, and nothing is lost, hidden or brought back on the way."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.small_log import read_fetched
from topics.engine.engine import Engine
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.writing.intake import batch_of_records
from topics.errors import ColdUnavailable, StartRefused
from topics.results import NewRecord
from topics.storage.checkpoints.runner import InlineRunner
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs

SETTINGS = EngineSettings(
    wal_shards=1,
    wal_file_bytes=64 * 1024,
    segment_events_max=5,
    cold_dir="/cold",
    hot_retain_segments=1,
    tail_cache_bytes=0,
)


def opened(fs: FakeDisk | FaultFs, settings: EngineSettings = SETTINGS) -> OpenEngine:
    return open_engine(
        fs, "/data", settings=settings, clock=ManualClock(1_000_000), runtime=InlineRuntime(), runner=InlineRunner(fs)
    )


def append(engine: Engine, first: int, last: int) -> None:
    batch = batch_of_records(NewRecord(number, tag=f"t{number % 3}") for number in range(first, last + 1))
    answers: list[object] = []
    engine.append("a", batch, answers.append)
    engine.flush()
    assert len(answers) == 1


def settle(log: OpenEngine, *, checkpoints: int = 3) -> None:
    """Takes checkpoints. Between two of them all segments that are old enough are moved."""
    for _ in range(checkpoints):
        errors: list[Exception | None] = []
        log.checkpointer.start(errors.append)
        assert errors == [None]
        # The first tick may only claim the tier.
        log.relocator.tick()
        before = -1
        while before != log.relocator.moved_total:
            before = log.relocator.moved_total
            log.relocator.tick()
        # A topic must change, or the next checkpoint writes no snapshot.
        log.engine.topics["a"].checkpoint.mark_changed()


def seqs(engine: Engine) -> list[int]:
    found: list[int] = []
    cursor = 0
    while True:
        page = read_fetched(engine, "a", cursor, 7)
        found += [record.seq for record in page.records]
        if page.caught_up:
            return found
        cursor = page.next_from_seq


def tiers(log: OpenEngine) -> list[str]:
    return [segment.tier for segment in log.engine.topics["a"].live.segments.segments]


def data_files(disk: FakeDisk, root: str) -> list[str]:
    return sorted(path for path in disk.files() if path.startswith(root) and path.endswith(".data"))


@pytest.fixture
def disk() -> Iterator[FakeDisk]:
    return FakeDisk()


def test_old_segments_go_to_the_cold_tier_and_stay_readable(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 20)
    settle(log)
    assert tiers(log) == ["cold", "cold", "cold", "hot"]
    assert len(data_files(disk, "/data/")) == 1
    assert len(data_files(disk, "/cold/")) == 3
    assert seqs(log.engine) == list(range(1, 21))


def test_the_hot_copy_stays_until_both_kept_snapshots_say_cold(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 10)
    settle(log, checkpoints=1)
    assert tiers(log) == ["cold", "hot"]
    settle(log, checkpoints=1)
    assert len(data_files(disk, "/data/")) == 2
    settle(log, checkpoints=1)
    assert len(data_files(disk, "/data/")) == 1


def test_with_both_copies_present_the_hot_one_is_used_and_moved_again(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 10)
    settle(log, checkpoints=2)
    disk.kill()
    again = opened(disk)
    assert tiers(again) == ["hot", "hot"]
    assert seqs(again.engine) == list(range(1, 11))
    settle(again)
    assert tiers(again) == ["cold", "hot"]


def test_deletes_reach_cold_segments_and_stay_deleted(disk: FakeDisk) -> None:
    """The cold object is written again with its delete bytes set."""
    log = opened(disk)
    append(log.engine, 1, 20)
    settle(log)
    answers: list[object] = []
    log.engine.delete_records("a", answers.append, tag="t1")
    log.engine.flush()
    expected = [seq for seq in range(1, 21) if seq % 3 != 1]
    assert seqs(log.engine) == expected
    settle(log)
    disk.kill()
    again = opened(disk)
    assert seqs(again.engine) == expected
    assert again.engine.topics["a"].count == len(expected)


def test_without_the_cold_tier_old_reads_fail_and_everything_else_goes_on(disk: FakeDisk) -> None:
    """The folder is gone, as if its disk were not mounted."""
    log = opened(disk)
    append(log.engine, 1, 20)
    settle(log)
    disk.kill()
    fs = FaultFs(disk)
    fs.fail("open", "exists", "pread", "size", "listdir", lasts=True, path=lambda path: path.startswith("/cold"))
    again = opened(fs)
    append(again.engine, 21, 23)
    assert [record.seq for record in again.engine.read("a", 18).records] == [19, 20, 21, 22, 23]
    with pytest.raises(ColdUnavailable):
        read_fetched(again.engine, "a", 0)
    fs.heal()
    assert seqs(again.engine) == list(range(1, 24))


def test_retention_goes_on_without_the_cold_tier(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 20)
    settle(log)
    disk.kill()
    fs = FaultFs(disk)
    fs.fail("open", "exists", "pread", "size", "listdir", lasts=True, path=lambda path: path.startswith("/cold"))
    again = opened(fs)
    answers: list[object] = []
    again.engine.put_topic("a", again.engine.topics["a"].config.__class__(cap_records=18), answers.append)
    again.engine.flush()
    assert answers == [False]
    assert again.engine.topics["a"].earliest_seq == 3
    append(again.engine, 21, 24)
    topic = again.engine.topics["a"]
    assert (topic.earliest_seq, topic.count) == (7, 18)


def test_an_empty_folder_in_the_place_of_the_cold_tier_is_not_taken_for_it(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 10)
    settle(log)
    disk.kill()
    for path in [path for path in disk.files() if path.startswith("/cold")]:
        disk.unlink(path)
    again = opened(disk)
    assert any("is not the cold tier of this directory" in warning for warning in again.report.warnings)
    with pytest.raises(ColdUnavailable) as refused:
        read_fetched(again.engine, "a", 0)
    # Compiled code knows no `raise … from`: there the cause is the context.
    assert "bring it back" in str(refused.value.__cause__ or refused.value.__context__)
    assert "/cold" not in refused.value.message
    assert "/cold/STORE" not in disk.files()


def test_the_cold_tier_of_another_directory_is_refused(disk: FakeDisk) -> None:
    opened(disk)
    disk.kill()
    with pytest.raises(StartRefused, match="belongs to another data directory"):
        open_engine(
            disk,
            "/other",
            settings=SETTINGS,
            clock=ManualClock(1_000_000),
            runtime=InlineRuntime(),
            runner=InlineRunner(disk),
        )


def test_a_failed_copy_leaves_the_segment_hot_and_is_tried_again_later(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    clock = ManualClock(1_000_000)
    log = open_engine(fs, "/data", settings=SETTINGS, clock=clock, runtime=InlineRuntime(), runner=InlineRunner(fs))
    append(log.engine, 1, 10)
    fs.fail("create", "pwrite", lasts=True, path=lambda path: path.startswith("/cold/topics"))
    settle(log)
    assert tiers(log) == ["hot", "hot"]
    fs.heal()
    clock.advance(60_000)
    settle(log)
    assert tiers(log) == ["cold", "hot"]
    assert seqs(log.engine) == list(range(1, 11))


def test_nothing_moves_before_the_tier_is_claimed_for_good(disk: FakeDisk) -> None:
    """A STORE object that is not durable could vanish. Then a start would treat the tier as another one."""
    fs = FaultFs(disk)
    fault = fs.fail("sync_dir", lasts=True, path=lambda path: path.startswith("/cold"))
    clock = ManualClock(1_000_000)
    log = open_engine(fs, "/data", settings=SETTINGS, clock=clock, runtime=InlineRuntime(), runner=InlineRunner(fs))
    append(log.engine, 1, 10)
    settle(log)
    assert fault.fired_count > 0
    assert tiers(log) == ["hot", "hot"]
    fs.heal()
    clock.advance(60_000)
    settle(log)
    assert tiers(log) == ["cold", "hot"]


def test_segments_are_kept_hot_by_bytes_too(disk: FakeDisk) -> None:
    log = opened(disk, replace(SETTINGS, hot_retain_segments=100, hot_retain_bytes=500))
    append(log.engine, 1, 20)
    settle(log)
    hot = [segment for segment in log.engine.topics["a"].live.segments.segments if segment.tier == "hot"]
    assert sum(segment.data_bytes for segment in hot) <= 500
    assert len(hot) > 0


def test_a_dropped_topic_leaves_nothing_in_either_tier(disk: FakeDisk) -> None:
    log = opened(disk)
    append(log.engine, 1, 20)
    settle(log)
    answers: list[object] = []
    log.engine.delete_topic("a", if_empty=False, done=answers.append)
    log.engine.flush()
    assert answers == [True]
    assert data_files(disk, "/") == []


def test_a_pinned_segment_does_not_move_until_its_pin_is_over() -> None:
    disk = FakeDisk()
    log = opened(disk)
    append(log.engine, 1, 20)
    log.checkpointer.start()
    oldest = log.engine.topics["a"].live.segments.segments[0]
    log.engine.pins.pin(frozenset(((log.engine.topics["a"].id, oldest.first_seq),)), 1000)
    settle(log)
    assert log.relocator.moved_total == 0
    clock = log.engine.clock
    assert isinstance(clock, ManualClock)
    clock.advance(1000)
    settle(log)
    assert log.relocator.moved_total > 0
    assert seqs(log.engine) == list(range(1, 21))
