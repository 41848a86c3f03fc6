"""A fetch brings the bytes of a page into memory, so that the owner of the engine reads them without waiting."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine.small_log import SmallLog
from topics.engine.topic.reading import Page
from topics.errors import ColdUnavailable, TopicNotFound
from topics.storage.fs import File, Fs, OpenMode, RealFs
from topics.storage.tiers.cached_store import CachedStore
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.wrapped_fs import WrappedFile, WrappedFs

PAGE_BYTES = 4096


class CoolFs(WrappedFs):
    """A machine whose page cache has only the bytes that were read since `cool`."""

    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self._cached: set[tuple[str, int]] = set()

    def cool(self) -> None:
        self._cached.clear()

    def open(self, path: str, mode: OpenMode) -> File:
        return CoolFile(self.inner.open(path, mode), self._cached)


class CoolFile(WrappedFile):
    __slots__ = ("_cached",)

    def __init__(self, inner: File, cached: set[tuple[str, int]]) -> None:
        super().__init__(inner)
        self._cached = cached

    def _pages(self, size: int, offset: int) -> set[tuple[str, int]]:
        end = min(offset + size, self.inner.size())
        return {(self.path, page) for page in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES))}

    def pread(self, size: int, offset: int) -> bytes:
        self._cached |= self._pages(size, offset)
        return self.inner.pread(size, offset)

    def is_cached(self, size: int, offset: int) -> bool:
        return self._pages(size, offset) <= self._cached


def filed(fs: Fs, count: int = 12, **settings: Any) -> SmallLog:
    """Records in segments of 5. No record is in memory."""
    log = SmallLog(fs, **settings)
    log.create(durability="fsync")
    log.append(count=count)
    log.checkpoint()
    return log


def needed(log: SmallLog, from_seq: int = 0, limit: int = 256, bytes_max: int = 1 << 20) -> Callable[[], None] | None:
    return log.engine.fetch_needed("a", from_seq, limit, bytes_max)


def fetch(log: SmallLog, from_seq: int = 0, **bounds: int) -> None:
    work = needed(log, from_seq, **bounds)
    assert work is not None
    work()


def seqs_of(page: Page) -> list[int]:
    return [record.seq for record in page.records]


# Local files.


def test_what_is_in_memory_needs_nothing() -> None:
    log = SmallLog(FakeDisk())
    log.create()
    assert needed(log) is None
    log.append(count=3)
    assert needed(log) is None
    assert needed(log, 3) is None
    assert needed(log, 99) is None, "a cursor of another instance reads from the first record"


def test_a_file_that_is_not_open_yet_is_looked_into_elsewhere_first() -> None:
    log = filed(FakeDisk())
    fetch(log)
    assert seqs_of(log.engine.read("a")) == list(range(1, 13))
    assert needed(log) is None


def test_what_the_page_cache_has_not_got_is_fetched_and_then_at_hand() -> None:
    fs = CoolFs(FakeDisk())
    log = filed(fs)
    log.engine.read("a")
    fs.cool()
    fetch(log)
    assert needed(log) is None
    assert seqs_of(log.engine.read("a")) == list(range(1, 13))


def test_a_page_waits_for_its_first_piece_at_most() -> None:
    """Bytes for which the read would have to wait are left for the next page."""
    fs = CoolFs(FakeDisk())
    log = filed(fs)
    fs.cool()
    pages = [log.engine.read("a", from_seq) for from_seq in (0, 5)]
    assert [seqs_of(page) for page in pages] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert not pages[0].caught_up
    assert log.seqs() == list(range(1, 13))


def test_only_what_fits_the_page_is_fetched() -> None:
    fs = CoolFs(FakeDisk())
    log = SmallLog(fs, segment_events_max=100)
    log.create(durability="fsync")
    for _ in range(4):
        log.append(meta={"x": "y" * 15_000}, count=10)
    log.checkpoint()
    log.engine.read("a")
    fs.cool()
    fetch(log, bytes_max=100_000)
    page = log.engine.read("a", bytes_max=100_000)
    assert len(page) == 6
    assert needed(log, 30, bytes_max=100_000) is not None


def test_records_that_a_start_left_in_the_log_are_fetched_from_there() -> None:
    disk = FakeDisk()
    fs = CoolFs(disk)
    log = SmallLog(fs)
    log.create(durability="fsync")
    log.append(count=3)
    log.checkpoint()
    log.append(count=4)
    disk.kill()
    log = SmallLog(fs)
    fs.cool()
    fetch(log)
    assert seqs_of(log.engine.read("a")) == list(range(1, 8))
    fs.cool()
    fetch(log, 3)
    assert needed(log, 3) is None
    assert seqs_of(log.engine.read("a", 3)) == [4, 5, 6, 7]


def test_a_segment_that_is_gone_meanwhile_is_no_error_of_the_fetch() -> None:
    log = filed(FakeDisk())
    work = needed(log)
    assert work is not None
    log.drop()
    work()
    log.create()
    assert log.engine.read("a").caught_up


def test_a_file_that_cannot_be_opened_is_told_with_topic_and_seq() -> None:
    fs = FaultFs(FakeDisk())
    log = filed(fs)
    work = needed(log, 5)
    assert work is not None
    fs.fail("open", error=errno.EMFILE, lasts=True, path=lambda path: path.endswith(".data"))
    with pytest.raises(ColdUnavailable) as refused:
        work()
    assert refused.value.detail == {"topic": "a", "seq": 6}
    with pytest.raises(ColdUnavailable) as refused:
        log.engine.read("a", 5)
    assert refused.value.detail == {"topic": "a", "seq": 6}
    fs.heal()
    assert log.seqs() == list(range(1, 13))


def test_a_page_ends_before_a_file_that_cannot_be_read_and_the_next_one_tells() -> None:
    fs = FaultFs(FakeDisk())
    log = filed(fs)
    fs.fail("open", error=errno.EIO, lasts=True, path=lambda path: "0006." in path)
    assert seqs_of(log.engine.read("a")) == [1, 2, 3, 4, 5]
    with pytest.raises(ColdUnavailable):
        log.engine.read("a", 5)


def test_bad_numbers_and_names_are_left_to_the_read_to_refuse() -> None:
    log = filed(FakeDisk())
    assert needed(log, -1) is None
    assert needed(log, 0, limit=-1) is None
    with pytest.raises(TopicNotFound):
        log.engine.fetch_needed("b", 0)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not tell what is cached")
def test_on_a_real_disk_a_fetch_in_a_pool_brings_the_page_into_the_cache(tmp_path: Path) -> None:
    log = SmallLog(RealFs(), root=str(tmp_path))
    log.create(durability="fsync")
    log.append(count=12)
    log.checkpoint()
    log.engine.read("a")
    if needed(log) is not None:
        pytest.skip("this file system does not tell what is cached")
    for path in tmp_path.rglob("seg-*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    work = needed(log)
    if work is None:
        pytest.skip("this file system does not let go of what is cached")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert needed(log) is None
    assert log.seqs() == list(range(1, 13))
    log.close()


# The cold tier.


def cold_log(fs: Fs, count: int = 20) -> SmallLog:
    """Segments of 5 records. All but the newest are in the cold tier only."""
    log = filed(fs, count, cold_dir="/cold", hot_retain_segments=1)
    for _ in range(3):
        while True:
            moved = log.opened.relocator.moved_total
            log.opened.relocator.tick()
            log.opened.relocator.tick()
            if log.opened.relocator.moved_total == moved:
                break
        log.topic().checkpoint.mark_changed()
        log.checkpoint()
    assert [segment.tier for segment in log.topic().live.segments.segments].count("cold") == count // 5 - 1
    return log


def is_cold(path: str) -> bool:
    return path.startswith("/cold")


def cache_of(log: SmallLog) -> CachedStore:
    assert log.engine.cold is not None
    return log.engine.cold


def test_a_cold_page_that_was_fetched_is_read_without_the_tier() -> None:
    fs = FaultFs(FakeDisk())
    log = cold_log(fs)
    fetch(log)
    assert needed(log, limit=15) is None
    fs.fail("open", "size", "exists", "pread", lasts=True, path=is_cold)
    page = log.engine.read("a", limit=15)
    assert seqs_of(page) == list(range(1, 16))
    assert page.cold_records == 15


def test_a_page_tells_how_many_of_its_records_are_cold() -> None:
    log = cold_log(FakeDisk())
    fetch(log, 12)
    page = log.engine.read("a", 12)
    assert (seqs_of(page), page.cold_records) == ([13, 14, 15, 16, 17, 18, 19, 20], 3)
    assert log.engine.read("a", 15).cold_records == 0


def test_an_outage_of_the_tier_is_raised_by_the_fetch_and_by_the_read() -> None:
    fs = FaultFs(FakeDisk())
    log = cold_log(fs)
    work = needed(log, 7)
    assert work is not None
    fs.fail("open", lasts=True, path=is_cold)
    with pytest.raises(ColdUnavailable) as refused:
        work()
    assert refused.value.detail == {"topic": "a", "seq": 8}
    with pytest.raises(ColdUnavailable) as refused:
        log.engine.read("a", 7)
    assert refused.value.detail == {"topic": "a", "seq": 8}
    assert seqs_of(log.engine.read("a", 15)) == [16, 17, 18, 19, 20]


def test_a_page_that_began_in_the_cache_ends_where_the_cache_does() -> None:
    fs = FaultFs(FakeDisk())
    log = cold_log(fs)
    fetch(log, limit=3)
    fs.fail("open", lasts=True, path=is_cold)
    page = log.engine.read("a", limit=3)
    assert seqs_of(page) == [1, 2, 3]
    fs.heal()
    fetch(log, limit=5)
    assert seqs_of(log.engine.read("a")) == [1, 2, 3, 4, 5]


def test_a_delete_that_reached_the_tier_is_not_undone_by_what_was_fetched_before() -> None:
    log = cold_log(FakeDisk())
    fetch(log)
    log.delete(seqs=[2, 4])
    assert seqs_of(log.engine.read("a", limit=3)) == [1, 3, 5]
    log.checkpoint()
    assert not log.topic().live.segments.has_pending(log.topic().live.segments.segments[0])
    fetch(log)
    assert log.seqs() == [1, 3, *range(5, 21)]


def test_without_a_tier_the_page_is_refused_at_once() -> None:
    disk = FakeDisk()
    cold_log(disk).close()
    log = SmallLog(disk)
    with pytest.raises(ColdUnavailable) as refused:
        needed(log)
    assert refused.value.detail == {"topic": "a", "seq": 1}


def test_the_bytes_kept_for_readers_are_bounded_by_the_page() -> None:
    log = cold_log(FakeDisk(), count=40)
    fetch(log, limit=2)
    index_bytes = 5 * 20
    assert index_bytes < cache_of(log).size_bytes < index_bytes + 200
    assert log.seqs() == list(range(1, 41))
