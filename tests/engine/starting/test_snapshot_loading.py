"""Starts without a readable snapshot, with routers: the records that only segments hold stay.

Copies of a router that are in segments may be in no frame of the log. With the whole log, or with a part of it, a start
keeps them, and each router goes on where it was.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engine.driver import SMALL
from tests.engine.router_driver import RouterDriver
from tests.engine.small_log import ROOT, rot_snapshots, snapshot_names
from topics.storage import layout
from topics.storage.wal.reader import list_wal_files

SHARDS = SMALL.wal_shards
# The log of this size keeps its first frame in every test here; the other one loses it at the third checkpoint.
WHOLE_LOG = replace(SMALL, wal_file_bytes=1 << 20)
SHORT_LOG = replace(SMALL, wal_file_bytes=1024)

Content = dict[str, list[tuple[int, object]]]


def log_is_whole(driver: RouterDriver) -> bool:
    directories = [layout.shard_directory(ROOT, shard, SHARDS) for shard in range(SHARDS)]
    return all(list_wal_files(driver.disk, directory)[0].first_frame == 1 for directory in directories)


def write_and_checkpoint(driver: RouterDriver, *topics: str, times: int = 3, count: int = 9) -> None:
    number = 1000 * len(driver.opened.engine.topics)
    for _ in range(times):
        for topic in topics:
            driver.append(*range(number, number + count), topic=topic)
            number += count
        read_all(driver)
        driver.checkpoint()


def read_all(driver: RouterDriver) -> Content:
    return {name: driver.content(name) for name in sorted(driver.opened.engine.topics)}


def a_copy_of_deleted_records(driver: RouterDriver) -> None:
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.delete(before_seq=20, topic="a")


def a_copy_that_a_later_delete_made_part_of_the_log(driver: RouterDriver) -> None:
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.append("x", "y", topic="a")
    read_all(driver)
    driver.delete(seqs=[3, 5, 28], topic="a")
    driver.append("z", topic="a")
    read_all(driver)


def a_queue_with_acked_jobs(driver: RouterDriver) -> None:
    driver.put("b", type="queue")
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.delete(seqs=[1, 2, 9], topic="b")
    driver.checkpoint()
    driver.delete(seqs=[3, 20], topic="b")
    driver.delete(before_seq=8, topic="a")


def two_routers_into_one_dest(driver: RouterDriver) -> None:
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.route(name="again", filter="x*")
    write_and_checkpoint(driver, "a")
    driver.delete(before_seq=30, topic="a")
    driver.append("last", topic="a")


def a_chain(driver: RouterDriver) -> None:
    driver.route("a", "b")
    driver.route("b", "c")
    driver.route("c", "d")
    write_and_checkpoint(driver, "a")
    driver.delete(before_seq=12, topic="b")
    driver.append("one", topic="a")
    read_all(driver)
    driver.delete(seqs=[1, 14], topic="a")
    write_and_checkpoint(driver, "a", times=1)
    driver.delete(seqs=[2, 15], topic="c")


def a_cycle(driver: RouterDriver) -> None:
    driver.route("a", "b")
    driver.route("b", "a", allow_cycle=True)
    write_and_checkpoint(driver, "a", count=2)
    driver.delete(before_seq=9, topic="a")
    driver.append("last", topic="a")


def a_capped_source(driver: RouterDriver) -> None:
    """Most of its records are in no file any more."""
    driver.put("a", cap_records=10)
    driver.route()
    write_and_checkpoint(driver, "a", times=6)
    driver.append("last", topic="a")
    read_all(driver)


def a_removed_router(driver: RouterDriver) -> None:
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.unroute()
    driver.delete(before_seq=25, topic="a")
    driver.append("not copied", topic="a")


def an_exact_router(driver: RouterDriver) -> None:
    driver.route(guarantee="exactly_once")
    write_and_checkpoint(driver, "a")
    driver.delete(before_seq=20, topic="a")
    driver.append("last", topic="a")


def a_delete_of_copies_after_a_clean_stop(driver: RouterDriver) -> None:
    """The copies are in segments, and no frame names them."""
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.reopen()
    driver.delete(before_seq=20, topic="b")


def a_delete_in_the_source_after_a_clean_stop(driver: RouterDriver) -> None:
    """The router has made no copy since the start, so no frame says how far it is."""
    driver.route()
    write_and_checkpoint(driver, "a")
    driver.reopen()
    driver.delete(before_seq=20, topic="a")


HISTORIES = [
    a_delete_in_the_source_after_a_clean_stop,
    a_delete_of_copies_after_a_clean_stop,
    a_copy_of_deleted_records,
    a_copy_that_a_later_delete_made_part_of_the_log,
    a_queue_with_acked_jobs,
    two_routers_into_one_dest,
    a_chain,
    a_cycle,
    a_capped_source,
    a_removed_router,
    an_exact_router,
]


@pytest.mark.parametrize("settings", [WHOLE_LOG, SHORT_LOG], ids=["whole log", "short log"])
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_start_without_snapshots_keeps_every_copy(history: Callable[[RouterDriver], None], settings: object) -> None:
    """All topics read as before, no record twice, and the routers go on with the next source record."""
    assert settings in (WHOLE_LOG, SHORT_LOG)
    driver = RouterDriver(WHOLE_LOG if settings is WHOLE_LOG else SHORT_LOG)
    history(driver)
    expected = read_all(driver)
    routers = {name: (router.cursor, router.forwarded_total) for name, router in driver.opened.engine.routers.items()}
    assert log_is_whole(driver) == (settings is WHOLE_LOG)
    rot_snapshots(driver.disk)
    for _ in range(2):
        driver.kill()
        assert read_all(driver) == expected
        found = driver.opened.engine.routers
        assert {name: (router.cursor, router.forwarded_total) for name, router in found.items()} == routers
    driver.append("after the start", topic="a")
    for name, content in read_all(driver).items():
        gained = content[len(expected[name]) - (name == "a" and history is a_capped_source) :]
        assert {payload for _, payload in gained} <= {"after the start"}
    with_new = read_all(driver)
    driver.checkpoint()
    driver.kill()
    assert read_all(driver) == with_new


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_bad_newest_snapshot_loses_no_copy(history: Callable[[RouterDriver], None]) -> None:
    """The snapshot before it is used, with the segments that are newer than that snapshot."""
    driver = RouterDriver(SHORT_LOG)
    history(driver)
    expected = read_all(driver)
    driver.disk.replace(layout.snapshot_path(ROOT, max(snapshot_names(driver.disk))), b"rotten")
    driver.kill()
    assert read_all(driver) == expected
