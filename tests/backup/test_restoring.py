"""A restored directory serves what the log served when its backup was taken."""

import pytest

from tests.backup.engine_world import (
    BACKUP,
    RESTORED,
    LogDriver,
    back_up,
    content_of,
    fill,
    findings,
    numbered,
    restore,
    restored_content,
    store_on,
)
from topics.backup.plan import RestoreOrder
from topics.backup.restoring import PARTIAL
from topics.errors import Damaged, DirectoryLocked, StartRefused
from topics.storage.layout import LOCK, RESTORE_NOTE


@pytest.fixture
def driver() -> LogDriver:
    return LogDriver()


def test_everything_comes_back_with_its_seqs_times_and_labels(driver: LogDriver) -> None:
    fill(driver)
    driver.seqs(topic="copied")
    expected = content_of(driver.opened.engine)
    report = back_up(driver)
    assert report.topics == len(expected["topics"])
    assert report.notes == [
        'topic "passing" is ephemeral: its records are in memory only, and not in the backup',
    ]
    restore(driver.fs)
    assert findings(driver.fs) == []
    # As after a restart, the records of an ephemeral topic are gone, and its readers are told so.
    passing = expected["topics"].pop("passing")
    for _ in range(2):
        found = restored_content(driver.fs, driver.clock)
        assert found["topics"].pop("passing")["pages"] == [(1, 1, "power_loss")]
        assert found == expected
    assert passing["numbers"][0] == 1
    assert findings(driver.fs) == []


def test_lost_ranges_and_floors_come_back(driver: LogDriver) -> None:
    driver.put("t", durability="disk")
    driver.append(*numbered(0, 3))
    driver.checkpoint()
    driver.append(*numbered(3, 3))
    driver.lose_power()
    driver.append(*numbered(6, 9))
    driver.put("t", durability="disk", cap_bytes=60)
    driver.append(*numbered(15, 2))
    expected = content_of(driver.opened.engine)
    assert expected["topics"]["t"]["lost"] or expected["topics"]["t"]["numbers"][4] > 1
    back_up(driver)
    restore(driver.fs)
    assert restored_content(driver.fs, driver.clock) == expected


def test_a_restored_queue_has_all_unacked_jobs_ready_and_their_deliveries_counted(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    restore(driver.fs, "/data2")
    again = LogDriver(disk=driver.disk, root="/data2")
    jobs = again.claim("other", 100)
    assert [(job.seq, job.deliveries) for job in jobs] == [(2, 2), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1)]
    # A token of the log that was backed up fits no delivery here.
    assert min(int(job.lease_id) for job in jobs) > 1 << 32


def test_a_restored_log_goes_on(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    restore(driver.fs, "/data2")
    again = LogDriver(disk=driver.disk, root="/data2")
    # The key is known, so this is no new write; then a new one.
    assert again.append(*numbered(0, 10), key="k1").deduped
    head = again.topic("t").head_seq
    assert again.append("next").first_seq == head + 1
    again.append("copied on", topic="t")
    again.append(*numbered(90, 1, tag="x"))
    assert again.payloads("copied")[-1] == {"n": 90}
    again.checkpoint()
    again.reopen()
    assert again.payloads("copied")[-1] == {"n": 90}
    assert findings(driver.fs, "/data2") == []


def test_a_directory_with_data_is_left_alone(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    before = driver.disk.files()
    with pytest.raises(StartRefused, match="/data is not empty: a restore never writes over data; give a directory"):
        restore(driver.fs, "/data")
    assert driver.disk.files() == before
    # An empty one is fine.
    driver.fs.makedirs(RESTORED)
    restore(driver.fs)


def test_a_second_run_of_the_same_restore_changes_nothing_and_another_is_refused(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    restore(driver.fs)
    before = driver.disk.files()
    assert restore(driver.fs).is_repeated
    assert driver.disk.files() == before
    with pytest.raises(StartRefused, match="is not empty"):
        restore(driver.fs, order=RestoreOrder(topics=["t"]))


def test_what_another_restore_left_unfinished_is_removed_and_other_folders_are_not(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    restore(driver.fs, order=RestoreOrder(topics=["q"]))
    driver.fs.rename(RESTORED, RESTORED + PARTIAL)
    restore(driver.fs, order=RestoreOrder(topics=["t"]))
    assert sorted(restored_content(driver.fs, driver.clock)["topics"]) == ["t"]
    assert findings(driver.fs) == []
    driver.fs.makedirs("/other.partial/mine")
    with pytest.raises(
        StartRefused, match=r"/other\.partial exists, and it is not an unfinished restore; move it away"
    ):
        restore(driver.fs, "/other")


def test_two_restores_do_not_share_a_folder(driver: LogDriver) -> None:
    back_up(driver)
    driver.fs.makedirs(RESTORED + PARTIAL)
    lock = driver.fs.lock(f"{RESTORED}{PARTIAL}/{LOCK}")
    assert lock is not None
    with pytest.raises(DirectoryLocked):
        restore(driver.fs)
    lock.release()
    restore(driver.fs)
    assert driver.fs.exists(f"{RESTORED}/{RESTORE_NOTE}")


def test_a_damaged_backup_is_not_restored(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    name = next(path for path in sorted(driver.disk.files()) if path.startswith(f"{BACKUP}/files/"))
    driver.disk.poke(name, 20, b"\xff")
    with pytest.raises(Damaged) as caught:
        restore(driver.fs)
    assert caught.value.path == name
    assert not driver.fs.exists(RESTORED)


def test_a_restored_directory_is_another_store(driver: LogDriver) -> None:
    """With the old store id it could use, and delete from, the cold tier of the log that was backed up."""
    fill(driver)
    back_up(driver)
    restore(driver.fs, "/data2")
    again = LogDriver(disk=driver.disk, root="/data2")
    assert again.opened.engine.directory.store_id != driver.opened.engine.directory.store_id
    with pytest.raises(StartRefused, match="is the backup of another data directory"):
        back_up(again)
    back_up(again, "/backup2")
    assert store_on(driver.fs, "/backup2").point_names()
