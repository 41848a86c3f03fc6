"""A backup into a folder and a restore, stopped before every disk operation: the next run brings them to their end."""

from collections.abc import Callable, Iterator

import pytest

from tests.backup.engine_world import (
    BACKUP,
    RESTORED,
    EngineSource,
    LogDriver,
    content_of,
    fill,
    findings,
    numbered,
    restored_content,
    store_on,
)
from tests.conftest import FULL
from tests.crash.sweep import RecordProperty, Tally, sampled
from topics.backup.checking import BackupCheck
from topics.backup.plan import RestoreOrder
from topics.backup.restoring import restore_backup
from topics.backup.taking import take_backup
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk

POINTS_MAX = None if FULL else 60
NEVER = 1 << 60


@pytest.fixture
def driver() -> LogDriver:
    driver = LogDriver()
    fill(driver)
    driver.seqs(topic="copied")
    return driver


def run_until(disk: FakeDisk, operation_index: int, work: Callable[[FakeDisk], object]) -> int:
    """Runs the work until the power fails at that disk operation. Returns the number of operations."""
    hook = CrashAt(operation_index)
    disk.on_operation = hook
    try:
        work(disk)
    except CrashNow:
        pass
    finally:
        disk.on_operation = None
    return hook.count


def blows(seed: int) -> Iterator[Damage | None]:
    """A kill, and some of the ways in which a power cut leaves a disk."""
    kinds = list(Damage)
    yield None
    yield from kinds if FULL else [kinds[seed % len(kinds)]]


def strike(disk: FakeDisk, blow: Damage | None, seed: int) -> None:
    if blow is None:
        disk.kill()
    else:
        disk.crash(blow, seed)


def test_a_backup_that_is_stopped_anywhere_is_finished_by_the_next_run(
    driver: LogDriver, record_property: RecordProperty
) -> None:
    tally = Tally("backup")

    def back_up(disk: FakeDisk) -> None:
        take_backup(EngineSource(driver), store_on(disk), driver.clock.now_ms())

    # One point is there, and the second is stopped.
    first = FakeDisk()
    back_up(first)
    driver.append(*numbered(50, 9, tag="z"))
    driver.checkpoint()
    driver.delete(tag="z")
    driver.seqs(topic="copied")
    expected = content_of(driver.opened.engine)
    expected["topics"].pop("passing")
    for base in (FakeDisk(), first):
        trial = base.clone()
        count = run_until(trial, NEVER, back_up)
        for index in sampled(count, POINTS_MAX):
            tally.points += 1
            for blow in blows(index):
                disk = base.clone()
                run_until(disk, index, back_up)
                strike(disk, blow, index)
                tally.recoveries += 1
                store = store_on(disk)
                if store.store_id() is not None:
                    # Each point that is there is complete, also before the next run.
                    assert base is not first or store.point_names()
                    assert list(BackupCheck(store).run()) == []
                back_up(disk)
                # What a finished backup has survives the next power cut.
                disk.crash(Damage.DROP, index)
                assert list(BackupCheck(store_on(disk)).run()) == []
                restore_backup(store_on(disk), disk, RESTORED, RestoreOrder(), new_store_id=lambda: "5" * 32)
                found = restored_content(disk, driver.clock)
                found["topics"].pop("passing")
                assert found == expected
    tally.record(record_property)


def test_a_restore_that_is_stopped_anywhere_is_finished_by_the_next_run(
    driver: LogDriver, record_property: RecordProperty
) -> None:
    tally = Tally("restore")
    take_backup(EngineSource(driver), store_on(driver.fs), driver.clock.now_ms())
    expected = content_of(driver.opened.engine)
    expected["topics"].pop("passing")

    def restore(disk: FakeDisk) -> bool:
        return restore_backup(
            store_on(driver.fs, BACKUP), disk, RESTORED, RestoreOrder(), new_store_id=lambda: "5" * 32
        ).is_repeated

    trial = FakeDisk()
    count = run_until(trial, NEVER, restore)
    for index in sampled(count, POINTS_MAX):
        tally.points += 1
        for blow in blows(index):
            disk = FakeDisk()
            run_until(disk, index, restore)
            strike(disk, blow, index)
            tally.recoveries += 1
            # There is no directory yet, or all of it.
            was_done = disk.exists(RESTORED)
            if was_done:
                assert findings(disk) == []
            assert restore(disk) == was_done
            # What a finished restore has survives the next power cut.
            disk.crash(Damage.DROP, index)
            assert findings(disk) == []
            found = restored_content(disk, driver.clock)
            found["topics"].pop("passing")
            assert found == expected
    tally.record(record_property)
