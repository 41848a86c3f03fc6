"""Times and sizes inside cold segments come in the background; until then retention is careful."""

from typing import Any

import pytest

from tests.engine.cold_log import ColdLog
from topics.limits import COLD_COLUMNS_RETRY_MS
from topics.testing.fake_disk import FakeDisk


@pytest.fixture
def log() -> ColdLog:
    return ColdLog(FakeDisk())


def numbers(log: ColdLog) -> tuple[int, int, int]:
    topic = log.topic()
    return topic.earliest_seq, topic.count, topic.size_bytes


def live_numbers(log: ColdLog) -> tuple[int, int, int]:
    """The same numbers, from the records themselves."""
    records, _ = log.read()
    return records[0].seq, len(records), sum(len(record.data) for record in records)


def make(log: ColdLog, **config: Any) -> None:
    """Records 1 to 40 in segments of 5. All but the last segment are cold. Data is 5 to 44 bytes long."""
    log.make(40, **config)


def test_a_floor_inside_a_cold_segment_is_exact_at_once_and_its_numbers_when_the_columns_come(log: ColdLog) -> None:
    make(log, cap_records=40)
    log.tier.fail_after(0)
    log.append(count=3)
    assert log.topic().earliest_seq == 4
    assert log.topic().count == 40
    log.engine.flush()
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    log.append()
    log.engine.flush()
    assert numbers(log) == live_numbers(log)


def test_deleted_records_below_a_floor_are_never_counted_as_live_ones_above_it(log: ColdLog) -> None:
    """The estimate takes dead records for the lowest ones, so no live record is taken for dead."""
    make(log, cap_records=40)
    log.delete(seqs=[2, 3, 4, 5])
    log.settle()
    log.topic().live.segments.release_cold_columns(1)
    log.tier.fail_after(0)
    log.append(count=1)
    assert log.topic().count == 37, "one of the five slots lived, and it may be above the floor"
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    log.append()
    log.engine.flush()
    assert numbers(log) == live_numbers(log) == (6, 37, log.topic().size_bytes)


def test_records_expire_inside_a_cold_segment_once_the_tier_answers(log: ColdLog) -> None:
    make(log, ttl_ms=10_000)
    log.tier.fail_after(0)
    # Records are 100 ms apart: the first eight have expired.
    log.clock.set(log.first_ms + 10_000 + 701)
    log.topic().refresh(log.engine.now_ms())
    assert log.topic().earliest_seq == 6, "the whole segment, and not yet a part of the next one"
    log.engine.flush()
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    log.clock.set(log.first_ms + 10_000 + 701)
    log.topic().refresh(log.engine.now_ms())
    log.engine.flush()
    assert numbers(log) == live_numbers(log)
    assert log.topic().earliest_seq == 9


def test_a_byte_cap_never_evicts_more_than_it_must(log: ColdLog) -> None:
    make(log)
    cap_bytes = log.topic().size_bytes
    log.tier.fail_after(0)
    log.create(durability="fsync", cap_bytes=cap_bytes)
    log.append(count=1)
    assert log.topic().earliest_seq == 1, "which records are too many is not known"
    log.append(count=10)
    assert log.topic().earliest_seq % 5 == 1
    assert log.topic().earliest_seq > 1
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    for _ in range(3):
        log.append(count=1)
        log.engine.flush()
    assert numbers(log) == live_numbers(log)
    earliest, _, size = numbers(log)
    assert size <= cap_bytes < size + log.size_of(earliest - 1)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_byte_cap_evicts_when_the_sizes_come_and_not_with_the_next_write(durability: str) -> None:
    """The floor is logged: a start without the tier has it."""
    disk = FakeDisk()
    log = ColdLog(disk)
    make(log)
    log.create(durability=durability)
    cap_bytes = log.topic().size_bytes - 8
    log.runtime.holds = True
    log.create(durability=durability, cap_bytes=cap_bytes)
    assert log.topic().earliest_seq == 1, "which records are too many is not known"
    log.runtime.holds = False
    log.runtime.begin_held()
    log.runtime.end_held()
    log.engine.flush()
    assert log.topic().earliest_seq == 3
    assert numbers(log) == live_numbers(log)
    _, _, size = numbers(log)
    assert size <= cap_bytes < size + log.size_of(2)
    expected = numbers(log)
    disk.kill()
    log = ColdLog(disk, is_down=True)
    assert log.topic().earliest_seq == 3
    assert log.topic().head_seq == 40
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    log.append()
    log.engine.flush()
    log.append()
    log.engine.flush()
    disk.kill()
    log = ColdLog(disk)
    log.engine.flush()
    assert numbers(log) == live_numbers(log)
    assert numbers(log)[0] >= expected[0]


def test_columns_that_a_checkpoint_made_wrong_are_read_again(log: ColdLog) -> None:
    """Delete bytes are set between the read of the file and its end."""
    make(log, cap_records=40)
    log.delete(seqs=[7])
    log.runtime.holds = True
    log.append(count=6)
    log.runtime.begin_held()
    log.checkpoint()
    assert not log.topic().live.segments.has_pending(log.topic().live.segments.segments[0])
    log.runtime.end_held()
    log.runtime.holds = False
    log.engine.flush()
    assert numbers(log) == live_numbers(log)


def test_the_numbers_of_a_start_without_the_tier_become_exact_when_it_answers() -> None:
    disk = FakeDisk()
    log = ColdLog(disk)
    make(log, cap_records=40)
    log.delete(tag="t1")
    log.append(count=2)
    expected = numbers(log)
    disk.kill()
    log = ColdLog(disk, is_down=True)
    assert log.topic().head_seq == 42
    assert log.topic().count >= expected[1]
    log.tier.heal()
    log.clock.advance(COLD_COLUMNS_RETRY_MS)
    log.opened.relocator.tick()
    log.append()
    log.engine.flush()
    assert numbers(log) == live_numbers(log)
