"""A backup copies what is new, whatever happened between two runs, and only that."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backup.engine_world import (
    BACKUP,
    RESTORED,
    EngineSource,
    FramesSource,
    LogDriver,
    back_up,
    content_of,
    fill,
    numbered,
    restore,
    restored_content,
    store_on,
)
from topics.backup import taking
from topics.backup.checking import BackupCheck
from topics.backup.plan import RestoreOrder
from topics.backup.source import Outdated, Picture, SegmentCopy
from topics.backup.taking import NotSettled, take_backup
from topics.errors import Damaged
from topics.formats.records import Record
from topics.formats.snapshot import SegmentState, TopicState


@pytest.fixture
def driver() -> LogDriver:
    return LogDriver()


def backup_files(driver: LogDriver, folder: str = BACKUP) -> dict[str, bytes]:
    """The files with records of a backup."""
    prefix = f"{folder}/files/"
    return {path.removeprefix(prefix): data for path, data in driver.disk.files().items() if path.startswith(prefix)}


def test_the_second_run_copies_only_what_is_new(driver: LogDriver) -> None:
    driver.append(*numbered(0, 21))
    driver.checkpoint()
    first = back_up(driver)
    before = backup_files(driver)
    assert first.new_files == len(before) == 3
    assert (first.verified_files, first.verified_bytes) == (first.new_files, first.new_bytes)
    # Nothing new: not even a segment is read.
    source = EngineSource(driver)
    again = take_backup(source, store_on(driver.fs), 0)
    assert (again.new_files, again.verified_files, source.segments_read) == (0, 0, 0)
    driver.append(*numbered(21, 7))
    driver.checkpoint()
    third = back_up(driver)
    assert third.new_files == 1
    assert {name: data for name, data in backup_files(driver).items() if name in before} == before
    assert [point.records for point in (first, again, third)] == [21, 21, 28]


def test_deletes_in_a_copied_segment_copy_no_bytes(driver: LogDriver) -> None:
    driver.append(*numbered(0, 7, tag="x"))
    driver.append(*numbered(7, 7, tag="y"))
    driver.checkpoint()
    back_up(driver)
    before = backup_files(driver)
    driver.delete(before_seq=3)
    # The delete bytes are set by the checkpoint. Both ways of a delete are known to the backup.
    for _ in range(2):
        report = back_up(driver)
        assert (report.new_files, report.records) == (0, 12)
        driver.checkpoint()
    assert backup_files(driver) == before
    restore(driver.fs)
    assert restored_content(driver.fs, driver.clock) == content_of(driver.opened.engine)


def test_a_file_that_left_the_backup_is_copied_again(driver: LogDriver) -> None:
    driver.append(*numbered(0, 14))
    driver.checkpoint()
    back_up(driver)
    name = min(backup_files(driver))
    driver.fs.unlink(f"{BACKUP}/files/{name}")
    assert [damage.path for damage in BackupCheck(store_on(driver.fs)).run()] == [f"{BACKUP}/files/{name}"]
    assert back_up(driver).new_files == 1
    assert list(BackupCheck(store_on(driver.fs)).run()) == []


def test_a_file_that_a_killed_run_left_is_used_and_a_damaged_one_is_replaced(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    complete = backup_files(driver)
    names = sorted(complete)
    for path in driver.disk.files():
        if path.startswith((f"{BACKUP}/points/", f"{BACKUP}/catalog/")):
            driver.fs.unlink(path)
    driver.disk.poke(f"{BACKUP}/files/{names[0]}", 30, b"\xff\xff")
    driver.disk.replace(f"{BACKUP}/files/{names[1]}", b"")
    report = back_up(driver)
    assert report.new_files == 2
    assert backup_files(driver) == complete
    assert list(BackupCheck(store_on(driver.fs)).run()) == []


def test_a_damaged_log_is_backed_up_without_its_damaged_records_and_restored_with_a_lost_range(
    driver: LogDriver,
) -> None:
    driver.append(*numbered(0, 21))
    driver.checkpoint()
    path = "/data/topics/00000001/seg-0000000000000015.data"
    frame_bytes = len(driver.disk.read(path)) // 7
    driver.disk.poke(path, 2 * frame_bytes + 30, b"\xff")
    for folder in (BACKUP, BACKUP, "/backup2"):
        report = back_up(driver, folder)
        assert report.records == 20
        assert [message.startswith(f"{path}: damaged at offset {2 * frame_bytes}: ") for message in report.damage] == [
            True
        ]
    restore(driver.fs)
    found = restored_content(driver.fs, driver.clock)
    assert sorted(records_of(found, "t")) == [seq for seq in range(1, 22) if seq != 17]
    assert found["topics"]["t"]["lost"] == [(17, 17)]
    assert (17, 17, "power_loss") in found["topics"]["t"]["pages"]


def test_bytes_that_the_store_changed_are_found_before_the_point(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.append(*numbered(0, 7))
    driver.checkpoint()
    store = store_on(driver.fs)
    put = store.put_new_file
    monkeypatch.setattr(store, "put_new_file", lambda file, data: put(file, bytes(data[:-1]) + b"\xd5"))
    with pytest.raises(Damaged, match="XXH3-64"):
        take_backup(EngineSource(driver), store, 0)
    assert store.point_names() == []


def test_with_verify_all_older_files_are_read_too(driver: LogDriver) -> None:
    driver.append(*numbered(0, 14))
    driver.checkpoint()
    back_up(driver)
    assert back_up(driver, verify_all=True).verified_files == 2
    name = min(backup_files(driver))
    driver.disk.poke(f"{BACKUP}/files/{name}", 30, b"\xff\xff")
    back_up(driver)
    with pytest.raises(Damaged):
        back_up(driver, verify_all=True)


class ChangingSource(EngineSource):
    """Something happens to the log each time a segment is read."""

    def __init__(self, driver: LogDriver, *, times: int) -> None:
        super().__init__(driver)
        self._times = times

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        if self._times:
            self._times -= 1
            self._driver.append("another", topic="other")
            raise Outdated("a file was moved")
        return super().segment(topic, segment)


def test_a_log_that_changes_under_the_copy_is_captured_again(driver: LogDriver) -> None:
    fill(driver)
    report = take_backup(ChangingSource(driver, times=3), store_on(driver.fs), 0)
    assert report.pictures == 4
    # The point is the last picture, not the first.
    restore(driver.fs)
    assert len(restored_content(driver.fs, driver.clock)["topics"]["other"]["pages"]) == 3
    with pytest.raises(NotSettled, match="outdated before they were copied: a file was moved"):
        take_backup(ChangingSource(driver, times=99), store_on(driver.fs, "/backup2"), 0)


def test_another_log_under_the_address_ends_the_backup(driver: LogDriver) -> None:
    class Replaced(ChangingSource):
        store_ids = iter(["6" * 32, "7" * 32])

        def picture(self) -> Picture:
            return super().picture()._replace(store_id=next(self.store_ids))

    driver.append(*numbered(0, 21))
    driver.checkpoint()
    with pytest.raises(NotSettled) as caught:
        take_backup(Replaced(driver, times=1), store_on(driver.fs), 0)
    assert caught.value.message == (
        f"another data directory took the place of the log during the backup: store {'6' * 32} became {'7' * 32}; "
        "back up each one to a place of its own"
    )
    assert store_on(driver.fs).point_names() == []


def test_a_new_picture_is_taken_after_a_long_copy(driver: LogDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "SETTLED_BYTES", 100)
    driver.append(*numbered(0, 14))
    driver.checkpoint()

    class Writing(EngineSource):
        def picture(self) -> Picture:
            picture = super().picture()
            self._driver.append("while files are copied")
            return picture

    report = take_backup(Writing(driver), store_on(driver.fs), 0)
    assert (report.pictures, report.records) == (2, 15)


def test_records_that_are_evicted_during_a_copy_as_frames_are_below_a_floor(driver: LogDriver) -> None:
    driver.put("t", cap_records=14)
    driver.append(*numbered(0, 14))
    driver.checkpoint()
    first = back_up(driver)
    driver.clock.advance(1000)

    class Evicting(FramesSource):
        def picture(self) -> Picture:
            picture = super().picture()
            self._driver.append(*numbered(14, 5))
            return picture

    take_backup(Evicting(driver), store_on(driver.fs, "/frames"), 0)
    restore(driver.fs, folder="/frames")
    # The picture had seqs 1 to 14. The first five were evicted before they were copied, and readers are told so.
    found = restored_content(driver.fs, driver.clock)
    assert found["topics"]["t"]["pages"][0] == (1, 5, "cap")
    assert sorted(records_of(found, "t")) == list(range(6, 15))
    # An eviction that a later point knows takes nothing from an older point.
    take_backup(Evicting(driver), store_on(driver.fs), 0)
    restore(driver.fs, "/older", RestoreOrder(until_ms=first.ts))
    assert len(records_of(restored_content(driver.fs, driver.clock, "/older"), "t")) == 14


# Random histories.

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 9), st.sampled_from(("x", "y", None))),
    st.tuples(st.just("delete"), st.integers(0, 30), st.sampled_from(("x", "y"))),
    st.tuples(st.just("ack"), st.integers(1, 6), st.none()),
    st.tuples(st.just("checkpoint"), st.just(0), st.none()),
    st.tuples(st.just("reopen"), st.just(0), st.none()),
    st.tuples(st.just("backup"), st.just(0), st.none()),
)


def take_step(driver: LogDriver, step: tuple[str, int, str | None]) -> None:
    kind, number, tag = step
    driver.clock.advance(1)
    if kind == "append":
        driver.append(*numbered(0, number, tag=tag))
        driver.append(*range(number), topic="q")
        driver.append(*range(number), topic="capped")
    elif kind == "delete" and tag is not None:
        driver.delete(before_seq=number) if number % 3 == 0 else driver.delete(tag=tag)
    elif kind == "ack":
        driver.ack("w", *[job.seq for job in driver.claim("w", number)])
    elif kind == "checkpoint":
        driver.checkpoint()
    elif kind == "reopen":
        driver.reopen()


def records_of(content: dict[str, Any], topic: str) -> dict[int, Any]:
    return {record.seq: record for record in content["topics"][topic]["pages"] if isinstance(record, Record)}


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, min_size=4, max_size=25))
def test_many_small_runs_hold_the_same_as_one_full_run(steps: list[tuple[str, int, str | None]]) -> None:
    driver = LogDriver()
    driver.put("t")
    driver.put("q", type="queue")
    driver.put("capped", cap_records=5)
    driver.put("copied")
    driver.route("t", "copied", filter="x")
    points: list[tuple[int, dict[str, Any]]] = []
    for step in [*steps, ("backup", 0, None)]:
        take_step(driver, step)
        if step[0] == "backup":
            driver.seqs(topic="copied")
            points.append((back_up(driver).ts, content_of(driver.opened.engine)))
    back_up(driver, "/full")
    assert list(BackupCheck(store_on(driver.fs)).run()) == []
    for folder in (BACKUP, "/full"):
        restore(driver.fs, f"{folder}-restored", folder=folder)
        assert restored_content(driver.fs, driver.clock, f"{folder}-restored") == points[-1][1]
    # An older point has what it had then, without the records that the backup knows as deleted now.
    ts, then = points[len(points) // 2]
    restore(driver.fs, RESTORED, RestoreOrder(until_ms=ts))
    found = restored_content(driver.fs, driver.clock)
    for topic in ("t", "q", "copied"):
        later = [records_of(content, topic) for at, content in points if at >= ts]
        expected = {
            seq: record for seq, record in records_of(then, topic).items() if all(seq in kept for kept in later)
        }
        assert records_of(found, topic) == expected
    # Eviction is no deletion: an older point still has the records that a cap took later.
    assert records_of(found, "capped") == records_of(then, "capped")
