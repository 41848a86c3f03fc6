"""What a restore keeps: cuts by time and seq, chosen topics, and deletes that later points know."""

import pytest

from tests.backup.engine_world import RESTORED, LogDriver, back_up, fill, findings, numbered, restore, restored_content
from tests.backup.test_taking import records_of
from topics.backup.plan import RestoreOrder
from topics.errors import InvalidRequest, StartRefused, TopicNotFound


@pytest.fixture
def driver() -> LogDriver:
    return LogDriver()


def test_a_restore_to_a_time_has_the_records_up_to_it(driver: LogDriver) -> None:
    driver.put("t", durability="fsync")
    driver.put_group("t", "g", 0)
    for n in range(30):
        driver.clock.advance(10)
        driver.append({"n": n}, key=f"k{n}")
        if n == 20:
            driver.checkpoint()
    driver.put_group("t", "g", 25)
    start_ms = driver.clock.now_ms() - 290
    back_up(driver)
    for until_ms, head in ((start_ms - 1, 0), (start_ms, 1), (start_ms + 99, 10), (start_ms + 290, 30)):
        directory = f"/until-{head}"
        restore(driver.fs, directory, RestoreOrder(until_ms=until_ms))
        assert findings(driver.fs, directory) == []
        found = restored_content(driver.fs, driver.clock, directory)["topics"]["t"]
        assert [record.seq for record in found["pages"]] == list(range(1, head + 1))
        assert found["numbers"][0] == head
        assert [group.seq for group in found["groups"]] == [min(head, 25)]
        # A key whose records are cut off would answer with seqs that do not exist.
        assert len(found["keys"]) == head


def test_a_time_after_the_newest_point_is_refused(driver: LogDriver) -> None:
    fill(driver)
    report = back_up(driver)
    with pytest.raises(StartRefused, match=r"/backup ends before that time: its newest point is of 2023-11-14T22:13:"):
        restore(driver.fs, order=RestoreOrder(until_ms=report.ts + 1))
    assert not driver.fs.exists(RESTORED)


def test_the_oldest_point_that_has_the_time_is_used(driver: LogDriver) -> None:
    """A later point may have lost records of that time to a cap."""
    driver.put("t", cap_records=5)
    driver.append(*numbered(0, 5))
    first = back_up(driver)
    driver.clock.advance(1000)
    driver.append(*numbered(5, 5))
    back_up(driver)
    report = restore(driver.fs, order=RestoreOrder(until_ms=first.ts - 0))
    assert report.point == first.point
    assert sorted(records_of(restored_content(driver.fs, driver.clock), "t")) == [1, 2, 3, 4, 5]


def test_a_seq_bounds_its_topic_and_leaves_the_others_whole(driver: LogDriver) -> None:
    fill(driver)
    driver.seqs(topic="copied")
    back_up(driver)
    restore(driver.fs, order=RestoreOrder(until_seqs={"t": 5}))
    assert findings(driver.fs) == []
    found = restored_content(driver.fs, driver.clock)
    assert sorted(records_of(found, "t")) == [1, 2, 3, 4, 5]
    assert found["topics"]["t"]["numbers"][0] == 5
    assert sorted(records_of(found, "q")) == [2, 4, 5, 6, 7, 8, 9]
    # The router goes on with the next record of its source, and its copies stay.
    assert found["routers"]["t->copied"][3] == 5
    assert len(records_of(found, "copied")) == 5


def test_chosen_topics_come_alone_and_routers_only_with_both_ends(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    report = restore(driver.fs, order=RestoreOrder(topics=["q", "t"]))
    assert report.notes == ['router "t->copied" is left out: its source or its dest is not restored']
    found = restored_content(driver.fs, driver.clock)
    assert (sorted(found["topics"]), found["routers"]) == (["q", "t"], {})


def test_names_that_the_point_does_not_have_are_refused(driver: LogDriver) -> None:
    fill(driver)
    back_up(driver)
    for order in (RestoreOrder(topics=["none"]), RestoreOrder(until_seqs={"none": 1})):
        with pytest.raises(TopicNotFound):
            restore(driver.fs, order=order)
    with pytest.raises(InvalidRequest, match='topic "t" has a last seq, but it is not among the chosen topics'):
        restore(driver.fs, order=RestoreOrder(topics=["q"], until_seqs={"t": 1}))


def test_a_backup_without_a_finished_point_is_refused(driver: LogDriver) -> None:
    with pytest.raises(StartRefused, match="/backup has no backup"):
        restore(driver.fs)
    back_up(driver)
    driver.fs.unlink(f"/backup/{back_up(driver).point}")
    for name in driver.fs.listdir("/backup/points"):
        driver.fs.unlink(f"/backup/points/{name}")
    with pytest.raises(StartRefused, match="/backup has no finished backup: run `topics backup` to its end"):
        restore(driver.fs)


def test_records_that_were_deleted_later_stay_deleted_and_evicted_ones_come_back(driver: LogDriver) -> None:
    driver.put("capped", cap_records=7)
    for topic in ("t", "capped", "below"):
        driver.append(*numbered(0, 7, tag="x"), *numbered(7, 7, tag="y"), topic=topic)
    driver.put("q", type="queue")
    driver.add(*range(7))
    driver.checkpoint()
    first = back_up(driver)
    driver.clock.advance(1000)
    driver.delete(tag="x")
    driver.delete("below", before_seq=5)
    driver.append(*numbered(20, 3), topic="capped")
    driver.ack("w", *[job.seq for job in driver.claim("w", 7)])
    driver.checkpoint()
    back_up(driver)
    restore(driver.fs, order=RestoreOrder(until_ms=first.ts))
    assert findings(driver.fs) == []
    found = restored_content(driver.fs, driver.clock)
    assert sorted(records_of(found, "t")) == list(range(8, 15))
    assert sorted(records_of(found, "below")) == list(range(5, 15))
    # All jobs were done later: none is done twice, although the segment with them is gone from the second point.
    assert records_of(found, "q") == {}
    assert sorted(records_of(found, "capped")) == list(range(8, 15))


def test_a_topic_that_was_removed_later_comes_back_with_an_older_point(driver: LogDriver) -> None:
    driver.append(*numbered(0, 3))
    first = back_up(driver)
    driver.clock.advance(1000)
    driver.drop("t")
    driver.append("new", topic="t")
    back_up(driver)
    restore(driver.fs, order=RestoreOrder(until_ms=first.ts))
    assert len(records_of(restored_content(driver.fs, driver.clock), "t")) == 3


def test_copies_that_a_cut_takes_off_are_made_again(driver: LogDriver) -> None:
    driver.append("before", topic="a")
    driver.put("b", type="queue")
    driver.route("a", "b")
    times = []
    for n in range(12):
        driver.clock.advance(10)
        driver.append({"n": n}, topic="a")
        driver.seqs(topic="b")
        times.append(driver.clock.now_ms())
    back_up(driver)
    restore(driver.fs, "/data2", RestoreOrder(until_ms=times[4]))
    again = LogDriver(disk=driver.disk, root="/data2")
    assert again.payloads("b") == [{"n": n} for n in range(5)]
    again.append("more", topic="a")
    assert again.payloads("b")[-1] == "more"
    restore(driver.fs, "/data3", RestoreOrder(until_seqs={"b": 3}))
    third = LogDriver(disk=driver.disk, root="/data3")
    assert third.payloads("b") == [{"n": n} for n in range(12)]
