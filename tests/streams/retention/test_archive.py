"""Archiving: every sealed segment is copied once and completely, to folders and failing disks."""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import FULL, sampled_range
from tests.streams.retention.kept_topic import DATA, KeptTopic, key_of
from topics.formats.message_codec import Codec
from topics.storage.fs import RealFs
from topics.storage.tiers.folder_store import FolderStore
from topics.streams.retention.archive import ArchivePass, Archiver, open_archive
from topics.streams.retention.cleaner import Cleaner, RetainedPartition
from topics.streams.settings import StreamsSettings, from_mapping
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, Operation
from topics.testing.monitor_fs import MonitorFs

BACKUP: Final = f"{DATA}/backup"
NOTHING: Final = ArchivePass(0, 0)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def new_archiver(disk: FakeDisk) -> Archiver:
    """The archiver of a new process."""
    return Archiver(disk, DATA, FolderStore(disk, BACKUP))


def name_of(start_offset: int, suffix: str, partition_id: int = 0) -> str:
    return f"{key_of(partition_id)}/{start_offset:020d}{suffix}"


def local_files(disk: FakeDisk) -> dict[str, bytes]:
    """Files of segments by their names in the archive."""
    found = {}
    for path, content in disk.files().items():
        if path.startswith(f"{DATA}/streams/") and "/offsets/" not in path:
            found[path.removeprefix(f"{DATA}/")] = content
    return found


def archived_files(disk: FakeDisk) -> dict[str, bytes]:
    return {
        path.removeprefix(f"{BACKUP}/"): content
        for path, content in disk.files().items()
        if path.startswith(f"{BACKUP}/") and not path.endswith(".tmp")
    }


def sealed_files(disk: FakeDisk, topic: KeptTopic) -> dict[str, bytes]:
    stems = {
        name_of(segment.start_offset, "", partition_id)
        for partition_id, kept in enumerate(topic.partitions)
        for segment in kept.partition.segments
        if segment.is_sealed
    }
    return {name: content for name, content in local_files(disk).items() if name.rpartition(".")[0] in stems}


# --- copies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_sealed_segments_are_copied_under_their_names_and_the_active_one_is_not(disk: FakeDisk, codec: Codec) -> None:
    topic = KeptTopic(disk, partitions_count=2, codec=codec)
    # A payload that compresses well needs several batches for one segment.
    while len(topic.starts(0)) < 3:
        topic.fill(0, 1)
    topic.fill(1)
    archiver = new_archiver(disk)
    expected = sealed_files(disk, topic)
    assert archiver.run(topic.partitions) == ArchivePass(sum(name.endswith(".log") for name in expected), 0)
    assert archived_files(disk) == expected
    suffixes = {name.rpartition(".")[2] for name in expected}
    assert suffixes == ({"log", "index"} if codec is Codec.NONE else {"log", "index", "codec"})
    assert archiver.copied_bytes_total == sum(len(data) for name, data in expected.items() if name.endswith(".log"))


def test_a_segment_is_copied_once_also_by_later_processes(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    topic.fill()
    archiver = new_archiver(disk)
    assert archiver.run(topic.partitions) == ArchivePass(1, 0)
    touched: list[str] = []
    disk.on_operation = lambda operation, path: touched.append(f"{operation} {path}")
    assert archiver.run(topic.partitions) == NOTHING
    assert new_archiver(disk).run(topic.partitions) == NOTHING
    assert touched == []
    disk.on_operation = None
    topic.fill()
    assert archiver.run(topic.partitions) == ArchivePass(1, 0)
    assert archived_files(disk) == sealed_files(disk, topic)


def test_the_oldest_goes_first_and_the_log_of_each_last(disk: FakeDisk) -> None:
    topic = KeptTopic(disk, partitions_count=2)
    topic.fill(1, 0, 0, 1)
    renamed: list[str] = []
    disk.on_operation = lambda operation, path: renamed.append(path) if operation == "rename" else None
    new_archiver(disk).run(topic.partitions)
    order = [(1, 0), (0, 0), (0, 3), (1, 3)]
    assert renamed == [
        f"{BACKUP}/{name_of(start, suffix, partition_id)}"
        for partition_id, start in order
        for suffix in (".index", ".log")
    ]


@pytest.mark.parametrize("suffix", [".log", ".index", ".codec"])
def test_a_copy_that_is_half_there_is_made_again(disk: FakeDisk, suffix: str) -> None:
    topic = KeptTopic(disk, codec=Codec.GZIP)
    while len(topic.starts()) < 2:
        topic.fill()
    new_archiver(disk).run(topic.partitions)
    disk.unlink(f"{BACKUP}/{name_of(0, suffix)}")
    assert new_archiver(disk).run(topic.partitions) == ArchivePass(1, 0)
    assert archived_files(disk) == sealed_files(disk, topic)


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".log", lambda data: data + b"x"),
        (".index", lambda data: data + bytes(16)),
        (".index", lambda data: data[:8] + bytes(8) + data[16:]),
        (".index", lambda data: data[:-8] + bytes(8)),
        (".codec", lambda data: b"zstd"),
    ],
)
def test_another_segment_with_its_name_is_replaced(
    disk: FakeDisk, suffix: str, change: Callable[[bytes], bytes]
) -> None:
    topic = KeptTopic(disk, codec=Codec.GZIP)
    while len(topic.starts()) < 2:
        topic.fill()
    new_archiver(disk).run(topic.partitions)
    path = f"{BACKUP}/{name_of(0, suffix)}"
    disk.replace(path, change(disk.read(path)))
    assert new_archiver(disk).run(topic.partitions) == ArchivePass(1, 0)
    assert archived_files(disk) == sealed_files(disk, topic)


def test_a_segment_that_is_gone_is_forgotten(disk: FakeDisk) -> None:
    """Its copy stays, and the archiver forgets it, so that its memory does not grow for ever."""
    topic = KeptTopic(disk)
    topic.fill(0, 0)
    archiver = new_archiver(disk)
    archiver.run(topic.partitions)
    first, second = topic.partition().segments[:2]
    assert archiver.is_archived(key_of(0), first)
    topic.partition().delete_segment(0)
    archiver.run(topic.partitions)
    assert not archiver.is_archived(key_of(0), first)
    assert archiver.is_archived(key_of(0), second)
    assert name_of(0, ".log") in archived_files(disk)


def test_a_partition_that_began_anew_replaces_what_has_its_names(disk: FakeDisk) -> None:
    """After a purge offsets and names start at 0 again. The old copies are not taken for copies of the new segments."""
    topic = KeptTopic(disk)
    topic.fill()
    archiver = new_archiver(disk)
    archiver.run(topic.partitions)
    before = archived_files(disk)
    topic.partition().purge()
    topic.fill()
    assert not archiver.is_archived(key_of(0), topic.partition().segments[0])
    after = sealed_files(disk, topic)
    assert {name: len(data) for name, data in after.items()} == {name: len(data) for name, data in before.items()}
    for again in (archiver, new_archiver(disk)):
        disk.replace(f"{BACKUP}/{name_of(0, '.codec')}", b"gzip")
        again.run(topic.partitions)
        assert archived_files(disk) == after
        assert again.is_archived(key_of(0), topic.partition().segments[0])


def test_a_segment_that_was_deleted_meanwhile_is_not_missed(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    for _ in range(2):
        topic.fill()
    segments = topic.partition().segments

    class Before:
        """The partition at the moment when the pass began."""

        size_bytes = 0

        def __init__(self) -> None:
            self.segments = segments

        def delete_segment(self, start_offset: int) -> None:
            topic.partition().delete_segment(start_offset)

    kept = RetainedPartition(key=key_of(0), partition=Before(), offsets=topic.partitions[0].offsets)
    kept.partition.delete_segment(0)
    assert new_archiver(disk).run([kept]) == ArchivePass(1, 0)
    assert set(archived_files(disk)) == {name_of(3, ".log"), name_of(3, ".index")}


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".index", lambda data: data[:16]),
        (".index", lambda data: data + data[:16]),
        (".index", lambda data: data[:8] + bytes(8) + data[16:]),
        (".index", lambda data: data[:-8] + bytes(8)),
        (".index", lambda data: b""),
        (".log", lambda data: data[:-1]),
    ],
)
def test_files_that_are_not_what_the_partition_says_are_not_archived(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, suffix: str, change: Callable[[bytes], bytes]
) -> None:
    """For example, the partition was purged and filled again since the pass began."""
    topic = KeptTopic(disk)
    topic.fill()
    path = f"{DATA}/{name_of(0, suffix)}"
    disk.replace(path, change(disk.read(path)))
    assert new_archiver(disk).run(topic.partitions) == ArchivePass(0, 1)
    assert "does not describe the segment" in caplog.text
    assert archived_files(disk) == {}


# --- answers to retention ---------------------------------------------------------------------------------------


def test_only_what_is_archived_may_go(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    for _ in range(2):
        topic.fill()
    archiver = new_archiver(disk)
    cleaner = Cleaner(keep_unconsumed=False, must_stay=archiver.must_stay)
    retained = topic.retained(message_expiry_us=1, max_bytes=1)
    cleaner.run(retained, topic.now_us() + 1)
    assert topic.starts() == [0, 3, 6]
    archiver.run(topic.partitions)
    topic.fill()
    cleaner.run(retained, topic.now_us() + 1)
    assert topic.starts() == [6, 9]
    archiver.run(topic.partitions)
    cleaner.run(retained, topic.now_us() + 1)
    assert topic.starts() == [9]
    assert {name for name in archived_files(disk) if name.endswith(".log")} == {
        name_of(start, ".log") for start in (0, 3, 6)
    }


@pytest.mark.parametrize("loss", ["gone", "cut", "no answer"])
def test_a_copy_that_is_not_there_any_more_protects_its_segment(disk: FakeDisk, loss: str) -> None:
    faults = FaultFs(disk)
    topic = KeptTopic(disk)
    topic.fill()
    archiver = Archiver(disk, DATA, FolderStore(faults, BACKUP))
    archiver.run(topic.partitions)
    segment = topic.partition().segments[0]
    assert not archiver.must_stay(key_of(0), segment)
    path = f"{BACKUP}/{name_of(0, '.log')}"
    if loss == "gone":
        disk.unlink(path)
    elif loss == "cut":
        disk.replace(path, b"")
    else:
        faults.fail("size", lasts=True)
    assert archiver.must_stay(key_of(0), segment)


# --- errors -----------------------------------------------------------------------------------------------------

STORE_CALLS: Final[tuple[Operation, ...]] = (
    *("exists", "makedirs", "create", "pwrite", "fsync", "rename", "sync_dir", "unlink", "size", "open", "pread"),
)


def check_complete_copies(disk: FakeDisk, *lives: dict[str, bytes]) -> None:
    """A `.log` and the files beside it are from the same side of a purge."""
    archived = archived_files(disk)
    for name in archived:
        stem, _, suffix = name.rpartition(".")
        if suffix == "log":
            copy = {other: data for other, data in archived.items() if other.rpartition(".")[0] == stem}
            assert copy in [
                {other: data for other, data in life.items() if other.rpartition(".")[0] == stem} for life in lives
            ]


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("operation", STORE_CALLS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_archive_that_fails_is_never_wrong_and_the_next_pass_completes_it(
    operation: Operation, error: int, lasts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    fired = 0
    for at in range(1000):
        disk = FakeDisk()
        topic = KeptTopic(disk)
        topic.fill()
        new_archiver(disk).run(topic.partitions)
        first_life = archived_files(disk)
        topic.partition().purge()
        topic.fill(0, 0)
        second_life = sealed_files(disk, topic)
        faults = FaultFs(disk)
        fault = faults.fail(operation, error=error, at=at, lasts=lasts)
        archiver = Archiver(disk, DATA, FolderStore(faults, BACKUP))
        done = archiver.run(topic.partitions)
        check_complete_copies(disk, first_life, second_life)
        for segment in topic.partition().segments[:2]:
            if archiver.is_archived(key_of(0), segment):
                assert (
                    archived_files(disk)[name_of(segment.start_offset, ".log")]
                    == (second_life[name_of(segment.start_offset, ".log")])
                )
        topic.fill()
        assert len(topic.messages()) == 9
        faults.heal()
        archiver.run(topic.partitions)
        assert archived_files(disk) == sealed_files(disk, topic)
        if not fault.fired_count:
            assert done == ArchivePass(2, 0)
            break
        fired += 1
    assert fired


@pytest.mark.parametrize("operation", ["open", "map", "exists", "pread"])
def test_a_segment_that_cannot_be_read_does_not_keep_others_from_the_archive(
    disk: FakeDisk, operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    topic = KeptTopic(disk, codec=Codec.GZIP)
    while len(topic.starts()) < 4:
        topic.fill()
    first = topic.starts()[0]
    faults = FaultFs(disk)
    faults.fail(operation, path=lambda path: f"{first:020d}" in path)
    archiver = Archiver(faults, DATA, FolderStore(disk, BACKUP))
    assert archiver.run(topic.partitions) == ArchivePass(2, 1)
    assert f"{key_of(0)}: segment {first} is not archived" in caplog.text
    assert archiver.run(topic.partitions) == ArchivePass(1, 0)
    assert archived_files(disk) == sealed_files(disk, topic)


def test_an_archive_without_room_ends_the_pass_and_not_the_appends(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture
) -> None:
    small = FakeDisk(capacity_bytes=1500)
    topic = KeptTopic(disk)
    for _ in range(3):
        topic.fill()
    archiver = Archiver(disk, DATA, FolderStore(small, BACKUP))
    assert archiver.run(topic.partitions) == ArchivePass(1, 2)
    assert "2 segments are not archived; the next pass tries again" in caplog.text
    topic.fill()
    small.capacity_bytes = None
    assert archiver.run(topic.partitions) == ArchivePass(3, 0)
    assert archived_files(small) == sealed_files(disk, topic)


# --- crashes ----------------------------------------------------------------------------------------------------

Life = Callable[[KeptTopic, Archiver], None]


def archive(topic: KeptTopic, archiver: Archiver) -> None:
    archiver.run(topic.partitions)


def archive_and_clean(topic: KeptTopic, archiver: Archiver) -> None:
    archive(topic, archiver)
    cleaner = Cleaner(keep_unconsumed=False, must_stay=archiver.must_stay)
    cleaner.run(topic.retained(message_expiry_us=1), topic.now_us() + 1)


def first_life_of(disk: FakeDisk, codec: Codec) -> KeptTopic:
    topic = KeptTopic(disk, partitions_count=2, codec=codec)
    while len(topic.starts(0)) < 3:
        topic.fill(0, 1)
    return topic


def crash_points(prepared: FakeDisk, codec: Codec, life: Life) -> Iterator[tuple[int, FakeDisk]]:
    for operation_index in sampled_range(10_000, 3):
        disk = prepared.clone()
        topic = KeptTopic(disk, partitions_count=2, codec=codec)
        archiver = Archiver(MonitorFs(disk), DATA, FolderStore(MonitorFs(disk), BACKUP))
        hook = CrashAt(operation_index)
        disk.on_operation = hook
        try:
            life(topic, archiver)
        except CrashNow:
            pass
        disk.on_operation = None
        yield operation_index, disk
        if hook.count <= operation_index:
            return


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("life", [archive, archive_and_clean])
@pytest.mark.parametrize("has_earlier_life", [False, True])
def test_a_crash_anywhere_leaves_each_segment_whole_in_one_place_at_least(
    life: Life,
    codec: Codec,
    has_earlier_life: bool,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """The next process completes the archive."""
    caplog.set_level(logging.ERROR)
    prepared = FakeDisk()
    topic = first_life_of(prepared, codec)
    lives = [sealed_files(prepared, topic)]
    if has_earlier_life:
        new_archiver(prepared).run(topic.partitions)
        for partition_id in range(2):
            topic.partition(partition_id).purge()
        while len(topic.starts(0)) < 3:
            topic.fill(0, 1)
        lives.append(sealed_files(prepared, topic))
    present = lives[-1]
    prepared.kill()
    points = recoveries = 0
    for operation_index, disk in crash_points(prepared, codec, life):
        points += 1
        damages = list(Damage) if FULL else [list(Damage)[(operation_index + step) % len(Damage)] for step in (0, 3)]
        for damage in damages:
            survivor = disk.clone()
            survivor.crash(damage, operation_index)
            check_complete_copies(survivor, *lives)
            for name, data in present.items():
                if name.endswith(".log"):
                    assert data in (local_files(survivor).get(name), archived_files(survivor).get(name))
            again = KeptTopic(survivor, partitions_count=2, codec=codec)
            archiver = new_archiver(survivor)
            assert archiver.run(again.partitions).left_count == 0
            assert archived_files(survivor) == present
            survivor.crash(Damage.DROP)
            assert archived_files(survivor) == present, "what counts as archived is durable"
            recoveries += 2
    record_property("sweep", ["archive crash sweep", points, recoveries])
    assert points > 10


# --- the place of the archive -----------------------------------------------------------------------------------


def settings_of(**archiver: object) -> StreamsSettings:
    return from_mapping({"data_maintenance": {"archiver": archiver}})


def test_the_archive_is_a_folder_of_the_data_directory_unless_settings_name_another(tmp_path: Path) -> None:
    fs = RealFs()
    assert open_archive(fs, DATA, StreamsSettings()).address == BACKUP
    assert open_archive(fs, DATA, settings_of(disk={"path": "/mnt/share/copies"})).address == "/mnt/share/copies"
    assert open_archive(fs, DATA, from_mapping({"system": {"backup": {"path": "copies"}}})).address == f"{DATA}/copies"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_on_the_machine_holds_what_the_partition_does(tmp_path: Path) -> None:
    fs, root = RealFs(), str(tmp_path / "data")
    topic = KeptTopic(fs, root)
    topic.fill(0, 0)
    archiver = Archiver(fs, root, open_archive(fs, root, StreamsSettings()))
    assert archiver.run(topic.partitions) == ArchivePass(2, 0)
    for start in (0, 3):
        for suffix in (".log", ".index"):
            name = name_of(start, suffix)
            assert (tmp_path / "data/backup" / name).read_bytes() == (tmp_path / "data" / name).read_bytes()
    assert len(list((tmp_path / "data/backup").rglob("*.*"))) == 4
