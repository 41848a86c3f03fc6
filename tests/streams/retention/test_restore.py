"""Restoring archived segments: all of them, only where they fit, and again after an interruption."""

import logging
from collections.abc import Callable
from typing import Final

import pytest

from tests.conftest import FULL, sampled_range
from tests.streams.retention.kept_topic import BATCH_MESSAGES, DATA, KeptTopic, key_of
from tests.streams.retention.test_archive import BACKUP, archived_files, local_files, name_of
from topics.errors import ColdUnavailable, StartRefused
from topics.formats.message_codec import Codec
from topics.storage.tiers.folder_store import FolderStore
from topics.streams.retention.archive import Archiver
from topics.streams.retention.restore import PIECE_BYTES, RestoreReport, restore
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

SEGMENTS: Final = 3


class Archived:
    """A data directory with three sealed segments in each of two partitions, and their archive on another disk."""

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self.codec = codec
        self.disk = FakeDisk()
        self.topic = KeptTopic(self.disk, partitions_count=2, codec=codec)
        while len(self.topic.starts(0)) <= SEGMENTS:
            self.topic.fill(0, 1)
        self.share = FakeDisk()
        self.store = FolderStore(self.share, BACKUP)
        Archiver(self.disk, DATA, self.store).run(self.topic.partitions)
        self.files = archived_files(self.share)
        # The files of the sealed segments; there are no others.
        self.messages = [self.topic.messages(partition_id) for partition_id in range(2)]

    def reopened(self, disk: FakeDisk) -> KeptTopic:
        return KeptTopic(disk, partitions_count=2, codec=self.codec)


def snapshot(disk: FakeDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.files().items() if not path.endswith(".tmp")}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_an_empty_directory_gets_everything_back_and_goes_on(codec: Codec) -> None:
    archived = Archived(codec)
    disk = FakeDisk()
    monitor = MonitorFs(disk)
    report = restore(archived.store, monitor, DATA)
    assert monitor.check_settled() == []
    log_bytes = sum(len(data) for name, data in archived.files.items() if name.endswith(".log"))
    assert report == RestoreReport(2 * SEGMENTS, log_bytes, 0)
    assert local_files(disk) == archived.files
    topic = archived.reopened(disk)
    for partition_id in range(2):
        assert topic.messages(partition_id) == archived.messages[partition_id]
        topic.fill(partition_id)
        expected = list(range(len(archived.messages[partition_id]) + BATCH_MESSAGES))
        assert list(topic.messages(partition_id)) == expected


def test_a_directory_that_kept_the_newest_gets_the_older_ones_back() -> None:
    archived = Archived()
    topic = archived.topic
    for start in topic.starts(0)[:2]:
        topic.partition(0).delete_segment(start)
    topic.fill(0)
    topic.close()
    report = restore(archived.store, archived.disk, DATA)
    assert (report.restored_segments, report.present_segments) == (2, 2 * SEGMENTS - 2)
    found = archived.reopened(archived.disk).messages(0)
    assert list(found) == list(range((SEGMENTS + 1) * BATCH_MESSAGES))
    assert archived.messages[0].items() <= found.items()


def test_a_directory_that_lost_the_newest_gets_them_back() -> None:
    archived = Archived()
    archived.topic.close()
    for name in local_files(archived.disk):
        if f"/{0:020d}" not in name:
            archived.disk.unlink(f"{DATA}/{name}")
    assert restore(archived.store, archived.disk, DATA).restored_segments == 2 * SEGMENTS - 2
    assert archived.reopened(archived.disk).messages(0) == archived.messages[0]


def test_the_newest_comes_first_so_that_half_a_restore_has_no_gap() -> None:
    archived = Archived()
    disk = FakeDisk()
    renamed: list[str] = []
    disk.on_operation = lambda operation, path: renamed.append(path) if operation == "rename" else None
    restore(archived.store, disk, DATA, prefix=f"{key_of(0)}/")
    logs = [path for path in renamed if path.endswith(".log")]
    assert logs == [f"{DATA}/{name_of(start, '.log')}" for start in (6, 3, 0)]


def test_what_is_there_already_is_left_alone() -> None:
    archived = Archived()
    archived.topic.close()
    before = snapshot(archived.disk)
    touched: list[str] = []
    archived.disk.on_operation = lambda operation, path: touched.append(f"{operation} {path}")
    assert restore(archived.store, archived.disk, DATA) == RestoreReport(0, 0, 2 * SEGMENTS)
    assert touched == []
    assert snapshot(archived.disk) == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_empty_segment_of_a_new_partition_makes_room(codec: Codec) -> None:
    archived = Archived(codec)
    disk = FakeDisk()
    other = Codec.GZIP if codec is Codec.NONE else Codec.NONE
    KeptTopic(disk, partitions_count=2, codec=other).close()
    restore(archived.store, disk, DATA)
    assert local_files(disk) == archived.files


def test_one_partition_can_be_restored_alone() -> None:
    archived = Archived()
    disk = FakeDisk()
    assert restore(archived.store, disk, DATA, prefix=f"{key_of(1)}/").restored_segments == SEGMENTS
    assert local_files(disk) == {name: data for name, data in archived.files.items() if name.startswith(key_of(1))}


def test_nothing_to_restore_is_no_error() -> None:
    disk = FakeDisk()
    assert restore(FolderStore(disk, BACKUP), disk, DATA) == RestoreReport(0, 0, 0)
    assert disk.files() == {}


# --- refusals: nothing is changed -------------------------------------------------------------------------------


def refuse_restore(archived: Archived, disk: FakeDisk, message: str) -> None:
    before = snapshot(disk)
    with pytest.raises(StartRefused, match=message):
        restore(archived.store, disk, DATA)
    assert snapshot(disk) == before


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".log", lambda data: data + b"x"),
        (".index", lambda data: data[:-16] + bytes(16)),
        (".index", lambda data: data + data[-16:]),
        (".index", lambda data: data[:-16]),
    ],
)
def test_a_segment_of_the_same_name_that_differs_refuses(suffix: str, change: Callable[[bytes], bytes]) -> None:
    archived = Archived()
    path = f"{DATA}/{name_of(0, suffix, 1)}"
    archived.disk.replace(path, change(archived.disk.read(path)))
    refuse_restore(archived, archived.disk, "differs from")


def test_segments_from_before_a_purge_refuse() -> None:
    """After a purge offsets start at 0 again: archived segments would have higher offsets than new messages."""
    archived = Archived()
    disk = FakeDisk()
    topic = archived.reopened(disk)
    topic.fill(0)
    topic.close()
    # Its first segment is not in the archive, so no file exists in both.
    for suffix in (".log", ".index"):
        archived.share.unlink(f"{BACKUP}/{name_of(0, suffix, 0)}")
    refuse_restore(archived, disk, "has messages from offset 0 on that are not archived")


def test_a_log_without_an_index_refuses() -> None:
    archived = Archived()
    archived.share.unlink(f"{BACKUP}/{name_of(3, '.index', 1)}")
    refuse_restore(archived, FakeDisk(), "has no .index")


@pytest.mark.parametrize("damage", ["short log", "odd index", "empty index"])
def test_a_log_that_its_index_does_not_describe_refuses(damage: str) -> None:
    archived = Archived()
    path = f"{BACKUP}/{name_of(3, '.log' if damage == 'short log' else '.index', 1)}"
    content = archived.share.read(path)
    archived.share.replace(path, b"" if damage == "empty index" else content[:-1])
    refuse_restore(archived, FakeDisk(), "is not what its .index says")


def test_what_has_no_log_was_never_complete_and_is_left_out() -> None:
    archived = Archived()
    archived.share.unlink(f"{BACKUP}/{name_of(6, '.log', 1)}")
    disk = FakeDisk()
    assert restore(archived.store, disk, DATA).restored_segments == 2 * SEGMENTS - 1
    assert name_of(6, ".index", 1) not in local_files(disk)


@pytest.mark.parametrize("name", ["streams/notes.log", "streams/0/00000000000000000000.log.old", "streams/7.log"])
def test_names_that_are_none_of_ours_are_left_out(name: str) -> None:
    archived = Archived()
    archived.store.put(name, b"something else")
    disk = FakeDisk()
    assert restore(archived.store, disk, DATA).restored_segments == 2 * SEGMENTS
    assert local_files(disk) == archived.files


# --- errors -----------------------------------------------------------------------------------------------------


def test_an_archive_that_stops_answering_stops_it_and_the_next_try_goes_on() -> None:
    archived = Archived()
    faults = FaultFs(archived.share)
    disk = FakeDisk()
    stopped = 0
    for at in range(1000):
        fault = faults.fail("pread", at=at)
        try:
            restore(FolderStore(faults, BACKUP), disk, DATA)
        except ColdUnavailable:
            stopped += 1
        for name, data in local_files(disk).items():
            if not name.endswith(".tmp"):
                assert data == archived.files[name]
        faults.heal()
        if not fault.fired_count:
            break
    assert stopped
    restore(archived.store, disk, DATA)
    assert local_files(disk) == archived.files


def test_an_object_that_shrinks_while_it_is_read_is_not_taken() -> None:
    class Shrinking(FolderStore):
        def read_range(self, name: str, offset: int, size: int) -> bytes:
            data = super().read_range(name, offset, size)
            return data[:-1] if name.endswith(".log") else data

    archived = Archived()
    disk = FakeDisk()
    with pytest.raises(StartRefused, match="became shorter while it was read"):
        restore(Shrinking(archived.share, BACKUP), disk, DATA)
    assert not any(name.endswith(".log") for name in local_files(disk))


def test_a_segment_that_is_larger_than_a_chunk_comes_back_whole() -> None:
    share, disk = FakeDisk(), FakeDisk()
    store = FolderStore(share, BACKUP)
    log = bytes(range(256)) * (PIECE_BYTES // 256 + 1)
    index = bytes(4) + len(log).to_bytes(4, "little") + bytes(8)
    store.put(name_of(0, ".index"), index)
    store.put(name_of(0, ".log"), log)
    assert restore(store, disk, DATA) == RestoreReport(1, len(log), 0)
    assert restore(store, disk, DATA) == RestoreReport(0, 0, 1)
    assert local_files(disk) == {name_of(0, ".index"): index, name_of(0, ".log"): log}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_after_a_crash_anywhere_a_second_run_completes_it(
    codec: Codec, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    """A segment is never restored in part: its files are those of the archive."""
    caplog.set_level(logging.ERROR)
    archived = Archived(codec)
    points = recoveries = 0
    for operation_index in sampled_range(10_000, 3):
        disk = FakeDisk()
        hook = CrashAt(operation_index)
        disk.on_operation = hook
        try:
            restore(archived.store, MonitorFs(disk), DATA)
        except CrashNow:
            pass
        disk.on_operation = None
        points += 1
        damages = list(Damage) if FULL else [list(Damage)[(operation_index + step) % len(Damage)] for step in (0, 3)]
        for damage in damages:
            survivor = disk.clone()
            survivor.crash(damage, operation_index)
            found = {name: data for name, data in local_files(survivor).items() if not name.endswith(".tmp")}
            assert found.items() <= archived.files.items()
            for name in archived.files:
                # A log never comes before the files beside it.
                assert name in found or f"{name.rpartition('.')[0]}.log" not in found
            restore(archived.store, survivor, DATA)
            survivor.crash(Damage.DROP)
            again = archived.reopened(survivor)
            for partition_id in range(2):
                assert again.messages(partition_id) == archived.messages[partition_id]
            recoveries += 2
        if hook.count <= operation_index:
            break
    record_property("sweep", ["restore crash sweep", points, recoveries])
    assert points > 10
