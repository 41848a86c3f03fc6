"""What a checkpoint leaves to do in the cold tier: delete bytes, removals. The tier may fail at any call of it."""

import pytest

from tests.engine.cold_log import ColdLog
from topics.testing.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def log(disk: FakeDisk) -> ColdLog:
    log = ColdLog(disk)
    log.make(20)
    return log


def pending(log: ColdLog) -> list[int]:
    segments = log.topic().live.segments
    return [seq for first, last in segments.pending_runs(segments.segments) for seq in range(first, last + 1)]


def live(log: ColdLog) -> list[int]:
    records, _ = log.read()
    assert log.topic().count == len(records)
    return [record.seq for record in records]


def cold_objects(disk: FakeDisk) -> list[str]:
    return [path for path in disk.files() if path.startswith("/cold/topics/")]


def test_deletes_stay_pending_until_the_tier_has_taken_them_at_whatever_call_it_fails(disk: FakeDisk) -> None:
    calls = 0
    while True:
        disk = FakeDisk()
        log = ColdLog(disk)
        log.make(20)
        log.delete(tag="t1")
        left = [seq for seq in range(1, 21) if seq % 3 != 1]
        log.tier.fail_after(calls)
        log.checkpoint()
        has_failed = log.tier.calls_left == 0
        disk.kill()
        log = ColdLog(disk)
        assert live(log) == left
        log.settle()
        assert pending(log) == []
        assert live(log) == left
        disk.kill()
        assert live(ColdLog(disk)) == left
        if not has_failed:
            break
        calls += 1
    assert calls > 5


def test_delete_bytes_reach_the_hot_copy_too_because_a_start_uses_it(disk: FakeDisk) -> None:
    """The segment was moved, and its hot files are still there."""
    log = ColdLog(disk)
    log.create(durability="fsync")
    for number in range(1, 16):
        log.write(number)
    log.checkpoint()
    for _ in range(4):
        log.opened.relocator.tick()
    assert log.topic().live.segments.is_cold(2)
    log.delete(seqs=[2, 3])
    log.checkpoint()
    assert pending(log) == []
    log.topic().checkpoint.mark_changed()
    log.checkpoint()
    disk.kill()
    log = ColdLog(disk)
    assert live(log) == [1, *range(4, 16)]


def test_the_objects_of_a_removed_topic_and_of_dead_segments_go_when_the_tier_answers(
    disk: FakeDisk, log: ColdLog
) -> None:
    log.create("b", durability="fsync")
    for number in range(1, 16):
        log.write(number, "b")
    log.settle()
    assert any("/00000002/" in path for path in cold_objects(disk))
    log.tier.fail_after(0)
    log.drop("b")
    log.delete(before_seq=11)
    log.settle()
    assert any("/00000002/" in path for path in cold_objects(disk)), "the tier did not answer"
    log.tier.heal()
    log.settle()
    assert {path.rpartition("/")[2][4:20] for path in cold_objects(disk)} == {"0000000000000011"}
    assert all("/00000001/" in path for path in cold_objects(disk))
    assert live(log) == list(range(11, 21))
